"""Folding against the formulas that ComfyUI and LyCORIS rebuild the dense matrix by, written out here in loops."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nipstool.fuse_lora.algorithms import MAX_EXACT_RANK, delta_shape, exact_rank, fold, fold_with_error
from nipstool.kit.errors import DataError, UsageError

Shapes = dict[str, tuple[int, ...]]


def make(shapes: Shapes, seed: int = 0) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {role: torch.from_numpy(rng.standard_normal(shape)) for role, shape in shapes.items()}


def tucker(t: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """sum_ij left[i, p] t[i, j, k, l] right[j, r], one term at a time: (p, r, k, l)."""
    out = np.zeros((left.shape[1], right.shape[1], *t.shape[2:]))
    for i, j in product(range(t.shape[0]), range(t.shape[1])):
        out += np.multiply.outer(np.multiply.outer(left[i], right[j]), t[i, j])
    return out


def dense(algorithm: str, tensors: dict[str, Tensor]) -> np.ndarray:
    """The matrix before its scale, with the kernel flattened into the width."""
    w = {role: t.double().numpy() for role, t in tensors.items()}
    if algorithm == "loha":
        halves = [
            tucker(w[f"t{i}"], w[f"w{i}_a"], w[f"w{i}_b"]) if f"t{i}" in w else w[f"w{i}_a"] @ w[f"w{i}_b"]
            for i in "12"
        ]
        M = halves[0] * halves[1]
    else:
        w1 = w["w1"] if "w1" in w else w["w1_a"] @ w["w1_b"]
        if "w2" in w:
            w2 = w["w2"]
        elif "t2" in w:
            w2 = tucker(w["t2"], w["w2_a"], w["w2_b"])
        else:
            w2 = np.tensordot(w["w2_a"], w["w2_b"], 1)
        M = np.kron(w1.reshape(*w1.shape[:2], *[1] * (w2.ndim - 2)), w2)
    return M.reshape(len(M), -1)


def deviation(factors: tuple[Tensor, Tensor], expected: np.ndarray) -> float:
    found = (factors[0] @ factors[1]).numpy()
    assert found.shape == expected.shape
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


# name: algorithm, shapes, (m, n, kernel), exact rank, r of alpha / r (None: scale 1), all worked out by hand
CASES: dict[str, tuple[str, Shapes, tuple[int, int, tuple[int, ...]], int, int | None]] = {
    "linear": ("lora", {"down": (4, 30), "up": (20, 4)}, (20, 30, ()), 4, 4),
    "conv": ("lora", {"down": (4, 6, 3, 5), "up": (20, 4, 1, 1)}, (20, 90, (3, 5)), 4, 4),
    "conv, flat up": ("lora", {"down": (4, 6, 3, 3), "up": (20, 4)}, (20, 54, (3, 3)), 4, 4),
    "conv 1 x 1": ("lora", {"down": (4, 6, 1, 1), "up": (20, 4, 1, 1)}, (20, 6, (1, 1)), 4, 4),
    "conv 1-d": ("lora", {"down": (2, 6, 3), "up": (9, 2, 1)}, (9, 18, (3,)), 2, 2),
    "conv 3-d": ("lora", {"down": (2, 3, 2, 3, 3), "up": (9, 2, 1, 1, 1)}, (9, 54, (2, 3, 3)), 2, 2),
    "tucker": ("lora", {"down": (3, 6, 1, 1), "mid": (5, 3, 3, 2), "up": (20, 5, 1, 1)}, (20, 36, (3, 2)), 5, 3),
    "rank above m": ("lora", {"down": (9, 30), "up": (7, 9)}, (7, 30, ()), 7, 9),
    "rank above n": ("lora", {"down": (9, 5), "up": (17, 9)}, (17, 5, ()), 5, 9),
    "loha": ("loha", {"w1_a": (20, 3), "w1_b": (3, 30), "w2_a": (20, 4), "w2_b": (4, 30)}, (20, 30, ()), 12, 3),
    "loha above m": (
        "loha",
        {"w1_a": (10, 4), "w1_b": (4, 30), "w2_a": (10, 4), "w2_b": (4, 30)},
        (10, 30, ()),
        10,
        4,
    ),
    "loha, as high as the matrix": (
        "loha",
        {"w1_a": (40, 18), "w1_b": (18, 30), "w2_a": (40, 18), "w2_b": (18, 30)},
        (40, 30, ()),
        30,
        18,
    ),
    "loha tucker": (
        "loha",
        {"t1": (3, 2, 3, 2), "w1_a": (3, 20), "w1_b": (2, 6), "t2": (2, 4, 3, 2), "w2_a": (2, 20), "w2_b": (4, 6)},
        (20, 36, (3, 2)),
        6,
        2,
    ),
    "lokr, second a product": ("lokr", {"w1": (4, 3), "w2_a": (5, 2), "w2_b": (2, 7)}, (20, 21, ()), 6, 2),
    "lokr, first a product": ("lokr", {"w1_a": (4, 2), "w1_b": (2, 3), "w2": (5, 7)}, (20, 21, ()), 10, 2),
    "lokr, both products": (
        "lokr",
        {"w1_a": (4, 2), "w1_b": (2, 6), "w2_a": (5, 3), "w2_b": (3, 7)},
        (20, 42, ()),
        6,
        3,
    ),
    "lokr, both full": ("lokr", {"w1": (4, 3), "w2": (5, 7)}, (20, 21, ()), 15, None),
    "lokr, both full, tall": ("lokr", {"w1": (3, 4), "w2": (7, 5)}, (21, 20, ()), 15, None),
    "lokr conv": ("lokr", {"w1": (4, 3), "w2": (5, 7, 3, 2)}, (20, 126, (3, 2)), 15, None),
    "lokr conv, product": ("lokr", {"w1": (4, 3), "w2_a": (5, 2), "w2_b": (2, 7, 3, 2)}, (20, 126, (3, 2)), 6, 2),
    "lokr conv, flattened": ("lokr", {"w1": (4, 3), "w2_a": (5, 2), "w2_b": (2, 42)}, (20, 126, ()), 6, 2),
    "lokr tucker": (
        "lokr",
        {"w1": (4, 3), "t2": (2, 3, 3, 2), "w2_a": (2, 5), "w2_b": (3, 7)},
        (20, 126, (3, 2)),
        6,
        3,
    ),
    "lokr, ranks above its matrices": (
        "lokr",
        {"w1_a": (2, 8), "w1_b": (8, 8), "w2_a": (8, 9), "w2_b": (9, 2)},
        (16, 16, ()),
        4,
        9,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_shapes_alone_say_what_comes(case: str) -> None:
    algorithm, shapes, expected, rank, _ = CASES[case]
    assert delta_shape(algorithm, shapes) == expected
    assert exact_rank(algorithm, shapes) == rank
    extra = {"alpha": (), "bias": (20,), "dora_scale": (20, 1)}
    assert delta_shape(algorithm, {**shapes, **extra}) == expected
    B, A = fold(algorithm, make(shapes), 1.0)
    assert (B.shape, A.shape) == ((expected[0], rank), (rank, expected[1]))
    assert B.dtype == A.dtype == torch.float64


@pytest.mark.parametrize("alpha", [None, 1.0, 6.5])
@pytest.mark.parametrize("case", [c for c in CASES if not c.startswith(("linear", "conv", "tucker", "rank"))])
def test_loha_and_lokr_by_their_formulas(case: str, alpha: float | None) -> None:
    algorithm, shapes, _, _, r = CASES[case]
    tensors = make(shapes)
    scale = 1.0 if alpha is None or r is None else alpha / r
    assert deviation(fold(algorithm, tensors, alpha), scale * dense(algorithm, tensors)) < 1e-13
    single = {role: t.float() for role, t in tensors.items()}
    assert deviation(fold(algorithm, single, alpha), scale * dense(algorithm, single)) < 1e-13


@pytest.mark.parametrize("alpha", [None, 1.0, 6.5])
@pytest.mark.parametrize("case", [c for c in CASES if c.startswith(("linear", "conv", "tucker", "rank"))])
def test_lora_does_what_its_layers_do(case: str, alpha: float | None) -> None:
    # the trainer's own layers, down then mid then up, and one layer with the folded weight
    algorithm, shapes, (m, _, kernel), _, r = CASES[case]
    assert r is not None
    w = make(shapes)
    layer: Any = [F.linear, F.conv1d, F.conv2d, F.conv3d][len(kernel)]
    width = shapes["down"][1]
    x = make({"x": (2, *([width] if kernel else [5, width]), *[size + 4 for size in kernel])})["x"]
    up = w["up"].reshape(*w["up"].shape[:2], *[1] * len(kernel))
    y = layer(x, w["down"])
    if "mid" in w:
        y = layer(y, w["mid"])
    y = layer(y, up) * (1.0 if alpha is None else alpha / r)
    B, A = fold(algorithm, w, alpha)
    found = layer(x, (B @ A).reshape(m, width, *kernel))
    assert float((found - y).norm() / y.norm()) < 1e-13


def test_conventions_of_the_scale() -> None:
    full = make({"w1": (4, 3), "w2": (5, 7)})
    assert deviation(fold("lokr", full, 100_000.0), dense("lokr", full)) < 1e-14  # LyCORIS writes such an alpha
    zero = fold("lora", make({"down": (4, 30), "up": (20, 4)}), 0.0)
    assert not (zero[0] @ zero[1]).any()
    w = make({"down": (4, 30), "up": (20, 4)})
    negative = fold("lora", w, -2.0)
    assert deviation(negative, -0.5 * (w["up"] @ w["down"]).numpy()) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_alpha_in_any_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    w = make({"down": (4, 30), "up": (20, 4)})
    expected = fold("lora", w, 8.0)
    found = fold("lora", w, torch.full(shape, 8, dtype=dtype))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], w["down"])


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_factors_in_any_float_dtype(dtype: torch.dtype) -> None:
    w = {role: t.to(dtype) for role, t in make({"down": (4, 30), "up": (20, 4)}).items()}
    expected = w["up"].double().numpy() @ w["down"].double().numpy()
    assert deviation(fold("lora", w, 4.0), expected) < 1e-14


def test_folding_leaves_its_input_alone() -> None:
    for algorithm, shapes, _, _, _ in CASES.values():
        w = make(shapes)
        before = {role: t.clone() for role, t in w.items()}
        B, A = fold(algorithm, w, 3.0)
        B.mul_(1)
        assert all(torch.equal(w[role], before[role]) for role in w)
        assert torch.isfinite(B @ A).all()


# --- Above the largest exact rank -----------------------------------------------------------------------------

LARGE: dict[str, tuple[str, Shapes]] = {
    "loha, factors": ("loha", {"w1_a": (560, 17), "w1_b": (17, 550), "w2_a": (560, 16), "w2_b": (16, 550)}),
    "loha, streamed": ("loha", {"w1_a": (280, 20), "w1_b": (20, 1030), "w2_a": (280, 20), "w2_b": (20, 1030)}),
    "loha, streamed, tall": ("loha", {"w1_a": (600, 24), "w1_b": (24, 270), "w2_a": (600, 24), "w2_b": (24, 270)}),
    "loha tucker": (
        "loha",
        {
            "t1": (17, 17, 3, 3),
            "w1_a": (17, 300),
            "w1_b": (17, 40),
            "t2": (17, 17, 3, 3),
            "w2_a": (17, 300),
            "w2_b": (17, 40),
        },
    ),
    "lokr": ("lokr", {"w1": (16, 12), "w2": (24, 36)}),
    "lokr, product": ("lokr", {"w1_a": (20, 17), "w1_b": (17, 18), "w2_a": (17, 16), "w2_b": (16, 20)}),
    "lokr conv": ("lokr", {"w1": (16, 16), "w2": (20, 8, 3, 3)}),
}


@pytest.mark.parametrize("case", LARGE)
def test_large_ones_need_a_rank(case: str) -> None:
    algorithm, shapes = LARGE[case]
    exact = exact_rank(algorithm, shapes)
    assert exact > MAX_EXACT_RANK
    with pytest.raises(UsageError, match=rf"^unet.mid: .*{exact}.*--rank"):
        fold(algorithm, make(shapes), 1.0, name="unet.mid")
    with pytest.raises(UsageError, match="rank is 0"):
        fold(algorithm, make(shapes), 1.0, rank=0)


@pytest.mark.parametrize("case", LARGE)
def test_the_truncated_fold_is_that_of_the_dense_svd(case: str) -> None:
    algorithm, shapes = LARGE[case]
    tensors = make(shapes)
    M = dense(algorithm, tensors)
    U, sigma, Vh = scipy.linalg.svd(M, full_matrices=False)
    norm = np.linalg.norm(sigma)
    for rank in (1, 12):
        B, A, error = fold_with_error(algorithm, tensors, None, rank=rank)
        lost = np.linalg.norm(M - (B @ A).numpy())
        assert (B.shape[1], A.shape[0]) == (rank, rank)
        assert lost / norm == pytest.approx(np.linalg.norm(sigma[rank:]) / norm, abs=1e-12)
        assert error == pytest.approx(lost / norm, abs=1e-12)
    if algorithm == "lokr":  # no gap is guaranteed elsewhere, so only its approximation is one matrix
        assert deviation((B, A), U[:, :12] * sigma[:12] @ Vh[:12]) < 1e-10


def test_a_rank_that_is_enough_loses_nothing() -> None:
    # LoHa of nominal rank 400 that really has rank 4: each product has rank 2
    rng = np.random.default_rng(0)
    w = {}
    for i in "12":
        w[f"w{i}_a"] = torch.from_numpy(rng.standard_normal((300, 2)) @ rng.standard_normal((2, 20)))
        w[f"w{i}_b"] = torch.from_numpy(rng.standard_normal((20, 310)))
    B, A, error = fold_with_error("loha", w, None, rank=4)
    assert deviation((B, A), dense("loha", w)) < 1e-12
    assert error < 1e-12
    zero = {role: t * 0 for role, t in w.items()}
    B, A, error = fold_with_error("loha", zero, None, rank=4)
    assert error == 0
    assert not (B @ A).any()


def test_a_rank_above_the_exact_one_is_the_exact_fold() -> None:
    algorithm, shapes = LARGE["lokr"]
    B, A, error = fold_with_error(algorithm, make(shapes), None, rank=10_000)
    assert B.shape[1] == exact_rank(algorithm, shapes) == 12 * 24
    assert error == 0
    assert deviation((B, A), dense(algorithm, make(shapes))) < 1e-13


def test_a_rank_does_not_touch_what_folds_exactly() -> None:
    for algorithm, shapes, _, rank, _ in CASES.values():
        assert fold(algorithm, make(shapes), 1.0, rank=1)[0].shape[1] == rank
    wide = {"down": (300, 400), "up": (310, 300)}
    assert fold("lora", make(wide), None, rank=8)[0].shape == (310, 300)
    assert fold("lora", make(wide), None)[0].shape == (310, 300)  # the limit is for LoHa and LoKr


def test_a_lokr_too_large_to_be_dense() -> None:
    # one dense float64 matrix of this layer would take 22 GB
    tensors = make({"w1": (240, 230), "w2": (220, 230)})
    B, A, error = fold_with_error("lokr", tensors, None, rank=3)
    s1, s2 = (scipy.linalg.svdvals(tensors[role].numpy()) for role in ("w1", "w2"))
    products = np.sort(np.outer(s1, s2).ravel())[::-1]
    assert (B.shape, A.shape) == ((52_800, 3), (3, 52_900))
    assert np.allclose(B.norm(dim=0) * A.norm(dim=1), products[:3], rtol=1e-12)
    assert error == pytest.approx(np.linalg.norm(products[3:]) / np.linalg.norm(products), abs=1e-12)
    # a row of the approximation, against the same row of the matrix: the residual is what the error says
    x = np.random.default_rng(1).standard_normal(52_900)
    exact = tensors["w1"].numpy() @ x.reshape(230, 230) @ tensors["w2"].numpy().T
    assert np.isclose((B.T @ torch.from_numpy(exact.ravel()))[0], B[:, 0] @ B[:, 0] * (A[0].numpy() @ x))


# --- Inputs that make no update -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "shapes", "message"),
    [
        ("oft", {"blocks": (4, 4)}, "oft is not supported"),
        ("lora", {}, "found nothing"),
        ("lora", {"down": (4, 30)}, r"down \[4, 30\]"),
        ("lora", {"down": (4, 30), "up": (20, 5)}, r"down \[4, 30\], up \[20, 5\]"),
        ("lora", {"down": (4, 30, 3, 3), "up": (20, 2, 1, 1)}, "grouped"),
        ("lora", {"down": (4, 30), "up": (20, 4, 3, 3)}, "do not meet"),
        ("lora", {"down": (4,), "up": (20, 4)}, "no matrix"),
        ("lora", {"down": (0, 30), "up": (20, 0)}, "no matrix"),
        ("lora", {"down": (3, 6, 1, 1), "mid": (5, 4, 3, 3), "up": (20, 5, 1, 1)}, "do not meet"),
        ("lora", {"down": (3, 6, 3, 3), "mid": (5, 3, 3, 3), "up": (20, 5, 1, 1)}, "do not meet"),
        ("lora", {"down": (3, 6, 1, 1), "mid": (5, 3, 3, 3), "up": (5, 20, 1, 1)}, "do not meet"),
        ("lora", {"down": (4, 30), "up": (20, 4), "w1": (2, 2)}, "w1"),
        ("loha", {"w1_a": (20, 3), "w1_b": (3, 30)}, "no complete loha"),
        ("loha", {"w1_a": (20, 3), "w1_b": (3, 30), "w2_a": (20, 3), "w2_b": (3, 31)}, "do not meet"),
        ("loha", {"w1_a": (20, 3), "w1_b": (3, 30), "w2_a": (21, 3), "w2_b": (3, 30)}, "do not meet"),
        ("loha", {"w1_a": (3, 20), "w1_b": (3, 6), "t1": (3, 3, 3, 3), "w2_a": (3, 20), "w2_b": (3, 6)}, "t1"),
        ("lokr", {"w1": (4, 3)}, "no complete lokr"),
        ("lokr", {"w1": (4, 3), "w1_a": (4, 2), "w1_b": (2, 3), "w2": (5, 7)}, "no complete lokr"),
        ("lokr", {"w1": (4, 3), "w2_a": (5, 2), "w2_b": (3, 7)}, "do not meet"),
        ("lokr", {"w1": (4, 3, 2, 2), "w2": (5, 7)}, "kernel"),
        ("lokr", {"w1": (4, 3), "t2": (2, 3, 3, 2), "w2_a": (3, 5), "w2_b": (3, 7)}, "do not meet"),
    ],
)
def test_shapes_that_do_not_meet(algorithm: str, shapes: Shapes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        delta_shape(algorithm, shapes)
    with pytest.raises(DataError, match=message):
        exact_rank(algorithm, shapes)
    with pytest.raises(DataError, match="^unet.mid: .*" + message):
        fold(algorithm, make(shapes), 1.0, name="unet.mid")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_that_are_no_numbers(value: float, dtype: torch.dtype) -> None:
    w = {role: t.to(dtype) for role, t in make({"down": (4, 30), "up": (20, 4)}).items()}
    w["up"][3, 2] = value
    w["up"][5, 1] = -value
    with pytest.raises(DataError, match=r"^block: up has 2 NaN or infinite values$"):
        fold("lora", w, 1.0, name="block")


@pytest.mark.parametrize(
    "alpha", [math.nan, math.inf, torch.tensor(math.nan), torch.tensor([1.0, 2.0]), torch.zeros(0)]
)
def test_alpha_that_is_no_number(alpha: float | Tensor) -> None:
    with pytest.raises(DataError, match=r"^block: alpha"):
        fold("lora", make({"down": (4, 30), "up": (20, 4)}), alpha, name="block")


def test_quantised_factors_are_refused() -> None:
    w = make({"down": (4, 30), "up": (20, 4)})
    w["up"] = w["up"].to(torch.int8)
    with pytest.raises(DataError, match="up holds int8"):
        fold("lora", w, 1.0)


# --- Properties -----------------------------------------------------------------------------------------------

small = st.integers(1, 6)


@settings(max_examples=60, deadline=None)
@given(small, small, small, small, small, small, small, st.booleans(), st.booleans(), st.integers(0, 2**31))
def test_any_lokr(
    m1: int, n1: int, m2: int, n2: int, k: int, r1: int, r2: int, full1: bool, full2: bool, seed: int
) -> None:
    shapes: Shapes = {"w1": (m1, n1)} if full1 else {"w1_a": (m1, r1), "w1_b": (r1, n1)}
    shapes |= {"w2": (m2, n2, k, 2)} if full2 else {"w2_a": (m2, r2), "w2_b": (r2, n2, k, 2)}
    tensors = make(shapes, seed)
    B, A = fold("lokr", tensors, None)
    assert B.shape[1] == exact_rank("lokr", shapes)
    assert np.allclose(B @ A, dense("lokr", tensors), rtol=0, atol=1e-11)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), small, small, st.integers(0, 2**31))
def test_any_loha(m: int, n: int, r1: int, r2: int, seed: int) -> None:
    shapes: Shapes = {"w1_a": (m, r1), "w1_b": (r1, n), "w2_a": (m, r2), "w2_b": (r2, n)}
    tensors = make(shapes, seed)
    B, A = fold("loha", tensors, None)
    assert B.shape[1] == exact_rank("loha", shapes)
    assert np.allclose(B @ A, dense("loha", tensors), rtol=0, atol=1e-11)
