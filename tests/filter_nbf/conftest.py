"""Series with known answers, exact answers by other means than particles, and one filter run over a series."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nipstool.filter_nbf.beliefs import Belief
from nipstool.filter_nbf.draws import KeyedGenerator
from nipstool.filter_nbf.evaluate import Method, filtered
from nipstool.filter_nbf.filter import Cloud, Settings
from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.simulate import Scenario

Run = Callable[..., tuple[float, Cloud]]


@pytest.fixture(scope="session")
def series(data_dir: Path) -> dict[str, np.ndarray]:
    """(T, 1) observations: the Nile's flow, daily returns of GBP/USD in percent, a linear-Gaussian series."""
    folder = data_dir / "filter-nbf"
    flow = np.loadtxt(folder / "nile.csv", delimiter=",", skiprows=1)[:, 1:]
    words = [line.split() for line in (folder / "GBP_vs_USD_9798.txt").read_text().splitlines()[2:]]
    rate = np.array([float(row[3]) for row in words if len(row) == 4])
    return {
        "nile": flow,
        "returns": 100.0 * np.diff(np.log(rate))[:, None],
        "linear": np.loadtxt(folder / "linGauss_T100.txt")[:, None],
    }


@pytest.fixture(scope="session")
def run_filter() -> Run:
    """run(dynamics, belief, settings, y, seed): log evidence and the last belief."""

    def run(
        dynamics: Dynamics, belief: Belief, settings: Settings, y: np.ndarray, seed: int = 0
    ) -> tuple[float, Cloud]:
        scenario = Scenario(np.empty((len(y), 0)), y, np.zeros((len(y), len(dynamics.control_names))))
        steps = list(filtered(dynamics, Method(belief, settings), scenario, KeyedGenerator(seed, "")))
        return sum(gain for _, gain, _ in steps), steps[-1][0]

    return run


@pytest.fixture(scope="session")
def kalman() -> Callable[..., tuple[float, np.ndarray, np.ndarray]]:
    return kalman_filter


@pytest.fixture(scope="session")
def forward() -> Callable[..., tuple[float, np.ndarray]]:
    return forward_algorithm


def kalman_filter(
    y: np.ndarray, A: np.ndarray, Q: np.ndarray, H: np.ndarray, R: np.ndarray, m: np.ndarray, P: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Log evidence of y (T, k), NaN rows missing, and the filtered means (T, d) and last covariance."""
    total, means = 0.0, []
    for k, row in enumerate(y):
        if k:
            m, P = A @ m, A @ P @ A.T + Q
        if not np.isnan(row).any():
            S = H @ P @ H.T + R
            gain = P @ H.T @ np.linalg.inv(S)
            away = row - H @ m
            total += -0.5 * (
                away @ np.linalg.solve(S, away) + np.linalg.slogdet(S)[1] + len(row) * np.log(2 * np.pi)
            )
            m, P = m + gain @ away, P - gain @ H @ P
        means.append(m)
    return total, np.array(means), P


def forward_algorithm(loglik: np.ndarray, P: np.ndarray, start: np.ndarray) -> tuple[float, np.ndarray]:
    """Log evidence and filtered beliefs (T, k) of a hidden Markov chain with log likelihoods (T, k)."""
    total, belief, beliefs = 0.0, start, []
    for k, row in enumerate(loglik):
        if k:
            belief = belief @ P
        top = row.max()
        belief = belief * np.exp(row - top)
        total += top + np.log(belief.sum())
        belief = belief / belief.sum()
        beliefs.append(belief)
    return float(total), np.array(beliefs)
