"""The interference report against the dense matrices, and its closed forms against measured ones."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch

from nipstool.fuse_lora import projection as P
from nipstool.kit.errors import UsageError

MUS = (0.0, 0.1, 0.5, 1.0, 10.0, math.inf)

# m, n, content rank, style rank, k (0: all), rank of B_s (0: full, -1: B_s = 0)
GRID = [
    (48, 64, 6, 8, 0, 0),
    (64, 48, 8, 6, 0, 0),
    (40, 9 * 8, 5, 7, 0, 0),
    (12, 20, 16, 16, 0, 0),
    (20, 12, 16, 16, 0, 0),
    (20, 12, 4, 16, 5, 0),
    (50, 70, 8, 12, 3, 0),
    (50, 70, 8, 12, 0, 5),
    (70, 50, 8, 12, 4, 9),
    (48, 60, 8, 8, 0, -1),
    (17, 31, 1, 1, 0, 0),
]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def factors(seed: int, m: int, n: int, r: int, rank: int = 0) -> P.Factors:
    """Random B (m, r) and A (r, n); B of lower `rank` by columns that are doubles of others, or 0 (-1)."""
    rng = np.random.default_rng(seed)
    B, A = normal(rng, m, r), normal(rng, r, n)
    if rank > 0:
        B = B[:, np.arange(r) % rank] * 2.0 ** (np.arange(r) // rank)
    return torch.from_numpy(B if rank >= 0 else np.zeros((m, r))), torch.from_numpy(A)


@pytest.mark.parametrize(("m", "n", "r_c", "r_s", "k", "rank"), GRID)
def test_interference_is_that_of_the_dense_matrices(m: int, n: int, r_c: int, r_s: int, k: int, rank: int) -> None:
    content, style = factors(1, m, n, r_c), factors(2, m, n, r_s, rank)
    basis = P.style_basis(*style, k=k or None)
    found = P.interference(content, basis.V, style)
    W_c, W_s = ((B @ A).numpy() for B, A in (content, style))
    U, sigma, Vh = scipy.linalg.svd(W_s)
    k = min(k or n, int((sigma > 1e-7 * sigma[0]).sum()))
    U, V = U[:, :k], Vh[:k].T
    norm_c, norm_s = np.linalg.norm(W_c), np.linalg.norm(W_s)
    cosines = np.cos(scipy.linalg.subspace_angles(scipy.linalg.orth(W_c.T), V)) if k else np.zeros(1)
    expected = {
        "norm_c": norm_c,
        "norm_s": norm_s,
        "cosine": (W_c * W_s).sum() / (norm_c * norm_s) if k else 0,
        "overlap": (np.linalg.norm(W_c @ V) / norm_c) ** 2,
        "chance": k / n,
        "ratio": (np.linalg.norm(W_c @ V) / norm_c) ** 2 / (k / n) if k else 0,
        "overlap_out": (np.linalg.norm(U.T @ W_c) / norm_c) ** 2,
        "chance_out": k / m,
        "principal_max": cosines.max(),
        "principal_mean": cosines.mean(),
        "top1_c": (np.linalg.norm(W_c, 2) / norm_c) ** 2,
        "top1_s": (np.linalg.norm(W_s, 2) / norm_s) ** 2 if k else 0,
        "stable_rank_c": (norm_c / np.linalg.norm(W_c, 2)) ** 2,
        "stable_rank_s": (norm_s / np.linalg.norm(W_s, 2)) ** 2 if k else 0,
    }
    assert {name: float(getattr(found, name)) for name in expected} == pytest.approx(
        expected, rel=1e-10, abs=1e-12
    )
    assert np.allclose(found.sigma_c, scipy.linalg.svdvals(W_c)[: len(found.sigma_c)], rtol=1e-11, atol=1e-11)
    again = P.interference(P.thin_svd(*content), basis.V, P.thin_svd(*style))
    assert float(again.overlap_out) == float(found.overlap_out)


def test_planted_overlap_is_found() -> None:
    # A_c spends the share .5 of its energy on the style's directions, the rest across them
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(normal(rng, 64, 12))[0]
    B = np.linalg.qr(normal(rng, 48, 6))[0]
    A_s, A_c = Q[:, :6].T, math.sqrt(0.5) * (Q[:, :6] + Q[:, 6:]).T
    style = (torch.from_numpy(normal(rng, 48, 6)), torch.from_numpy(A_s))
    found = P.interference((torch.from_numpy(B), torch.from_numpy(A_c)), P.style_basis(*style).V, style)
    assert float(found.overlap) == pytest.approx(0.5, abs=1e-13)
    assert float(found.ratio) == pytest.approx(0.5 * 64 / 6, abs=1e-12)
    assert float(found.principal_max) == pytest.approx(math.sqrt(0.5), abs=1e-13)
    assert float(found.stable_rank_c) == pytest.approx(6, abs=1e-12)


def test_independent_updates_overlap_at_chance() -> None:
    ratios = []
    for seed in range(60):
        content, style = factors(2 * seed, 24, 80, 4), factors(2 * seed + 1, 24, 80, 6)
        ratios.append(float(P.interference(content, P.style_basis(*style).V, style).ratio))
    assert np.mean(ratios) == pytest.approx(1, abs=0.1)


def test_nothing_in_the_content_is_no_nan() -> None:
    style = factors(2, 20, 30, 5)
    found = P.interference((torch.zeros(20, 4).double(), factors(1, 20, 30, 4)[1]), P.style_basis(*style).V, style)
    assert all(bool(torch.isfinite(value).all()) for value in vars(found).values())
    assert float(found.overlap) == float(found.cosine) == float(found.principal_max) == 0
    assert float(P.change_norms(found, 0.5)[0]) == 0


@pytest.mark.parametrize(("w_c", "w_s"), [(1.0, 1.0), (-0.4, 1.0), (2.0, -3.0), (1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("mu", MUS)
def test_change_in_closed_form_is_the_measured_one(mu: float, w_c: float, w_s: float) -> None:
    content, style = factors(1, 18, 14, 6), factors(2, 18, 14, 5)
    V = P.style_basis(*style).V
    found = P.interference(content, V, style)
    W_c, W_s = (B @ A for B, A in (content, style))
    plain = w_c * W_c + w_s * W_s
    merged = w_c * content[0] @ P.project(content[1], V, mu) + w_s * W_s
    changed, norm = P.change_norms(found, mu, w_c, w_s)
    assert float(norm) == pytest.approx(float(plain.norm()), rel=1e-12)
    assert float(changed) == pytest.approx(float((merged - plain).norm()), abs=1e-12)


def test_shared_initialisation_shows_in_rows_of_one_index() -> None:
    _, A = factors(1, 10, 400, 6)
    _, other = factors(2, 10, 400, 6)
    largest, mean = P.initialisation_likeness(A, -3 * A[:4] + 0.01 * other[:4])
    assert 0.999 < float(mean) <= float(largest) <= 1 + 1e-12
    largest, _ = P.initialisation_likeness(A, other)
    assert float(largest) < 0.25
    assert float(P.initialisation_likeness(A, A.roll(1, 0))[0]) < 0.25
    assert [float(x) for x in P.initialisation_likeness(A, torch.zeros_like(A))] == [0, 0]


@pytest.mark.parametrize("mu", MUS)
def test_what_leaks_and_what_is_retained(mu: float) -> None:
    (B_c, A_c), style = factors(1, 30, 20, 6), factors(2, 30, 20, 5)
    V = P.style_basis(*style).V
    o = P.interference((B_c, A_c), V, style).overlap
    W_c, X = B_c @ A_c, B_c @ P.project(A_c, V, mu)
    assert float((X @ V).square().sum() / W_c.square().sum()) == pytest.approx(float(P.leaked(o, mu)), abs=1e-14)
    assert float(X.square().sum() / W_c.square().sum()) == pytest.approx(float(P.retained(o, mu)), abs=1e-14)
    if not math.isinf(mu):
        assert float((X @ V).norm() / (W_c @ V).norm()) == pytest.approx(1 / (1 + mu), rel=1e-13)


def test_automatic_mu_meets_its_target() -> None:
    assert P.automatic_mu(
        torch.tensor([0.0, 1e-4, 1e-3, 0.004, 1.0], dtype=torch.float64), 1e-3
    ).tolist() == pytest.approx([0, 0, 0, 1, math.sqrt(1000) - 1])
    assert float(P.leaked(0.3, P.automatic_mu(0.3, 0.01))) == pytest.approx(0.01, rel=1e-12)
    for leak in (0.0, -1.0, 1.5, math.nan):
        with pytest.raises(UsageError, match="leak"):
            P.automatic_mu(0.5, leak)
