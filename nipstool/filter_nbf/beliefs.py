"""Where fresh particles come from: the set itself, a kernel around it, or the Gaussian with its moments.

A belief's `sample` takes B weighted sets and gives `count` new particles of each, all of them possible states.
The learned one is in embedding.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nipstool.filter_nbf.draws import Draws
from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.weights import moments, resampled

TRIES = 3  # at drawing again what fell on an impossible state
FEW = 16.0  # effective particles below which a Gaussian is widened by some of the unweighted spread
KERNEL = 0.5  # of Silverman's bandwidth: a mixture of kernels that wide would smooth over modes


@dataclass(frozen=True)
class Sample:
    """(B, count, d) particles; (B,) how far outside its family a belief is, 1 at the alarm, NaN if not known."""

    x: np.ndarray
    off_family: np.ndarray


class Belief(Protocol):
    """A family of distributions that a weighted set is turned into and sampled from anew."""

    keep: float
    """Share of the particles that systematic resampling keeps, by default."""
    threshold: float
    """Share of n below which the effective size calls for fresh particles, by default."""
    stage_size: float
    """Share of n that every stage of a tempered update must leave, by default."""

    def sample(self, dynamics: Dynamics, x: np.ndarray, logw: np.ndarray, count: int, draws: Draws) -> Sample: ...


class Bootstrap:
    """The particles themselves, as in a plain particle filter (Gordon et al. 1993)."""

    keep, threshold, stage_size = 1.0, 0.5, 0.2

    def sample(self, dynamics: Dynamics, x: np.ndarray, logw: np.ndarray, count: int, draws: Draws) -> Sample:
        """Systematic resampling."""
        return Sample(resample(x, logw, count, draws), unknown(x))


class Kernel:
    """A Gaussian kernel around every particle (Musso, Oudjane and Le Gland 2001)."""

    keep, threshold, stage_size = 0.5, 0.5, 0.2

    def __init__(self, width: float = KERNEL):
        self.width = width

    def sample(self, dynamics: Dynamics, x: np.ndarray, logw: np.ndarray, count: int, draws: Draws) -> Sample:
        """Systematic resampling, then noise of the set's covariance times Silverman's bandwidth."""
        base = resample(x, logw, count, draws)
        _, cov = moments(x, np.exp(logw), dynamics.angles)
        d, n = x.shape[-1], x.shape[1]
        width = self.width * (4.0 / (d + 2)) ** (1.0 / (d + 4)) * n ** (-1.0 / (d + 4))
        root = width * cholesky(cov, x)

        x0 = dynamics.snap(base + draws.standard_normal((len(x), count, d)) @ np.swapaxes(root, -1, -2))

        def again(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
            return base[rows, places] + np.einsum("lij,lj->li", root[rows], draws.normals_of(rows, d))

        return Sample(possible(dynamics, x0, again, lambda rows: base[rows]), unknown(x))


class Gaussian:
    """The Gaussian with the set's mean and covariance (Kotecha and Djuric 2003).

    Args:
        cov: "full"; "shrunk", full and drawn towards its diagonal by min(1, d / ESS); "diag"; "auto" is shrunk
            where d is at least 8.
    """

    keep, threshold, stage_size = 0.0, 0.5, 0.2

    def __init__(self, cov: str = "auto"):
        self.cov = cov

    def sample(self, dynamics: Dynamics, x: np.ndarray, logw: np.ndarray, count: int, draws: Draws) -> Sample:
        """Draws of N(mean, cov) in opposite pairs."""
        mean, root = self.fit(dynamics, x, logw)
        noise = draws.opposites((len(x), count, x.shape[-1]))
        fresh = dynamics.snap(mean[:, None] + noise @ np.swapaxes(root, -1, -2))

        def again(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
            return mean[rows] + np.einsum("lij,lj->li", root[rows], draws.normals_of(rows, x.shape[-1]))

        def own(rows: np.ndarray) -> np.ndarray:
            return resample(x[rows], logw[rows], count, draws.take(rows))

        return Sample(possible(dynamics, fresh, again, own), unknown(x))

    def fit(self, dynamics: Dynamics, x: np.ndarray, logw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(B, d) means and (B, d, d) lower roots of the covariances."""
        w = np.exp(logw)
        mean, cov = moments(x, w, dynamics.angles)
        d = x.shape[-1]
        size = 1.0 / (w * w).sum(-1)
        if self.cov == "diag":
            share = np.ones_like(size)
        elif self.cov == "shrunk" or (self.cov == "auto" and d >= 8):
            share = np.minimum(1.0, d / size)
        else:
            share = np.zeros_like(size)
        if share.any():
            cov = cov * (1.0 - share[:, None, None] * (1.0 - np.eye(d)))
        if (size < FEW).any():  # a set of one effective particle has no spread of its own
            floor = np.where(size < FEW, 1.0 / (size * size), 0.0)[:, None] * x.var(1)
            cov = cov + floor[..., None] * np.eye(d)
        return mean, cholesky(cov, x)


def unknown(x: np.ndarray) -> np.ndarray:
    """(B,) NaN: nothing is known about the family."""
    nothing = np.empty(len(x))
    nothing.fill(np.nan)  # at each step: np.full takes twice the time
    return nothing


def resample(x: np.ndarray, logw: np.ndarray, count: int, draws: Draws) -> np.ndarray:
    """(B, count, d) particles of systematic resampling."""
    return resampled(x, np.exp(logw), draws.random((len(x),)), count)


def cholesky(cov: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Lower roots of (B, d, d) covariances of the sets x, with as much added to the diagonal as it takes."""
    with suppress(np.linalg.LinAlgError):
        return np.linalg.cholesky(cov)
    spread = x.var(1) + 1e-12 * (1.0 + np.abs(x).max((1, 2)) ** 2)[:, None]
    for jitter in (1e-10, 1e-6, 1e-3, 1.0):
        try:
            return np.linalg.cholesky(cov + jitter * spread[..., None] * np.eye(x.shape[-1]))
        except np.linalg.LinAlgError:
            continue
    return np.sqrt(spread)[..., None] * np.eye(x.shape[-1])


def possible(
    dynamics: Dynamics,
    x: np.ndarray,
    again: Callable[[np.ndarray, np.ndarray], np.ndarray],
    own: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """x (B, count, d) with impossible particles replaced: by the first possible of a few draws, or one of the set.

    Args:
        again: (L,) tracks and places of particles -> (L, d) other draws for them.
        own: (R,) tracks -> (R, count, d) particles of their sets.
    """
    if not dynamics.has("valid"):
        return x
    rows, places = np.nonzero(~dynamics.valid(x))
    if not len(rows):
        return x
    fresh = dynamics.snap(again(rows.repeat(TRIES), places.repeat(TRIES))[None])
    good = dynamics.valid(fresh).reshape(-1, TRIES)
    x[rows, places] = fresh.reshape(-1, TRIES, x.shape[-1])[np.arange(len(rows)), good.argmax(1)]
    bad = ~good.any(1)
    if bad.any():
        lost, which = np.unique(rows[bad], return_inverse=True)
        x[rows[bad], places[bad]] = own(lost)[which, places[bad]]
    return x
