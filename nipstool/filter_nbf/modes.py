"""The modes of a belief, each with its mass, mean and covariance: a mean between two modes is nowhere.

Quick shift (Vedaldi and Soatto 2008): every point climbs to its nearest neighbour of higher density; the tops are
the modes, and what climbs to one is its mass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

POINTS = 192  # a larger set is thinned first: the density costs the square
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
    square[rank >= rank[:, None]] = np.inf
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
    tops = np.unique(label)
    mass = np.array([w[label == top].sum() for top in tops])
    kept = tops[mass >= min(LEAST, mass.max())]
    if len(kept) < len(tops):  # what is too small joins the nearest mode that is not
        gap = ((centred[:, None] - centred[kept]) ** 2 / (centred.var(0) + 1e-300)).sum(-1)
        label = np.where(np.isin(label, kept), label, kept[gap.argmin(-1)])
    found = []
    for top in kept:
        part = label == top
        share = w[part] / w[part].sum()
        centre = share @ centred[part]
        away = centred[part] - centre
        found.append(Mode(float(w[part].sum()), mean + centre, (away * share[:, None]).T @ away))
    return sorted(found, key=lambda mode: -mode.mass)


def mixture_modes(w: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> list[Mode]:
    """Modes of a mixture of Gaussians (K,), (K, d), (K, d, d), the heaviest first.

    Components are joined to the nearest one of higher density unless the density dips in between.
    """
    heavy = w > 1e-3 * w.max()
    w, mean, cov = w[heavy] / w[heavy].sum(), mean[heavy], cov[heavy]
    inverse = np.linalg.inv(np.linalg.cholesky(cov))
    level = np.log(w) + np.log(np.diagonal(inverse, axis1=-2, axis2=-1)).sum(-1)
    density = mixture_density(mean, mean, inverse, level)
    away = np.einsum("kij,klj->kli", inverse, mean[:, None] - mean)
    gap = (away * away).sum(-1)
    order = np.argsort(-density, kind="stable")
    rank = np.empty(len(w), dtype=int)
    rank[order] = np.arange(len(w))
    gap[rank >= rank[:, None]] = np.inf
    parent = gap.argmin(-1)
    middle = mixture_density(0.5 * (mean + mean[parent]), mean, inverse, level)
    is_top = np.isinf(gap.min(-1)) | (middle < DIP * density)
    parent = np.where(is_top, np.arange(len(w)), parent)
    label = _roots(parent)
    found = []
    for top in np.unique(label):
        part = label == top
        share = w[part] / w[part].sum()
        centre = share @ mean[part]
        apart = mean[part] - centre
        spread = np.einsum("k,kij->ij", share, cov[part]) + (apart * share[:, None]).T @ apart
        found.append(Mode(float(w[part].sum()), centre, spread))
    return sorted((m for m in found if m.mass >= LEAST), key=lambda mode: -mode.mass)


def mixture_density(points: np.ndarray, mean: np.ndarray, inverse: np.ndarray, level: np.ndarray) -> np.ndarray:
    """(P,) density, up to (2 pi)^(d/2), of a mixture with roots `inverse` of its precisions and log `level`s."""
    away = np.einsum("kij,pkj->pki", inverse, points[:, None] - mean)
    return np.exp(level - 0.5 * (away * away).sum(-1)).sum(-1)
