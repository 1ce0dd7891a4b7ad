"""A stream from its first line to what it leaves behind: a state and a picture, also where it is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nipstool.filter_nbf.answers import Contents
from nipstool.filter_nbf.dates import date_watch
from nipstool.filter_nbf.pictures import Recorder, save_recording
from nipstool.filter_nbf.rows import RowReader
from nipstool.filter_nbf.state import save_state
from nipstool.filter_nbf.stream import Tally, filter_stream
from nipstool.filter_nbf.tracks import Answer, Tracks


@dataclass(frozen=True)
class Leavings:
    """What to leave at the end: a state (which says what `kind` of belief it is of) and a picture."""

    kind: str
    state: str | None = None
    plot: Path | None = None
    force: bool = False


def run_session(
    source: BinaryIO,
    reader: RowReader,
    tracks: Tracks,
    write: Callable[[str], None],
    leavings: Leavings,
    *,
    label: str,
    contents: Contents,
    stop_on_error: bool = False,
    note: Callable[[str], None],
) -> Tally:
    """`filter_stream`, with its arguments and errors; afterwards, whatever happened, the state and the picture.

    `note` takes lines for people: that dates are taken for steps.
    """
    recorder = Recorder(tracks.dynamics.positions[:2])
    watch = date_watch(tracks.dynamics.label, note)

    def observe(answers: Sequence[Answer]) -> None:
        watch(answers)
        if leavings.plot is not None:
            recorder(answers)

    with ExitStack() as stack:
        if leavings.state is not None:
            stack.callback(save_state, leavings.state, tracks, belief=leavings.kind, force=leavings.force)
        if leavings.plot is not None:
            stack.callback(save_recording, leavings.plot, recorder, tracks.dynamics, force=leavings.force)
        return filter_stream(
            source,
            reader,
            tracks,
            write,
            label=label,
            contents=contents,
            stop_on_error=stop_on_error,
            observe=observe,
        )
