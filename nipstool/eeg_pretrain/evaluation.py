"""A detector judged on labelled recordings, by one of three protocols; all that is judged is times and scores.

Protocols: `szcore` (events and samples, per subject, then averaged), `neuroatlas` (Event-Sens@FA over folds of
subjects), `windows` (AUROC, AUPRC and balanced accuracy of windows of 10 s).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nipstool.eeg_pretrain.false_alarms import RATES, AtFalseAlarms, Windows, sensitivity_at_false_alarms
from nipstool.eeg_pretrain.recording import Seizure
from nipstool.eeg_pretrain.scoring import Counts, Interval, events, mean_over_subjects, samples, total
from nipstool.eeg_pretrain.window_metrics import SHARE, WindowScores, label_windows, window_scores

PROTOCOLS = ("szcore", "neuroatlas", "windows")
WINDOW_S = 10.0
FOLDS = 5


@dataclass(frozen=True)
class Judged:
    """One recording: what is true, and what one detector says.

    Attributes:
        reference, hypothesis: events.
        scores: (N,) probabilities of the windows of WINDOW_S from second 0 on; None where the events are all.
    """

    name: str
    subject: str
    duration_s: float
    reference: tuple[Seizure, ...]
    hypothesis: tuple[Interval, ...]
    scores: np.ndarray | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Szcore:
    """Counts of events and samples by subject; the mean over subjects is what SzCORE reports."""

    events: dict[str, Counts]
    samples: dict[str, Counts]

    def summary(self) -> dict[str, Any]:
        """Mean over subjects and pooled numbers of both."""
        return {
            kind: {"mean": mean_over_subjects(counts), "pooled": measures(total(counts.values()))}
            for kind, counts in (("events", self.events), ("samples", self.samples))
        }


def measures(counts: Counts) -> dict[str, float]:
    """The numbers that follow from counts, and the counts."""
    names = ("sensitivity", "precision", "f1", "fp_per_day", "tp", "fp", "ref", "seconds")
    return {name: getattr(counts, name) for name in names}


def szcore(judged: Sequence[Judged]) -> Szcore:
    """Counts by subject, added over a subject's recordings."""
    of_events: dict[str, Counts] = {}
    of_samples: dict[str, Counts] = {}
    none = Counts(0, 0, 0, 0.0)
    for one in judged:
        true = [(seizure.onset_s, seizure.offset_s) for seizure in one.reference]
        found = events(true, one.hypothesis, one.duration_s)
        of_events[one.subject] = of_events.get(one.subject, none) + found
        found = samples(true, one.hypothesis, one.duration_s)
        of_samples[one.subject] = of_samples.get(one.subject, none) + found
    return Szcore(of_events, of_samples)


def folds_of(subjects: Sequence[str], folds: int = FOLDS) -> dict[str, int]:
    """The fold of each subject: sorted names in turn, so that nobody is in two folds."""
    return {name: number % folds for number, name in enumerate(sorted(set(subjects)))}


def neuroatlas(judged: Sequence[Judged], folds: int = FOLDS) -> AtFalseAlarms:
    """Event-Sens@FA with folds by subject (as many folds as subjects, where those are fewer)."""
    place = folds_of([one.subject for one in judged], folds)
    grouped = [[one for one in judged if place[one.subject] == fold] for fold in range(folds)]
    return sensitivity_at_false_alarms([_joined(group) for group in grouped if group])


def windows(judged: Sequence[Judged], threshold: float = 0.5) -> WindowScores:
    """All windows pooled. A window is seizure where at least half of it is."""
    joined = _joined(judged)
    return window_scores(joined.labels, joined.scores, threshold)


def _joined(judged: Sequence[Judged]) -> Windows:
    labels, scores, recordings = [], [], []
    for number, one in enumerate(judged):
        count = window_count(one.duration_s)
        given = one.scores if one.scores is not None else event_scores(one.hypothesis, count)
        labels.append(label_windows(one.reference, count, WINDOW_S))
        scores.append(np.resize(given, count) if len(given) >= count else np.pad(given, (0, count - len(given))))
        recordings.append(np.full(count, number))
    return Windows(np.concatenate(labels), np.concatenate(scores), np.concatenate(recordings), WINDOW_S)


def window_count(duration_s: float) -> int:
    """Whole windows in a recording; one at least."""
    return max(int(duration_s / WINDOW_S + 1e-9), 1)


def event_scores(found: Sequence[Interval], count: int, confidences: Sequence[float] | None = None) -> np.ndarray:
    """(count,) the highest confidence of the events that touch each window (1 where none is given), else 0."""
    scores = np.zeros(count)
    for (onset, offset), confidence in zip(found, confidences or [1.0] * len(found), strict=True):
        first, last = int(onset // WINDOW_S), math.ceil(offset / WINDOW_S)
        value = 1.0 if math.isnan(confidence) else confidence
        scores[max(first, 0) : max(last, 0)] = np.maximum(scores[max(first, 0) : max(last, 0)], value)
    return scores


def report(judged: Sequence[Judged], protocol: str, folds: int = FOLDS) -> dict[str, Any]:
    """The numbers of one protocol as a plain document."""
    if protocol == "szcore":
        return szcore(judged).summary()
    if protocol == "neuroatlas":
        found = neuroatlas(judged, folds)
        curve = dict(zip((f"{rate:.4g}" for rate in RATES), found.curve.tolist(), strict=True))
        return {"event_sens_fa": found.area, "sd": found.sd, "false_alarms_per_hour": curve}
    scores = windows(judged)
    return {**scores.__dict__, "window_s": WINDOW_S, "seizure_share_of_a_window": SHARE}
