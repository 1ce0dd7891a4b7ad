"""Cut answers: Tobit, Kaplan-Meier and intervals, beside closed forms and simulation."""

import numpy as np
import pytest
import torch

from nipstool.probe_length.censored import Cut, fit_first, hazard, log_likelihood, tobit
from nipstool.probe_length.intervals import Residuals, bounds, distribution, spread
from nipstool.probe_length.lengths import kaplan_meier, no_lengths, residual_life
from nipstool.probe_length.ridge import coefficients, cross_validate
from nipstool.probe_length.statistics import Sums, empty

FOLDS = 5


def simulated(rows: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """(x, log1p of the true length, fold, cap in log1p): log-normal lengths of which `share` are above the cap."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, 20))
    z = 5 + x[:, :4] @ [0.4, -0.3, 0.2, 0.1] + 0.5 * random.standard_normal(rows)
    return x, z, random.integers(0, FOLDS, rows), float(np.quantile(z, 1 - share))


def split(x: np.ndarray, z: np.ndarray, fold: np.ndarray, cap: float) -> tuple[Sums, Cut]:
    sums, cut = empty(x.shape[1], FOLDS, torch.tensor(x.mean(0))), z > cap
    for k in range(FOLDS):
        here = (fold == k) & ~cut
        sums.add(k, torch.tensor(x[here]), torch.tensor(z[here]))
    bound = torch.full((int(cut.sum()),), cap, dtype=torch.float64)
    return sums, Cut(torch.tensor(x[cut]), bound, torch.ones_like(bound), torch.tensor(fold[cut]))


def test_thirty_percent_cut_leave_hardly_a_bias_in_tokens() -> None:
    x, z, fold, cap = simulated(4000, 0.3, 0)
    sums, cut = split(x, z, fold, cap)
    fits = {"tobit": fit_first(sums, cut), "drop": fit_first(sums, None)}
    true = np.expm1(z).mean()
    bias = {}
    for name, fit in fits.items():
        mean = np.exp(x @ fit.w.numpy() + fit.b0 + fit.sigma**2 / 2) - 1
        bias[name] = mean.mean() / true - 1
    assert abs(bias["tobit"]) <= 0.03
    assert bias["drop"] < -0.12
    assert fits["tobit"].sigma == pytest.approx(0.5, abs=0.03)


def test_tobit_without_cut_answers_is_ridge() -> None:
    x, z, fold, _ = simulated(300, 0.0, 1)
    sums, none = split(x, z, fold, np.inf)
    w, b0, _ = tobit(sums, none, (0.1, 10.0))
    ridge_w, ridge_b0 = coefficients(sums.total(), (0.1, 10.0))
    torch.testing.assert_close(w, ridge_w, rtol=0, atol=1e-8)
    torch.testing.assert_close(b0, ridge_b0, rtol=0, atol=1e-8)


def test_tobit_is_at_a_maximum_of_its_likelihood() -> None:
    x, z, fold, cap = simulated(500, 0.3, 2)
    sums, cut = split(x, z, fold, cap)
    w, b0, s = tobit(sums, cut, (1e-9,))
    best = float(log_likelihood(sums, cut, w, b0, s)[0])
    random = np.random.default_rng(0)
    for _ in range(20):
        step = torch.tensor(random.standard_normal((20, 1))) * 0.01
        moved = float(log_likelihood(sums, cut, w + step, b0 + 0.01 * random.standard_normal(), s * 1.01)[0])
        assert moved < best


def test_the_hazard_far_out_is_the_distance() -> None:
    a = torch.tensor([-40.0, 0.0, 40.0], dtype=torch.float64)
    expected = torch.tensor([0.0, (2 / torch.pi) ** 0.5, 40.0249688], dtype=torch.float64)
    torch.testing.assert_close(hazard(a), expected, rtol=1e-6, atol=1e-12)


def test_kaplan_meier_on_an_example_by_hand() -> None:
    """Ends at 1, 2, 2, 4; one cut at 2: S = 4/5, then 4/5 * 2/4 = 2/5, then 0."""
    ended, cut = np.array([0.0, 1, 2, 0, 1]), np.array([0.0, 0, 1, 0, 0])
    np.testing.assert_allclose(kaplan_meier(ended, cut), [0, 0.2, 0.4, 0, 0.4], atol=1e-12)


def test_mean_residual_life_is_the_mean_over_those_alive() -> None:
    lengths = np.array([3, 5, 5, 9])
    ended = np.bincount(lengths).astype(float)
    table = residual_life(kaplan_meier(ended, np.zeros_like(ended)))
    for t in range(10):
        alive = lengths[lengths >= t]
        assert table[t] == pytest.approx(np.log1p(alive - t).mean())


def test_a_tables_error_from_counts_is_that_of_the_rows() -> None:
    random = np.random.default_rng(0)
    counts, squares, rows = no_lengths(2), 0.0, []
    table = random.uniform(0, 3, 12)
    for length in random.integers(1, 20, 30):
        seen = min(int(length), 14)
        counts.add(int(length) % 2, int(length), seen, False, 1.0)
        targets = np.log1p(length - np.arange(seen + 1))
        squares += float((targets**2).sum())
        rows += list((targets - table[np.minimum(np.arange(seen + 1), 11)]) ** 2)
    assert counts.error(table, squares) == pytest.approx(sum(rows))


def test_residuals_of_cut_answers_raise_the_upper_quantiles() -> None:
    random = np.random.default_rng(1)
    true = random.standard_normal(3000)
    cut = true > 0.8
    seen = np.where(cut, 0.8, true)
    found = Residuals(seen, cut, np.ones(3000), np.arange(3000))
    points, mass = distribution(found)
    assert mass.sum() == pytest.approx(1)
    assert points[np.searchsorted(np.cumsum(mass), 0.5)] == pytest.approx(np.median(true), abs=0.02)


def test_intervals_hold_what_they_promise_over_a_hundred_splits_of_groups() -> None:
    random = np.random.default_rng(2)
    covered = []
    for _ in range(100):
        group = np.repeat(np.arange(120), 3)
        value = random.gumbel(size=120)[group] * 0.6 + random.standard_t(4, 360)
        found = Residuals(value, np.zeros(360, bool), np.ones(360), group)
        low, high = bounds(found.take(group < 60), 0.9)
        test = value[group >= 60]
        covered.append(((test >= low) & (test <= high)).mean())
    assert 0.88 <= np.mean(covered) <= 0.92


def test_cut_answers_count_as_infinite_above() -> None:
    value, cut = np.linspace(-1, 1, 40), np.arange(40) % 4 == 0
    found = Residuals(value, cut, np.ones(40), np.arange(40))
    assert bounds(found, 0.9) == (-np.inf, np.inf)  # a quarter is cut: no finite bound holds 90 %
    low, high = bounds(found, 0.5)
    assert np.isfinite([low, high]).all()


def test_quantiles_mean_and_risk_are_those_of_the_shifted_residuals() -> None:
    random = np.random.default_rng(3)
    value = random.standard_normal(501) * 0.5
    found = spread(Residuals(value, np.zeros(501, bool), np.ones(501), np.arange(501)), 0.8)
    tokens = np.expm1(4 + value)
    assert found.quantile(4.0, 0.5, 1e9) == pytest.approx(np.median(tokens))
    assert found.mean(4.0, 1e9) == pytest.approx(tokens.mean())
    assert found.risk(4.0, 60) == pytest.approx((tokens > 60).mean())
    assert found.mean(4.0, 50.0) == pytest.approx(np.minimum(tokens, 50).mean())


def test_tobit_uses_the_folds_that_ridge_uses() -> None:
    x, z, fold, _ = simulated(200, 0.0, 4)
    sums, _ = split(x, z, fold, np.inf)
    assert fit_first(sums, None).alpha == cross_validate(sums).alpha
