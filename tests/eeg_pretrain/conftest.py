"""What the tests of eeg-pretrain share."""

from collections.abc import Callable
from pathlib import Path

import pytest

Put = Callable[[str, bytes], Path]


@pytest.fixture(scope="session")
def eeg(data_dir: Path) -> Path:
    """The real recordings and label files."""
    return data_dir / "eeg-pretrain"


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Writes bytes under a name, which may hold folders, and gives the path."""

    def write(name: str, data: bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    return write
