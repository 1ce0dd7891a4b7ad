"""Signals that wait until a piece of work is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT and SIGTERM that come while the block runs are handled when it ends, by the handlers that were there.

    That holds where the block raises, too.

    Elsewhere than in the main thread, where Python handles no signals, it changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    before = {
        number: signal.signal(number, lambda *what: came.append(what))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        for number, frame in came:
            handler = before[signal.Signals(number)]
            if callable(handler):
                handler(number, frame)
            elif handler == signal.SIG_DFL:
                signal.raise_signal(number)
