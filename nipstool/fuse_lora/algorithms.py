"""The stored algorithms (LoRA, LoCon, LoHa, LoKr) as low-rank factors (B, A), without the m x n matrix.

`tensors` and `shapes` go by role. m is the output width, n = in * kh * kw the flattened input, p and q are ranks:

    lora  down (q, in, *kernel), up (m, q, 1, 1); Tucker: down (q, in, 1, 1), mid (p, q, *kernel), up (m, p, 1, 1)
    loha  (w1_a w1_b) o (w2_a w2_b), entry by entry: w_a (m, p), w_b (p, n); Tucker adds t1 and t2
    lokr  w1 (x) w2, the Kronecker product, each half one matrix or a product w_a w_b; Tucker adds t2 to
          the second half; w2 may carry a kernel

For LoHa and LoKr, Tucker has w_a (p, m), w_b (q, in), t (p, q, *kernel): sum_pq w_a[p, m] t[p, q, .] w_b[q, in].
Scale: alpha / r with r the first dimension of down or w_b (LoKr: of w2_b, else of w1_b), whatever the metadata
says; 1 without alpha, and 1 for a LoKr of two full matrices, with which trainers write a meaningless alpha.
These are the conventions by which ComfyUI loads such files.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from nipstool.fuse_lora.projection import Factors, recompress, thin_svd, truncate, upcast
from nipstool.kit.errors import DataError, UsageError

MAX_EXACT_RANK = 256
"""A LoHa or LoKr of a larger exact rank is folded only with a rank to stop at."""

LARGEST_ALPHA = 1e30
"""A larger one is damage, and its products would be infinite."""

Shape = tuple[int, ...]

_ASIDE = {"alpha", "bias", "dora_scale"}
"""Roles that a module's shapes may list and that are no part of its matrix."""

_MATRICES = {
    "lora": (("", "up", "down", "mid"),),
    "loha": (("", "w1_a", "w1_b", "t1"), ("", "w2_a", "w2_b", "t2")),
    "lokr": (("w1", "w1_a", "w1_b", ""), ("w2", "w2_a", "w2_b", "t2")),
}
"""The roles of each matrix an algorithm combines: stored whole, or else left factor, right factor, Tucker core."""

_COMPLETE = {
    "lora": ({"up", "down"}, {"up", "down", "mid"}),
    "loha": ({"w1_a", "w1_b", "w2_a", "w2_b"}, {"w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2"}),
    "lokr": tuple(
        first | second
        for first in ({"w1"}, {"w1_a", "w1_b"})
        for second in ({"w2"}, {"w2_a", "w2_b"}, {"w2_a", "w2_b", "t2"})
    ),
}
"""The sets of roles that make one module."""


# --- Shapes alone ---------------------------------------------------------------------------------------------


class _Half(NamedTuple):
    """One matrix: height, flattened width, kernel, rank, and the r of alpha / r (0 if it is stored whole)."""

    m: int
    n: int
    kernel: Shape
    rank: int
    scale_rank: int


def delta_shape(algorithm: str, shapes: Mapping[str, Shape]) -> tuple[int, int, Shape]:
    """(m, n, kernel) of Delta W: n is the flattened input, kernel () for a linear layer, (kh, kw) for a 2-d conv.

    Trainers store a non-Tucker LoHa or LoKr of a convolution flattened; its kernel then shows as ().
    DataError: roles missing or unknown, or shapes that do not meet.
    """
    halves = _halves(algorithm, shapes)
    if algorithm == "lokr":
        return halves[0].m * halves[1].m, halves[0].n * halves[1].n, halves[1].kernel
    return halves[0].m, halves[0].n, halves[0].kernel


def exact_rank(algorithm: str, shapes: Mapping[str, Shape]) -> int:
    """The rank of the factors that `fold` makes when it folds exactly; at most min(m, n). DataError as above."""
    m, n, _ = delta_shape(algorithm, shapes)
    return min(math.prod(half.rank for half in _halves(algorithm, shapes)), m, n)


def _halves(algorithm: str, shapes: Mapping[str, Shape]) -> list[_Half]:
    """The one matrix of a LoRA, the two of a LoHa or LoKr, checked."""
    shapes = {role: tuple(shape) for role, shape in shapes.items() if role not in _ASIDE}
    if algorithm not in _MATRICES:
        raise DataError(f"{algorithm} is not supported: expected lora, loha or lokr")
    if set(shapes) not in _COMPLETE[algorithm]:
        raise DataError(f"no complete {algorithm}: found {_listed(shapes)}")
    if any(len(shape) < 2 or 0 in shape for shape in shapes.values()):
        raise DataError(f"a factor is no matrix: {_listed(shapes)}")
    halves = [
        _whole(shapes[whole]) if whole in shapes else _product(shapes, left, right, core)
        for whole, left, right, core in _MATRICES[algorithm]
    ]
    if algorithm == "loha" and halves[0][:3] != halves[1][:3]:
        raise DataError(f"the two products of this LoHa do not meet: {_listed(shapes)}")
    if algorithm == "lokr" and math.prod(halves[0].kernel) != 1:
        raise DataError(f"the first matrix of a LoKr has no kernel: {_listed(shapes)}")
    return halves


def _product(shapes: Mapping[str, Shape], left: str, right: str, core: str) -> _Half:
    a, b = shapes[left], shapes[right]
    if core in shapes:
        (p, q, *kernel), (m, p_a) = shapes[core], a[:2] if left == "up" else a[1::-1]
        meets = (p_a, b[0]) == (p, q) and math.prod(b[2:]) == 1
    else:
        (m, p), kernel = a[:2], b[2:]
        meets = p == b[0]
    if not meets or math.prod(a[2:]) != 1:
        found = _listed({role: shapes[role] for role in (left, right, core) if role in shapes})
        raise DataError(f"the factors do not meet: {found} (grouped convolutions are not supported)")
    n = b[1] * math.prod(kernel)
    return _Half(m, n, tuple(kernel), min(p, m, n), b[0])


def _whole(shape: Shape) -> _Half:
    m, n = shape[0], math.prod(shape[1:])
    return _Half(m, n, shape[2:], min(m, n), 0)


def _listed(shapes: Mapping[str, Shape]) -> str:
    return ", ".join(f"{role} {list(shape)}" for role, shape in sorted(shapes.items())) or "nothing"


# --- Folding --------------------------------------------------------------------------------------------------


def fold(
    algorithm: str,
    tensors: Mapping[str, Tensor],
    alpha: float | Tensor | None,
    *,
    rank: int | None = None,
    name: str = "",
) -> Factors:
    """B (m, r) and A (r, n) in float64 with B A = Delta W, its scale folded into B.

    Exact, of rank `exact_rank`, for every LoRA and for a LoHa or LoKr up to MAX_EXACT_RANK; above that the best
    approximation of at most `rank`, which is not looked at otherwise (project first, truncate last).

    DataError: roles, shapes or dtypes that make no update, NaN or infinite values, an alpha that is no finite
    number. UsageError: an exact rank above MAX_EXACT_RANK and no `rank`. Messages begin with `name`.
    """
    B, A, _ = fold_with_error(algorithm, tensors, alpha, rank=rank, name=name)
    return B, A


def fold_with_error(
    algorithm: str,
    tensors: Mapping[str, Tensor],
    alpha: float | Tensor | None,
    *,
    rank: int | None = None,
    name: str = "",
) -> tuple[Tensor, Tensor, float]:
    """`fold`, and the relative Frobenius error of what it left out: 0 where it folds exactly."""
    prefix = f"{name}: " if name else ""
    shapes = {role: tuple(t.shape) for role, t in tensors.items()}
    try:
        exact = exact_rank(algorithm, shapes)
        scale = _scale(algorithm, alpha, _halves(algorithm, shapes))
        w = {role: _checked(role, t) for role, t in tensors.items()}
    except DataError as error:
        raise DataError(f"{prefix}{error}") from error
    if algorithm != "lora" and exact > MAX_EXACT_RANK:
        if rank is None:
            raise UsageError(
                f"{prefix}the exact rank of this {algorithm} is {exact}, above {MAX_EXACT_RANK}: give --rank"
            )
        if rank < 1:
            raise UsageError(f"{prefix}rank is {rank}: expected at least 1")
        exact = min(exact, rank)
    B, A, error = {"lora": _fold_lora, "loha": _fold_loha, "lokr": _fold_lokr}[algorithm](w, exact)
    return B if scale == 1 else B * scale, A, error


def _scale(algorithm: str, alpha: float | Tensor | None, halves: list[_Half]) -> float:
    if isinstance(alpha, Tensor):
        if alpha.numel() != 1:
            raise DataError(f"alpha has shape {list(alpha.shape)}: expected one number")
        alpha = float(upcast(alpha).reshape(()).item())
    if alpha is not None and not abs(alpha) <= LARGEST_ALPHA:
        raise DataError(f"alpha is {alpha}: expected a number of at most {LARGEST_ALPHA:g}")
    ranks = [half.scale_rank for half in halves if half.scale_rank]
    if alpha is None or not ranks:
        return 1.0
    return alpha / ranks[0 if algorithm == "loha" else -1]


def _checked(role: str, t: Tensor) -> Tensor:
    if not t.is_floating_point():
        raise DataError(f"{role} holds {str(t.dtype).removeprefix('torch.')} values: expected floating point")
    wide = upcast(t)
    if not math.isfinite(float(wide.sum())):  # one pass without a mask; the mask decides
        bad = int((~torch.isfinite(wide)).sum())
        if bad:
            raise DataError(f"{role} has {bad} NaN or infinite values")
    return wide


def _factors(w: Mapping[str, Tensor], whole: str, left: str, right: str, core: str) -> Factors:
    """(m, p) and (p, n) of one matrix. A Tucker core goes into the second: sum_q core[p, q, ...] right[q, in]."""
    if whole in w:
        W = w[whole].flatten(1)
        unit = torch.eye(min(W.shape), dtype=W.dtype, device=W.device)
        return (unit, W) if W.shape[0] <= W.shape[1] else (W, unit)
    a, b = w[left].flatten(1), w[right].flatten(1)
    if core not in w:
        return a, b
    return a if left == "up" else a.mT.contiguous(), torch.einsum("pqk,qi->pik", w[core].flatten(2), b).flatten(1)


def _fold_lora(w: Mapping[str, Tensor], rank: int) -> tuple[Tensor, Tensor, float]:
    return *recompress(*_factors(w, *_MATRICES["lora"][0])), 0.0


# LoHa: (P1 Q1) o (P2 Q2) has the columns P1[:, i] P2[:, j] and the rows Q1[i] Q2[j] as exact factors.

_COLUMNS = 512  # of the m x n product seen at a time


def _fold_loha(w: Mapping[str, Tensor], rank: int) -> tuple[Tensor, Tensor, float]:
    (P1, Q1), (P2, Q2) = (_factors(w, *roles) for roles in _MATRICES["loha"])
    m, n, pairs = len(P1), Q1.shape[1], len(Q1) * len(Q2)
    # with more pairs than this the factors would be as large as the matrix itself, or nearly
    if pairs > max(MAX_EXACT_RANK, min(m, n) // 2):
        if m <= n:
            return _stream_loha(P1, Q1, P2, Q2, rank)
        A, B, error = _stream_loha(Q1.mT, P1.mT, Q2.mT, P2.mT, rank)
        return B.mT, A.mT, error
    B = torch.einsum("mp,mq->mpq", P1, P2).flatten(1)
    A = torch.einsum("pn,qn->pqn", Q1, Q2).flatten(0, 1)
    if rank == pairs:
        return B, A, 0.0
    B, A, error = truncate(B, A, rank)
    return B, A, float(error)


def _stream_loha(P1: Tensor, Q1: Tensor, P2: Tensor, Q2: Tensor, rank: int) -> tuple[Tensor, Tensor, float]:
    """The best rank-`rank` factors of M = (P1 Q1) o (P2 Q2), m <= n, seen as blocks of columns.

    The eigenvectors U of M M^T come from squared singular values; the basis V of M^T U and the product M V do not,
    so one such step brings the approximation back to full precision. The error is measured, not inferred.
    """

    def blocks() -> Iterator[Tensor]:
        return ((P1 @ q1) * (P2 @ q2) for q1, q2 in zip(Q1.split(_COLUMNS, 1), Q2.split(_COLUMNS, 1), strict=True))

    gram = sum((M @ M.mT for M in blocks()), P1.new_zeros(len(P1), len(P1)))
    U = torch.linalg.eigh(gram).eigenvectors[:, -rank:]
    V = torch.linalg.qr(torch.cat([M.mT @ U for M in blocks()])).Q
    parts = V.split(_COLUMNS)
    Z = sum((M @ v for M, v in zip(blocks(), parts, strict=True)), torch.zeros_like(U))
    lost = sum(float((M - Z @ v.mT).square().sum()) for M, v in zip(blocks(), parts, strict=True))
    norm = float(gram.trace())
    B, A, _ = truncate(Z, V.mT, rank)
    return B, A, math.sqrt(lost / norm) if norm else 0.0


# LoKr: kron(P1 Q1, P2 Q2) = kron(P1, P2) kron(Q1, Q2), and the SVD of a kron is the kron of the SVDs.


def _fold_lokr(w: Mapping[str, Tensor], rank: int) -> tuple[Tensor, Tensor, float]:
    (P1, Q1), (P2, Q2) = (_factors(w, *roles) for roles in _MATRICES["lokr"])
    if rank == len(Q1) * len(Q2):
        return torch.kron(P1, P2), torch.kron(Q1, Q2), 0.0
    (U1, s1, V1), (U2, s2, V2) = thin_svd(P1, Q1), thin_svd(P2, Q2)
    sigma, order = torch.outer(s1, s2).flatten().sort(descending=True, stable=True)
    i, j = order[:rank] // len(s2), order[:rank] % len(s2)
    root = sigma[:rank].sqrt()
    B = torch.einsum("at,bt->abt", U1[:, i], U2[:, j]).flatten(0, 1) * root
    A = torch.einsum("at,bt->tab", V1[:, i], V2[:, j]).flatten(1) * root[:, None]
    norm = float(sigma.norm())
    return B, A, float(sigma[rank:].norm()) / norm if norm else 0.0
