"""The assertions that the suite trusts."""

import pytest

from tests.conformance.expect import assert_one_line
from tests.conformance.shell import Outcome


def test_outcomes_are_compared_whole() -> None:
    """A run that failed as it should has the status, one line on stderr, and our name before it."""
    for bad in (
        Outcome(3, b"", "nipstool: x\n"),
        Outcome(2, b"", ""),
        Outcome(2, b"", "nipstool: x\ny\n"),
        Outcome(2, b"", "x\n"),
    ):
        with pytest.raises(AssertionError):
            assert_one_line(bad, 2)
    assert_one_line(Outcome(2, b"", "nipstool: x\n"), 2)
