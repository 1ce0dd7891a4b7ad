"""Beliefs and evidence against exact answers: Kalman, forward algorithm, published figures."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import norm

from nipstool.filter_nbf.beliefs import Bootstrap, Gaussian, Kernel
from nipstool.filter_nbf.domains.grid import Grid
from nipstool.filter_nbf.draws import Draws, KeyedGenerator
from nipstool.filter_nbf.evaluate import Method, filtered
from nipstool.filter_nbf.filter import Settings
from nipstool.filter_nbf.load import load_domain
from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.simulate import Scenario, simulate

Run = Callable[..., tuple[float, Any]]
Kalman = Callable[..., tuple[float, np.ndarray, np.ndarray]]
Forward = Callable[..., tuple[float, np.ndarray]]
PLAIN: dict[str, Any] = {"temper": False}


def log_mean_exp(values: list[float]) -> float:
    return float(np.logaddexp.reduce(values) - np.log(len(values)))


def gaps(flow: np.ndarray) -> np.ndarray:
    y = flow.copy()
    y[20:40] = y[60:80] = np.nan
    return y


def exact_nile(kalman: Kalman, y: np.ndarray) -> float:
    one = np.eye(1)
    return kalman(y, one, 1469.1 * one, one, 15099.0 * one, np.array([1000.0]), 500.0**2 * one)[0]


def test_the_oracle_gives_the_published_figures(kalman: Kalman, series: dict[str, np.ndarray]) -> None:
    assert exact_nile(kalman, series["nile"]) == pytest.approx(-639.711715, abs=1e-6)
    assert exact_nile(kalman, gaps(series["nile"])) == pytest.approx(-387.753001, abs=1e-6)


@pytest.mark.parametrize("regenerate", ["always", "ess"])
def test_a_gaussian_belief_is_the_kalman_filter(
    series: dict[str, np.ndarray], run_filter: Run, regenerate: str
) -> None:
    settings = Settings(65_536, regenerate)
    total, cloud = run_filter(load_domain("nile"), Gaussian(), settings, series["nile"])
    w = np.exp(cloud.logw[0])
    mean = float(w @ cloud.x[0, :, 0])
    assert total == pytest.approx(-639.711715, abs=0.15)
    assert mean == pytest.approx(798.37029, abs=2.0)  # three standard errors at this n
    assert w @ (cloud.x[0, :, 0] - mean) ** 2 == pytest.approx(4032.158, rel=0.02)
    total, _ = run_filter(load_domain("nile"), Gaussian(), settings, gaps(series["nile"]))
    assert total == pytest.approx(-387.753, abs=0.2)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
def test_evidence_is_right_whenever_the_set_is_resampled(
    series: dict[str, np.ndarray], run_filter: Run, kalman: Kalman, threshold: float
) -> None:
    """The mean of exp(evidence - exact) over 32 seeds is 1; on 20 rows, since without resampling the mean square
    of a weight is e^22 times its squared mean after all 100."""
    y = series["nile"][:20]
    settings = Settings(8000, threshold=threshold, **PLAIN)
    dynamics = load_domain("nile")
    ratio = np.exp(
        [run_filter(dynamics, Bootstrap(), settings, y, seed)[0] - exact_nile(kalman, y) for seed in range(32)]
    )
    error = ratio.std(ddof=1) / np.sqrt(len(ratio))
    assert error < 0.12
    assert abs(ratio.mean() - 1.0) <= 3.0 * error


@pytest.mark.parametrize(
    ("name", "domain", "sd"), [("nile", "nile", 15099.0**0.5), ("linear", "linear-gaussian", 0.2)]
)
def test_evidence_without_resampling_is_that_of_whole_paths(
    series: dict[str, np.ndarray], name: str, domain: str, sd: float
) -> None:
    """Threshold 0: log of the mean over particles of the product of their likelihoods; 40 rows are missing."""
    y = gaps(series[name])
    scenario = Scenario(np.empty((100, 0)), y, np.zeros((100, 0)))
    method = Method(Bootstrap(), Settings(300, threshold=0.0, **PLAIN))
    steps = list(filtered(load_domain(domain), method, scenario, KeyedGenerator(3, "")))
    paths = np.array([cloud.x[0, :, 0] for cloud, _, _ in steps])
    told = ~np.isnan(y[:, 0])
    product = norm.logpdf(y[told], paths[told], sd).sum(0)
    assert sum(gain for _, gain, _ in steps) == pytest.approx(log_mean_exp(product.tolist()), rel=1e-9)


def test_stochastic_volatility(series: dict[str, np.ndarray], run_filter: Run) -> None:
    """Evidence from a grid of 600 points; two seeds here, eight in the benchmark."""
    dynamics = load_domain("stochastic-volatility")
    settings = Settings(4096, **PLAIN)
    runs = [run_filter(dynamics, Bootstrap(), settings, series["returns"], seed) for seed in range(2)]
    assert log_mean_exp([total for total, _ in runs]) == pytest.approx(-492.721167, abs=0.3)
    cloud = runs[0][1]
    assert float(np.exp(cloud.logw[0]) @ cloud.x[0, :, 0]) == pytest.approx(-1.8271604, abs=0.05)


@pytest.mark.parametrize("belief", [Bootstrap(), Gaussian()])
def test_a_linear_gaussian_series(series: dict[str, np.ndarray], run_filter: Run, belief: Bootstrap) -> None:
    settings = Settings(65_536, **PLAIN)
    total, cloud = run_filter(load_domain("linear-gaussian"), belief, settings, series["linear"])
    assert total == pytest.approx(-149.381241, abs=0.2)
    assert float(np.exp(cloud.logw[0]) @ cloud.x[0, :, 0]) == pytest.approx(2.115272977, abs=0.01)


def test_a_rotated_model_in_three_dimensions(run_filter: Run, kalman: Kalman) -> None:
    rng = np.random.default_rng(3)
    A = 0.9 * np.linalg.qr(rng.standard_normal((3, 3)))[0]
    root = rng.standard_normal((3, 3))
    H = rng.standard_normal((2, 3))
    R = np.array([[2.0, 0.8], [0.8, 1.6]])
    Q = root @ root.T / 6.0
    dynamics = load_domain(
        "linear-gaussian", {"A": A.tolist(), "Q": Q.tolist(), "H": H.tolist(), "R": R.tolist(), "P0": 1.0}
    )
    y = simulate(dynamics, 25, rng).y
    exact, means, _ = kalman(y, A, Q, H, R, np.zeros(3), np.eye(3))
    for belief, most in ((Bootstrap(), 0.1), (Gaussian(), 0.05), (Kernel(0.2), 0.1)):  # of spreads of 0.4 to 0.7
        total, cloud = run_filter(dynamics, belief, Settings(20_000, **PLAIN), y)
        assert total == pytest.approx(exact, abs=0.3)
        assert np.exp(cloud.logw[0]) @ cloud.x[0] == pytest.approx(means[-1], abs=most)


def transition_matrix(grid: Grid) -> np.ndarray:
    """(cells, cells) P[i, j] = chance of j after i: a blocked move is no move."""
    place = {tuple(cell): i for i, cell in enumerate(grid.cells.astype(int).tolist())}
    P = np.zeros((len(place), len(place)))
    for (column, row), i in place.items():
        for right, up in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            P[i, place.get((column + right, row + up), i)] += (1.0 - grid.stay) / 4.0
        P[i, i] += grid.stay
    return P


def grid_case(forward: Forward, seed: int, n: int) -> tuple[float, float, float]:
    """Evidence, exact evidence, and the mean divergence from the exact belief over 40 steps."""
    dynamics: Dynamics = load_domain("grid")
    rng = np.random.default_rng([11, seed])
    scenario = simulate(dynamics, 40, rng)
    cells = dynamics.model.cells
    y, u = scenario.y, scenario.u
    every = np.broadcast_to(cells, (40, *cells.shape))
    loglik, _ = dynamics.log_likelihood(y, every, u)
    start = np.full(len(cells), 1.0 / len(cells))
    exact, beliefs = forward(loglik, transition_matrix(dynamics.model), start)
    place = {tuple(cell): i for i, cell in enumerate(cells.astype(int))}
    total, apart = 0.0, []
    steps = filtered(dynamics, Method(Bootstrap(), Settings(n, **PLAIN)), scenario, KeyedGenerator(seed, "g"))
    for k, (cloud, gain, _) in enumerate(steps):
        total += gain
        mass = np.zeros(len(cells))
        np.add.at(mass, [place[tuple(cell)] for cell in cloud.x[0].astype(int)], np.exp(cloud.logw[0]))
        apart.append(float(jensenshannon(mass, beliefs[k])) ** 2)
    return total, exact, float(np.mean(apart))


def test_the_grid_against_the_forward_algorithm(forward: Forward) -> None:
    cases = [grid_case(forward, seed, 2000) for seed in range(3)]
    assert np.mean([apart for _, _, apart in cases]) <= 0.02
    assert all(abs(total - exact) < 1.5 for total, exact, _ in cases)


def test_the_grid_has_370_cells_and_a_proper_chain() -> None:
    grid = load_domain("grid").model
    P = transition_matrix(grid)
    assert P.shape == (370, 370)
    assert P.sum(1) == pytest.approx(np.ones(370))
    draws = Draws([np.random.default_rng(0)])
    start = np.tile(grid.cells[100], (1, 40_000, 1))
    moved = grid.transition_sample(start, None, np.ones((1, 1)), draws)[0]
    found = {tuple(c): float((moved == c).all(-1).mean()) for c in np.unique(moved, axis=0)}
    place = {tuple(cell): i for i, cell in enumerate(grid.cells)}
    for cell, share in found.items():
        assert share == pytest.approx(P[100, place[cell]], abs=0.01)
