"""Counts the writes, fsyncs and renames of this process, and kills it at a chosen one."""

import builtins
import io
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nipstool.kit import parts


@dataclass
class Places:
    """Where events are logged, a word each, and at which of them (from 0 on) the process dies; None: at none.

    The words are write, fsync, rename, and place for the rename to `output`.
    """

    output: str
    log: Path | None = None
    kill_at: int | None = None
    _seen: int = -1

    def install(self) -> None:
        """From now on, in this process."""
        for name in ("fsync", "fdatasync"):
            self._wrap(os, name, "fsync")
        for name in ("rename", "replace", "link"):
            self._wrap(os, name, "rename")
        self._wrap(parts, "_renameat2", "rename")
        self._wrap_writes(parts.RawOutput)
        opened = builtins.open
        builtins.open = io.open = self._opening(opened)  # type: ignore[assignment]

    def event(self, kind: str, half: Callable[[], object] = lambda: None) -> None:
        """Something is about to happen; `half` does the first half of it."""
        self._seen += 1
        if self.log is not None:
            descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, f"{kind}\n".encode())
            os.close(descriptor)
        if self._seen == self.kill_at:
            half()
            os.kill(os.getpid(), signal.SIGKILL)

    def _wrap(self, owner: Any, name: str, kind: str) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **named: Any) -> Any:
            placed = kind == "rename" and os.path.basename(args[1]) == self.output
            self.event("place" if placed else kind)
            return original(*args, **named)

        setattr(owner, name, wrapped)

    def _wrap_writes(self, kind: type[io.FileIO]) -> None:
        original = kind.write

        def write(raw: io.FileIO, data: Any) -> int:
            view = memoryview(data).cast("B")
            self.event("write", lambda: original(raw, view[: len(view) // 2]))
            return original(raw, data)

        kind.write = write  # type: ignore[method-assign]

    def _opening(self, opened: Callable[..., Any]) -> Callable[..., Any]:
        """open() whose files inside a part tell of their writes."""
        counting = type("Counting", (io.FileIO,), {})
        self._wrap_writes(counting)

        def opening(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
            if (
                not isinstance(file, str | os.PathLike)
                or ".part" not in os.fspath(file)
                or not set(mode) & set("wax+")
            ):
                return opened(file, mode, *args, **named)
            raw = counting(file, mode.replace("b", "").replace("t", ""))
            if (args and args[0] == 0) or named.get("buffering") == 0:
                return raw
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            if "b" in mode:
                return buffered
            text = {key: named[key] for key in ("encoding", "errors", "newline") if key in named}
            return io.TextIOWrapper(buffered, **text)

        return opening
