"""Ridge from sums beside scikit-learn on the rows themselves, and sums that merge."""

import numpy as np
import pytest
import torch

from nipstool.probe_length.ridge import ALPHAS, coefficients, cross_validate
from nipstool.probe_length.statistics import Sums, empty, squared_error

FOLDS = 4


def llm_like(rows: int, columns: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns with a power-law spectrum, one far from 0, one constant, two the same, and one outlying row."""
    random = np.random.default_rng(seed)
    mixed = random.standard_normal((rows, columns)) * np.arange(1, columns + 1) ** -0.8
    x = mixed @ np.linalg.qr(random.standard_normal((columns, columns)))[0]
    x[:, 0] += 300
    x[:, 1] = 7.25
    x[:, 2] = x[:, 3]
    x[rows // 2] *= 20
    y = 4 + x[:, 4:] @ random.standard_normal(columns - 4) * 0.3 + random.standard_normal(rows)
    return x, y, random.integers(0, FOLDS, rows)


def sums_of(x: np.ndarray, y: np.ndarray, fold: np.ndarray, weight: np.ndarray | None = None) -> Sums:
    sums = empty(x.shape[1], FOLDS, torch.tensor(x[:20].mean(0)))
    for k in range(FOLDS):
        chosen = fold == k
        v = None if weight is None else torch.tensor(weight[chosen])
        sums.add(k, torch.tensor(x[chosen]), torch.tensor(y[chosen]), v)
    return sums


@pytest.mark.parametrize(("rows", "columns"), [(400, 12), (60, 90)], ids=["tall", "wide"])
@pytest.mark.parametrize("seed", [0, 1])
def test_penalty_and_coefficients_are_those_of_grid_search(rows: int, columns: int, seed: int) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    from sklearn.model_selection import GridSearchCV, PredefinedSplit
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y, fold = llm_like(rows, columns, seed)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), linear.Ridge()),
        {"ridge__alpha": list(ALPHAS)},
        cv=PredefinedSplit(fold),
        scoring="neg_mean_squared_error",
    ).fit(x, y)
    fit = cross_validate(sums_of(x, y, fold))
    assert fit.alpha == search.best_params_["ridge__alpha"]
    scaler, ridge = search.best_estimator_[0], search.best_estimator_[1]
    theirs = ridge.coef_ / scaler.scale_
    assert np.linalg.norm(fit.w.numpy() - theirs) <= 1e-6 * np.linalg.norm(theirs)
    assert fit.b0 == pytest.approx(ridge.intercept_ - theirs @ scaler.mean_, rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(fit.curve, -search.cv_results_["mean_test_score"], rtol=1e-8)


def test_weights_are_those_of_an_explicit_loop() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    from sklearn.preprocessing import StandardScaler

    x, y, fold = llm_like(300, 10, 2)
    weight = np.random.default_rng(3).uniform(0.2, 5, len(x))
    fit = cross_validate(sums_of(x, y, fold, weight))
    errors = []
    for alpha in ALPHAS:
        of_folds = []
        for k in range(FOLDS):
            rest, held = fold != k, fold == k
            scaler = StandardScaler().fit(x[rest], sample_weight=weight[rest])
            ridge = linear.Ridge(alpha=alpha).fit(scaler.transform(x[rest]), y[rest], sample_weight=weight[rest])
            residual = y[held] - ridge.predict(scaler.transform(x[held]))
            of_folds.append(np.average(residual**2, weights=weight[held]))
        errors.append(np.mean(of_folds))
    np.testing.assert_allclose(fit.curve, errors, rtol=1e-8)
    assert fit.alpha == ALPHAS[int(np.argmin(errors))]


def test_a_weight_of_two_is_the_row_twice() -> None:
    x, y, fold = llm_like(120, 8, 4)
    weight = np.where(np.arange(120) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(120), weight.astype(int))
    one, other = (
        cross_validate(sums_of(x, y, fold, weight)),
        cross_validate(sums_of(x[twice], y[twice], fold[twice])),
    )
    torch.testing.assert_close(one.w, other.w, rtol=1e-8, atol=1e-10)


def test_parts_about_other_shifts_merge_into_the_whole() -> None:
    x, y, fold = llm_like(200, 9, 5)
    first, second = sums_of(x[:90], y[:90], fold[:90]), sums_of(x[90:], y[90:], fold[90:])
    assert not torch.equal(first.shift, second.shift)
    merged, whole = first.plus(second), sums_of(x, y, fold)
    for name in ("n", "s", "S", "sy", "b", "yy"):
        torch.testing.assert_close(
            getattr(merged, name), getattr(whole.about(first.shift), name), rtol=1e-9, atol=1e-6
        )


def test_the_squared_error_needs_no_rows() -> None:
    x, y, fold = llm_like(150, 7, 6)
    sums = sums_of(x, y, fold)
    w, b0 = coefficients(sums.total(), (0.1, 10.0))
    explicit = ((y[:, None] - x @ w.numpy() - b0.numpy()) ** 2).sum(0)
    np.testing.assert_allclose(squared_error(sums, w, b0).numpy(), explicit, rtol=1e-9)


def test_float32_rows_far_from_zero_keep_their_precision() -> None:
    random = np.random.default_rng(7)
    x = random.standard_normal((500, 6)) + np.array([2000, 800, 0, 0, 0, 0])
    y = x @ np.arange(6.0) - 2800 + random.standard_normal(500)
    fold = random.integers(0, FOLDS, 500)
    single = x.astype(np.float32)
    from_single = cross_validate(sums_of(single, y, fold), (1.0,))
    exact = cross_validate(sums_of(single.astype(np.float64), y, fold), (1.0,))
    torch.testing.assert_close(from_single.w, exact.w, rtol=1e-9, atol=1e-9)


def test_a_fold_without_rows_plays_no_part() -> None:
    x, y, fold = llm_like(120, 6, 8)
    fold = np.minimum(fold, 2)
    fit = cross_validate(sums_of(x, y, fold))
    assert torch.isnan(fit.fold_w[3]).all()
    assert np.isfinite(fit.mse)
