"""Five of each fault; `make faults` does a hundred and two thousand."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("script", ["kills.py", "mutations.py"])
def test_no_fault_is_found(script: str) -> None:
    command = [sys.executable, str(HERE / script), "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["0 faults"]), done.stdout + done.stderr
