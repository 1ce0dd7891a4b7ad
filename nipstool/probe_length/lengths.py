"""How long answers are, and what position alone says: counts by length, Kaplan-Meier, mean residual life.

With d_k answers that ended after k tokens, c_k cut off after k and r_k = sum_{j >= k} (d_j + c_j) at risk:
    S(k) = prod_{j <= k} (1 - d_j / r_j),     p_k = S(k - 1) - S(k)
(what is left beyond the longest answer is put there), and the position-only prediction is
    m(t) = E[log1p(T - t) | T >= t] = sum_{k >= t} p_k log1p(k - t) / sum_{k >= t} p_k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


def kaplan_meier(ended: Array, cut: Array) -> Array:
    """p_k [M] from weights that ended and were cut at length k. What is left lies at the longest length.

    An answer cut at k is at risk at k: it is longer than k, if only by a token.
    """
    at_risk = np.cumsum((ended + cut)[::-1])[::-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        hazard = np.where(at_risk > 0, ended / at_risk, 0.0)
    survival = np.cumprod(1 - hazard)
    mass = -np.diff(survival, prepend=1.0)
    last = np.flatnonzero(ended + cut)[-1]
    mass[last] += survival[last]
    mass[last + 1 :] = 0.0
    return mass


def residual_life(mass: Array) -> Array:
    """m(t) [M] of a length distribution p_k [M]; beyond the longest length it stays at the last value."""
    size = len(mass)
    beyond = np.cumsum(mass[::-1])[::-1]
    lengths = np.flatnonzero(mass)
    total = np.zeros(size)
    for block in np.array_split(lengths, max(1, len(lengths) * size // 4_000_000)):
        left = block[:, None] - np.arange(size)
        total += np.where(left >= 0, mass[block, None] * np.log1p(np.maximum(left, 0)), 0.0).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / beyond
    alive = np.flatnonzero(beyond > 1e-12 * beyond[0])[-1]
    mean[alive + 1 :] = mean[alive]
    return mean


def lookup(table: Array, t: Array) -> Array:
    """The position-only prediction at positions t; the last one beyond the table."""
    return table[np.minimum(t, len(table) - 1)]


@dataclass
class Lengths:
    """Counts by fold and token: answers that ended or were cut at k, and the rows that were read at t.

    All are weights, [K, M], and grow with the longest answer.
    """

    ended: Array
    cut: Array
    rows: Array  # rows at position t, of answers that ended
    targets: Array  # sum of their log1p(T - t)

    def add(self, fold: int, length: int, seen: int, censored: bool, weight: float) -> None:
        """Take up an answer of `length` tokens of which positions 0..seen were read."""
        self._grow(max(length, seen) + 1)
        (self.cut if censored else self.ended)[fold, length] += weight
        if not censored:
            self.rows[fold, : seen + 1] += weight
            self.targets[fold, : seen + 1] += weight * np.log1p(length - np.arange(seen + 1))

    def _grow(self, size: int) -> None:
        if size > self.ended.shape[1]:
            more = ((0, 0), (0, max(size, 2 * self.ended.shape[1]) - self.ended.shape[1]))
            for name in NAMES:
                setattr(self, name, np.pad(getattr(self, name), more))

    def plus(self, other: Lengths) -> Lengths:
        """Both together."""
        size = max(self.ended.shape[1], other.ended.shape[1])
        both = []
        for name in NAMES:
            mine, theirs = getattr(self, name), getattr(other, name)
            both.append(_widened(mine, size) + _widened(theirs, size))
        return Lengths(*both)

    def table(self, without: int | None = None, *, censored: bool = True) -> Array:
        """m(t) of all folds but `without`; from the answers that ended alone where `censored` is false."""
        kept = [k for k in range(len(self.ended)) if k != without]
        ended, cut = self.ended[kept].sum(0), self.cut[kept].sum(0)
        return residual_life(kaplan_meier(ended, cut if censored else np.zeros_like(cut)))

    def error(self, table: Array, squares: float, fold: int | None = None) -> float:
        """Sum over the rows (of one fold) of (log1p(T - t) - table[t])^2; `squares` is their sum of log1p^2."""
        chosen = slice(None) if fold is None else slice(fold, fold + 1)
        m = lookup(table, np.arange(self.rows.shape[1]))
        return squares - 2 * float(self.targets[chosen].sum(0) @ m) + float(self.rows[chosen].sum(0) @ (m * m))


NAMES = ("ended", "cut", "rows", "targets")


def no_lengths(folds: int) -> Lengths:
    """Counts of nothing."""
    return Lengths(*(np.zeros((folds, 1)) for _ in NAMES))


def _widened(values: Array, size: int) -> Array:
    return np.pad(values, ((0, 0), (0, size - values.shape[1])))
