"""Signals that wait for the end of a block."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from nipstool.kit.signals import uninterrupted


@pytest.fixture
def came() -> Iterator[list[int]]:
    """The numbers of the SIGTERMs that were handled."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, before)


def test_a_signal_waits_for_the_end_of_the_block(came: list[int]) -> None:
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        assert came == []
    assert came == [signal.SIGTERM]
    os.kill(os.getpid(), signal.SIGTERM)
    assert came == [signal.SIGTERM] * 2


def test_a_signal_is_not_lost_where_the_block_raises(came: list[int]) -> None:
    with suppress(ValueError), uninterrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("broken")
    assert came == [signal.SIGTERM]
