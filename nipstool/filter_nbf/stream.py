"""The filter on a stream: rows in, one line out for each, flushed before the next is waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from nipstool.filter_nbf.answers import Contents, as_line, lines_of
from nipstool.filter_nbf.header import HeaderError
from nipstool.filter_nbf.rows import Row, RowReader, readable_lines
from nipstool.filter_nbf.tracks import Answer, Tracks
from nipstool.kit.errors import DataError
from nipstool.kit.signals import uninterrupted

Observer = Callable[[Sequence[Answer]], None]


@dataclass
class Tally:
    """What a stream was like. events counts by name; first_error is that of `first_bad`, a line counted from 1."""

    lines: int = 0
    rows: int = 0
    events: Counter[str] = field(default_factory=Counter)
    first_bad: int = 0
    first_error: str = ""

    def fault(self, what: str, label: str, number: int, error: str) -> None:
        """Count a line that could not be used; waves come to them in another order than that of the lines."""
        self.events[what] += 1
        if not self.first_bad or number < self.first_bad:
            self.first_bad, self.first_error = number, f"{label}:{number}: {error}"


def filter_stream(
    source: BinaryIO,
    reader: RowReader,
    tracks: Tracks,
    write: Callable[[str], None],
    *,
    label: str = "stdin",
    contents: Contents | None = None,
    stop_on_error: bool = False,
    observe: Observer | None = None,
) -> Tally:
    """Filter every line of `source`; blank lines and a CSV header have no answer.

    Args:
        write: takes the text of one or more whole lines, and flushes.
        label: what errors call the source.
        observe: sees the answers of every wave.

    Raises:
        DataError: the header of a CSV that cannot be used; the first bad line, with its number, where
            `stop_on_error`; else such a line is answered with
            the event "skipped" (or "failed", where the model could not use it) and the stream goes on.
    """
    tally = Tally()
    for lines in readable_lines(source):
        # a row may hold any number: what comes of it is looked at, and not warned of
        with uninterrupted(), np.errstate(all="ignore"):
            _answer(lines, reader, tracks, write, label, contents or Contents(), stop_on_error, observe, tally)
    return tally


def _answer(
    lines: list[bytes],
    reader: RowReader,
    tracks: Tracks,
    write: Callable[[str], None],
    label: str,
    contents: Contents,
    stop_on_error: bool,
    observe: Observer | None,
    tally: Tally,
) -> None:
    """The answers to a backlog, in the order of its lines."""
    texts: list[str | None] = [None] * len(lines)
    rows, places = _parse(lines, reader, label, stop_on_error, texts, tally)
    before = tracks.dynamics.nans
    for wave in tracks.waves(rows):
        answers = [answer for _, answer in wave]
        for (place, answer), text in zip(wave, lines_of(tracks, answers, contents), strict=True):
            texts[places[place]] = text
            if answer.event is not None and answer.event != "failed":
                tally.events[answer.event] += 1
            elif answer.event == "failed":
                tally.fault("failed", label, tally.lines + places[place] + 1, answer.error)
        if observe is not None:
            observe(answers)
    tally.events["nan"] += tracks.dynamics.nans - before
    tally.lines += len(lines)
    tally.rows += len(rows)
    text = "".join(f"{text}\n" for text in texts if text is not None)
    if text:
        write(text)
    if stop_on_error and tally.first_bad:
        raise DataError(tally.first_error)


def _parse(
    lines: list[bytes],
    reader: RowReader,
    label: str,
    stop_on_error: bool,
    texts: list[str | None],
    tally: Tally,
) -> tuple[list[Row], list[int]]:
    """Rows with the places of their lines; none after a bad line that ends the stream."""
    rows: list[Row] = []
    places: list[int] = []
    for place, line in enumerate(lines):
        number = tally.lines + place + 1
        try:
            row = reader.row(line)
        except HeaderError as error:
            raise HeaderError(f"{label}: {error}") from error
        except DataError as error:
            tally.fault("skipped", label, number, str(error))
            if stop_on_error:
                break
            texts[place] = as_line(
                {"t": None, "id": None, "line": number, "event": "skipped", "error": str(error)}
            )
            continue
        if row is not None:
            rows.append(row)
            places.append(place)
    return rows, places
