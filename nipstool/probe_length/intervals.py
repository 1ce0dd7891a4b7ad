"""From a prediction to a distribution: quantiles, mean and risk from out-of-fold residuals, intervals that cover.

Residuals e = log1p(T) - predicted, those of cut answers are lower bounds: their distribution is Kaplan-Meier's.
The interval is conformal over groups (hierarchical: each of G groups has mass 1 / (G + 1), shared by its answers,
and 1 / (G + 1) lies at infinity). Its score is max(q_low - e, e - q_high), with q_low and q_high the
distribution's own quantiles; of a cut answer it is infinite above.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Residuals:
    """Out-of-fold residuals at t = 0: values [m], whether bounds [m], weights [m], groups [m]."""

    value: Array
    censored: Array
    weight: Array
    group: Array

    def take(self, chosen: Array) -> Residuals:
        """Some of them."""
        return Residuals(self.value[chosen], self.censored[chosen], self.weight[chosen], self.group[chosen])


def distribution(residuals: Residuals) -> tuple[Array, Array]:
    """Kaplan-Meier: (points [j] ascending, mass [j]), each group with the same weight."""
    weight = group_shares(residuals)
    order = np.lexsort((residuals.censored, residuals.value))  # at a tie ends come before cuts
    value, censored, weight = residuals.value[order], residuals.censored[order], weight[order]
    at_risk = np.cumsum(weight[::-1])[::-1]
    survival = np.cumprod(np.where(censored, 1.0, 1.0 - np.minimum(weight / at_risk, 1.0)))
    mass = -np.diff(survival, prepend=1.0)
    mass[-1] += survival[-1]  # what is left lies at the largest
    kept = mass > 0
    return value[kept], mass[kept]


def group_shares(residuals: Residuals) -> Array:
    """Each group has weight 1, shared by its answers."""
    _, place = np.unique(residuals.group, return_inverse=True)
    return residuals.weight / np.bincount(place, weights=residuals.weight)[place]


def quantile(points: Array, mass: Array, share: float) -> float:
    """The smallest point with at least `share` of the mass at or below it."""
    place = int(np.searchsorted(np.cumsum(mass), share * mass.sum() - 1e-12))
    return float(points[min(place, len(points) - 1)])


def bounds(residuals: Residuals, coverage: float) -> tuple[float, float]:
    """(low, high) to be added to a prediction; high is inf where cut answers leave no finite bound."""
    points, mass = distribution(residuals)
    low, high = (quantile(points, mass, share) for share in ((1 - coverage) / 2, (1 + coverage) / 2))
    above = np.where(residuals.censored, np.inf, residuals.value - high)
    scores = np.maximum(low - residuals.value, above)
    share = group_shares(residuals)
    groups = len(np.unique(residuals.group))
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(share[order]) / (groups + 1)
    place = int(np.searchsorted(reached, coverage - 1e-12))
    margin = float(scores[order][place]) if place < len(order) else np.inf
    # where the margin is infinite only cut answers (or too few groups) are left; below they are all covered
    return (low - margin if np.isfinite(margin) else -np.inf), high + margin


@dataclass(frozen=True)
class Spread:
    """The distribution of residuals, and the bounds at a coverage."""

    points: Array
    mass: Array
    low: float
    high: float

    def quantile(self, predicted: float, share: float, most: float) -> float:
        """Tokens below which the answer stays with probability `share`."""
        return _tokens(predicted + quantile(self.points, self.mass, share), most)

    def interval(self, predicted: float, most: float) -> tuple[float, float]:
        """(lo, hi) in tokens."""
        return _tokens(predicted + self.low, most), _tokens(predicted + self.high, most)

    def mean(self, predicted: float, most: float) -> float:
        """The expected number of tokens (Duan's smearing: the mean over residuals of the back-transformed sum)."""
        tokens = np.clip(np.expm1(np.clip(predicted + self.points, 0, 40)), 0, most)
        return float(tokens @ self.mass / self.mass.sum())

    def risk(self, predicted: float, budget: int) -> float:
        """The probability of an answer of more than `budget` tokens."""
        above = self.points + predicted > np.log1p(budget)
        return float(self.mass[above].sum() / self.mass.sum())


def _tokens(logged: float, most: float) -> float:
    return float(min(np.expm1(min(max(logged, 0.0), 40.0)), most))


def spread(residuals: Residuals, coverage: float) -> Spread:
    """Distribution and bounds of residuals."""
    return Spread(*distribution(residuals), *bounds(residuals, coverage))
