"""How far a weighted set is from another: the energy distance."""

from __future__ import annotations

import numpy as np


def energy_distance(
    x: np.ndarray,
    y: np.ndarray,
    wx: np.ndarray | None = None,
    wy: np.ndarray | None = None,
    within_y: np.ndarray | None = None,
) -> np.ndarray:
    """(B,) squared energy distance 2 E|X-Y| - E|X-X'| - E|Y-Y'| of sets (B, n, d) and (B, m, d) with weights.

    The V-statistic (Szekely and Rizzo 2013): biased upwards by about 1/n, so compare equal sizes. `within_y`
    is (B,) E|Y-Y'| where it is known already (see `spread`).
    """
    wx = np.full(x.shape[:2], 1.0 / x.shape[1]) if wx is None else wx
    wy = np.full(y.shape[:2], 1.0 / y.shape[1]) if wy is None else wy
    if within_y is None and x.shape == y.shape:  # one matrix of distances, with negative weights for y
        both, weights = np.concatenate([x, y], axis=1), np.concatenate([wx, -wy], axis=1)
        return -_mean_distance(both, weights, both, weights)
    within_y = _mean_distance(y, wy, y, wy) if within_y is None else within_y
    return 2.0 * _mean_distance(x, wx, y, wy) - _mean_distance(x, wx, x, wx) - within_y


def spread(y: np.ndarray) -> np.ndarray:
    """(B,) mean distance E|Y-Y'| of two particles of sets (B, m, d)."""
    w = np.full(y.shape[:2], 1.0 / y.shape[1])
    return _mean_distance(y, w, y, w)


def _mean_distance(x: np.ndarray, wx: np.ndarray, y: np.ndarray, wy: np.ndarray) -> np.ndarray:
    square = (x * x).sum(-1)[:, :, None] + (y * y).sum(-1)[:, None] - 2.0 * x @ np.swapaxes(y, -1, -2)
    distance = np.sqrt(np.maximum(square, 0.0))
    return (wx[:, None] @ distance @ wy[..., None])[:, 0, 0]
