"""Scores of predictions: R2, rank correlation, errors in tokens, by position, with intervals over groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
EDGES = (0, 1, 10, 32, 100, 316, 1000, 3162, 10000)


@dataclass(frozen=True)
class Scores:
    """Of one predictor of log1p(remaining) on rows."""

    r2: float
    spearman: float | None  # None where a side is constant
    mae: float  # tokens


@dataclass(frozen=True)
class Bucket:
    """Rows at positions low..high, and R2 of each predictor within them."""

    low: int
    high: int
    rows: int
    r2: dict[str, float]


def score(target: Array, predicted: Array, weight: Array) -> Scores:
    """Scores on rows [n] in log1p; the error is in tokens."""
    mae = np.average(np.abs(to_tokens(predicted) - np.expm1(target)), weights=weight)
    return Scores(r_squared(target, predicted, weight), spearman(target, predicted, weight), float(mae))


def to_tokens(predicted: Array) -> Array:
    """expm1, not below 0 and without overflow."""
    return np.expm1(np.clip(predicted, 0.0, 20.0))


def r_squared(target: Array, predicted: Array, weight: Array) -> float:
    """1 - weighted squared error / weighted squared deviation; NaN where the target is constant."""
    mean = np.average(target, weights=weight)
    deviation = float((weight * (target - mean) ** 2).sum())
    error = float((weight * (target - predicted) ** 2).sum())
    return 1 - error / deviation if deviation > 0 else float("nan")


def spearman(a: Array, b: Array, weight: Array | None = None) -> float | None:
    """Rank correlation; with weights, of ranks in the weighted population (middle ranks for ties)."""
    weight = np.ones(len(a)) if weight is None else weight
    x, y = _ranks(a, weight), _ranks(b, weight)
    x, y = x - np.average(x, weights=weight), y - np.average(y, weights=weight)
    scale = np.sqrt((weight * x * x).sum() * (weight * y * y).sum())
    return float((weight * x * y).sum() / scale) if scale > 1e-12 * weight.sum() ** 3 else None


def _ranks(values: Array, weight: Array) -> Array:
    _, place = np.unique(values, return_inverse=True)
    mass = np.bincount(place, weights=weight)
    return (np.cumsum(mass) - mass / 2)[place]


def by_position(t: Array, target: Array, predicted: Mapping[str, Array], weight: Array) -> list[Bucket]:
    """R2 within stretches of positions; those with fewer than 20 rows are left out."""
    found = []
    for low, high in zip(EDGES, (*EDGES[1:], 1 << 40), strict=True):
        inside = (t >= low) & (t < high)
        if inside.sum() < 20 or np.ptp(target[inside]) == 0:
            continue
        r2 = {name: r_squared(target[inside], p[inside], weight[inside]) for name, p in predicted.items()}
        found.append(Bucket(low, int(t[inside].max()) if high > 1 << 39 else high - 1, int(inside.sum()), r2))
    return found


def skill_interval(
    target: Array, ours: Array, theirs: Array, weight: Array, group: Array, *, rounds: int = 1000, seed: int = 0
) -> tuple[float, float, float]:
    """1 - squared error / squared error of a baseline: its value, and a 95 % bootstrap interval over groups."""
    _, place = np.unique(group, return_inverse=True)
    a = np.bincount(place, weights=weight * (target - ours) ** 2)
    b = np.bincount(place, weights=weight * (target - theirs) ** 2)
    random = np.random.default_rng(seed)
    draws = np.array([np.bincount(random.integers(len(a), size=len(a)), minlength=len(a)) for _ in range(rounds)])
    with np.errstate(invalid="ignore", divide="ignore"):
        skills = 1 - (draws @ a) / (draws @ b)
        value = 1 - a.sum() / b.sum()
    low, high = np.nanpercentile(skills, [2.5, 97.5]) if np.isfinite(skills).any() else (np.nan, np.nan)
    return float(value), float(low), float(high)


def ceiling(target: Array, group: Array) -> float | None:
    """The share of the variance that lies between groups, ICC(1) by one-way analysis of variance.

    No predictor that sees the prompt alone can have a larger R2. None where fewer than 10 groups have two answers.
    """
    _, place = np.unique(group, return_inverse=True)
    counts = np.bincount(place)
    several = counts >= 2
    if several.sum() < 10:
        return None
    kept = several[place]
    target, place = target[kept], np.unique(place[kept], return_inverse=True)[1]
    n = np.bincount(place)
    means = np.bincount(place, weights=target) / n
    within = ((target - means[place]) ** 2).sum() / (len(target) - len(n))
    between = (n * (means - target.mean()) ** 2).sum() / (len(n) - 1)
    usual = (len(target) - (n * n).sum() / len(target)) / (len(n) - 1)
    variance = (between - within) / usual
    total = variance + within
    return float(max(0.0, variance / total)) if total > 0 else None
