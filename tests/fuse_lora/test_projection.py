"""The maths of NP-LoRA against dense float64 references made with numpy and scipy, and its own identities."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nipstool.fuse_lora import projection as P
from nipstool.kit.errors import UsageError

MUS = (0.0, 0.1, 0.5, 1.0, 10.0, math.inf)

# m, n, content rank, style rank, cut ("" none, "k3" top 3, "e0.8" energy), rank of B_s (0: full)
GRID = [
    (96, 128, 8, 8, "", 0),
    (128, 96, 8, 8, "", 0),
    (64, 64, 8, 8, "", 0),
    (64, 64, 4, 16, "", 0),
    (64, 64, 16, 4, "", 0),
    (200, 24, 6, 6, "", 0),
    (24, 200, 6, 6, "", 0),
    (40, 9 * 12, 5, 7, "", 0),  # a 3 x 3 convolution of 12 channels
    (33, 15 * 7, 3, 2, "", 0),  # a 3 x 5 kernel of 7 channels
    (17, 31, 1, 1, "", 0),
    (12, 20, 16, 16, "", 0),  # ranks above m
    (20, 12, 16, 16, "", 0),  # ranks above n: the style reads every direction
    (10, 10, 30, 25, "", 0),
    (50, 70, 8, 8, "k3", 0),
    (70, 50, 8, 8, "k3", 0),
    (50, 70, 8, 8, "k100", 0),
    (50, 70, 8, 12, "e0.8", 0),
    (70, 50, 8, 12, "e0.5", 0),
    (50, 70, 8, 12, "e1.0", 0),
    (50, 70, 8, 12, "", 5),
    (70, 50, 8, 12, "k4", 9),
    (16, 12, 20, 20, "k2", 3),
    (48, 60, 8, 8, "", -1),  # B_s = 0: an untrained style
]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def pair(seed: int, m: int, n: int, r: int, rank: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    B, A = normal(rng, m, r), normal(rng, r, n)
    if rank > 0:  # columns that are doubles of others: deficient in float32 too, to the last bit
        B = B[:, np.arange(r) % rank] * 2.0 ** (np.arange(r) // rank)
    return (B, A) if rank >= 0 else (np.zeros((m, r)), A)


def tensors(B: np.ndarray, A: np.ndarray) -> P.Factors:
    return torch.from_numpy(B.copy()), torch.from_numpy(A.copy())


def factors(seed: int, m: int, n: int, r: int, rank: int = 0) -> P.Factors:
    return tensors(*pair(seed, m, n, r, rank))


def cut_options(cut: str) -> dict[str, Any]:
    return {} if not cut else {"k": int(cut[1:])} if cut[0] == "k" else {"energy": float(cut[1:])}


def dense_directions(W_s: np.ndarray, cut: str = "") -> np.ndarray:
    """V_k from the dense singular value decomposition."""
    _, sigma, Vh = scipy.linalg.svd(W_s, full_matrices=False)
    k = int((sigma > 1e-7 * sigma[0]).sum())
    if cut.startswith("k"):
        k = min(k, int(cut[1:]))
    if cut.startswith("e"):
        share = np.cumsum(sigma**2) / np.sum(sigma**2)
        k = min(k, int(np.argmax(share >= float(cut[1:]) - 1e-12)) + 1)
    return Vh[:k].T


def dense_np_lora(W_c: np.ndarray, W_s: np.ndarray, mu: float, cut: str = "") -> np.ndarray:
    """The paper's formulas as they stand: the null-space projector, and the regularised problem's inverse."""
    V = dense_directions(W_s, cut)
    eye = np.eye(W_c.shape[1])
    if math.isinf(mu):
        return W_s + W_c @ (eye - V @ V.T)
    return W_s + W_c @ np.linalg.inv(eye + mu * V @ V.T)


def fuse(content: P.Factors, style: P.Factors, mu: float, cut: str = "") -> P.Factors:
    V = P.style_basis(*style, **cut_options(cut)).V
    return P.concatenate([(1.0, content[0], P.project(content[1], V, mu)), (1.0, *style)])


def deviation(found: Tensor, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found.double().numpy() - expected) / np.linalg.norm(expected))


# --- The fused update -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "r_c", "r_s", "cut", "rank"), GRID)
def test_fused_update_is_the_dense_one(m: int, n: int, r_c: int, r_s: int, cut: str, rank: int) -> None:
    (B_c, A_c), (B_s, A_s) = pair(1, m, n, r_c), pair(2, m, n, r_s, rank)
    for mu in MUS:
        B, A = fuse(tensors(B_c, A_c), tensors(B_s, A_s), mu, cut)
        expected = dense_np_lora(B_c @ A_c, B_s @ A_s, mu, cut)
        assert B.shape == (m, r_c + r_s)
        assert deviation(B @ A, expected) < 1e-12
        assert deviation(torch.matmul(*P.balance(B, A)), expected) < 1e-12
        assert deviation(torch.matmul(*P.recompress(B, A)), expected) < 1e-12


@pytest.mark.parametrize(("m", "n", "r_c", "r_s", "cut", "rank"), GRID)
def test_float32_files_give_float32_accuracy(m: int, n: int, r_c: int, r_s: int, cut: str, rank: int) -> None:
    stored = [a.astype(np.float32) for a in (*pair(1, m, n, r_c), *pair(2, m, n, r_s, rank))]
    B_c, A_c, B_s, A_s = (P.upcast(torch.from_numpy(a)) for a in stored)
    W_c, W_s = (b.astype(np.float64) @ a.astype(np.float64) for b, a in (stored[:2], stored[2:]))
    B, A = (x.float() for x in P.balance(*fuse((B_c, A_c), (B_s, A_s), 0.5, cut)))
    assert deviation(B.double() @ A.double(), dense_np_lora(W_c, W_s, 0.5, cut)) < 1e-6


@pytest.mark.parametrize(("m", "n", "r_c", "r_s", "cut", "rank"), GRID)
def test_hard_projection_leaves_nothing_on_the_style(
    m: int, n: int, r_c: int, r_s: int, cut: str, rank: int
) -> None:
    (B_c, A_c), style = factors(1, m, n, r_c), factors(2, m, n, r_s, rank)
    V = P.style_basis(*style, **cut_options(cut)).V
    leak = (B_c @ P.project(A_c, V, math.inf)) @ V
    assert float(leak.norm() / (B_c @ A_c).norm()) < 1e-12
    B, A = fuse((B_c, A_c), style, math.inf, cut)
    x = V @ torch.ones(V.shape[1], dtype=torch.float64)
    assert float((B @ (A @ x) - style[0] @ (style[1] @ x)).norm()) <= 1e-11 * float((B_c @ A_c).norm())


def test_left_multiplication_would_be_another_matrix() -> None:
    # square on purpose: there the misprinted order fits, and only the numbers tell
    (B_c, A_c), (B_s, A_s) = pair(1, 40, 40, 6), pair(2, 40, 40, 6)
    W_c, W_s, V = B_c @ A_c, B_s @ A_s, dense_directions(B_s @ A_s)
    B, A = fuse(tensors(B_c, A_c), tensors(B_s, A_s), math.inf)
    assert deviation(B @ A, W_s + (np.eye(40) - V @ V.T) @ W_c) > 0.1
    assert deviation(B @ A, W_s + W_c @ (np.eye(40) - V @ V.T)) < 1e-12


@pytest.mark.parametrize("mu", [0.1, 0.5, 10.0])
def test_soft_projection_minimises_its_objective(mu: float) -> None:
    (B_c, A_c), (B_s, A_s) = pair(3, 30, 44, 5), pair(4, 30, 44, 6)
    V = P.style_basis(*tensors(B_s, A_s)).V
    W_c = torch.from_numpy(B_c @ A_c)
    X = (torch.from_numpy(B_c) @ P.project(torch.from_numpy(A_c), V, mu)).requires_grad_()

    def objective(X: Tensor) -> Tensor:
        return (X - W_c).square().sum() + mu * (X @ V).square().sum()

    (gradient,) = torch.autograd.grad(objective(X), X)
    assert float(gradient.norm() / W_c.norm()) < 1e-13
    for seed in range(5):
        step = torch.randn(X.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert objective(X + 1e-3 * step) > objective(X)


def test_content_is_projected_and_the_style_is_not() -> None:
    content, style = factors(1, 20, 30, 4), factors(2, 20, 30, 5)
    B, A = fuse(content, style, 0.5)
    assert torch.equal(B, torch.cat([content[0], style[0]], 1))
    assert torch.equal(A[4:], style[1])


def test_the_strength_of_the_style_does_not_move_its_directions() -> None:
    (B_s, A_s), (_, A_c) = factors(2, 20, 30, 5), factors(1, 20, 30, 4)
    weak = P.project(A_c, P.style_basis(1e-9 * B_s, A_s).V, 1.0)
    assert torch.allclose(weak, P.project(A_c, P.style_basis(-B_s, A_s).V, 1.0), rtol=0, atol=1e-13)


def test_a_layer_too_large_to_be_dense() -> None:
    # one dense float64 matrix of this layer would take 29 GB
    content, style = factors(1, 60_000, 60_001, 3), factors(2, 60_000, 60_001, 3)
    found = P.interference(content, P.style_basis(*style).V, style)
    B, A, error = P.truncate(*fuse(content, style, 0.5), 4)
    B, A = P.balance(B, A)
    assert (B.shape, A.shape) == ((60_000, 4), (4, 60_001))
    assert 0 < float(error) < 1
    assert 0 < float(found.overlap) < 1e-3
    assert math.isfinite(P.frobenius(B, A))
    assert math.isfinite(P.inner(*content, *style))


# --- The style's subspace -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "r_c", "r_s", "cut", "rank"), GRID)
def test_basis_is_that_of_the_dense_svd(m: int, n: int, r_c: int, r_s: int, cut: str, rank: int) -> None:
    B_s, A_s = pair(2, m, n, r_s, rank)
    basis = P.style_basis(*tensors(B_s, A_s), **cut_options(cut))
    V = dense_directions(B_s @ A_s, cut)
    sigma = scipy.linalg.svdvals(B_s @ A_s)[: min(r_s, m, n)]
    assert int(basis.k) == V.shape[1] == basis.V.shape[1]
    assert int(basis.dropped) == len(sigma) - int((sigma > 1e-7 * sigma[0]).sum())
    assert np.allclose(basis.V.numpy() @ basis.V.numpy().T, V @ V.T, rtol=0, atol=1e-12)
    assert np.allclose(basis.V.T @ basis.V, np.eye(V.shape[1]), rtol=0, atol=1e-13)
    assert np.allclose(basis.sigma, sigma, rtol=0, atol=1e-12 * max(sigma[0], 1))


def test_an_untrained_style_has_no_directions_and_changes_nothing() -> None:
    B_s, A_s = factors(2, 20, 30, 5, -1)
    basis = P.style_basis(B_s, A_s)
    assert (int(basis.k), int(basis.dropped), basis.V.shape) == (0, 5, (30, 0))
    _, A_c = factors(1, 20, 30, 4)
    assert torch.equal(P.project(A_c, basis.V, math.inf), A_c)


def test_the_papers_shortcut_differs_when_b_is_deficient() -> None:
    B_s, A_s = factors(2, 40, 60, 8, 3)
    shortcut = torch.linalg.qr(A_s.T).Q
    V = P.style_basis(B_s, A_s).V
    assert V.shape[1] == 3
    assert float((shortcut @ shortcut.T - V @ V.T).norm()) == pytest.approx(math.sqrt(5), abs=1e-9)


@pytest.mark.parametrize(
    "options",
    [{"k": 0}, {"k": -2}, {"energy": 0.0}, {"energy": 1.01}, {"energy": math.nan}, {"k": 2, "energy": 0.5}],
)
def test_cuts_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        P.style_basis(*factors(2, 20, 30, 5), **options)


def test_union_of_styles_is_the_range_of_them_all() -> None:
    bases = [P.style_basis(*factors(seed, 30, 50, 4)).V for seed in (2, 3, 4)]
    U = P.union_basis(bases)
    expected = scipy.linalg.orth(torch.cat(bases, 1).numpy())
    assert U.shape == (50, 12)
    assert np.allclose(U @ U.T, expected @ expected.T, rtol=0, atol=1e-12)
    assert np.allclose(U.T @ U, np.eye(12), rtol=0, atol=1e-13)


def test_union_counts_shared_directions_once() -> None:
    V = P.style_basis(*factors(2, 30, 50, 4)).V
    W = P.style_basis(*factors(3, 30, 50, 4)).V
    assert P.union_basis([V]).shape == (50, 4)
    assert P.union_basis([V, V[:, :2]]).shape == (50, 4)
    assert P.union_basis([V, W, V]).shape == (50, 8)
    assert P.union_basis([V, V.new_zeros(50, 0)]).shape == (50, 4)
    assert P.union_basis([V.new_zeros(50, 0)] * 2).shape == (50, 0)
    assert P.union_basis([torch.eye(3).double(), torch.eye(3).double()[:, :2]]).shape == (3, 3)
    _, A_c = factors(1, 30, 50, 5)
    after = P.project(A_c, P.union_basis([V, W, V]), math.inf)
    assert max(float((after @ X).norm() / A_c.norm()) for X in (V, W)) < 1e-12


# --- mu -----------------------------------------------------------------------------------------------------


def test_damping_by_hand() -> None:
    assert [P.damping(mu) for mu in (0.0, 0.5, 1.0, 3.0, math.inf)] == [0, pytest.approx(1 / 3), 0.5, 0.75, 1]
    found = P.damping(torch.tensor([0.0, 1.0, math.inf]))
    assert isinstance(found, Tensor)
    assert found.tolist() == [0, 0.5, 1]


@pytest.mark.parametrize("mu", [-0.1, math.nan, -math.inf, torch.tensor([0.5, -1.0]), torch.tensor([math.nan])])
def test_damping_refuses(mu: float | Tensor) -> None:
    with pytest.raises(UsageError, match="mu"):
        P.damping(mu)


# --- Batches ------------------------------------------------------------------------------------------------


def test_a_batch_gives_what_each_item_gives() -> None:
    ranks = (0, 3, -1, 6)  # full, deficient, untrained, nearly full
    contents = [factors(seed, 20, 33, 5) for seed in range(4)]
    styles = [factors(10 + seed, 20, 33, 7, rank) for seed, rank in enumerate(ranks)]
    B_c, A_c, B_s, A_s = (torch.stack([p[i] for p in ps]) for ps in (contents, styles) for i in (0, 1))
    basis = P.style_basis(B_s, A_s)
    mu = torch.tensor([0.0, 0.5, 1.0, math.inf], dtype=torch.float64)
    B, A = P.concatenate([(0.5, B_c, P.project(A_c, basis.V, mu)), (1.0, B_s, A_s)])
    b, a, error = P.truncate(B, A, 6)
    found = P.interference((B_c, A_c), basis.V, (B_s, A_s))
    changed, plain = P.change_norms(found, mu, 0.5)
    assert basis.k.tolist() == [7, 3, 0, 6]
    assert basis.V.shape == (4, 33, 7)
    for i, (content, style) in enumerate(zip(contents, styles, strict=True)):
        V = P.style_basis(*style).V
        one = P.concatenate([(0.5, content[0], P.project(content[1], V, float(mu[i]))), (1.0, *style)])
        alone = P.interference(content, V, style)
        assert torch.allclose(B[i] @ A[i], one[0] @ one[1], rtol=0, atol=1e-12)
        assert torch.allclose(b[i] @ a[i], torch.matmul(*P.truncate(*one, 6)[:2]), rtol=0, atol=1e-11)
        assert float(error[i]) == pytest.approx(float(P.truncate(*one, 6)[2]), abs=1e-12)
        one_changed, one_plain = P.change_norms(alone, float(mu[i]), 0.5)
        assert float(changed[i] / plain[i]) == pytest.approx(float(one_changed / one_plain), abs=1e-12)
        for name, value in vars(found).items():
            assert torch.allclose(value[i], getattr(alone, name), rtol=1e-10, atol=1e-12), name


def test_a_batch_of_unions() -> None:
    first = P.style_basis(
        *(torch.stack(x) for x in zip(*(factors(s, 20, 33, 4, r) for s, r in ((1, 0), (2, 2))), strict=True))
    )
    union = P.union_basis([first.V, first.V[..., :1]])
    assert union.shape == (2, 33, 4)
    for V, U in zip(first.V, union, strict=True):
        assert torch.allclose(U @ U.T, V @ V.T, rtol=0, atol=1e-12)


# --- Properties ---------------------------------------------------------------------------------------------

sizes = st.integers(1, 14)
seeds = st.integers(0, 2**31)
mus = st.one_of(st.floats(0, 1e6), st.just(math.inf))


@settings(max_examples=80, deadline=None)
@given(sizes, sizes, sizes, sizes, seeds, mus)
def test_any_shape_is_the_dense_update(m: int, n: int, r_c: int, r_s: int, seed: int, mu: float) -> None:
    (B_c, A_c), (B_s, A_s) = pair(seed, m, n, r_c), pair(seed + 1, m, n, r_s)
    basis = P.style_basis(*tensors(B_s, A_s))
    V = basis.V.numpy()
    # the subspace by its meaning: V's columns are orthonormal and hold all that the style reads
    assert np.allclose(V.T @ V, np.eye(V.shape[1]), atol=1e-12)
    assert np.linalg.norm(B_s @ A_s - B_s @ A_s @ V @ V.T) <= 1e-6 * np.linalg.norm(B_s @ A_s)
    c = 1.0 if math.isinf(mu) else mu / (1 + mu)
    expected = B_c @ A_c - c * (B_c @ A_c @ V) @ V.T
    found = torch.from_numpy(B_c) @ P.project(torch.from_numpy(A_c), basis.V, mu)
    assert np.allclose(found, expected, rtol=0, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, sizes, seeds)
def test_the_factorisation_of_the_style_does_not_matter(m: int, n: int, r: int, seed: int) -> None:
    B_s, A_s = pair(seed, m, n, r)
    G = np.linalg.qr(normal(np.random.default_rng(seed), r, r))[0] * 3
    V, W = (P.style_basis(*tensors(*p)).V for p in ((B_s, A_s), (B_s @ G, np.linalg.inv(G) @ A_s)))
    sigma = P.singular_values(*tensors(B_s, A_s))
    if float(sigma[-1]) > 1e-4 * float(sigma[0]):
        assert torch.allclose(V @ V.T, W @ W.T, rtol=0, atol=1e-9)
