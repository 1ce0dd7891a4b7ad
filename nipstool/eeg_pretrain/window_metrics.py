"""Scores of windows against their labels: areas under curves, balanced accuracy, and which windows are seizure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nipstool.eeg_pretrain.recording import Seizure

SHARE = 0.5  # of a window that must be seizure; a window within a long seizure has all of it


@dataclass(frozen=True)
class WindowScores:
    """NaN where one of the two classes is absent."""

    auroc: float
    auprc: float
    balanced_accuracy: float
    windows: int
    positive: int


def label_windows(seizures: Sequence[Seizure], count: int, window_s: float, share: float = SHARE) -> np.ndarray:
    """(count,) whether at least `share` of each window, from second 0 on, is seizure."""
    starts = np.arange(count) * window_s
    covered = np.zeros(count)
    for seizure in seizures:
        covered += np.clip(
            np.minimum(starts + window_s, seizure.offset_s) - np.maximum(starts, seizure.onset_s), 0, None
        )
    return covered >= share * window_s - 1e-9


def window_scores(labels: np.ndarray, scores: np.ndarray, threshold: float = 0.5) -> WindowScores:
    """All of them at once; `threshold` is for balanced accuracy."""
    labels, scores = np.asarray(labels).astype(bool), np.asarray(scores, np.float64)
    told = scores >= threshold
    positive, negative = int(labels.sum()), int((~labels).sum())
    balanced = math.nan
    if positive and negative:
        balanced = (np.mean(told[labels]) + np.mean(~told[~labels])) / 2
    return WindowScores(auroc(labels, scores), auprc(labels, scores), float(balanced), labels.size, positive)


def auroc(labels: np.ndarray, scores: np.ndarray) -> float:
    """The probability that a positive scores above a negative, ties counting half (Mann-Whitney)."""
    labels = np.asarray(labels).astype(bool)
    positive, negative = int(labels.sum()), int((~labels).sum())
    if not positive or not negative:
        return math.nan
    _, place, counts = np.unique(np.asarray(scores), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[labels].sum() - positive * (positive + 1) / 2) / (positive * negative))


def auprc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Average precision: the sum over thresholds of precision times the recall gained there."""
    labels = np.asarray(labels).astype(bool)
    if not labels.any() or labels.all():
        return math.nan
    order = np.argsort(-np.asarray(scores), kind="stable")
    sorted_scores, hits = np.asarray(scores)[order], np.cumsum(labels[order])
    last = np.append(sorted_scores[1:] != sorted_scores[:-1], True)  # of each group of ties
    precision, recall = (hits / np.arange(1, labels.size + 1))[last], hits[last] / labels.sum()
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))
