"""Weighted particle sets: log weights, resampling, moments, quantiles. Arrays carry a leading axis of B tracks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nipstool.filter_nbf.arrays import wrap

LEVELS = (0.05, 0.5, 0.95)
NEARLY = 1.0 - 1e-9  # of a level: rounding must not decide where it falls between two particles


def log_normalise(logw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, n) log weights -> the same with sum one, and (B,) the logarithms of the sums; -inf where all are."""
    return weigh(logw)[:2]


def weigh(logw: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`log_normalise`, and (B,) effective sizes, for the price of one exponential. Lost sets become uniform."""
    top = logw.max(-1)
    lost = np.isinf(top) if min(top.tolist()) == -math.inf else None
    if lost is not None:
        logw = logw.copy()
        logw[lost], top[lost] = 0.0, 0.0
    w = logw - top[:, None]
    np.exp(w, out=w)
    total = w.sum(-1)
    size = total * total / np.vecdot(w, w)
    level = top + np.log(total)
    normal = np.subtract(logw, level[:, None], out=w)
    if lost is not None:
        level[lost] = -np.inf
    return normal, level, size


def effective_size(logw: np.ndarray) -> np.ndarray:
    """(B, n) normalised log weights -> (B,) effective sample size, 1 / sum w^2."""
    return 1.0 / np.exp(2.0 * logw).sum(-1)


@dataclass(frozen=True)
class Tempering:
    """The weights w * g^power of B sets: loglik (B, n) from 0 down, logw (B, n) or None where all weigh alike."""

    loglik: np.ndarray
    logw: np.ndarray | None

    @staticmethod
    def of(loglik: np.ndarray, logw: np.ndarray) -> Tempering:
        """Of log likelihoods and log weights, both (B, n)."""
        if np.isinf(loglik.sum()):  # 0 * -inf: an impossible particle stays impossible at any power
            logw, loglik = np.where(np.isinf(loglik), -np.inf, logw), np.maximum(loglik, -1e300)
        loglik = loglik - loglik.max(-1, keepdims=True)
        return Tempering(loglik, logw if logw.min() < logw.max() else None)

    def take(self, rows: np.ndarray) -> Tempering:
        """Some of the sets."""
        return Tempering(self.loglik[rows], None if self.logw is None else self.logw[rows])

    def sizes(self, power: np.ndarray) -> np.ndarray:
        """(B, k) effective sample sizes at powers (B, k); 0 where every weight vanishes."""
        w = power[..., None] * self.loglik[:, None]
        if self.logw is not None:
            w += self.logw[:, None]
            w -= np.maximum(w.max(-1, keepdims=True), -1e300)
        np.exp(w, out=w)
        total = w.sum(-1)
        w *= w
        square = w.sum(-1)
        return total * total / np.maximum(square, 1e-300)


def systematic(w: np.ndarray, start: np.ndarray, count: int) -> np.ndarray:
    """(B, n) normalised weights and (B,) uniforms -> (B, count) indices of systematic resampling.

    Cumulated in float64, with the last point set past the end (a sum of 0.99999999814 would lose a particle).
    """
    every = np.arange(w.shape[-1])
    every = every if len(w) == 1 else np.broadcast_to(every, w.shape).ravel()
    return every.repeat(_copies(w, start, count).ravel()).reshape(len(w), count)


def resampled(x: np.ndarray, w: np.ndarray, start: np.ndarray, count: int) -> np.ndarray:
    """(B, count, d) particles of x (B, n, d), taken as `systematic` would."""
    d = x.shape[-1]
    copies = _copies(w, start, count).ravel()
    rows = x.ravel().repeat(copies) if d == 1 else x.reshape(-1, d).repeat(copies, axis=0)
    return rows.reshape(len(x), count, d)


def _copies(w: np.ndarray, start: np.ndarray, count: int) -> np.ndarray:
    """(B, n) how often each particle is taken: once for every integer k with edge[i-1] <= k + start < edge[i]."""
    edges = w.cumsum(-1, dtype=np.float64)
    edges *= count / edges[:, -1:]
    edges -= start[:, None]
    np.minimum(np.ceil(edges, out=edges), count, out=edges)
    reached = edges.astype(np.int64)
    reached[:, -1] = count
    copies = reached.copy()
    copies[:, 1:] -= reached[:, :-1]
    return copies


def mean_of(x: np.ndarray, w: np.ndarray, angles: Sequence[int] = ()) -> np.ndarray:
    """(B, n, d) particles, (B, n) weights -> (B, d) mean; circular for the columns that are angles."""
    mean = np.matmul(w[:, None], x)[:, 0]
    for j in angles:
        sine, cosine = (w * np.sin(x[..., j])).sum(-1), (w * np.cos(x[..., j])).sum(-1)
        mean[:, j] = np.arctan2(sine, cosine)
    return mean


def deviations(x: np.ndarray, mean: np.ndarray, angles: Sequence[int] = ()) -> np.ndarray:
    """(B, n, d) x - mean, wrapped for the columns that are angles."""
    centred = np.empty_like(x)
    for j in range(x.shape[-1]):  # by column: a few numbers a particle make a slow inner loop
        np.subtract(x[..., j], mean[:, j, None], out=centred[..., j])
    for j in angles:
        centred[..., j] = wrap(centred[..., j])
    return centred


def moments(x: np.ndarray, w: np.ndarray, angles: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
    """(B, d) mean and (B, d, d) covariance, divided by 1 - sum w^2: else a belief would shrink at each step."""
    mean = mean_of(x, w, angles)
    columns = np.ascontiguousarray(np.swapaxes(deviations(x, mean, angles), -1, -2))
    cov = (columns * w[:, None]) @ np.swapaxes(columns, -1, -2)
    free = 1.0 - (w * w).sum(-1)
    return mean, cov / np.maximum(free, 1.0 / x.shape[1])[:, None, None]


def quantiles(x: np.ndarray, w: np.ndarray, mean: np.ndarray, angles: Sequence[int] = ()) -> np.ndarray:
    """(B, 3, d) marginal quantiles at LEVELS: the first value whose cumulated weight reaches the level.

    Angles are cut half a turn away from their mean.
    """
    if angles:
        x = deviations(x, mean, angles) + mean[:, None]
    size, n, d = x.shape
    rows = np.ascontiguousarray(np.swapaxes(x, -1, -2))  # (B, d, n)
    if w.min() == w.max():
        rows.sort(-1)
        return np.stack([rows[..., math.ceil(level * n * NEARLY) - 1] for level in LEVELS], axis=1)
    order = rows.argsort(-1)
    order += n * np.arange(size)[:, None, None]  # places in w
    edges = w.ravel()[order].cumsum(-1)
    total = edges[..., -1:]
    places = np.stack([(edges < level * total * NEARLY).sum(-1) for level in LEVELS], axis=1)  # (B, 3, d)
    np.minimum(places, n - 1, out=places)
    track, column = np.arange(size)[:, None, None], np.arange(d)
    return rows[track, column, order[track, column, places] - n * track]
