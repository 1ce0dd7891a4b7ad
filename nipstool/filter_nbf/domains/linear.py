"""Linear-Gaussian dynamics in any dimension: x' = A x + N(0, Q), y = H x + N(0, R). `nile` is a preset."""

from __future__ import annotations

from typing import Any

import numpy as np

from nipstool.filter_nbf.arrays import Array, like, namespace, normal_logpdf


class LinearGaussian:
    """Numbers stand for multiples of the identity. dt counts whole steps, or any time where A is the identity.

    Args:
        d: dimension, where no matrix says it.
        A, Q: transition matrix and process covariance, of one unit of time.
        H, R: observation matrix and covariance.
        m0, P0: prior mean and covariance at the first row; P0 None is the stationary covariance.
    """

    batched = True

    def __init__(
        self,
        d: int = 1,
        A: Any = 0.9,
        Q: Any = 1.0,
        H: Any = 1.0,
        R: Any = 0.04,
        m0: Any = 0.0,
        P0: Any = None,
        names: tuple[str, ...] = (),
        obs_names: tuple[str, ...] = (),
    ):
        shapes = [np.shape(value)[-1] for value in (A, Q, m0) if np.ndim(value)]
        self.dim = d = shapes[0] if shapes else int(d)
        self.A, self.Q = _matrix(A, d), _matrix(Q, d)
        self.H = _matrix(H, d)
        self.R = _matrix(R, len(self.H))
        self.m0 = np.broadcast_to(np.asarray(m0, float), (d,))
        self._given_P0 = P0
        self.P0 = stationary(self.A, self.Q) if P0 is None else _matrix(P0, d)
        self.names = tuple(names) or tuple(f"x{i}" for i in range(d))
        self.obs_names = tuple(obs_names) or tuple(f"y{i}" for i in range(len(self.H)))
        self._white = np.linalg.inv(np.linalg.cholesky(self.R))
        self._is_walk = bool(np.array_equal(self.A, np.eye(d)))
        self._is_seen_whole = bool(np.array_equal(self.H, np.eye(d)))
        self._sd = _deviations(self.R)
        self._steps: dict[float, tuple[np.ndarray, np.ndarray]] = {}

    def step_moments(self, dt: float) -> tuple[np.ndarray, np.ndarray]:
        """(d, d) transition matrix and process covariance over dt. Raises ValueError for a broken step."""
        if dt not in self._steps:
            if not self._is_walk and dt != round(dt):
                raise ValueError(f"dt is {dt}: with this A time goes in whole steps")
            self._steps[dt] = (self.A, self.Q * dt) if self._is_walk else _many(self.A, self.Q, round(dt))
            while len(self._steps) > 1000:
                self._steps.pop(next(iter(self._steps)))
        return self._steps[dt]

    def init_sample(self, n: Any, rng: Any) -> Array:
        """(..., n, d) draws of the prior."""
        noise = rng.standard_normal((*_size(n), self.dim))
        return like(self.m0, noise) + noise @ like(_root(self.P0).T, noise)

    def transition_sample(self, x: Array, u: Array, dt: Any, rng: Any) -> Array:
        """(..., n, d) draws of x' given x."""
        noise = rng.standard_normal(tuple(x.shape))
        if not getattr(dt, "ndim", 0):  # a number: the same time for all
            return self._move(x, noise, float(dt))
        first = float(dt[0, 0])
        if len(x) == 1 or bool((dt == first).all()):
            return self._move(x, noise, first)
        rows = [self._move(x[b], noise[b], float(dt[b, 0])) for b in range(len(x))]
        return namespace(x).stack(rows)

    def _move(self, x: Array, noise: Array, dt: float) -> Array:
        A, Q = self.step_moments(dt)
        if self.dim == 1:
            noise *= float(Q[0, 0]) ** 0.5
            noise += x if self._is_walk else float(A[0, 0]) * x
            return noise
        return x @ like(A.T, x) + noise @ like(_root(Q).T, x)

    def log_likelihood(self, y: Array, x: Array, u: Array) -> Array:
        """(..., n, m) by component where R is diagonal, else (..., n)."""
        residual = like(y, x) - (x if self._is_seen_whole else x @ like(self.H.T, x))
        if self._sd is not None:
            return normal_logpdf(residual, self._sd if isinstance(self._sd, float) else like(self._sd, x))
        return normal_logpdf(residual @ like(self._white.T, x), 1.0).sum(-1) + float(
            np.log(np.diag(self._white)).sum()
        )

    def simulate_obs(self, x: Array, u: Array, rng: Any) -> Array:
        """(..., n, m) observations of x."""
        noise = rng.standard_normal((*x.shape[:-1], len(self.H)))
        return x @ like(self.H.T, x) + noise @ like(np.linalg.cholesky(self.R).T, x)

    def sample_params(self, rng: Any) -> dict[str, Any]:
        """A model of the family: noise levels over half a decade either way, and, but for a walk, other memory."""
        a, b, c = (float(v) for v in rng.random((3,)))
        radius = max(float(np.abs(np.linalg.eigvals(self.A)).max()), 1e-9)
        A = self.A if self._is_walk else self.A * ((0.5 + 0.47 * a) / radius)
        drawn = {"A": A, "Q": self.Q * 10.0 ** (b - 0.5), "R": self.R * 10.0 ** (c - 0.5)}
        same = {"H": self.H, "m0": self.m0, "P0": self._given_P0, "names": self.names, "obs_names": self.obs_names}
        return drawn | same


def nile(**changes: Any) -> LinearGaussian:
    """The annual flow of the Nile as a local level (Durbin and Koopman 2012), with a proper prior."""
    preset: dict[str, Any] = {"A": 1.0, "Q": 1469.1, "R": 15099.0, "m0": 1000.0, "P0": 500.0**2}
    preset |= {"names": ("level",), "obs_names": ("flow",)}
    return LinearGaussian(**(preset | changes))


def stationary(A: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """The covariance that A P A' + Q = P leaves unchanged. Raises ValueError where A is not stable."""
    if np.abs(np.linalg.eigvals(A)).max() >= 1.0:
        raise ValueError("A is not stable, so there is no stationary covariance: give P0")
    d = len(A)
    return np.linalg.solve(np.eye(d * d) - np.kron(A, A), Q.ravel()).reshape(d, d)


def _matrix(value: Any, d: int) -> np.ndarray:
    array = np.asarray(value, dtype=float)
    return array * np.eye(d) if array.ndim == 0 else np.diag(array) if array.ndim == 1 else array


def _many(A: np.ndarray, Q: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """A and Q of so many steps in one, by squaring: after a steps, b more make A_b A_a and A_b Q_a A_b' + Q_b."""
    all_A, all_Q = np.eye(len(A)), np.zeros_like(Q)
    while steps:
        if steps & 1:
            all_A, all_Q = A @ all_A, A @ all_Q @ A.T + Q
        A, Q = A @ A, A @ Q @ A.T + Q
        steps >>= 1
    return all_A, all_Q


def _deviations(cov: np.ndarray) -> float | np.ndarray | None:
    """The standard deviations of a diagonal covariance, a number where it is one; None of any other."""
    if cov.size == 1:
        return float(cov[0, 0]) ** 0.5
    return np.sqrt(np.diag(cov)) if np.array_equal(cov, np.diag(np.diag(cov))) else None


def _root(cov: np.ndarray) -> np.ndarray:
    """A matrix whose square is cov, which may be singular."""
    values, vectors = np.linalg.eigh(cov)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def _size(n: Any) -> tuple[int, ...]:
    return tuple(n) if isinstance(n, tuple | list) else (int(n),)
