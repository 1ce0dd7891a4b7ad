"""Built-in domains: one source for numpy and torch, likelihoods that fit their own observations, users' models."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nipstool.filter_nbf.domains import BUILT_IN, arena, maker
from nipstool.filter_nbf.draws import Draws
from nipstool.filter_nbf.load import load_domain
from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.simulate import simulate
from nipstool.kit.errors import DataError, InputMissingError, UsageError

NAMES = tuple(BUILT_IN)


class Told:
    """Draws that were made before: the same for numpy and for torch."""

    def __init__(self, kind: Callable[[np.ndarray], Any], seed: int):
        self._kind, self._rng = kind, np.random.default_rng(seed)

    def standard_normal(self, size: tuple[int, ...]) -> Any:
        return self._kind(self._rng.standard_normal(size))

    def random(self, size: tuple[int, ...]) -> Any:
        return self._kind(self._rng.random(size))


def both(call: Callable[[Callable[[Any], Any]], Any]) -> tuple[np.ndarray, np.ndarray]:
    """The same call with numpy arrays and with float64 tensors."""
    a = call(lambda value: np.asarray(value, float))
    b = call(lambda value: torch.tensor(np.asarray(value, float)))
    assert isinstance(a, np.ndarray)
    assert isinstance(b, torch.Tensor)
    return a, b.numpy()


@pytest.mark.parametrize("name", NAMES)
def test_numpy_and_torch_say_the_same(name: str) -> None:
    model = maker(name)()
    scenario = simulate(load_domain(name), 6, np.random.default_rng(4))
    k, u = 5, scenario.u[5][None, None]
    y = scenario.y[k][None, None]
    if name == "constant-velocity":
        y = model.localise(y, scenario.y[0])
    start = np.broadcast_to(scenario.x[4], (2, 7, len(model.names))).copy()
    calls: list[Callable[[Callable[[Any], Any]], Any]] = [
        lambda kind: model.init_sample((2, 7), Told(kind, 0)),
        lambda kind: model.transition_sample(kind(start), kind(u), kind([[1.0], [2.0]]), Told(kind, 1)),
        lambda kind: model.log_likelihood(kind(y), kind(start), kind(u)),
        lambda kind: model.simulate_obs(kind(start), kind(u), Told(kind, 2)),
    ]
    for call in calls:
        a, b = both(call)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


class TorchDraws:
    """What domains ask of `rng`, drawn by torch."""

    def __init__(self, generator: torch.Generator, dtype: torch.dtype):
        self._how: dict[str, Any] = {"generator": generator, "dtype": dtype}

    def standard_normal(self, size: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(size, **self._how)

    def random(self, size: tuple[int, ...]) -> torch.Tensor:
        return torch.rand(size, **self._how)


def test_torch_draws_go_through_a_domain() -> None:
    rng = TorchDraws(torch.Generator().manual_seed(1), torch.float64)
    model = maker("arena")()
    x = model.init_sample((2, 50), rng)
    x = model.transition_sample(x, None, torch.ones(2, 1, dtype=torch.float64), rng)
    assert bool(model.valid(x).all())


@pytest.mark.parametrize("name", NAMES)
def test_the_likelihood_is_a_density_of_what_is_simulated(name: str) -> None:
    """E[g(y | x') / g(y | x)] = 1 for y drawn from x: an identity of every normalised likelihood."""
    dynamics = load_domain(name)
    rng = np.random.default_rng(8)
    scenario = simulate(dynamics, 4, rng)
    u = scenario.u[3:4]
    x = np.broadcast_to(scenario.x[3], (1, 4000, dynamics.dim)).copy()
    other = x.copy()
    shift = {"arena": 0.02, "grid": 0.0, "nile": 40.0, "constant-velocity": 5.0, "landmarks": 0.05}
    other[..., 0] += shift.get(name, 0.05)
    y = dynamics.simulate_obs(x, u, Draws([rng]))[0]
    if name == "constant-velocity":
        y = dynamics.model.localise(y, np.array([50.8, -1.2]))
    at, away = (
        np.array([dynamics.log_likelihood(y[i : i + 1], z[:, i : i + 1], u)[0][0, 0] for i in range(4000)])
        for z in (x, other)
    )
    ratio = np.exp(away - at)
    assert abs(ratio.mean() - 1.0) <= 4.0 * ratio.std() / math.sqrt(len(ratio)) + 1e-9


@pytest.mark.parametrize("name", ["nile", "stochastic-volatility", "constant-velocity", "landmarks", "arena"])
def test_two_half_steps_are_a_step(name: str) -> None:
    """Moments after dt = 1, and after twice dt = 0.5; the arena's start is far from its walls."""
    dynamics = load_domain(name)
    draws = Draws([np.random.default_rng(1)])
    start = np.zeros((1, 40_000, dynamics.dim))
    start[..., 0] = 0.3
    if name == "landmarks":
        start[..., 2] = 1.0
    u = np.array([[1.0, 0.1]])[:, : len(dynamics.control_names)]
    whole = dynamics.transition_sample(start, u, np.array([1.0]), draws)[0]
    half = start
    for _ in range(2):
        half = dynamics.transition_sample(half, u, np.array([0.5]), draws)
    scale = whole.std(0) + 1e-12
    np.testing.assert_allclose(half[0].mean(0) / scale, whole.mean(0) / scale, atol=0.05)
    if name != "arena":  # its position is integrated from the velocity at the end of a step
        np.testing.assert_allclose(half[0].std(0) / scale, np.ones(dynamics.dim), atol=0.06)


def test_the_arena_keeps_the_evader_out_of_its_walls() -> None:
    dynamics = load_domain("arena", {"sigma": 0.08, "drift": 0.02})
    for seed in range(5):
        scenario = simulate(dynamics, 200, np.random.default_rng(seed))
        assert dynamics.valid(scenario.x[None]).all()


def test_a_wall_hides_what_is_behind_it() -> None:
    left, right, bottom, top = arena.WALLS[4]
    middle = 0.5 * (bottom + top)
    drone = np.array([left - 0.1, middle])
    x = np.array([[right + 0.05, middle, 0, 0], [left - 0.05, middle, 0, 0], [left - 0.1, middle + 0.5, 0, 0]])
    chance = arena.detection(x, drone, np.hypot(*(x[:, :2] - drone).T))
    assert chance[0] == pytest.approx(arena.FALSE)
    assert chance[1:] == pytest.approx([arena.SEEN, arena.SEEN], rel=0.05)


def test_negative_information_moves_the_belief() -> None:
    """Nothing seen: what lies in view of the drone becomes unlikely, what lies behind a wall does not."""
    dynamics = load_domain("arena")
    u = np.array([[0.6, -0.1]])
    x = np.array([[[0.6, 0.0, 0, 0], [0.6, 0.6, 0, 0]]])
    loglik, _ = dynamics.log_likelihood(np.array([[0.0, np.nan, np.nan]]), x, u)
    assert loglik[0, 0] < -2.0
    assert loglik[0, 1] == pytest.approx(0.0, abs=1e-3)


def test_metres_and_degrees_go_there_and_back() -> None:
    model = maker("constant-velocity")()
    origin = np.array([50.8, 179.99])
    for fix in ([50.9, 179.95], [50.7, -179.98]):
        local = model.localise(np.array(fix), origin)
        place = model.describe(np.array([*local, 0.0, 0.0]), origin)
        assert [place["lat"], place["lon"]] == pytest.approx(fix, abs=1e-9)
    north = model.localise(np.array([51.8, 179.99]), origin)
    assert north == pytest.approx([0.0, 111_195.0], abs=1.0)  # a degree of latitude on the mean sphere


def test_landmarks_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "map.dat"
    file.write_text("# Subject x y\n 6 \t 0.5 \t -4.3 \t 0.0001\n7 1 2\n")
    dynamics = load_domain("landmarks", {"landmarks": str(file)})
    assert dynamics.model.ids.tolist() == [6.0, 7.0]
    y, u = np.array([[9.0, 1.0, 0.0]]), np.zeros((1, 2))
    with pytest.raises(DataError, match="landmark 9 is not among the 2"):
        dynamics.log_likelihood(y, np.zeros((1, 3, 3)), u)


def test_offsets_of_a_robots_sensor_and_wheels() -> None:
    """By hand: a landmark 5 m away reads 5 * 1.02 + 0.04 m; a second at half of (0.4 m/s, 0.2 rad/s), plus 0.1."""
    offsets = {"range_bias": 0.04, "range_share": 0.02, "bearing_bias": 0.01}
    quiet = {"speed_sd": 0.0, "speed_share": 0.0, "turn_sd": 0.0, "turn_share": 0.0}
    wheels = {"speed_scale": 0.5, "turn_scale": 0.5, "turn_bias": 0.1}
    dynamics = load_domain(
        "landmarks", {"landmarks": {"1": [3, 4]}, "outliers": 0.0, **offsets, **quiet, **wheels}
    )
    x = np.zeros((1, 1, 3))
    y = np.array([[1.0, 5.14, math.atan2(4, 3) + 0.01]])
    found, _ = dynamics.log_likelihood(y, x, np.zeros((1, 2)))
    assert found[0, 0] == pytest.approx(-math.log(2 * math.pi * 0.2 * 0.1), abs=1e-9)
    draws = Draws([np.random.default_rng(0)])
    moved = dynamics.transition_sample(x, np.array([[0.4, 0.2]]), np.array([1.0]), draws)
    assert moved[0, 0] == pytest.approx([0.2 * math.cos(0.1), 0.2 * math.sin(0.1), 0.2])


MODEL = """
import numpy as np
class Walk:
    names, obs_names = ("a", "b"), ("s",)
    def init_sample(self, n, rng): return rng.standard_normal((n, 2))
    def transition_sample(self, x, u, dt, rng): return x + dt**0.5 * rng.standard_normal(x.shape)
    def log_likelihood(self, y, x, u): return -0.5 * (y[0] - x.sum(-1)) ** 2
"""


def load_text(tmp_path: Path, text: str, verb: str = "run") -> Dynamics:
    file = tmp_path / "model.py"
    file.write_text(text)
    return load_domain(str(file), verb=verb)


def test_a_users_model_is_called_track_by_track(tmp_path: Path) -> None:
    dynamics = load_text(tmp_path, MODEL)
    draws = Draws([np.random.default_rng(s) for s in range(3)])
    x = dynamics.init_sample(5, draws)
    x = dynamics.transition_sample(x, np.zeros((3, 0)), np.ones(3), draws)
    loglik, told = dynamics.log_likelihood(np.array([[0.0], [np.nan], [1.0]]), x, np.zeros((3, 0)))
    assert x.shape == (3, 5, 2)
    assert told.tolist() == [True, False, True]
    assert loglik[2] == pytest.approx(-0.5 * (1.0 - x[2].sum(-1)) ** 2)


def test_a_users_model_in_torch_is_told_by_what_it_gives(tmp_path: Path) -> None:
    text = """
import torch
class Walk:
    names, obs_names = ("a", "b"), ("s", "r")
    def init_sample(self, n, rng): return torch.randn(n, 2, generator=rng)
    def transition_sample(self, x, u, dt, rng): return x + torch.randn(x.shape, generator=rng)
    def log_likelihood(self, y, x, u): return -0.5 * (y - x) ** 2
"""
    dynamics = load_text(tmp_path, text)
    assert dynamics.is_torch
    first, again = (dynamics.init_sample(4, Draws([np.random.default_rng(3)])) for _ in range(2))
    assert (first == again).all()
    loglik, told = dynamics.log_likelihood(np.array([[0.5, np.nan]]), first, np.zeros((1, 0)))
    assert told.all()
    assert loglik[0] == pytest.approx(-0.5 * (0.5 - first[0, :, 0]) ** 2, abs=1e-6)


BROKEN = [
    (MODEL.replace("(n, 2)", "(n, 3)"), "run", r"init_sample gave shape \(3, 3\), expected \(3, 2\)"),
    (MODEL.replace("x + dt**0.5", "x[1:] + 0"), "run", "transition_sample raised ValueError"),
    (MODEL.replace("x.sum(-1)", "x.sum()"), "run", r"log_likelihood gave shape \(\), expected \(3,\) or \(3, 1\)"),
    (MODEL.replace("return -0.5", "return 1 / 0"), "run", "log_likelihood raised ZeroDivisionError"),
    (MODEL.replace("return -0.5", "return np.inf -0.5"), "run", r"log_likelihood gave \+inf"),
    (MODEL.replace("obs_names", "other"), "run", "obs_names is None, expected a tuple of names"),
    (MODEL.replace("transition_sample", "step"), "run", "run needs the method transition_sample"),
    (MODEL, "simulate", "simulate needs the method simulate_obs"),
    (MODEL, "evaluate", "evaluate needs the method simulate_obs"),
    (MODEL, "train", "train needs the method simulate_obs"),
    ("import nothing_of_this_name", "run", "cannot be run: ModuleNotFoundError"),
    ("x = 1", "run", "no class with the methods of a model"),
]


@pytest.mark.parametrize(("text", "verb", "said"), BROKEN)
def test_a_broken_model_is_named_with_its_method(tmp_path: Path, text: str, verb: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as found:
        load_text(tmp_path, text, verb)
    assert found.value.status == 65
    assert "\n" not in str(found.value)


def test_domains_that_are_not_there() -> None:
    with pytest.raises(UsageError, match="did you mean arena"):
        load_domain("arenna")
    with pytest.raises(InputMissingError, match="no such file"):
        load_domain("nowhere.py")
    with pytest.raises(UsageError, match="did you mean sigma"):
        load_domain("arena", {"sigm": 1})
    with pytest.raises(UsageError, match="expected 0 < rho < 1"):
        load_domain("arena", {"rho": 2})
    with pytest.raises(UsageError, match="not stable"):
        load_domain("linear-gaussian", {"A": 1.0})


def test_many_linear_steps_are_made_at_once() -> None:
    model = load_domain("linear-gaussian", {"A": [[0.9, 0.3], [-0.2, 0.6]], "Q": [[1.0, 0.4], [0.4, 0.5]]}).model
    A, Q = np.eye(2), np.zeros((2, 2))
    for steps in range(1, 12):
        A, Q = model.A @ A, model.A @ Q @ model.A.T + model.Q
        for found, expected in zip(model.step_moments(float(steps)), (A, Q), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    forgotten, spread = model.step_moments(1e300)
    assert not forgotten.any()
    np.testing.assert_allclose(spread, model.P0, rtol=1e-10)  # P0 solves A P A' + Q = P
