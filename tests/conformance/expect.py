"""What a run must look like, in its words and its files."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from nipstool.kit.manifest import manifest_path
from tests.conformance.cases import Case
from tests.conformance.shell import Outcome, Shell

# the contract's numbers, written out rather than taken from the code that must keep them
USAGE, BAD_DATA, NO_INPUT, CANNOT_CREATE, BUSY, INTERRUPTED, TERMINATED = 2, 65, 66, 73, 75, 130, 143

HEAVY = {"torch", "numpy", "scipy", "mne", "cv2", "transformers"}
Start = Callable[[Case], Shell]


def assert_one_line(outcome: Outcome, *statuses: int) -> None:
    """The run failed as it should: one of these statuses, and one line on stderr that says why."""
    assert outcome.status in statuses, outcome
    assert outcome.err.startswith("nipstool: "), outcome
    assert outcome.err.count("\n") == 1, outcome
    assert "internal error" not in outcome.err


def assert_done(outcome: Outcome) -> None:
    """The run succeeded; stderr has warnings and notes at most."""
    assert outcome.status == 0, outcome
    assert all(line.startswith("nipstool: ") for line in outcome.err.splitlines()), outcome
    assert b"\x1b" not in outcome.out + outcome.err.encode(), outcome


def assert_failed_at_the_end(done: Outcome) -> None:
    """Status 1; after warnings and notes about the result, one line that says what failed."""
    assert done.status == 1, done
    assert all(line.startswith("nipstool: ") for line in done.err.splitlines()), done
    assert done.err.count("standard output") == 1, done


def heavy_imports(importtime: str) -> set[str]:
    """The heavy packages among those that `python -X importtime` lists."""
    names = {line.rpartition("|")[2].strip() for line in importtime.splitlines()}
    assert "nipstool.cli" in names  # it was listed at all
    return {name for name in names if name.partition(".")[0] in HEAVY}


def content(path: Path) -> bytes | dict[str, bytes]:
    """A file's bytes, or those of every file of a folder."""
    if path.is_dir():
        return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return path.read_bytes()


def expected_files(case: Case) -> set[str]:
    """What lies in the folder after a valid run: nothing but inputs, output and its manifest."""
    with tempfile.TemporaryDirectory() as folder:
        case.make(Path(folder))
        inputs = set(os.listdir(folder))
    outputs = {case.output, manifest_path(Path(case.output)).name} if case.output else set()
    return inputs | outputs


def output_of(case: Case, shell: Shell) -> Path:
    """Where a valid run puts its output."""
    assert case.output is not None
    return shell.work / case.output


def put_old(case: Case, shell: Shell) -> bytes | dict[str, bytes]:
    """Something in the output's place, and its content."""
    place = output_of(case, shell)
    if case.folder:
        place.mkdir()
        (place / "old").write_bytes(b"old")
    else:
        place.write_bytes(b"old")
    return content(place)


def force(case: Case) -> list[str]:
    """What a second run needs to replace the output of the first."""
    return ["--force"] if case.output is not None else []
