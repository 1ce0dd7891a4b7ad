"""From token probabilities to seizure events: seconds, a trailing mean, a threshold, and where it is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nipstool.eeg_pretrain import scoring
from nipstool.eeg_pretrain.config import DETECTORS, Config
from nipstool.eeg_pretrain.recording import Seizure
from nipstool.eeg_pretrain.scoring import Counts
from nipstool.eeg_pretrain.stream import Reading

MEAN_S = 10  # of the trailing mean
LEAST_S = 10  # a shorter event is none
MOST_FALSE_ALARMS = 24.0  # a day
MOST_TIME = 0.5  # what is on for longer detects nothing, though it may score: a long event counts as several
GRID = 200  # thresholds tried


@dataclass(frozen=True)
class Track:
    """A recording second by second; NaN where there was no signal.

    Attributes:
        model, line_length, power: (N,) scores, higher is more of a seizure.
        onset: (N,) probability.
        risk: (N, intervals).
    """

    model: np.ndarray
    line_length: np.ndarray
    power: np.ndarray
    onset: np.ndarray
    risk: np.ndarray

    def scores(self, detector: str) -> np.ndarray:
        """Those of one of DETECTORS."""
        return getattr(self, detector.replace(" ", "_"))


class Labelled(Protocol):
    """A recording, or a part of one, as far as scores go."""

    @property
    def seizures(self) -> tuple[Seizure, ...]:
        """Sorted, in its own seconds."""
        ...

    @property
    def duration_s(self) -> float:
        """Seconds."""
        ...


@dataclass(frozen=True)
class Event:
    """One detection, in seconds of the recording."""

    onset_s: float
    offset_s: float
    confidence: float


@dataclass(frozen=True)
class Threshold:
    """A detector's threshold, and what it gave on the recordings that it was chosen on."""

    value: float
    counts: Counts


def track_of(found: Iterable[Reading], duration_s: float, config: Config) -> Track:
    """Readings as seconds: in each the mean of the tokens that end in it; NaN where none does."""
    n = max(1, int(np.ceil(duration_s - 1e-6)))
    J = len(config.horizons_s)
    sums, count = np.zeros((n, 4 + J)), np.zeros(n)
    for reading in found:
        ends = reading.start_s + config.token_s * np.arange(1, len(reading.seen) + 1)
        second = np.clip(np.ceil(ends - 1e-6).astype(int) - 1, 0, n - 1)
        columns = (reading.detection, reading.line_length, reading.power, reading.onset)
        values = np.concatenate([np.stack(columns, 1), reading.risk], 1)[reading.seen]
        np.add.at(sums, second[reading.seen], values)
        np.add.at(count, second[reading.seen], 1)
    with np.errstate(invalid="ignore"):
        means = np.where(count[:, None] > 0, sums / np.maximum(count, 1)[:, None], np.nan)
    return Track(means[:, 0], means[:, 1], means[:, 2], means[:, 3], means[:, 4:])


def trailing_mean(scores: np.ndarray, seconds: int = MEAN_S) -> np.ndarray:
    """The mean of the last seconds that there are; 0 where none of them is."""
    filled, there = np.nan_to_num(scores), np.isfinite(scores)
    total = np.cumsum(np.concatenate([[0.0], filled]))
    count = np.cumsum(np.concatenate([[0], there]))
    last = np.arange(1, len(scores) + 1)
    first = np.maximum(last - seconds, 0)
    return (total[last] - total[first]) / np.maximum(count[last] - count[first], 1)


def events_of(scores: np.ndarray, threshold: float) -> list[Event]:
    """Stretches of at least LEAST_S in which a trailing mean reaches the threshold."""
    found, start = [], None
    lag = MEAN_S / 2  # of a trailing mean
    for second in np.flatnonzero(np.diff((scores >= threshold).astype(int), prepend=0, append=0)):
        if start is None:
            start = int(second)
        else:
            if second - start >= LEAST_S:
                onset, offset = max(0.0, start + 1 - lag), max(second - lag, start + 1.0)
                found.append(Event(float(onset), float(offset), float(scores[start:second].max())))
            start = None
    return found


def counts_at(tracks: Sequence[np.ndarray], recordings: Sequence[Labelled], threshold: float) -> Counts:
    """Event counts over recordings, from trailing means."""
    return scoring.total(
        scoring.events(
            scoring.intervals(recording.seizures),
            [(e.onset_s, e.offset_s) for e in events_of(scores, threshold)],
            recording.duration_s,
        )
        for scores, recording in zip(tracks, recordings, strict=True)
    )


def choose_threshold(
    tracks: Sequence[np.ndarray],
    recordings: Sequence[Labelled],
    seen: tuple[Sequence[np.ndarray], Sequence[Labelled]] = ((), ()),
) -> Threshold | None:
    """The threshold with the best event F1 at no more than 24 false alarms a day; None without seizures.

    Those that most of the held-out time exceeds are not considered. A few held-out seizures leave many thresholds
    equally good. `seen`, trailing means and recordings that the model was trained on, tells them apart by its
    false alarms alone: no more than 24 a day, and of equals the quietest. How many seizures are found there says
    little: it asks for the lowest threshold, for the sake of one that hardly shows. Where several are left, the
    one in the middle of the longest row of them.
    """
    if not any(recording.seizures for recording in recordings):
        return None
    every = np.concatenate(tracks)
    grid = np.unique(
        np.quantile(every[every > 0] if (every > 0).any() else every, 1.0 - np.geomspace(1e-4, 0.9, GRID))
    )
    rare = grid[len(every) - np.searchsorted(np.sort(every), grid) <= MOST_TIME * len(every)]
    grid = rare if len(rare) else grid[-1:]
    found = [(float(v), counts_at(tracks, recordings, float(v))) for v in grid]
    trained = [counts_at(*seen, v).fp_per_day if seen[1] else 0.0 for v, _ in found]
    noise = [max(held.fp_per_day, rate) for (_, held), rate in zip(found, trained, strict=True)]
    if min(noise) > MOST_FALSE_ALARMS:
        return Threshold(*found[int(np.argmin(noise))])
    ranks = [
        (_rank(held), -rate) if loud <= MOST_FALSE_ALARMS else (-2.0, 0.0)
        for (_, held), rate, loud in zip(found, trained, noise, strict=True)
    ]
    best = max(ranks)
    return _middle([(v, held, rank == best) for (v, held), rank in zip(found, ranks, strict=True)])


def _rank(counts: Counts) -> float:
    """F1 to twelve digits; where there is none, below all others."""
    return round(counts.f1, 12) if counts.f1 == counts.f1 else -1.0


def _middle(found: Sequence[tuple[float, Counts, bool]]) -> Threshold:
    """The middle of the longest row of good ones, by differences: factors between small scores mean nothing."""
    rows: list[list[tuple[float, Counts]]] = [[]]
    for value, counts, good in found:
        if good:
            rows[-1].append((value, counts))
        elif rows[-1]:
            rows.append([])
    longest = max(rows, key=lambda row: row[-1][0] - row[0][0] if row else -1.0)
    target = (longest[0][0] + longest[-1][0]) / 2.0
    value, counts = min(longest, key=lambda pair: abs(pair[0] - target))
    return Threshold(value, counts)


def thresholds_of(
    held_out: tuple[Sequence[Track], Sequence[Labelled]], seen: tuple[Sequence[Track], Sequence[Labelled]]
) -> Mapping[str, Threshold | None]:
    """One for each of DETECTORS, from the same recordings; see choose_threshold."""

    def means(tracks: Sequence[Track], name: str) -> list[np.ndarray]:
        return [trailing_mean(track.scores(name)) for track in tracks]

    return {
        name: choose_threshold(means(held_out[0], name), held_out[1], (means(seen[0], name), seen[1]))
        for name in DETECTORS
    }
