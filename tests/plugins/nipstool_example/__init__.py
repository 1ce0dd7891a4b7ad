"""A third party's package with commands for nipstool. It tells when it is imported, so that a test can see it."""

import os
from pathlib import Path

if marker := os.environ.get("EXAMPLE_IMPORTED"):
    Path(marker).touch()
