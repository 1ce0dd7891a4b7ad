"""NSC of a matrix: the closed form against quadrature and real singular values, Cholesky against the SVD."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from nipstool.kit.errors import DataError, UsageError
from nipstool.kit.tensors import open_tensors
from nipstool.prune_nsc.capacity import Scale, log_det, log_dets_of_widths, shannon

BETAS = [0.001, 0.01, 0.1, 0.25, 0.5, 0.9, 0.999, 1.0]
GAMMAS = [1e-8, 1e-4, 0.1, 1.0, 10.0, 1e2, 1e4]


def by_quadrature(gamma: float, beta: float) -> float:
    """The integral of log(1 + gamma x) over the law, with x = 1 + beta + 2 sqrt(beta) cos(t)."""

    def integrand(t: float) -> float:
        # 1 + beta + 2 sqrt(beta) cos t, without cancellation near t = pi
        x = (1 - math.sqrt(beta)) ** 2 + 4 * math.sqrt(beta) * math.cos(t / 2) ** 2
        return math.log1p(gamma * x) / x * math.sin(t) ** 2 * 2 / math.pi if x > 0 else 0.0

    points = [math.pi - 10.0**-k for k in range(1, 5)]
    return quad(integrand, 0, math.pi, epsabs=0, epsrel=1e-12, limit=1000, points=points)[0]


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_closed_form_is_the_integral(gamma: float, beta: float) -> None:
    assert shannon(gamma, beta) == pytest.approx(by_quadrature(gamma, beta), rel=1e-9)


@pytest.mark.parametrize("shape", [(512, 256), (256, 512), (384, 384), (40, 600)])
@pytest.mark.parametrize("snr", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("init", ["lecun", "torch", "he", "xavier", "std=0.02"])
def test_it_predicts_real_gaussian_matrices(shape: tuple[int, int], snr: float, init: str) -> None:
    scale = Scale(init, snr)
    deviation = math.sqrt(scale.variance(*shape))
    matrix = np.random.default_rng(0).normal(0, deviation, shape)
    real = np.log1p(snr * np.linalg.svd(matrix, compute_uv=False) ** 2).sum()
    assert scale.nsc(*shape) == pytest.approx(real, rel=0.01)


def test_a_matrix_and_its_transpose_with_the_same_variance_are_equal() -> None:
    scale = Scale("std=0.1", 2.0)
    assert scale.nsc(30, 70) == scale.nsc(70, 30)


def test_a_small_snr_counts_parameters() -> None:
    scale = Scale("bert", 1e-9)
    ratio = scale.nsc(300, 500) / (300 * 500)
    assert scale.nsc(80, 20) / (80 * 20) == pytest.approx(ratio, rel=1e-6)
    assert ratio == pytest.approx(1e-9 * 0.02**2, rel=1e-6)


@pytest.mark.parametrize("init", ["", "uniform", "std=", "std=-1", "std=nan", "std=inf"])
def test_an_unknown_initialisation_is_a_usage_error(init: str) -> None:
    with pytest.raises(UsageError, match="lecun"):
        Scale(init)


@pytest.mark.parametrize("snr", [0.0, -1.0, math.nan, math.inf])
def test_snr_is_above_zero(snr: float) -> None:
    with pytest.raises(UsageError, match="snr"):
        Scale("lecun", snr)


def test_cholesky_is_the_svd_on_a_trained_model(data_dir: Path) -> None:
    with open_tensors(data_dir / "models" / "stories260K") as reader:
        names = [n for n, i in reader.infos.items() if len(i.shape) == 2 and "layers" in n]
        assert len(names) == 5 * 7
        for name in names:
            weight = reader.read(name)
            for snr in (0.01, 1.0, 100.0):
                sigma = np.linalg.svd(weight.double().numpy(), compute_uv=False)
                assert log_det(weight, snr) == pytest.approx(np.log1p(snr * sigma**2).sum(), rel=1e-9)


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_a_gaussian_matrix_have_the_score_of_narrow_ones(axis: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(300, 400) * 7  # the scale is normalised away
    widths = [60, 150, 240]
    found = log_dets_of_widths(weight, widths, axis)
    expected = [Scale().nsc(*((w, 400) if axis == 0 else (300, w))) for w in widths]
    assert found == pytest.approx(expected, rel=0.02)


def test_the_whole_width_is_the_matrix_itself_and_units_stay_together() -> None:
    torch.manual_seed(0)
    weight = torch.randn(24, 10)
    assert log_dets_of_widths(weight, [24], 0) == [log_det(weight, normalise=True)]
    weight[8:] = 0  # of three units of 8 rows the first alone is not zero
    one = log_dets_of_widths(weight, [1], 0, unit=8)[0]
    three = log_dets_of_widths(weight, [3], 0, unit=8)[0]
    assert one / three == pytest.approx(
        round(4 * one / three) / 4, abs=1e-9
    )  # in so many of the 4 orders it is kept


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_weights_are_found(bad: float) -> None:
    weight = torch.ones(4, 3)
    weight[1, 1] = bad
    with pytest.raises(DataError):
        log_det(weight)
