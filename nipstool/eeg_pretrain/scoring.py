"""Seizure events and samples against a reference, counted as SzCORE does (Dan et al., 2024, arXiv 2402.13005).

The numbers are those of the package timescoring, which works on masks at 10 Hz; here the same is done on
intervals, rounded where it rounds, so a day costs no more than its events do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from nipstool.eeg_pretrain.recording import Seizure

Interval = tuple[float, float]
"""Onset and offset in seconds."""

EVENT_HZ = 10  # the time grid of event scoring
BEFORE_S, AFTER_S = 30.0, 60.0  # a detection may be this early or late
MERGE_S = 90.0  # events closer than this are one
SPLIT_S = 300.0  # a longer event counts as several
DAY_S = 86_400.0
_Cells = tuple[int, int]


@dataclass(frozen=True)
class Counts:
    """What was found, and what follows from it. Counts of several recordings are added before anything is divided.

    Attributes:
        tp, fp: detected reference events (or samples), and detections of nothing.
        ref: reference events (or samples).
        seconds: of recording.
    """

    tp: int
    fp: int
    ref: int
    seconds: float

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.tp + other.tp, self.fp + other.fp, self.ref + other.ref, self.seconds + other.seconds)

    @property
    def sensitivity(self) -> float:
        """Of the reference events, the share detected; NaN where there are none."""
        return self.tp / self.ref if self.ref else math.nan

    @property
    def precision(self) -> float:
        """Of what was detected, the share that is right; NaN where nothing was."""
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else math.nan

    @property
    def f1(self) -> float:
        """NaN where there are neither reference events nor false ones."""
        return 2 * self.tp / (self.tp + self.fp + self.ref) if self.ref + self.fp else math.nan

    @property
    def fp_per_day(self) -> float:
        """False detections in 24 hours."""
        return self.fp / (self.seconds / 3600 / 24) if self.seconds else math.nan


def intervals(seizures: Iterable[Seizure]) -> list[Interval]:
    """Seizures as pairs of onset and offset."""
    return [(seizure.onset_s, seizure.offset_s) for seizure in seizures]


def events(reference: Sequence[Interval], hypothesis: Sequence[Interval], duration_s: float) -> Counts:
    """Event counts of one recording with any overlap, tolerance, merging and splitting as in timescoring 0.0.7.

    >>> found = events([(600, 660)], [(575, 580), (2000, 2010)], 3600)
    >>> found.sensitivity, found.precision, found.fp_per_day
    (1.0, 0.5, 24.0)
    """
    cells = round(duration_s * EVENT_HZ)
    true, told = _split(_merge(sorted(reference))), _split(_merge(sorted(hypothesis)))
    marked = union(to_cells(told, EVENT_HZ, cells))
    hits: list[_Cells] = []
    tp = 0
    for onset, offset in true:
        window = (max(0.0, onset - BEFORE_S), min(cells / EVENT_HZ, offset + AFTER_S))
        cell = to_cells([window], EVENT_HZ, cells)[0]
        if _overlap(marked, cell):
            tp += 1
            hits.append(cell)
    right = union(hits)
    fp = sum(not _overlap(right, cell) for cell in to_cells(told, EVENT_HZ, cells))
    return Counts(tp, fp, len(true), cells / EVENT_HZ)


def samples(
    reference: Sequence[Interval], hypothesis: Sequence[Interval], duration_s: float, hz: int = 1
) -> Counts:
    """Sample counts of one recording at `hz`, as in timescoring 0.0.7."""
    cells = round(duration_s * hz)
    true, told = union(to_cells(reference, hz, cells)), union(to_cells(hypothesis, hz, cells))
    tp = sum(_overlap(true, cell) for cell in told)
    return Counts(tp, _length(told) - tp, _length(true), cells / hz)


def to_cells(found: Iterable[Interval], hz: int, cells: int) -> list[_Cells]:
    """Half-open ranges of cells of a grid; times are rounded as Python's round does, halves to even."""
    return [(min(round(a * hz), cells), min(round(b * hz), cells)) for a, b in found]


def union(found: Iterable[_Cells]) -> list[_Cells]:
    """Sorted, disjoint ranges that cover the same cells."""
    joined: list[_Cells] = []
    for low, high in sorted(cell for cell in found if cell[0] < cell[1]):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined


def _overlap(disjoint: Sequence[_Cells], cell: _Cells) -> int:
    """Cells of `cell` that lie in sorted disjoint ranges."""
    return sum(max(0, min(high, cell[1]) - max(low, cell[0])) for low, high in _near(disjoint, cell))


def _near(disjoint: Sequence[_Cells], cell: _Cells) -> Sequence[_Cells]:
    low, high = 0, len(disjoint)
    while low < high:  # the first range that ends after the cell's start
        middle = (low + high) // 2
        low, high = (middle + 1, high) if disjoint[middle][1] <= cell[0] else (low, middle)
    end = low
    while end < len(disjoint) and disjoint[end][0] < cell[1]:
        end += 1
    return disjoint[low:end]


def _length(found: Iterable[_Cells]) -> int:
    return sum(high - low for low, high in found)


def _merge(found: Sequence[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for onset, offset in found:
        if merged and onset - merged[-1][1] < MERGE_S:
            merged[-1] = (merged[-1][0], offset)
        else:
            merged.append((onset, offset))
    return merged


def _split(found: Sequence[Interval]) -> list[Interval]:
    pieces: list[Interval] = []
    for onset, offset in found:
        while offset - onset > SPLIT_S:
            pieces.append((onset, onset + SPLIT_S))
            onset += SPLIT_S
        pieces.append((onset, offset))
    return pieces


def total(counts: Iterable[Counts]) -> Counts:
    """The sum of counts."""
    *_, last = accumulate(counts, initial=Counts(0, 0, 0, 0.0))
    return last


def mean_over_subjects(counts: dict[str, Counts]) -> dict[str, float]:
    """Each measure averaged over subjects, those without it (NaN) left out, and its standard deviation.

    SzCORE reports this mean; `total` gives the pooled numbers, which differ where subjects do.
    """
    found: dict[str, float] = {}
    for name in ("sensitivity", "precision", "f1", "fp_per_day"):
        values = [getattr(one, name) for one in counts.values()]
        known = [value for value in values if not math.isnan(value)]
        mean = sum(known) / len(known) if known else math.nan
        spread = math.sqrt(sum((v - mean) ** 2 for v in known) / len(known)) if known else math.nan
        found |= {name: mean, f"{name}_sd": spread}
    return found
