"""Scenarios: a truth drawn from the model, with what would be observed of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nipstool.filter_nbf.draws import Draws
from nipstool.filter_nbf.model import Dynamics


@dataclass(frozen=True)
class Scenario:
    """T steps: states (T, d), observations (T, m) with NaN = missing, controls (T, k)."""

    x: np.ndarray
    y: np.ndarray
    u: np.ndarray


def simulate(dynamics: Dynamics, steps: int, rng: np.random.Generator, dt: float = 1.0) -> Scenario:
    """One scenario of `steps` rows, dt apart."""
    u = dynamics.simulate_controls(steps, rng)
    draws = Draws([rng])
    x = dynamics.init_sample(1, draws)
    states, seen = [], []
    for k in range(steps):
        if k:
            x = dynamics.transition_sample(x, u[k - 1 : k], np.array([dt]), draws)
        states.append(x[0, 0])
        seen.append(dynamics.simulate_obs(x, u[k : k + 1], draws)[0, 0])
    return Scenario(np.array(states), np.array(seen), u)


def rows_of(dynamics: Dynamics, steps: int, tracks: int, dt: float, seed: int) -> Iterator[str]:
    """NDJSON rows of some tracks, interleaved; each row holds its truth. One track has no id."""
    made = [simulate(dynamics, steps, np.random.default_rng([seed, index]), dt) for index in range(tracks)]
    for k in range(steps):
        for index, scenario in enumerate(made):
            row: dict[str, Any] = {"t": round(k * dt, 9)}
            if tracks > 1:
                row["id"] = str(index)
            row["obs"] = _named(dynamics.obs_names, scenario.y[k])
            if dynamics.control_names:
                row["control"] = _named(dynamics.control_names, scenario.u[k])
            row["truth"] = _named(dynamics.names, scenario.x[k])
            yield json.dumps(row)


def _named(names: tuple[str, ...], values: np.ndarray) -> dict[str, float]:
    """The values that are there, by name."""
    return {name: float(value) for name, value in zip(names, values, strict=True) if np.isfinite(value)}
