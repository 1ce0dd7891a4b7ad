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

ROUNDS = 3  # of drawing again what fell on impossible states
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

    def sample(self, dynamics: Dynamics, x: np.ndarray, logw: np.ndarray, count: int, draws: Draws) -> Sample: ...


class Bootstrap:
    """The particles themselves, as in a plain particle filter (Gordon et al. 1993)."""

    keep, threshold = 1.0, 0.5

    def sample(self, dynamics: Dynamics, x: np.ndarray, logw: np.ndarray, count: int, draws: Draws) -> Sample:
        """Systematic resampling."""
        return Sample(resample(x, logw, count, draws), unknown(x))


class Kernel:
    """A Gaussian kernel around every particle (Musso, Oudjane and Le Gland 2001)."""

    keep, threshold = 0.5, 0.5

    def __init__(self, width: float = KERNEL):
        self.width = width

    def sample(self, dynamics: Dynamics, x: np.ndarray, logw: np.ndarray, count: int, draws: Draws) -> Sample:
        """Systematic resampling, then noise of the set's covariance times Silverman's bandwidth."""
        base = resample(x, logw, count, draws)
        _, cov = moments(x, np.exp(logw), dynamics.angles)
        d, n = x.shape[-1], x.shape[1]
        width = self.width * (4.0 / (d + 2)) ** (1.0 / (d + 4)) * n ** (-1.0 / (d + 4))
        root = width * cholesky(cov, x)

        def draw(rows: np.ndarray) -> np.ndarray:
            noise = draws.take(rows).standard_normal((len(rows), count, d))
            return dynamics.snap(base[rows] + noise @ np.swapaxes(root[rows], -1, -2))

        return Sample(possible(dynamics, draw, base), unknown(x))


class Gaussian:
    """The Gaussian with the set's mean and covariance (Kotecha and Djuric 2003).

    Args:
        cov: "full"; "shrunk", full and drawn towards its diagonal by min(1, d / ESS); "diag"; "auto" is shrunk
            where d is at least 8.
    """

    keep, threshold = 0.0, 0.5

    def __init__(self, cov: str = "auto"):
        self.cov = cov

    def sample(self, dynamics: Dynamics, x: np.ndarray, logw: np.ndarray, count: int, draws: Draws) -> Sample:
        """Draws of N(mean, cov) in opposite pairs."""
        mean, root = self.fit(dynamics, x, logw)

        def draw(rows: np.ndarray) -> np.ndarray:
            noise = draws.take(rows).opposites((len(rows), count, x.shape[-1]))
            return dynamics.snap(mean[rows, None] + noise @ np.swapaxes(root[rows], -1, -2))

        needs_base = dynamics.has("valid")
        base = resample(x, logw, count, draws) if needs_base else x[:, :0]
        return Sample(possible(dynamics, draw, base), unknown(x))

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
    return np.full(len(x), np.nan)


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


def possible(dynamics: Dynamics, draw: Callable[[np.ndarray], np.ndarray], base: np.ndarray) -> np.ndarray:
    """What `draw(rows)` gives; the impossible is drawn again a few times, then taken from `base`."""
    x = draw(np.arange(len(base)))
    if not dynamics.has("valid"):
        return x
    for last in range(ROUNDS):
        bad = ~dynamics.valid(x)
        rows = np.flatnonzero(bad.any(-1))
        if not len(rows):
            break
        again = base[rows] if last == ROUNDS - 1 else draw(rows)
        x[rows] = np.where(bad[rows, :, None], again, x[rows])
    return x
