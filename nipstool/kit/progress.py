"""Progress of long work: one callable that core functions take, and three ways to show it."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, TextIO

Progress = Callable[[int, int], None]
"""`progress(done, total)`: units done so far, and units in all (0 where nobody knows)."""

INTERVAL_S = 0.5  # between two lines of plain or JSON progress


def silent(done: int, total: int) -> None:
    """The progress of a notebook that wants none."""


class Stages(Protocol):
    """How work in several stages is shown: lines for people, and a progress for each named stage."""

    def note(self, text: str) -> None:
        """A line."""

    def progress(self, label: str) -> AbstractContextManager[Progress]:
        """The progress of one stage."""
        ...


class Silent:
    """Stages that show nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def progress(self, label: str) -> AbstractContextManager[Progress]:
        """A progress that shows nothing."""
        return nullcontext(silent)


@contextmanager
def progress_on(stream: TextIO | None, label: str, style: str = "auto") -> Iterator[Progress]:
    """Show progress on a stream, usually stderr.

    Args:
        stream: where to; None (a closed stderr) shows nothing.
        label: what is being done, in a word or two.
        style: "auto" (a rich bar on a TTY, else nothing), "plain", "json" (a JSON object a line) or "none".
    """
    if stream is None or style == "none" or (style == "auto" and not stream.isatty()):
        yield silent
    elif style == "auto":
        with _bar(stream, label) as progress:
            yield progress
    else:
        yield _lines(stream, label, as_json=style == "json")


@contextmanager
def _bar(stream: TextIO, label: str) -> Iterator[Progress]:
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def _lines(stream: TextIO, label: str, *, as_json: bool) -> Progress:
    started = time.monotonic()
    last = -INTERVAL_S

    def show(done: int, total: int) -> None:
        nonlocal last
        elapsed = time.monotonic() - started
        if elapsed - last < INTERVAL_S and done != total:
            return
        last = elapsed
        left = elapsed / done * (total - done) if done and total else None
        if as_json:
            record = {"task": label, "done": done, "total": total or None, "seconds": round(elapsed, 3)}
            record["seconds_left"] = None if left is None else round(left, 3)
            print(json.dumps(record), file=stream, flush=True)
        else:
            of = f"/{total}" if total else ""
            rest = "" if left is None else f", {left:.0f} s left"
            print(f"{label}: {done}{of}, {elapsed:.1f} s{rest}", file=stream, flush=True)

    return show
