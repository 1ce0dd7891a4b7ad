"""A model as the filter uses it: many tracks at once, numpy in and out, whatever the user wrote it in.

Built-in domains take all tracks in one call. A user's model has x as (n, d), and is called track by track.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nipstool.filter_nbf.draws import Draws
from nipstool.kit.errors import DataError, NipsError

METHODS = {
    "run": ("init_sample", "transition_sample", "log_likelihood"),
    "simulate": ("init_sample", "transition_sample", "simulate_obs"),
    "evaluate": ("init_sample", "transition_sample", "log_likelihood", "simulate_obs"),
    "train": ("init_sample", "transition_sample", "log_likelihood", "simulate_obs", "sample_params"),
}
PIECES = 1_000_000  # that a time is bridged in at most: a broken clock would be waited for without end


class Dynamics:
    """`model` for B tracks: (B, n, d) particles, (B, k) controls, (B,) times, (B, m) observations, NaN = missing.

    Every failure of the model is a DataError that names the method.
    """

    def __init__(self, model: Any, label: str, *, device: str = "cpu"):
        self.model, self.label = model, label
        self.names: tuple[str, ...] = tuple(model.names)
        self.obs_names: tuple[str, ...] = tuple(model.obs_names)
        self.control_names: tuple[str, ...] = tuple(getattr(model, "control_names", ()))
        self.angles: tuple[int, ...] = tuple(getattr(model, "angles", ()))
        self.dim = len(self.names)
        self.positions: tuple[int, ...] = tuple(getattr(model, "positions", range(self.dim)))
        self.max_dt: float | None = getattr(model, "max_dt", None)
        self.is_torch = getattr(model, "backend", "numpy") == "torch"
        self._batched = bool(getattr(model, "batched", False))
        self._device = device
        self.nans = 0  # particles whose likelihood or state was no number, counted over the run

    def with_params(self, **params: Any) -> Dynamics:
        """The same domain with other dynamics."""
        return Dynamics(type(self.model)(**params), self.label, device=self._device)

    def has(self, method: str) -> bool:
        """Whether the model has this optional method."""
        return callable(getattr(self.model, method, None))

    def init_sample(self, n: int, draws: Draws) -> np.ndarray:
        """(B, n, d) draws of the prior."""
        size = len(draws.generators)
        if self._batched:
            return self._checked("init_sample", (size, n, self.dim), (size, n), draws)
        rows = [self._checked("init_sample", (n, self.dim), n, g) for g in draws.generators]
        return np.stack(rows)

    def transition_sample(
        self, x: np.ndarray, u: np.ndarray, dt: np.ndarray, draws: Draws, max_dt: float | None = None
    ) -> np.ndarray:
        """(B, n, d) draws of x' given x, in steps no longer than max_dt. A state that is no number stays put.

        Raises DataError where that takes more than PIECES steps.
        """
        limit = max_dt or self.max_dt
        if limit is None:
            return self._transition(x, u, dt, draws)
        longest = float(dt.max())
        if longest > PIECES * limit:
            raise DataError(f"{self.label}: a time of {longest:g} is more than {PIECES} steps of max_dt {limit:g}")
        pieces = max(1, math.ceil(longest / limit))
        if pieces == 1 or len(x) == 1:
            for _ in range(pieces):
                x = self._transition(x, u, dt / pieces, draws)
            return x
        rows = [
            self.transition_sample(x[b : b + 1], u[b : b + 1], dt[b : b + 1], draws.take([b]), limit)
            for b in range(len(x))
        ]
        return np.concatenate(rows)

    def _transition(self, x: np.ndarray, u: np.ndarray, dt: np.ndarray, draws: Draws) -> np.ndarray:
        name = "transition_sample"
        if self._batched:
            moved = self._checked(name, x.shape, x, u[:, None], dt[:, None], draws)
        else:
            rows = zip(x, u, dt, draws.generators, strict=True)
            moved = np.stack([self._checked(name, x[0].shape, *row[:2], float(row[2]), row[3]) for row in rows])
        if math.isfinite(moved.sum()):
            return moved
        lost = np.asarray(~np.isfinite(moved).all(-1))
        self.nans += int(lost.sum())
        return np.where(lost[..., None], x, moved)

    def log_likelihood(self, y: np.ndarray, x: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(B, n) log g(y | x), and (B,) whether the row said anything at all.

        Missing components are left out where the model tells components apart; else the whole row is missing.
        """
        if self._batched:
            found = self._checked("log_likelihood", None, y[:, None], x, u[:, None])
        else:
            rows = zip(y, x, u, strict=True)
            found = np.stack([self._checked("log_likelihood", None, *row) for row in rows])
        some = has_gaps(y)
        gone: np.ndarray = np.isnan(y) if some else y
        told: np.ndarray = np.ones(len(y), dtype=bool)
        if found.shape == (*x.shape[:2], y.shape[1]):
            if some:
                told = np.asarray(~gone.all(-1))
                found = np.where(gone[:, None], 0.0, found)
            found = _row_sums(found)
        elif found.shape == x.shape[:2]:
            if some:
                told = np.asarray(~gone.any(-1))
                found = np.where(told[:, None], found, 0.0)
        else:
            n, m = x.shape[1], y.shape[1]
            raise self._error("log_likelihood", f"gave shape {found.shape[1:]}, expected ({n},) or ({n}, {m})")
        if not math.isfinite(found.sum()):
            found = self._without_nan(found)
        return found, told

    def _without_nan(self, found: np.ndarray) -> np.ndarray:
        if np.isposinf(found).any():
            raise self._error("log_likelihood", "gave +inf")
        lost = np.isnan(found)
        self.nans += int(lost.sum())
        return np.where(lost, -np.inf, found)

    def simulate_obs(self, x: np.ndarray, u: np.ndarray, draws: Draws) -> np.ndarray:
        """(B, n, m) observations of x."""
        shape = (*x.shape[:2], len(self.obs_names))
        if self._batched:
            return self._checked("simulate_obs", shape, x, u[:, None], draws)
        rows = zip(x, u, draws.generators, strict=True)
        return np.stack([self._checked("simulate_obs", shape[1:], *row) for row in rows])

    def simulate_controls(self, steps: int, rng: np.random.Generator) -> np.ndarray:
        """(steps, k) controls: the model's own, or zeros where it makes none."""
        if not self.has("simulate_controls"):
            return np.zeros((steps, len(self.control_names)))
        return self._checked("simulate_controls", (steps, len(self.control_names)), steps, rng)

    def valid(self, x: np.ndarray) -> np.ndarray:
        """(B, n) whether states are possible; all are where the model does not say."""
        if not self.has("valid"):
            return np.ones(x.shape[:-1], dtype=bool)
        return self._each("valid", x, x.shape[:-1]) > 0.5

    def snap(self, x: np.ndarray) -> np.ndarray:
        """Perturbed states brought back to possible ones: angles wrapped, cells centred. May change x itself."""
        if self.has("snap"):
            return self._each("snap", x, x.shape)
        for j in self.angles:
            x[..., j] = (x[..., j] + np.pi) % (2.0 * np.pi) - np.pi
        return x

    def _each(self, name: str, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if self._batched:
            return self._checked(name, shape, x)
        return np.stack([self._checked(name, shape[1:], row) for row in x])

    def _checked(self, name: str, shape: tuple[int, ...] | None, *args: Any) -> np.ndarray:
        """Call a method and compare what it gives with the shape that is expected."""
        method: Callable[..., Any] = getattr(self.model, name)
        try:
            with np.errstate(all="ignore"):
                value = as_numpy(method(*(self._tensors(args) if self.is_torch else args)))
        except NipsError:
            raise
        except Exception as error:  # whatever a user's model raises
            raise self._error(name, f"raised {type(error).__name__}: {error}") from error
        if shape is not None and value.shape != shape:
            raise self._error(name, f"gave shape {value.shape}, expected {shape}")
        return value

    def _tensors(self, args: Sequence[Any]) -> list[Any]:
        import torch

        def convert(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return torch.as_tensor(value, dtype=torch.get_default_dtype(), device=self._device)
            if isinstance(value, np.random.Generator):
                return torch.Generator(self._device).manual_seed(int(value.integers(1 << 63)))
            return value

        return [convert(value) for value in args]

    def _error(self, name: str, what: str) -> DataError:
        return DataError(f"{self.label}: {name} {what}")


def has_gaps(y: np.ndarray) -> bool:
    """Whether a NaN may be among observations. There are few: a list of them is added up in half the time."""
    return math.isnan(sum(y.ravel().tolist()))


def _row_sums(x: np.ndarray) -> np.ndarray:
    """x.sum(-1), for the few columns that observations usually have in a fraction of the time."""
    if not 0 < x.shape[-1] <= 4:
        return x.sum(-1)
    total = x[..., 0]
    for j in range(1, x.shape[-1]):
        total = total + x[..., j]
    return total


def as_numpy(value: Any) -> np.ndarray:
    """An array or tensor as float64 numpy."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value, dtype=np.float64)
