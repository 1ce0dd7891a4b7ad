"""What the words of a run must look like."""

from tests.conformance.shell import Outcome

HEAVY = {"torch", "numpy", "scipy", "mne", "cv2", "transformers"}


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


def heavy_imports(importtime: str) -> set[str]:
    """The heavy packages among those that `python -X importtime` lists."""
    names = {line.rpartition("|")[2].strip() for line in importtime.splitlines()}
    assert "nipstool.cli" in names  # it was listed at all
    return {name for name in names if name.partition(".")[0] in HEAVY}
