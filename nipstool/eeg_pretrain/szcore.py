"""Seizure events as SzCORE writes them: a tab-separated file a recording, one event a line, nothing else on it.

Columns: onset, duration (seconds), eventType, confidence, channels, dateTime, recordingDuration (szcore.epfl.ch).
A recording without events has one line of background (bckg) over its whole length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nipstool.eeg_pretrain.label_tables import ONSETS, columns_of, number, rows_of, seconds
from nipstool.eeg_pretrain.label_words import end_before_start, is_seizure
from nipstool.kit.errors import DataError

COLUMNS = ("onset", "duration", "eventType", "confidence", "channels", "dateTime", "recordingDuration")
TIME = "%Y-%m-%d %H:%M:%S"
LONGEST_S = 1e8  # of a recording: three years


@dataclass(frozen=True)
class Event:
    """One detection; `confidence` in [0, 1], NaN where none is given."""

    onset_s: float
    offset_s: float
    confidence: float = math.nan
    kind: str = "sz"


@dataclass(frozen=True)
class EventFile:
    """A file's events, sorted, and how long the recording is; None where the file does not say."""

    events: tuple[Event, ...]
    duration_s: float | None = None
    start_time: datetime | None = None


def to_text(found: EventFile) -> str:
    """The lines of a file, header first.

    >>> print(to_text(EventFile((Event(1.5, 11.25, 0.9),), 3600.0)).splitlines()[1].split()[:4])
    ['1.50', '9.75', 'sz', '0.9000']
    """
    when = found.start_time.strftime(TIME) if found.start_time is not None else "n/a"
    length = f"{found.duration_s:.2f}" if found.duration_s is not None else "n/a"
    rows = [
        (
            f"{e.onset_s:.2f}",
            f"{e.offset_s - e.onset_s:.2f}",
            e.kind,
            _confidence(e.confidence),
            "n/a",
            when,
            length,
        )
        for e in found.events
    ]
    if not rows:
        rows = [("0.00", length, "bckg", "n/a", "n/a", when, length)]
    return "".join("\t".join(row) + "\n" for row in (COLUMNS, *rows))


def _confidence(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.4f}"


def read_file(path: Path) -> EventFile:
    """The seizures of a file, those that touch not joined. Lines of background and without an onset are no events.

    Raises InputMissingError where it cannot be read; DataError where it has no column for the onset, an onset is
    no number, a duration is missing or negative, or a confidence is outside [0, 1], with the line; or where the
    recording's length is none.
    """
    if not any(name in ONSETS for name in columns_of(path)):
        raise DataError(f"{path}: has no column for the onset; expected {', '.join(COLUMNS)}")
    events = []
    length = start = None
    for line, row in rows_of(path):
        length = number(row.get("recordingduration")) if length is None else length
        start = _time(row.get("datetime")) if start is None else start
        if not is_seizure(row.get("eventtype") or row.get("trial_type") or "sz"):
            continue
        onset = seconds(path, line, "onset", next((row[name] for name in ONSETS if name in row), ""))
        if onset is not None:
            events.append(_event(path, line, row, onset))
    if length is not None and not 0 <= length <= LONGEST_S:
        raise DataError(f"{path}: a recordingDuration of {length:g} s; expected at most {LONGEST_S:g}")
    return EventFile(tuple(sorted(events, key=lambda e: e.onset_s)), length, start)


def _event(path: Path, line: int, row: dict[str, str], onset: float) -> Event:
    duration = number(row.get("duration"))
    if duration is None:
        raise DataError(f"{path}:{line}: a seizure without a duration ({row.get('duration')!r}); expected seconds")
    if duration < 0:
        raise end_before_start(path, line, onset, onset + duration)
    confidence = number(row.get("confidence"))
    if confidence is not None and not 0 <= confidence <= 1:
        raise DataError(f"{path}:{line}: a confidence of {confidence:g}; expected 0 to 1 or n/a")
    kind = row.get("eventtype") or row.get("trial_type") or "sz"
    return Event(onset, onset + duration, math.nan if confidence is None else confidence, kind)


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.strptime((text or "").strip(), TIME)
    except ValueError:
        return None


def intervals(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Events as pairs of onset and offset."""
    return [(event.onset_s, event.offset_s) for event in events]
