"""Weighted particle sets: log weights, resampling, moments, quantiles. Arrays carry a leading axis of B tracks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nipstool.filter_nbf.arrays import wrap

LEVELS = (0.05, 0.5, 0.95)


def log_normalise(logw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, n) log weights -> the same with sum one, and (B,) the logarithms of the sums; -inf where all are."""
    return weigh(logw)[:2]


def weigh(logw: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`log_normalise`, and (B,) effective sizes, for the price of one exponential. Lost sets become uniform."""
    top = logw.max(-1, keepdims=True)
    lost = ~np.isfinite(top[:, 0])
    if lost.any():
        logw, top = logw.copy(), top.copy()
        logw[lost], top[lost] = 0.0, 0.0
    w = np.exp(logw - top)
    total = w.sum(-1)
    size = total * total / np.einsum("bn,bn->b", w, w)
    level = top[:, 0] + np.log(total)
    normal = logw - level[:, None]
    if lost.any():
        level[lost] = -np.inf
    return normal, level, size


def effective_size(logw: np.ndarray) -> np.ndarray:
    """(B, n) normalised log weights -> (B,) effective sample size, 1 / sum w^2."""
    return 1.0 / np.exp(2.0 * logw).sum(-1)


def tempered_size(loglik: np.ndarray, logw: np.ndarray, power: np.ndarray) -> np.ndarray:
    """(B,) effective sample size of the weights w * g^power; 0 where every weight vanishes."""
    with np.errstate(invalid="ignore"):
        raised = logw + power[:, None] * loglik
    raised[np.isnan(raised)] = -np.inf  # 0 * -inf: an impossible particle stays impossible at any power
    top = raised.max(-1, keepdims=True)
    w = np.exp(raised - np.where(np.isfinite(top), top, 0.0))
    square = (w * w).sum(-1)
    return np.divide(w.sum(-1) ** 2, square, out=np.zeros_like(square), where=square > 0)


def systematic(w: np.ndarray, start: np.ndarray, count: int) -> np.ndarray:
    """(B, n) normalised weights and (B,) uniforms -> (B, count) indices of systematic resampling.

    Cumulated in float64, with the last point set past the end (a sum of 0.99999999814 would lose a particle).
    """
    edges = np.cumsum(w, -1, dtype=np.float64)
    edges *= count / edges[:, -1:]
    # particle i is taken once for every integer k with edge[i-1] <= k + start < edge[i]
    upper = np.ceil(edges - start[:, None]).astype(np.int64)
    np.clip(upper, 0, count, out=upper)
    upper[:, -1] = count
    copies = np.diff(upper, axis=-1, prepend=0)
    every = np.broadcast_to(np.arange(w.shape[-1]), w.shape)
    return np.repeat(every.ravel(), copies.ravel()).reshape(len(w), count)


def take(x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """(B, n, d) particles and (B, k) indices -> (B, k, d)."""
    return x[np.arange(len(x))[:, None], indices]


def mean_of(x: np.ndarray, w: np.ndarray, angles: Sequence[int] = ()) -> np.ndarray:
    """(B, n, d) particles, (B, n) weights -> (B, d) mean; circular for the columns that are angles."""
    mean = np.einsum("bn,bnd->bd", w, x)
    for j in angles:
        sine, cosine = (w * np.sin(x[..., j])).sum(-1), (w * np.cos(x[..., j])).sum(-1)
        mean[:, j] = np.arctan2(sine, cosine)
    return mean


def deviations(x: np.ndarray, mean: np.ndarray, angles: Sequence[int] = ()) -> np.ndarray:
    """(B, n, d) x - mean, wrapped for the columns that are angles."""
    centred = x - mean[:, None]
    for j in angles:
        centred[..., j] = wrap(centred[..., j])
    return centred


def moments(x: np.ndarray, w: np.ndarray, angles: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
    """(B, d) mean and (B, d, d) covariance, divided by 1 - sum w^2: else a belief would shrink at each step."""
    mean = mean_of(x, w, angles)
    centred = deviations(x, mean, angles)
    cov = np.swapaxes(centred * w[..., None], -1, -2) @ centred
    free = 1.0 - (w * w).sum(-1)
    return mean, cov / np.maximum(free, 1.0 / x.shape[1])[:, None, None]


def quantiles(x: np.ndarray, w: np.ndarray, mean: np.ndarray, angles: Sequence[int] = ()) -> np.ndarray:
    """(B, 3, d) marginal quantiles at LEVELS: the first value whose cumulated weight reaches the level.

    Angles are cut half a turn away from their mean.
    """
    if angles:
        x = deviations(x, mean, angles) + mean[:, None]
    rows = np.swapaxes(x, -1, -2)  # (B, d, n)
    order = np.argsort(rows, -1)
    edges = np.cumsum(np.take_along_axis(np.broadcast_to(w[:, None], rows.shape), order, -1), -1)
    goals = np.array(LEVELS) * edges[..., -1:]
    places = (edges[..., None, :] < goals[..., None]).sum(-1)  # (B, d, 3)
    chosen = np.take_along_axis(order, np.minimum(places, x.shape[1] - 1), -1)
    return np.swapaxes(np.take_along_axis(rows, chosen, -1), -1, -2)
