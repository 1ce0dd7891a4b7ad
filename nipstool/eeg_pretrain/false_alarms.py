"""Sensitivity to events at a rate of false alarms: the headline metric of NeuroAtlas (arXiv 2605.14698, App. C.1).

Windows over a threshold that follow each other are one predicted event, seizure windows that follow each other one
reference event; any overlap detects, a predicted event without one is a false alarm. The equations are those of
the file _event_sens_fa.py of neuroatlas-bench 0.1.1, with what it keeps for comparability: linear interpolation
between reachable rates, and division by the width of the part of 0.1 to 100 alarms an hour that can be reached.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RATES = np.geomspace(0.01, 100.0, 80)  # false alarms an hour at which the curve is read
AREA = (0.1, 100.0)  # over which it is integrated
THRESHOLDS = np.linspace(0.0, 1.0, 200)


@dataclass(frozen=True)
class Windows:
    """Windows in order of time, recording after recording.

    Attributes:
        labels: (N,) whether a window is seizure.
        scores: (N,) probabilities.
        recordings: (N,) equal within a recording; a run of equal ones is one.
        window_s: seconds a window, without overlap.
    """

    labels: np.ndarray
    scores: np.ndarray
    recordings: np.ndarray
    window_s: float = 10.0


@dataclass(frozen=True)
class AtFalseAlarms:
    """The area under the median curve of the folds, its standard deviation over folds, and the curve at RATES."""

    area: float
    sd: float
    curve: np.ndarray


def sensitivity_at_false_alarms(folds: Sequence[Windows]) -> AtFalseAlarms:
    """Event-Sens@FA over folds. A fold without a seizure has no curve; NaN where nothing can be said."""
    curves = [fold_curve(fold) for fold in folds]
    if not curves:
        return AtFalseAlarms(math.nan, math.nan, np.full(RATES.shape, np.nan))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a rate that no fold reaches stays NaN
        median = np.nanmedian(np.array(curves), axis=0)
    areas = np.array([area(curve) for curve in curves])
    areas = areas[np.isfinite(areas)]
    sd = float(np.std(areas, ddof=1)) if len(areas) > 1 else math.nan
    return AtFalseAlarms(area(median), sd, median)


def fold_curve(fold: Windows) -> np.ndarray:
    """Sensitivity at RATES; NaN at rates that no threshold reaches."""
    found = np.full(RATES.shape, np.nan)
    labels = np.asarray(fold.labels).astype(bool)
    if not labels.any():
        return found
    sensitivity, rate = sweep(fold)
    start = int(np.nanargmax(rate))  # below: few thresholds, few huge events
    reached, place = np.unique(rate[start:], return_inverse=True)
    best = np.zeros_like(reached)
    np.maximum.at(best, place, sensitivity[start:])
    inside = (reached[0] <= RATES) & (reached[-1] >= RATES)
    found[inside] = np.interp(RATES[inside], reached, best)
    return found


def sweep(fold: Windows) -> tuple[np.ndarray, np.ndarray]:
    """Sensitivity and false alarms an hour at each of THRESHOLDS."""
    labels, scores = np.asarray(fold.labels).astype(bool), np.asarray(fold.scores, np.float64)
    recordings = np.asarray(fold.recordings)
    if not labels.shape == scores.shape == recordings.shape:
        raise ValueError(f"shapes {labels.shape}, {scores.shape}, {recordings.shape}: expected equal ones")
    first = np.ones(labels.size, bool)
    first[1:] = recordings[1:] != recordings[:-1]
    hours = labels.size * fold.window_s / 3600
    reference = _runs(labels, first)
    detected, alarms = np.zeros(len(THRESHOLDS)), np.zeros(len(THRESHOLDS))
    for number, threshold in enumerate(THRESHOLDS):
        detected[number], alarms[number] = _overlaps(labels, reference, scores >= threshold, first)
    return detected / len(reference), alarms / hours


def _runs(mask: np.ndarray, first: np.ndarray) -> np.ndarray:
    """(K, 2) half-open runs of true windows; none spans two recordings."""
    before = np.concatenate([[False], mask[:-1]]) & ~first
    after = np.concatenate([mask[1:] & ~first[1:], [False]])
    return np.stack([np.flatnonzero(mask & ~before), np.flatnonzero(mask & ~after) + 1], axis=1)


def _overlaps(labels: np.ndarray, reference: np.ndarray, told: np.ndarray, first: np.ndarray) -> tuple[int, int]:
    """Reference events with a window that was told, and told events without a seizure window."""
    in_told = np.concatenate([[0], np.cumsum(told)])
    in_labels = np.concatenate([[0], np.cumsum(labels)])
    runs = _runs(told, first)
    detected = np.count_nonzero(in_told[reference[:, 1]] > in_told[reference[:, 0]])
    false = np.count_nonzero(in_labels[runs[:, 1]] == in_labels[runs[:, 0]])
    return int(detected), int(false)


def area(curve: np.ndarray) -> float:
    """The trapezoidal area over log10 of AREA, divided by the width of its finite part; NaN below two points."""
    inside = (AREA[0] <= RATES) & (AREA[1] >= RATES) & np.isfinite(curve)
    if np.count_nonzero(inside) < 2:
        return math.nan
    x = np.log10(RATES[inside])
    return float(np.trapezoid(curve[inside], x) / (x[-1] - x[0]))
