"""The modes of a belief, each with its mass, mean and covariance: a mean between two modes is nowhere.

Quick shift (Vedaldi and Soatto 2008): every point climbs to its nearest neighbour of higher density; the tops are
the modes, and what climbs to one is its mass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nipstool.filter_nbf.mixture import mixture_moments

POINTS = 128  # a larger set is thinned first: the density costs the square
RADIUS = 1.0  # a top's nearest higher point is farther than this, in units of the belief's own spread
LEAST = 0.02  # smallest mass of a mode
DIP = 0.9  # components of a mixture are one mode if the density between them does not fall below this share


@dataclass(frozen=True)
class Mode:
    """One mode: its share of the probability, mean (d,) and covariance (d, d)."""

    mass: float
    mean: np.ndarray
    cov: np.ndarray


def particle_modes(centred: np.ndarray, w: np.ndarray, mean: np.ndarray, root: np.ndarray) -> list[Mode]:
    """Modes of one weighted set, the heaviest first.

    Args:
        centred: (n, d) deviations from the mean, angles wrapped. w: (n,) weights that sum to one.
        mean: (d,). root: (d, d) lower root of the covariance.
    """
    if len(w) > POINTS:
        goals = (np.arange(POINTS) + 0.5) / POINTS
        picked = np.minimum(np.searchsorted(np.cumsum(w), goals), len(w) - 1)
        centred, w = centred[picked], np.full(POINTS, 1.0 / POINTS)
    n, d = centred.shape
    points = centred @ np.linalg.inv(root).T
    norm = (points * points).sum(-1)
    square = np.maximum(norm[:, None] + norm - 2.0 * points @ points.T, 0.0)
    width = 0.7 * (4.0 / (d + 2)) ** (1.0 / (d + 4)) * n ** (-1.0 / (d + 4))
    density = np.exp(square * (-0.5 / width**2)) @ w
    rank = np.empty(n)
    rank[np.argsort(-density, kind="stable")] = np.arange(n)
    np.copyto(square, np.inf, where=rank >= rank[:, None])
    parent = square.argmin(-1)
    is_top = square[np.arange(n), parent] > RADIUS**2
    parent[is_top] = np.flatnonzero(is_top)
    return _collect(_roots(parent), centred, w, mean)


def _roots(parent: np.ndarray) -> np.ndarray:
    while True:
        higher = parent[parent]
        if (higher == parent).all():
            return parent
        parent = higher


def _collect(label: np.ndarray, centred: np.ndarray, w: np.ndarray, mean: np.ndarray) -> list[Mode]:
    tops, label = np.unique(label, return_inverse=True)
    mass = np.bincount(label, w)
    kept = np.flatnonzero(mass >= min(LEAST, mass.max()))
    if len(kept) < len(tops):  # what is too small joins the nearest mode that is not
        gap = ((centred[:, None] - centred[tops[kept]]) ** 2 / (centred.var(0) + 1e-300)).sum(-1)
        own = np.full(len(tops), -1)
        own[kept] = np.arange(len(kept))
        label = np.where(own[label] >= 0, own[label], gap.argmin(-1))
        mass = np.bincount(label, w, len(kept))
    share = np.where(label == np.arange(len(kept))[:, None], w, 0.0) / mass[:, None]
    centre = share @ centred
    away = centred - centre[:, None]
    cov = np.swapaxes(share[..., None] * away, -1, -2) @ away
    found = [Mode(float(m), mean + c, s) for m, c, s in zip(mass, centre, cov, strict=True)]
    return sorted(found, key=lambda mode: -mode.mass)


def mixture_modes(w: np.ndarray, mean: np.ndarray, root: np.ndarray) -> list[Mode]:
    """Modes of a mixture of Gaussians, the heaviest first: weights (K,), means (K, d), lower roots of the
    covariances (K, d, d).

    Components are joined to the nearest one of higher density unless the density dips in between.
    """
    heavy = w > 1e-3 * w.max()
    w, mean, root = w[heavy] / w[heavy].sum(), mean[heavy], root[heavy]
    inverse = np.linalg.inv(root)
    level = np.log(w) + np.log(np.diagonal(inverse, axis1=-2, axis2=-1)).sum(-1)
    gap = _distances(mean, mean, inverse)
    density = np.exp(level[:, None] - 0.5 * gap).sum(0)
    order = np.argsort(-density, kind="stable")
    rank = np.empty(len(w), dtype=int)
    rank[order] = np.arange(len(w))
    np.copyto(gap, np.inf, where=rank >= rank[:, None])
    parent = gap.argmin(-1)
    middle = np.exp(level[:, None] - 0.5 * _distances(0.5 * (mean + mean[parent]), mean, inverse)).sum(0)
    is_top = np.isinf(gap.min(-1)) | (middle < DIP * density)
    parent = np.where(is_top, np.arange(len(w)), parent)
    _, label = np.unique(_roots(parent), return_inverse=True)
    mass = np.bincount(label, w)
    share = np.where(label == np.arange(len(mass))[:, None], w, 0.0) / mass[:, None]
    found = zip(mass, *mixture_moments(share, mean, root @ np.swapaxes(root, -1, -2)), strict=True)
    return sorted((Mode(float(m), c, s) for m, c, s in found if m >= LEAST), key=lambda mode: -mode.mass)


def _distances(points: np.ndarray, mean: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """(K, P) squared distances of points (P, d) from every mean, in units of the roots `inverse` of precisions."""
    away = (points - mean[:, None]) @ np.swapaxes(inverse, -1, -2)
    return (away * away).sum(-1)
