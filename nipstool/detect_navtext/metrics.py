"""How well lines were found and told apart: by coverage, and by the rule of ICDAR 2015.

Coverage: a line of truth is found where detections cover half of it; a detection is navigation text where more
than half of its area lies on one such line, is left out where more than half lies on one to be ignored, and is
other text else. Word, line and board boxes then count alike, which matching one to one by IoU would punish.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Polygons = Sequence[NDArray[np.float32]]

COVERED = 0.5  # a share of area, exclusive
DRAWS = 1000  # of a bootstrap


@dataclass(frozen=True, eq=False)
class Found:
    """What was detected in one picture, and what is there.

    Attributes:
        place: where the picture was taken.
        polygons, scores, kinds: of the detections; scores say how much they navigate.
        truths, labels, truth_kinds: the lines there are; labels are nav, other or ignore.
    """

    place: str
    polygons: Polygons
    scores: NDArray[np.float64]
    kinds: Sequence[str]
    truths: Polygons
    labels: Sequence[str]
    truth_kinds: Sequence[str]


@dataclass(frozen=True)
class Rates:
    """Counts and what follows from them; a rate without a denominator is None.

    Attributes:
        precision: nav detections that are kept, of all detections kept.
        recall: nav detections that are kept, of all nav detections.
        dropped: other detections that are not kept, of all other detections.
        found: nav lines of truth half covered by detections, kept or not, of all.
        ap: average precision of the detections ranked by score.
    """

    nav: int
    other: int
    precision: float | None
    recall: float | None
    f1: float | None
    dropped: float | None
    found: float | None
    ap: float | None


def intersection(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """The area that two convex polygons share."""
    if (one.max(axis=0) < other.min(axis=0)).any() or (other.max(axis=0) < one.min(axis=0)).any():
        return 0.0
    return float(cv2.intersectConvexConvex(_hull(one), _hull(other))[0])


def _hull(polygon: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(cv2.convexHull(np.asarray(polygon, np.float32)), np.float32)


def area(polygon: NDArray[np.float32]) -> float:
    """The area of a polygon's convex hull."""
    return float(cv2.contourArea(_hull(polygon)))


def shares(polygons: Polygons, others: Polygons) -> NDArray[np.float64]:
    """(len(polygons), len(others)): the share of each polygon's area that lies on each of the others."""
    table = np.zeros((len(polygons), len(others)))
    for i, polygon in enumerate(polygons):
        whole = max(area(polygon), 1e-9)
        table[i] = [intersection(polygon, other) / whole for other in others]
    return table


def roles(found: Found) -> list[str]:
    """nav, other or ignore for every detection, by where more than half of its area lies."""
    table = shares(found.polygons, found.truths)
    is_nav = np.array([label == "nav" for label in found.labels], bool)
    is_ignored = np.array([label == "ignore" for label in found.labels], bool)
    answers = []
    for row in table:
        if row[is_nav].max(initial=0.0) > COVERED:
            answers.append("nav")
        else:
            answers.append("ignore" if row[is_ignored].max(initial=0.0) > COVERED else "other")
    return answers


def covered(found: Found, label: str = "nav") -> NDArray[np.bool_]:
    """For every line of truth with this label, whether detections cover at least half of it."""
    wanted = [t for t, one in zip(found.truths, found.labels, strict=True) if one == label]
    table = shares(wanted, found.polygons)
    return np.minimum(table.sum(axis=1), 1.0) >= COVERED


def average_precision(is_nav: NDArray[np.bool_], scores: NDArray[np.float64]) -> float | None:
    """The mean precision at the rank of each positive, ties taken together; None without positives."""
    if not is_nav.any():
        return None
    order = np.argsort(-scores, kind="stable")
    hits, ranked = is_nav[order].astype(float), scores[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    true, seen = np.cumsum(hits)[last], last + 1.0
    gained = np.diff(np.append(0.0, true))
    return float((gained * true / seen).sum() / hits.sum())


@dataclass(frozen=True, eq=False)
class Tally:
    """One picture's detections with their roles: all that rates are made of."""

    place: str
    is_nav: NDArray[np.bool_]
    scores: NDArray[np.float64]
    kinds: NDArray[np.str_]
    covered: NDArray[np.bool_]
    truth_kinds: NDArray[np.str_]


def tally(found: Found) -> Tally:
    """A picture's detections without those that are to be ignored."""
    answers = roles(found)
    kept = [i for i, role in enumerate(answers) if role != "ignore"]
    kinds = [k for k, label in zip(found.truth_kinds, found.labels, strict=True) if label == "nav"]
    return Tally(
        found.place,
        np.array([answers[i] == "nav" for i in kept], bool),
        np.array([found.scores[i] for i in kept], float),
        np.array([found.kinds[i] for i in kept], str),
        covered(found),
        np.array(kinds, str),
    )


def rates(tallies: Sequence[Tally], threshold: float) -> Rates:
    """The rates over pictures when detections with a score of at least `threshold` are kept."""
    is_nav = np.concatenate([np.zeros(0, bool), *(t.is_nav for t in tallies)])
    scores = np.concatenate([np.zeros(0), *(t.scores for t in tallies)])
    lines = np.concatenate([np.zeros(0, bool), *(t.covered for t in tallies)])
    kept = scores >= threshold
    nav, other, true = int(is_nav.sum()), int((~is_nav).sum()), int((is_nav & kept).sum())
    precision, recall = _ratio(true, int(kept.sum())), _ratio(true, nav)
    return Rates(
        nav,
        other,
        precision,
        recall,
        _ratio(2 * true, int(kept.sum()) + nav),
        _ratio(int((~is_nav & ~kept).sum()), other),
        _ratio(int(lines.sum()), len(lines)),
        average_precision(is_nav, scores),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def by_place(tallies: Sequence[Tally], threshold: float) -> dict[str, Rates]:
    """The rates of each place."""
    places = sorted({t.place for t in tallies})
    return {place: rates([t for t in tallies if t.place == place], threshold) for place in places}


def by_kind(tallies: Sequence[Tally]) -> dict[str, tuple[int, int]]:
    """Of each kind of navigation text: how many lines there are, and how many detections cover."""
    kinds = np.concatenate([np.zeros(0, str), *(t.truth_kinds for t in tallies)])
    lines = np.concatenate([np.zeros(0, bool), *(t.covered for t in tallies)])
    return {str(kind): (int((kinds == kind).sum()), int(lines[kinds == kind].sum())) for kind in np.unique(kinds)}


def draws(count: int, seed: int = 0, times: int = DRAWS) -> NDArray[np.int64]:
    """Bootstrap samples of `count` pictures, drawn with replacement: (times, count) numbers."""
    return np.random.default_rng(seed).integers(count, size=(times, count))


def spread(values: Sequence[float | None]) -> tuple[float, float] | None:
    """The 95 % interval of a statistic over bootstrap samples; None where most of them have no value."""
    known = [value for value in values if value is not None]
    if 2 * len(known) < len(values) or not known:
        return None
    low, high = np.percentile(known, (2.5, 97.5))
    return float(low), float(high)


def at_recall(tallies: Sequence[Tally], recall: float) -> tuple[float, float] | None:
    """The threshold at which so much navigation text is kept, and the share of other text that is then gone."""
    is_nav = np.concatenate([np.zeros(0, bool), *(t.is_nav for t in tallies)])
    scores = np.concatenate([np.zeros(0), *(t.scores for t in tallies)])
    if not is_nav.any() or is_nav.all():
        return None
    ranked = np.sort(scores[is_nav])[::-1]
    threshold = float(ranked[int(np.ceil(recall * len(ranked) - 1e-9)) - 1])
    return threshold, float((scores[~is_nav] < threshold).mean())


def icdar(found: Sequence[tuple[Polygons, Polygons, Sequence[bool]]]) -> dict[str, float]:
    """Precision, recall and their harmonic mean by the rule of ICDAR 2015, task 4.1.

    Args:
        found: for each picture its detections, the truth, and which of the truth is `don't care`.

    Detections more than half on a don't-care region are left out; then each line of truth in file order takes the
    first free detection in file order with IoU > 0.5.
    """
    matched = truths = detections = 0
    for polygons, truth, careless in found:
        table = shares(polygons, truth)
        free = [i for i, row in enumerate(table) if not any(row[j] > COVERED for j, c in enumerate(careless) if c)]
        wanted = [j for j, c in enumerate(careless) if not c]
        truths, detections = truths + len(wanted), detections + len(free)
        for j in wanted:
            hit = next((i for i in free if iou(polygons[i], truth[j]) > 0.5), None)
            if hit is not None:
                free.remove(hit)
                matched += 1
    return summary(matched, detections, truths)


def summary(matched: int, detections: int, truths: int) -> dict[str, float]:
    """Precision, recall and hmean from counts, by ICDAR's convention: 0 where there is nothing to divide by."""
    precision = matched / detections if detections else 0.0
    recall = matched / truths if truths else 0.0
    total = precision + recall
    return {"precision": precision, "recall": recall, "hmean": 2 * precision * recall / total if total else 0.0}


def iou(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Intersection over union of two convex polygons."""
    both = intersection(one, other)
    union = area(one) + area(other) - both
    return both / union if union > 0 else 0.0
