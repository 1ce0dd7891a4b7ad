"""Sums, spectra, truncation and balance of low-rank updates against dense float64 linear algebra."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nipstool.fuse_lora import projection as P
from nipstool.kit.errors import UsageError


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def factors(seed: int, m: int, n: int, r: int, rank: int = 0) -> P.Factors:
    """Random B (m, r) and A (r, n); B of lower `rank` by columns that are doubles of others, or 0 (-1)."""
    rng = np.random.default_rng(seed)
    B, A = normal(rng, m, r), normal(rng, r, n)
    if rank > 0:
        B = B[:, np.arange(r) % rank] * 2.0 ** (np.arange(r) // rank)
    return torch.from_numpy(B if rank >= 0 else np.zeros((m, r))), torch.from_numpy(A)


def deviation(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_weighted_sum_with_the_sign_on_one_factor() -> None:
    x, y, z = (factors(seed, 20, 30, r) for seed, r in ((1, 4), (2, 6), (3, 1)))
    B, A = P.concatenate([(-0.7, *x), (1.0, *y), (0.0, *z)])
    assert deviation(B @ A, (-0.7 * x[0] @ x[1] + y[0] @ y[1])) < 1e-14
    assert torch.equal(A, torch.cat([x[1], y[1], z[1]]))


@pytest.mark.parametrize(("m", "n", "r"), [(40, 60, 12), (60, 40, 12), (50, 50, 20), (9, 30, 20), (30, 9, 20)])
def test_truncation_is_that_of_the_dense_svd(m: int, n: int, r: int) -> None:
    B, A = factors(5, m, n, r)
    U, sigma, Vh = scipy.linalg.svd(B @ A, full_matrices=False)
    assert np.allclose(P.singular_values(B, A), sigma[: min(r, m, n)], rtol=1e-12)
    for rank in (1, 5, 8, 100):
        b, a, error = P.truncate(B, A, rank)
        kept = min(rank, r, m, n)
        assert (b.shape, a.shape) == ((m, kept), (kept, n))
        assert deviation(b @ a, torch.from_numpy(U[:, :kept] * sigma[:kept] @ Vh[:kept])) < 1e-12
        assert float(error) == pytest.approx(np.linalg.norm(sigma[kept:]) / np.linalg.norm(sigma), abs=1e-12)
        assert np.allclose(b.norm(dim=0), np.sqrt(sigma[:kept]), rtol=1e-12)
        assert np.allclose(a.norm(dim=1), np.sqrt(sigma[:kept]), rtol=1e-12)


def test_truncation_of_what_has_less_rank() -> None:
    B, A = factors(6, 40, 30, 8, 3)
    for pair_ in ((B, A), (A.mT, B.mT)):
        b, a, error = P.truncate(*pair_, 6)
        assert deviation(b @ a, (pair_[0] @ pair_[1])) < 1e-13
        assert float(error) < 1e-15
        assert not b[:, 3:].any()
        assert not a[3:].any()
    b, a, error = P.truncate(torch.zeros(7, 3).double(), torch.ones(3, 9).double(), 2)
    assert (float(error), float(b.abs().sum())) == (0, 0)
    with pytest.raises(UsageError, match="rank"):
        P.truncate(B, A, 0)


def test_recompress_only_where_the_rank_is_more_than_the_matrix_has() -> None:
    B, A = factors(7, 10, 30, 24)
    b, a = P.recompress(B, A)
    assert b.shape == (10, 10)
    assert deviation(b @ a, (B @ A)) < 1e-13
    same = P.recompress(B[:, :10], A[:10])
    assert torch.equal(same[0], B[:, :10])
    assert torch.equal(same[1], A[:10])


def test_rank_for_energy_by_hand() -> None:
    sigma = torch.tensor([4.0, 2.0, 2.0, 1.0], dtype=torch.float64)  # energies 16, 4, 4, 1 of 25
    assert [P.rank_for_energy(sigma, e) for e in (0.01, 0.64, 0.65, 0.8, 0.95, 0.96, 1.0)] == [1, 1, 2, 2, 3, 3, 4]
    assert P.rank_for_energy(torch.zeros(5), 0.9) == 1
    assert P.rank_for_energy(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), 0.9) == 2


def test_norms_and_products_in_factor_space() -> None:
    x, y = factors(1, 30, 40, 5), factors(2, 30, 40, 50)
    assert float(P.frobenius(*y)) == pytest.approx(float((y[0] @ y[1]).norm()), rel=1e-13)
    expected = float(((x[0] @ x[1]) * (y[0] @ y[1])).sum())
    assert float(P.inner(*x, *y)) == pytest.approx(expected, rel=1e-11)


def test_norm_keeps_its_digits_when_terms_cancel() -> None:
    x, y = factors(1, 30, 40, 5), factors(2, 30, 40, 5)
    B, A = P.concatenate([(1.0, *x), (-1.0, *x), (1e-9, *y)])
    assert float(P.frobenius(B, A)) == pytest.approx(1e-9 * float((y[0] @ y[1]).norm()), rel=1e-4)


def test_balance_evens_the_sides() -> None:
    B, A = factors(8, 40, 60, 6)
    B = B * torch.tensor([1e-9, 1.0, 1e6, -3.0, 0.0, 1.0], dtype=torch.float64)
    A[5] = 0
    b, a = P.balance(B, A)
    assert deviation(b @ a, (B @ A)) < 1e-14
    assert torch.allclose(b.norm(dim=0)[:4], a.norm(dim=1)[:4], rtol=1e-13)
    assert not b[:, 4].any()
    assert not a[5].any()
    assert torch.isfinite(b).all()
    assert torch.isfinite(a).all()
    assert torch.equal(a[4], A[4])
    assert torch.equal(b[:, 5], B[:, 5])


def test_balance_of_factors_that_share_one_a() -> None:
    B, A = factors(8, 90, 60, 6)
    parts = list((1e-6 * B).split([30, 40, 20]))
    bs, a = P.balance_shared(parts, A)
    assert deviation(torch.cat(bs) @ a, 1e-6 * (B @ A)) < 1e-14
    assert torch.allclose(torch.cat(bs).norm(dim=0), a.norm(dim=1), rtol=1e-13)
    assert [b.shape for b in bs] == [(30, 6), (40, 6), (20, 6)]


@pytest.mark.parametrize("seed", range(3))
def test_half_precision_holds_a_balanced_update(seed: int) -> None:
    # alpha 1 at rank 128: the fold alone puts B among the subnormals of float16
    rng = np.random.default_rng(seed)
    B = torch.from_numpy(1e-3 * normal(rng, 320, 128) / 128)
    A = torch.from_numpy(rng.uniform(-1, 1, (128, 640)) / math.sqrt(640))

    def error(b: Tensor, a: Tensor) -> float:
        return deviation(b.half().double() @ a.half().double(), B @ A)

    assert error(B, A) > 1e-3
    assert error(*P.balance(B, A)) < 6e-4


@settings(max_examples=40, deadline=None)
@given(*[st.integers(1, 14)] * 4, st.integers(0, 2**31))
def test_truncation_loses_least_and_balance_loses_nothing(m: int, n: int, r: int, rank: int, seed: int) -> None:
    B, A = factors(seed, m, n, r)
    b, a, error = P.truncate(B, A, rank)
    norm = float(P.frobenius(B, A))
    lost = float((b @ a - B @ A).norm())
    assert lost == pytest.approx(float(error) * norm, abs=1e-11 * norm)
    # no projection of the same rank does better
    Q = torch.linalg.qr(torch.randn(n, min(rank, n), generator=torch.Generator().manual_seed(seed)).double()).Q
    assert lost <= float((B @ A - (B @ A @ Q) @ Q.T).norm()) + 1e-11 * norm
    x, y = P.balance(B, A)
    assert torch.allclose(x @ y, B @ A, rtol=0, atol=1e-12 * norm)
