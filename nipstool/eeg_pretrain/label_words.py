"""What words for seizures look like, and how marks for start and end become one event."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nipstool.eeg_pretrain.recording import Seizure
from nipstool.kit.errors import DataError

_SEIZURE = re.compile(
    r"(?<![a-z])(sz|seiz|seizures?|szr?s?|[a-z]{2}sz|ictal|gtcs?|fbtcs?|fias|anfall|anfälle|crisis|crise|crises)(?![a-z])"
)
_NOT_ONE = re.compile(
    r"no[nt]?[\s_-]+(\w+[\s_-]+)?(sz|seiz|ictal)|nonictal|inter[\s_-]?ictal|(pre|post|peri)[\s_-]?(ictal|sz|seiz)"
    r"|pseudo|pnes|possible|\?|without|kein|sans|sin\b|drill|free|history|medication|button"
)
MAX_PAIR_S = 600.0  # between two marks with the same text that are start and end of one seizure
_START = re.compile(r"(?<![a-z])(start\w*|onset|begin\w*|beginn|on|eo|clinical onset|debut|inicio)(?![a-z])")
_END = re.compile(r"(?<![a-z])(end\w*|offset|stop\w*|off|ende|over|fin|finish\w*|termination)(?![a-z])")
BACKGROUND = re.compile(r"(?<![a-z])(bckg|background|bkg|non[\s_-]?seizure|no[\s_-]?seizure)(?![a-z])")


@dataclass(frozen=True)
class Event:
    """A text at a time, from a line of a file (0 where there are no lines)."""

    onset_s: float
    duration_s: float | None
    text: str
    line: int = 0


def is_seizure(text: str) -> bool:
    """Whether a text names a seizure, and not its absence or the time around it.

    >>> [is_seizure(text) for text in ("sz_foc_ia", "Seizure onset", "FNSZ", "post-ictal", "bckg")]
    [True, True, True, False, False]
    """
    lower = text.lower().replace("_", " ")
    return bool(_SEIZURE.search(lower)) and not _NOT_ONE.search(lower)


def kind_of(text: str) -> str:
    """The type by the names of SzCORE, where the text is one; else 'sz'."""
    word = text.strip()
    return word if re.fullmatch(r"sz(_[A-Za-z0-9]+)*", word) else "sz"


def pair_up(events: Iterable[Event], where: str) -> tuple[list[Seizure], list[str]]:
    """Seizures from events with a duration, and from a start without one and the end after it; and warnings.

    Raises DataError, naming the line, for a negative duration.
    """
    found: list[Seizure] = []
    warnings: list[str] = []
    opened: Event | None = None
    for event in sorted((e for e in events if is_seizure(e.text)), key=lambda e: e.onset_s):
        lower = event.text.lower().replace("_", " ")
        if event.duration_s is not None and event.duration_s < 0:
            end = event.onset_s + event.duration_s
            raise end_before_start(where, event.line, event.onset_s, end)
        if event.duration_s:
            found.append(Seizure(event.onset_s, event.onset_s + event.duration_s, kind_of(event.text)))
        elif _END.search(lower) and not _START.search(lower):
            if opened is None:
                warnings.append(f"a seizure ends at {event.onset_s:g} s without a start")
            else:
                found.append(Seizure(opened.onset_s, event.onset_s))
            opened = None
        elif opened is None:
            opened = event
        elif event.text == opened.text and event.onset_s - opened.onset_s <= MAX_PAIR_S:
            found.append(Seizure(opened.onset_s, event.onset_s))  # twice the same word: start and end
            opened = None
        else:
            warnings.append(f"a seizure starts at {opened.onset_s:g} s without an end")
            opened = event
    if opened is not None:
        warnings.append(f"a seizure starts at {opened.onset_s:g} s without an end")
    return found, warnings


def end_before_start(where: object, line: int, start: float, end: float) -> DataError:
    """The error for a seizure that runs backwards."""
    place = f"{where}:{line}" if line else f"{where}"
    return DataError(f"{place}: a seizure ends at {end:g} s, before its start at {start:g} s")
