"""Signals that wait for the end of a block."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nipstool.kit import files, parts
from nipstool.kit.files import AtomicFile, AtomicFolder
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


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, though the tests may run in a shell's background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# What opening an output calls, in whose midst a signal may come.
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("output", "owner", "name"),
    [
        (AtomicFile, parts, "_lock"),
        (AtomicFile, parts, "leads_to"),
        (AtomicFile, files, "open_locked"),
        (AtomicFile, files, "RawOutput"),
        (AtomicFolder, parts, "_lock"),
        (AtomicFolder, files, "open_locked"),
        (AtomicFolder, files, "remove_tree"),
    ],
)
def test_a_signal_while_an_output_is_opened_leaves_nothing(
    output: Any, owner: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = getattr(owner, name)

    def interrupted(*words: Any) -> Any:
        monkeypatch.setattr(owner, name, called)  # once
        found = called(*words)
        signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt), output(tmp_path / "out"):
        raise AssertionError("the block began")
    assert os.listdir(tmp_path) == []
    with output(tmp_path / "out"):
        pass
    assert os.listdir(tmp_path) == ["out"]
