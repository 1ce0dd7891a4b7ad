"""Stochastic volatility: x' = mu + rho (x - mu) + sigma N(0, 1), y = exp(x / 2) N(0, 1)."""

from __future__ import annotations

import math
from typing import Any

from nipstool.filter_nbf.arrays import Array, like, namespace


class StochasticVolatility:
    """The log variance of returns, with its stationary prior. dt may be any time: rho^dt."""

    batched = True
    names = ("log_variance",)
    obs_names = ("return",)

    def __init__(self, mu: float = -1.0, rho: float = 0.97, sigma: float = 0.178):
        if not 0.0 < rho < 1.0 or sigma <= 0.0:
            raise ValueError(f"rho is {rho} and sigma {sigma}: expected 0 < rho < 1 and sigma > 0")
        self.mu, self.rho, self.sigma = mu, rho, sigma
        self._spread = sigma / math.sqrt(1.0 - rho * rho)

    def init_sample(self, n: Any, rng: Any) -> Array:
        """(..., n, 1) draws of the stationary law."""
        size = tuple(n) if isinstance(n, tuple) else (n,)
        return self.mu + self._spread * rng.standard_normal((*size, 1))

    def transition_sample(self, x: Array, u: Array, dt: Any, rng: Any) -> Array:
        """(..., n, 1) draws of x' given x."""
        keep = self.rho ** (like(dt, x)[..., None] if getattr(dt, "ndim", 0) else float(dt))
        spread = self._spread * (1.0 - keep * keep) ** 0.5
        return self.mu + keep * (x - self.mu) + spread * rng.standard_normal(tuple(x.shape))

    def log_likelihood(self, y: Array, x: Array, u: Array) -> Array:
        """(..., n, 1): log N(y | 0, exp(x))."""
        y = like(y, x)
        return -0.5 * (x + y * y * namespace(x).exp(-x) + math.log(2.0 * math.pi))

    def simulate_obs(self, x: Array, u: Array, rng: Any) -> Array:
        """(..., n, 1) returns."""
        return namespace(x).exp(0.5 * x) * rng.standard_normal(tuple(x.shape))

    def sample_params(self, rng: Any) -> dict[str, float]:
        """A model of the family: rho in 0.9 to 0.99, sigma in 0.1 to 0.4, mu in -2 to 0."""
        a, b, c = (float(v) for v in rng.random((3,)))
        return {"mu": -2.0 + 2.0 * a, "rho": 0.9 + 0.09 * b, "sigma": 0.1 + 0.3 * c}
