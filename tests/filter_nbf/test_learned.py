"""The embedding and the generators: identities of their maths, numpy against torch, training, checkpoints."""

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nipstool.filter_nbf import RowReader, Settings, Tracks, filter_stream
from nipstool.filter_nbf.beliefs import Kernel
from nipstool.filter_nbf.checkpoint import Checkpoint, check_fits, describe, load, save, shipped
from nipstool.filter_nbf.choose import choose_belief
from nipstool.filter_nbf.domains.arena import Arena
from nipstool.filter_nbf.draws import Draws
from nipstool.filter_nbf.embedding import canonical, embed, silu, theta_size
from nipstool.filter_nbf.family import Snapshots, snapshots
from nipstool.filter_nbf.flow import flow_log_density, flow_of, spline
from nipstool.filter_nbf.learned import Learned
from nipstool.filter_nbf.load import load_domain
from nipstool.filter_nbf.mixture import (
    Components,
    Mixture,
    draw,
    in_state_space,
    log_density,
    mixture_moments,
    mixture_of,
    mixture_quantiles,
)
from nipstool.filter_nbf.modes import mixture_modes
from nipstool.filter_nbf.scores import energy_distance
from nipstool.filter_nbf.train import batch_of, initial, log_density_of, train, weights_of
from nipstool.kit.errors import DataError, InputMissingError, UsageError

ARENA = load_domain("arena")


def some_sets(count: int, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Bent two-moded sets (B, n, 4) with uneven weights."""
    rng = np.random.default_rng(seed)
    x = 0.3 * rng.standard_normal((count, n, 4)) * [1, 1, 0.1, 0.1] + [0.2, -0.1, 0.0, 0.01]
    x[:, ::3, 0] += 0.5
    x[..., 1] += x[..., 0] ** 2
    return x, weights_of(count, n, rng)


def untrained(generator: str = "gmm", seed: int = 0) -> dict[str, np.ndarray]:
    params = initial(ARENA, generator, some_sets(20, 100)[0], seed)
    return {name: value.astype(np.float64) for name, value in params.items()}


def rough(generator: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters far from their start, so that nothing is near an identity."""
    rng = np.random.default_rng(seed)
    params = untrained(generator)
    learned = {name: 0.05 * (not name.startswith("scale")) for name in params}
    return {name: v + learned[name] * rng.standard_normal(v.shape) for name, v in params.items()}


def test_the_canonical_frame_undoes_shift_scale_and_shear() -> None:
    x, w = some_sets(3, 80)
    frame, u = canonical(x, w)
    back = frame.mean[:, None] + u @ np.swapaxes(frame.root, -1, -2)
    np.testing.assert_allclose(back, x, atol=1e-10)
    mean = (w[..., None] * u).sum(1)
    np.testing.assert_allclose(mean, 0.0, atol=1e-10)


def test_a_unit_that_is_far_off_is_off() -> None:
    """Without a warning, which would be an error here."""
    x = np.array([-1000.0, -1.0, 0.0, 1000.0], np.float32)
    np.testing.assert_allclose(silu(x), [0.0, -1.0 / (1.0 + math.e), 0.0, 1000.0], rtol=1e-6)


def test_theta_knows_neither_order_nor_empty_particles_nor_copies() -> None:
    """Distributional invariance. Copies change the effective size, which is part of theta on purpose."""
    params = rough("gmm")
    x, w = some_sets(2, 60)
    theta = embed(params, x, w)[1]
    assert theta.shape == (2, theta_size(4))
    order = np.random.default_rng(1).permutation(60)
    np.testing.assert_allclose(embed(params, x[:, order], w[:, order])[1], theta, atol=1e-9)
    ghosts = np.concatenate([x, 5.0 * np.ones_like(x)], 1), np.concatenate([w, np.zeros_like(w)], 1)
    np.testing.assert_allclose(embed(params, *ghosts)[1], theta, atol=1e-9)
    split = np.concatenate([x, x], 1), np.concatenate([0.25 * w, 0.75 * w], 1)
    merged = embed(params, *split)[1]
    np.testing.assert_allclose(merged[:, :4], theta[:, :4], atol=1e-9)
    assert np.abs(merged - theta).max() < 0.2


@pytest.mark.parametrize("generator", ["gmm", "flow"])
def test_numpy_and_torch_give_one_density(generator: str) -> None:
    params = rough(generator)
    x, w = some_sets(3, 40)
    targets = some_sets(3, 9, seed=1)[0]
    tensors = {name: torch.tensor(value) for name, value in params.items()}
    compute = log_density_of(generator, ())
    in_torch = compute(tensors, torch.tensor(x), torch.tensor(w), torch.tensor(targets))
    frame, theta, _ = embed(params, x, w)
    u = (targets - frame.mean[:, None]) @ np.swapaxes(np.linalg.inv(frame.root), -1, -2)
    found = (
        log_density(mixture_of(params, theta, 4), u) if generator == "gmm" else flow_log_density(params, theta, u)
    )
    change = np.log(np.diagonal(frame.root, axis1=-2, axis2=-1)).sum(-1)[:, None]
    np.testing.assert_allclose(in_torch.numpy(), found - change, atol=1e-8)


def a_mixture() -> Mixture:
    params = rough("gmm", 3)
    x, w = some_sets(1, 50)
    return mixture_of(params, embed(params, x, w)[1], 4)


def test_the_mixture_density_is_scipys() -> None:
    from scipy.stats import multivariate_normal

    m = a_mixture()
    u = np.random.default_rng(0).standard_normal((1, 20, 4))
    cov = np.linalg.inv(np.swapaxes(m.root[0], -1, -2) @ m.root[0])
    parts = [
        weight * multivariate_normal(mean, c).pdf(u[0])
        for weight, mean, c in zip(np.exp(m.logw[0]), m.mean[0], cov, strict=True)
    ]
    np.testing.assert_allclose(np.exp(log_density(m, u))[0], np.sum(parts, 0), rtol=1e-9)
    assert np.exp(m.logw).sum() == pytest.approx(1.0)


def whole(m: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Mean (1, d) and covariance (1, d, d) of a single mixture, in u."""
    root = np.linalg.inv(m.root[0])
    return mixture_moments(np.exp(m.logw), m.mean[0], root @ np.swapaxes(root, -1, -2))


def test_draws_have_the_moments_and_quantiles_of_their_mixture() -> None:
    m = a_mixture()
    components = Components(np.exp(m.logw), m.mean, np.linalg.inv(m.root))
    u, which = draw(components, 200_000, Draws([np.random.default_rng(2)]))
    mean, cov = whole(m)
    spread = np.sqrt(np.diagonal(cov[0]))
    np.testing.assert_allclose(np.bincount(which[0], minlength=32) / 200_000, components.w[0], atol=2e-5)
    np.testing.assert_allclose(u[0].mean(0), mean[0], atol=0.02 * spread.max())
    np.testing.assert_allclose(np.cov(u[0].T), cov[0], atol=0.03 * spread.max() ** 2)
    inverse = np.linalg.inv(m.root[0])
    cuts = mixture_quantiles(
        np.exp(m.logw[0]), m.mean[0], inverse @ np.swapaxes(inverse, -1, -2), (0.05, 0.5, 0.95)
    )
    below = (u[0][:, None] < cuts).mean(0)
    np.testing.assert_allclose(below, np.array([[0.05], [0.5], [0.95]]) * np.ones(4), atol=0.005)


def test_untrained_the_generator_is_the_gaussian_of_the_set() -> None:
    """The safe floor: moments of the set, and nearly its log density."""
    params = untrained()
    x, w = some_sets(1, 400)
    frame, theta, _ = embed(params, (x - params["scale.mean"]) / params["scale.std"], w)
    mean, cov = whole(mixture_of(params, theta, 4))
    np.testing.assert_allclose(mean, 0.0, atol=0.15)
    np.testing.assert_allclose(cov[0], np.eye(4), atol=0.2)
    found = in_state_space(mixture_of(params, theta, 4), frame, params)
    np.testing.assert_allclose(found.w[0] @ found.mean[0], w[0] @ x[0], atol=0.06)
    assert (np.diagonal(found.root[0], axis1=-2, axis2=-1) > 0).all()
    assert (np.triu(found.root[0], 1) == 0).all()


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_flow_is_a_density_and_its_draws_follow_it(d: int) -> None:
    """The density integrates to one over draws of a wide Gaussian, and inverts what it draws."""
    domain = load_domain("linear-gaussian", {"d": d})
    rng = np.random.default_rng(5)
    params = initial(domain, "flow", rng.standard_normal((9, 50, d)), 0)
    params = {k: v + 0.05 * ("gen" in k) * rng.standard_normal(v.shape) for k, v in params.items()}
    theta = rng.standard_normal((1, theta_size(d)))
    wide = 3.0 * rng.standard_normal((1, 25_000, d))
    base = -0.5 * (wide**2).sum(-1) / 9.0 - d * math.log(3.0 * math.sqrt(2.0 * math.pi))
    ratio = np.exp(flow_log_density(params, theta, wide) - base)[0]
    assert abs(ratio.mean() - 1.0) <= 4.0 * ratio.std() / math.sqrt(ratio.size)
    u = flow_of(params, theta, rng.standard_normal((1, 4000, d)))[0]
    w = ratio / ratio.sum()
    np.testing.assert_allclose(u.mean(0), w @ wide[0], atol=0.12)


def test_a_spline_is_undone_by_its_inverse() -> None:
    rng = np.random.default_rng(1)
    x, raw = rng.uniform(-7, 7, 500), 2.0 * rng.standard_normal((500, 23))
    y, slope = spline(x, raw, inverse=False)
    back, inverse_slope = spline(y, raw, inverse=True)
    np.testing.assert_allclose(back, x, atol=1e-7)
    np.testing.assert_allclose(inverse_slope, -slope, atol=1e-6)
    step = 1e-6
    ahead, _ = spline(x + step, raw, inverse=False)
    inside = (np.abs(x) < 4.99) & (np.abs((ahead - y) / step - np.exp(slope)) < 0.02 * np.exp(slope))
    assert inside.mean() > 0.65


def test_modes_of_two_far_gaussians() -> None:
    mean = np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 0.0]])
    cov = np.tile(np.eye(2), (3, 1, 1))
    first, second = mixture_modes(np.array([0.35, 0.35, 0.3]), mean, cov)
    assert first.mass == pytest.approx(0.7)
    assert first.mean == pytest.approx([0.05, 0.0])
    assert second.mean == pytest.approx([5.0, 0.0])
    assert second.cov == pytest.approx(np.eye(2))


def test_inputs_and_targets_of_a_batch_are_disjoint() -> None:
    sets = torch.arange(50 * 320, dtype=torch.float32).reshape(50, 320, 1)
    for seed in range(5):
        x, w, y = batch_of(sets, 20, np.random.default_rng(seed))
        assert not set(x.flatten().tolist()) & set(y.flatten().tolist())
        assert w.sum(-1).numpy() == pytest.approx(np.ones(20), abs=1e-5)


def two_blobs(count: int) -> Snapshots:
    """Beliefs that no Gaussian is like: two narrow blobs in opposite directions from the origin."""
    rng = np.random.default_rng(0)
    turn = rng.uniform(0, 2 * math.pi, count)
    way = np.stack([np.cos(turn), np.sin(turn)], -1)[:, None]
    side = rng.choice([-1.0, 1.0], (count, 320, 1))
    sets = side * way + 0.1 * rng.standard_normal((count, 320, 2))
    return Snapshots(sets.astype(np.float32), np.arange(count))


def test_training_beats_the_gaussian_it_starts_from() -> None:
    """Two blobs of spread 0.1 at distance 2: a Gaussian wastes about log(1 / 0.1) - log 2 nats on the gap."""
    domain = load_domain("linear-gaussian", {"d": 2})
    first = train(domain, two_blobs(60), steps=1, batch=32, seed=1)
    more = train(domain, two_blobs(60), steps=150, batch=32, seed=1)
    assert more.validation["64"] < first.validation["64"] - 0.8
    again = train(domain, two_blobs(60), steps=1, batch=32, seed=1)
    assert all((first.checkpoint.params[k] == v).all() for k, v in again.checkpoint.params.items())
    assert more.coverage == pytest.approx(0.9, abs=0.04)


def test_snapshots_of_a_family_are_of_distinct_particles() -> None:
    found = snapshots(load_domain("nile"), 2, 5, per_scenario=6)
    assert found.sets.shape == (len(found.scenario), 320, 1)
    assert set(found.scenario) == {0, 1}
    assert all(len(np.unique(x, axis=0)) > 315 for x in found.sets)


def test_a_checkpoint_goes_to_disk_and_back(tmp_path: Path) -> None:
    params, path = untrained(), tmp_path / "x.safetensors"
    save(str(path), params, {**describe(ARENA), "generator": "gmm"}, force=False)
    found = load(path)
    for name, value in params.items():
        kept = np.float16 if name.startswith(("enc.", "gen.")) else np.float32
        assert (found.params[name] == value.astype(kept)).all()
    check_fits(found, ARENA, str(path))
    with pytest.raises(DataError, match="was trained for arena"):
        check_fits(found, load_domain("grid"), str(path))
    with pytest.raises(DataError, match="arena with names"):
        choose_belief("nbf", load_domain("nile"), str(path))
    with pytest.raises(UsageError, match="has no use"):
        choose_belief("pf", ARENA, str(path))
    with pytest.raises(InputMissingError):
        load(tmp_path / "none")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError):
        load(path)


def test_no_checkpoint_is_said_and_a_kernel_stands_in() -> None:
    choice = choose_belief("nbf", load_domain("nile"))
    assert "tempered, regularised particle filter" in choice.note
    assert isinstance(choice.belief, Kernel)


def test_the_shipped_checkpoint_is_small_and_for_the_arena(root: Path) -> None:
    found = shipped(ARENA)
    assert found is not None
    assert found.about["domain"] == "arena"
    file = root / "nipstool" / "filter_nbf" / "checkpoints" / "arena.safetensors"
    assert file.stat().st_size < 500_000
    assert found.params["cal.threshold"].shape == (4,)


def test_what_is_generated_is_possible_and_like_the_set() -> None:
    found = shipped(ARENA)
    assert found is not None
    draws = Draws([np.random.default_rng(4)])
    x = ARENA.init_sample(256, draws)
    sample = Learned(found).sample(ARENA, x, np.full((1, 256), -math.log(256)), 200, draws)
    assert sample.x.shape == (1, 200, 4)
    assert ARENA.valid(sample.x).all()
    assert energy_distance(sample.x, x)[0] < 0.05


def test_an_off_family_belief_falls_back_on_its_own_particles() -> None:
    """A ring is no belief of the arena: the alarm goes off, and what is drawn stays near the ring."""
    found = shipped(ARENA)
    assert found is not None
    strict = Checkpoint(found.params | {"cal.threshold": np.full(4, 1e-9)}, found.about)
    draws = Draws([np.random.default_rng(4)])
    turn = np.linspace(0, 2 * math.pi, 256, endpoint=False)
    x = np.zeros((1, 256, 4))
    x[0, :, 0], x[0, :, 1] = 0.9 * np.cos(turn), 0.9 * np.sin(turn)
    x = np.where(ARENA.valid(x)[..., None], x, [0.0, 0.9, 0.0, 0.0])
    sample = Learned(strict).sample(ARENA, x, np.full((1, 256), -math.log(256)), 100, draws)
    assert sample.off_family[0] > 1.0
    gap = np.linalg.norm(sample.x[0, :, None, :2] - x[0, None, :, :2], axis=-1).min(1)
    assert np.median(gap) < 0.15


def test_an_off_family_row_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shipped(ARENA)
    assert found is not None
    strict = Checkpoint(found.params | {"cal.threshold": np.full(4, 1e-9)}, found.about)
    tracks = Tracks(ARENA, Learned(strict), Settings(32, regenerate="always"))
    lines: list[str] = []
    row: dict[str, Any] = {"obs": {"det": 0}, "control": {"px": 0, "py": 0}}
    text = (json.dumps(row) + "\n") * 3
    filter_stream(io.BytesIO(text.encode()), RowReader(Arena.obs_names, Arena.control_names), tracks, lines.append)
    events = [json.loads(line)["event"] for line in "".join(lines).splitlines()]
    assert events == [None, "off_family", "off_family"]
