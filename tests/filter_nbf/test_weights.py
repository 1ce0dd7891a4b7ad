"""Weights, resampling and draws: each quick form against the plain one that it stands for."""

import numpy as np
import pytest

from nipstool.filter_nbf import Gaussian, Settings
from nipstool.filter_nbf.draws import Draws, KeyedGenerator
from nipstool.filter_nbf.filter import next_power
from nipstool.filter_nbf.weights import Tempering, quantiles, resampled, systematic, weigh

RNG = np.random.default_rng(0)


def test_resampled_particles_are_those_of_the_indices() -> None:
    w = RNG.dirichlet(np.full(50, 0.3), size=3)
    x, start = RNG.standard_normal((3, 50, 2)), RNG.random(3)
    picked = systematic(w, start, 70)
    for b in range(3):
        np.testing.assert_array_equal(resampled(x, w, start, 70)[b], x[b, picked[b]])
        copies = np.bincount(picked[b], minlength=50)
        assert (np.abs(copies - 70 * w[b]) < 1.0).all()


def test_systematic_resampling_survives_zero_weights_at_the_end() -> None:
    w = np.array([[0.3, 0.7, 0.0, 0.0]])
    for start in (0.0, 0.5, 1.0 - 1e-16):
        assert set(systematic(w, np.array([start]), 1000)[0]) <= {0, 1, 3}
        assert (systematic(w, np.array([start]), 1000)[0] == 3).sum() <= 1


@pytest.mark.parametrize("even", [True, False])
def test_effective_sizes_at_powers(even: bool) -> None:
    loglik = -5.0 * RNG.random((3, 40)) - 700.0
    loglik[1, ::2] = -np.inf
    logw = np.full((3, 40), -np.log(40)) if even else np.log(RNG.dirichlet(np.ones(40), size=3))
    powers = np.tile([0.1, 0.5, 1.0], (3, 1))
    found = Tempering.of(loglik, logw).sizes(powers)
    for b in range(3):
        for k, power in enumerate(powers[b]):
            with np.errstate(invalid="ignore"):
                w = np.exp(logw[b] + power * (loglik[b] + 700.0))
            assert found[b, k] == pytest.approx(w.sum() ** 2 / (w * w).sum())


def test_the_next_power_does_not_depend_on_how_many_are_asked() -> None:
    """All points at once for small sets, one after the other for large ones: one answer, and the right one."""
    settings, goal = Settings(), 51.2
    loglik = -0.5 * (RNG.standard_normal((40, 256)) * np.linspace(0.1, 60.0, 40)[:, None]) ** 2
    logw = np.full(loglik.shape, -np.log(256))
    left, stages = np.linspace(1.0, 0.3, 40), np.zeros(40, dtype=int)
    together = next_power(settings, goal, loglik, logw, left, stages)
    between = 0
    for b in range(40):
        part = slice(b, b + 1)
        alone = next_power(settings, goal, loglik[part], logw[part], left[part], stages[part])
        assert alone[0] == pytest.approx(together[b], rel=1e-12)
        size = Tempering.of(loglik[part], logw[part]).sizes(alone[:, None])[0, 0]
        if settings.least < alone[0] < left[b]:
            between += 1
            assert size == pytest.approx(goal, rel=0.02)
        assert size >= 0.98 * goal or alone[0] == pytest.approx(settings.least)
    assert between >= 10


def test_weights_of_a_lost_set_are_even_and_its_evidence_is_nothing() -> None:
    logw, level, size = weigh(np.array([[-np.inf, -np.inf], [np.log(0.5), np.log(1.5)]]))
    assert logw[0] == pytest.approx([-np.log(2)] * 2)
    assert level.tolist() == pytest.approx([-np.inf, np.log(2.0)])
    assert size.tolist() == pytest.approx([2.0, 4.0 / 2.5])


def test_quantiles_of_even_and_of_uneven_weights_agree() -> None:
    x = RNG.standard_normal((2, 60, 3))
    even = np.full((2, 60), 1.0 / 60)
    nearly = even + 1e-12 * RNG.random((2, 60))
    mean = x.mean(1)
    np.testing.assert_array_equal(quantiles(x, even, mean), quantiles(x, nearly, mean))
    assert (quantiles(x, even, mean)[:, 1] == np.sort(x, axis=1)[:, 29]).all()


def test_opposite_draws_have_their_mean_exactly() -> None:
    draws = Draws([np.random.default_rng(1)]).opposites((1, 7, 2))[0]
    np.testing.assert_array_equal(draws[0], -draws[1])
    np.testing.assert_allclose(draws[:6].mean(0), 0.0, atol=1e-15)
    x, logw = RNG.standard_normal((1, 400, 2)), np.full((1, 400), -np.log(400))
    dynamics = type("Plain", (), {"angles": (), "has": lambda *_: False, "snap": lambda _, x: x})()
    sample = Gaussian().sample(dynamics, x, logw, 400, Draws([np.random.default_rng(2)]))  # type: ignore[arg-type]
    np.testing.assert_allclose(sample.x.mean(1), x.mean(1), atol=1e-12)


def test_keys_give_unrelated_draws() -> None:
    """Neighbouring steps, seeds and ids: correlations of 4000 draws within four standard errors of none."""
    streams = [
        KeyedGenerator(seed, track).at(step).standard_normal(4000)
        for seed, track, step in ((0, "a", 0), (0, "a", 1), (0, "a", 2), (1, "a", 0), (0, "b", 0))
    ]
    streams.append(KeyedGenerator(0, "a").at(0, 1).standard_normal(4000))
    apart = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(apart).max() < 4.0 / np.sqrt(4000)
