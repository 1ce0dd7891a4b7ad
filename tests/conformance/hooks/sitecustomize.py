"""Lets a test stop a run at a chosen point: Python imports this at its start, as it lies on PYTHONPATH.

PAUSE_AT=fsync stops when an output is complete but not yet in place; PAUSE_AT=open:NAME when the file NAME is
about to be opened. The file PAUSED tells the test that the point is reached.
"""

import os
import time
from pathlib import Path


def install() -> None:
    """Do what the environment asks for, if anything."""
    where, _, name = os.environ.get("PAUSE_AT", "").partition(":")
    if where == "fsync":
        os.fsync = lambda fd: pause()
    elif where == "open":
        import sys

        sys.addaudithook(lambda event, args: pause() if event == "open" and _is(args[0], name) else None)


def _is(path: object, name: str) -> bool:
    return isinstance(path, str | os.PathLike) and f"/{os.fspath(path)}".endswith(f"/{name}")


def pause() -> None:
    """Stay here until a signal comes."""
    Path(os.environ["PAUSED"]).touch()
    time.sleep(60)


install()
