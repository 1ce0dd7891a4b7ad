"""NP-LoRA (arXiv 2511.11051) in factor space: the maths, and nothing of files.

A low-rank update is a pair of factors (B: m x r, A: r x n) with Delta W = B A, the scale alpha/r folded in. m is
the layer's output width, n its input width (in * kh * kw for a convolution). The paper works on Delta W itself;
here everything happens on B and A, which gives the same numbers and never makes an m x n matrix:

    Delta W_s = U Sigma V^T      V, the style's right singular vectors, span what the style reads of its input
    X = Delta W_c (I - c V V^T)  the content update without (c = 1) or with less of (c < 1) what it reads there
    Delta W_m = X + Delta W_s    the merged update

so A_c becomes A_c' = A_c - c (A_c V) V^T, B_c stays, and the merged update is the pair [B_c | B_s], [A_c' ; A_s].

Every function takes leading batch dimensions, (..., m, r) and (..., r, n), and computes in the dtype and on the
device it is given. Give it float64 (`upcast`): float32 drops real directions as if they were rounding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nipstool.kit.errors import UsageError

Factors = tuple[Tensor, Tensor]  # (B, A): (..., m, r) and (..., r, n)
RTOL = 1e-7  # singular values at or below RTOL times the largest are rounding, as seen from float32 storage


def upcast(t: Tensor) -> Tensor:
    """The tensor in float64 (any float dtype, float8 too). mps has no float64: move to the CPU first."""
    return t.to(torch.float64)


# --- The style's subspace -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Basis:
    """The input directions a style uses, strongest first.

    V: (..., n, K) orthonormal columns, the right singular vectors V_k of Delta W_s. In a batch K is the largest
       k, and an item with fewer directions has zero columns after its own.
    sigma: (..., min(r, m, n)) all singular values of Delta W_s, falling.
    k: (...) int64, the directions kept.
    dropped: (...) int64, the singular values that were numerically zero.
    """

    V: Tensor
    sigma: Tensor
    k: Tensor
    dropped: Tensor


def style_basis(
    B: Tensor, A: Tensor, *, k: int | None = None, energy: float | None = None, rtol: float = RTOL
) -> Basis:
    """The principal directions of the style update Delta W_s = B A (paper: SVD of the style LoRA).

    The paper keeps all r directions (the default here); cutting at the `k` strongest, or at the fewest that hold
    the share `energy` of sum sigma^2, is ours. With A^T = Q_a R_a and B = Q_b R_b the SVD of the r x r core
    R_b R_a^T = U0 Sigma W0^T gives V = Q_a W0. The paper's shortcut (its supplement VIII), the Q of A^T alone,
    is the same subspace only while nothing is cut and B has full column rank.

    A style of zeros has k = 0 and an empty V. UsageError: k below 1, energy outside (0, 1], or both given.
    """
    sigma, Q_a, W0 = _right_svd(B, A)
    return principal_directions(sigma, Q_a @ W0, k=k, energy=energy, rtol=rtol)


def principal_directions(
    sigma: Tensor, V: Tensor, *, k: int | None = None, energy: float | None = None, rtol: float = RTOL
) -> Basis:
    """`style_basis` for an update whose singular values and right singular vectors are known (`thin_svd`)."""
    if k is not None and energy is not None:
        raise UsageError("k and energy both say how many style directions to keep: give one of them")
    if k is not None and k < 1:
        raise UsageError(f"k is {k}: expected at least 1 style direction (mu 0 projects nothing)")
    rank = _numerical_rank(sigma, rtol)
    kept = rank if k is None else rank.clamp(max=k)
    if energy is not None:
        kept = torch.minimum(rank, _energy_count(sigma, energy))
    return Basis(_keep_columns(V, kept), sigma, kept, sigma.shape[-1] - rank)


def union_basis(bases: Sequence[Tensor], rtol: float = RTOL) -> Tensor:
    """Orthonormal columns for the sum of several styles' subspaces, (..., n, K). Ours, not the paper's.

    A direction that two styles share counts once: the stacked columns lose those whose singular value is at most
    rtol of the largest, so directions less than about rtol radians apart are one.
    """
    if len(bases) == 1:
        return bases[0]
    Q, R = torch.linalg.qr(torch.cat(list(bases), dim=-1))
    U0, sigma, _ = torch.linalg.svd(R, full_matrices=False)
    return _keep_columns(Q @ U0, _numerical_rank(sigma, rtol))


def _right_svd(B: Tensor, A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """sigma, Q_a and W0 of B A, whose right singular vectors are V = Q_a W0; B's Q is not needed for them."""
    Q_a, R_a = torch.linalg.qr(A.mT)
    R_b = torch.linalg.qr(B, mode="r").R
    _, sigma, W0h = torch.linalg.svd(R_b @ R_a.mT, full_matrices=False)
    return sigma, Q_a, W0h.mT


def _numerical_rank(sigma: Tensor, rtol: float) -> Tensor:
    return (sigma > rtol * sigma[..., :1]).sum(-1)


def _keep_columns(V: Tensor, kept: Tensor) -> Tensor:
    """The first `kept` columns; in a batch as many as the largest item needs, zero where another has fewer."""
    width = int(kept.max())
    if kept.dim() == 0:
        return V[..., :width]
    return V[..., :width] * (torch.arange(width, device=V.device) < kept[..., None])[..., None, :]


# --- The projection -------------------------------------------------------------------------------------------


def damping(mu: float | Tensor) -> float | Tensor:
    """c = mu / (1 + mu), the fraction removed along V: 0 for mu = 0, 1 (the hard projection) for mu = inf.

    What remains along V is 1 - c = 1/(1 + mu). A tensor gives one c an item. UsageError: a negative or NaN mu.
    """
    if isinstance(mu, Tensor):
        if not bool((mu >= 0).all()):
            raise UsageError("mu has negative or NaN entries: expected 0 or more, or inf")
        return torch.where(mu.isinf(), torch.ones_like(mu), mu / (1 + mu))
    if not mu >= 0:
        raise UsageError(f"mu is {mu}: expected 0 or more, or inf")
    return 1.0 if math.isinf(mu) else mu / (1 + mu)


def project(A_c: Tensor, V: Tensor, mu: float | Tensor) -> Tensor:
    """A_c - c (A_c V) V^T: the content's A with less of the style's input directions, (..., r, n).

    The soft projection argmin_X |X - Delta W_c|^2 + mu |X V|^2 = Delta W_c (I - c V V^T) (v3, Eq. 12); mu = inf is
    the hard one, Delta W_c (I - V V^T). V has n rows, so it can only multiply Delta W_c (m x n) from the right; v1
    prints the soft form with the projector on the left, which fits no layer whose m and n differ, is not the
    minimiser of its own objective, and disagrees with its hard form. `mu` may be a tensor of the batch's shape.
    """
    c = damping(mu)
    if isinstance(c, Tensor):
        c = c[..., None, None]
    return A_c - c * ((A_c @ V) @ V.mT)


def automatic_mu(overlap: Tensor | float, leak: float) -> Tensor:
    """The smallest mu that leaves at most the share `leak` of the content's energy on V. Ours, not the paper's.

    Solves overlap/(1 + mu)^2 = leak: mu = max(0, sqrt(overlap/leak) - 1). UsageError: leak outside (0, 1].
    """
    if not 0 < leak <= 1:
        raise UsageError(f"leak is {leak}: expected more than 0 and at most 1 (mu inf leaves nothing)")
    return (torch.as_tensor(overlap, dtype=torch.float64) / leak).sqrt().sub(1).clamp(min=0)


def leaked(overlap: Tensor | float, mu: float | Tensor) -> Tensor | float:
    """The share of |Delta W_c|^2 that still lies on V after the projection: o / (1 + mu)^2."""
    return overlap / (1 + mu) / (1 + mu)


def retained(overlap: Tensor | float, mu: float | Tensor) -> Tensor | float:
    """The share of |Delta W_c|^2 that the projection keeps: 1 - o (1 - 1/(1 + mu)^2)."""
    return 1 - overlap + leaked(overlap, mu)


# --- Sums, spectra and truncation -----------------------------------------------------------------------------


def concatenate(terms: Sequence[tuple[float, Tensor, Tensor]]) -> Factors:
    """Factors of sum_i w_i B_i A_i, exact, of the summed rank. A weight, sign included, goes on its B alone."""
    Bs = [B if w == 1 else w * B for w, B, _ in terms]
    return torch.cat(Bs, dim=-1), torch.cat([A for _, _, A in terms], dim=-2)


def singular_values(B: Tensor, A: Tensor) -> Tensor:
    """The singular values of B A, falling, (..., min(r, m, n)): those of its core."""
    return torch.linalg.svdvals(_core(B, A))


def truncate(B: Tensor, A: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best approximation of B A of at most `rank` (Eckart-Young), and its relative error in Frobenius norm.

    Returns (B, A, error): factors of rank min(rank, r, m, n), strongest component first, with sqrt(sigma) on each
    side (so in balance); error = sqrt(sum_{i > rank} sigma_i^2) / sqrt(sum sigma_i^2), 0 for an update of zeros.
    Components that are mere rounding become zero. UsageError: rank below 1.
    """
    if rank < 1:
        raise UsageError(f"rank is {rank}: expected at least 1")
    if B.shape[-2] < A.shape[-1]:
        left, right, error = truncate(A.mT, B.mT, rank)
        return right.mT, left.mT, error
    # Q of the narrower side only: U sqrt(Sigma) is B A V / sqrt(Sigma), at half the cost of another Q
    sigma, Q_a, W0 = _right_svd(B, A)
    V, root = Q_a @ W0[..., :rank], sigma[..., None, :rank].sqrt()
    noise = torch.finfo(sigma.dtype).eps * sigma.shape[-1] * sigma[..., None, :1]
    real = root.square() > noise
    U = B @ ((A @ V) * torch.where(real, 1 / torch.where(real, root, 1), 0))
    lost, norm = sigma[..., rank:].norm(dim=-1), sigma.norm(dim=-1)
    return U, (V * torch.where(real, root, 0)).mT, _ratio(lost, norm)


def recompress(B: Tensor, A: Tensor) -> Factors:
    """The same update at rank min(m, n), without loss, where r exceeds that; otherwise the factors as they are."""
    full = min(B.shape[-2], A.shape[-1])
    return (B, A) if B.shape[-1] <= full else truncate(B, A, full)[:2]


def rank_for_energy(sigma: Tensor, energy: float) -> int:
    """The smallest rank, at least 1, that holds the share `energy` (0 to 1) of sum sigma^2, in every item."""
    return int(_energy_count(sigma, energy).max())


class ThinSVD(NamedTuple):
    """U (..., m, q), sigma (..., q) and V (..., n, q) of an update U diag(sigma) V^T, q = min(r, m, n)."""

    U: Tensor
    sigma: Tensor
    V: Tensor


def thin_svd(B: Tensor, A: Tensor) -> ThinSVD:
    """The singular value decomposition of B A, from that of its r x r core."""
    Q_b, R_b = torch.linalg.qr(B)
    Q_a, R_a = torch.linalg.qr(A.mT)
    U0, sigma, W0h = torch.linalg.svd(R_b @ R_a.mT, full_matrices=False)
    return ThinSVD(Q_b @ U0, sigma, Q_a @ W0h.mT)


def _core(B: Tensor, A: Tensor) -> Tensor:
    """R_b R_a^T: at most r x r, with the singular values of B A."""
    return torch.linalg.qr(B, mode="r").R @ torch.linalg.qr(A.mT, mode="r").R.mT


def _energy_count(sigma: Tensor, energy: float) -> Tensor:
    if not 0 < energy <= 1:
        raise UsageError(f"energy is {energy}: expected a share more than 0 and at most 1")
    held = sigma.square().cumsum(-1)
    return (held < energy * held[..., -1:]).sum(-1) + 1


# --- Balance: what half precision can store --------------------------------------------------------------------


def balance(B: Tensor, A: Tensor) -> Factors:
    """The same update with |row i of A| = |column i of B| for every rank component i.

    With alpha/r and weights folded in, one side may be too small or too large for float16; even sides are the
    furthest from both ends. A component that is zero on either side stays as it is.
    """
    (B,), A = balance_shared([B], A)
    return B, A


def balance_shared(Bs: Sequence[Tensor], A: Tensor) -> tuple[list[Tensor], Tensor]:
    """`balance` for several B that share one A (the parts of a split qkv): column norms are of all B stacked."""
    # square().sum(): torch's norm over the long strided dimension is several times slower
    columns = torch.stack([B.square().sum(-2) for B in Bs]).sum(0).sqrt()
    rows = A.norm(dim=-1)
    usable = (columns > 0) & (rows > 0)
    scale = torch.where(usable, columns / torch.where(usable, rows, 1), 1).sqrt()
    return [B / scale[..., None, :] for B in Bs], A * scale[..., None]


# --- Interference ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interference:
    """How much a content update and a style's subspace meet. Tensors of the batch's shape; norms are Frobenius's.

    cosine: between Delta W_c and Delta W_s as vectors, <Delta W_c, Delta W_s> / (norm_c norm_s).
    overlap: o = |Delta W_c V|^2 / |Delta W_c|^2, the content's energy on the style's k input directions.
    chance: k/n, what o is on average for a content update of random directions. ratio: o / chance.
    overlap_out, chance_out: the same on the style's k strongest output directions (left singular vectors), k/m.
    principal_max, principal_mean: cosines of the principal angles between the content's row space and V.
    top1_*: the share of the energy in the strongest component. stable_rank_*: sum sigma^2 / sigma_1^2.
    sigma_*: (..., min(r, m, n)) all singular values.
    An update of zeros has 0 in every share and cosine.
    """

    norm_c: Tensor
    norm_s: Tensor
    cosine: Tensor
    overlap: Tensor
    chance: Tensor
    ratio: Tensor
    overlap_out: Tensor
    chance_out: Tensor
    principal_max: Tensor
    principal_mean: Tensor
    top1_c: Tensor
    top1_s: Tensor
    stable_rank_c: Tensor
    stable_rank_s: Tensor
    sigma_c: Tensor
    sigma_s: Tensor


def interference(content: Factors | ThinSVD, V: Tensor, style: Factors | ThinSVD) -> Interference:
    """Measure the content (B, A) against the style's V (..., n, k) and the style (B, A) itself.

    Either may come decomposed: the two directions of a comparison then share one `thin_svd` a file.
    Several styles: V from `union_basis`, style from `concatenate`.
    """
    U_c, sigma_c, V_c = content if isinstance(content, ThinSVD) else thin_svd(*content)
    U_s, sigma_s, V_s = style if isinstance(style, ThinSVD) else thin_svd(*style)
    norm_c, norm_s = sigma_c.norm(dim=-1), sigma_s.norm(dim=-1)
    k = (V.square().sum(-2) > 0.5).sum(-1)  # a batch's zero columns are no directions
    k_out = torch.minimum(k, _numerical_rank(sigma_s, RTOL))
    U = _keep_columns(U_s, k_out)
    overlap, chance = _overlap(V_c, sigma_c, V), k.to(V.dtype) / V.shape[-2]
    product = ((U_c.mT @ U_s) * (V_c.mT @ V_s) * sigma_c[..., None] * sigma_s[..., None, :]).sum((-2, -1))
    principal_max, principal_mean = _principal_cosines(_keep_columns(V_c, _numerical_rank(sigma_c, RTOL)), V)
    return Interference(
        norm_c=norm_c,
        norm_s=norm_s,
        cosine=_ratio(product, norm_c * norm_s).clamp(-1, 1),
        overlap=overlap,
        chance=chance,
        ratio=_ratio(overlap, chance),
        overlap_out=_overlap(U_c, sigma_c, U),
        chance_out=k_out.to(U.dtype) / U.shape[-2],
        principal_max=principal_max,
        principal_mean=principal_mean,
        top1_c=_ratio(sigma_c[..., 0].square(), norm_c.square()),
        top1_s=_ratio(sigma_s[..., 0].square(), norm_s.square()),
        stable_rank_c=_ratio(norm_c.square(), sigma_c[..., 0].square()),
        stable_rank_s=_ratio(norm_s.square(), sigma_s[..., 0].square()),
        sigma_c=sigma_c,
        sigma_s=sigma_s,
    )


def change_norms(
    i: Interference, mu: float | Tensor, content_weight: float = 1.0, style_weight: float = 1.0
) -> tuple[Tensor, Tensor]:
    """|W_m - W_plain| and |W_plain|, W_plain = w_c Delta W_c + w_s Delta W_s and W_m its NP-LoRA counterpart.

    In closed form, for every mu from one measurement: |w_c| c |Delta W_c V|, and the law of cosines.
    """
    changed = abs(content_weight) * damping(mu) * i.overlap.sqrt() * i.norm_c
    c, s = content_weight * i.norm_c, style_weight * i.norm_s
    return changed, (c.square() + s.square() + 2 * c * s * i.cosine).clamp(min=0).sqrt()


def initialisation_likeness(A_c: Tensor, A_s: Tensor) -> tuple[Tensor, Tensor]:
    """The largest and the mean |cos| between rows of the same index of A_c and A_s (the first min(r_c, r_s)).

    Two LoRAs trained from one seed start from one A and hardly leave it; their input sides then overlap for that
    reason alone. Meaningful on the A as stored: projection, truncation and conversion mix the rows.
    """
    r = min(A_c.shape[-2], A_s.shape[-2])
    c, s = A_c[..., :r, :], A_s[..., :r, :]
    cosines = _ratio((c * s).sum(-1), c.norm(dim=-1) * s.norm(dim=-1)).abs()
    return cosines.amax(-1), cosines.mean(-1)


def frobenius(B: Tensor, A: Tensor) -> Tensor:
    """|B A|, (...). By the core, not by traces of Gram matrices: those lose half the digits when terms cancel."""
    return torch.linalg.matrix_norm(_core(B, A))


def inner(B1: Tensor, A1: Tensor, B2: Tensor, A2: Tensor) -> Tensor:
    """<B1 A1, B2 A2> = trace((B1 A1)^T B2 A2), (...)."""
    return ((B1.mT @ B2) * (A1 @ A2.mT)).sum((-2, -1))


def _overlap(W: Tensor, sigma: Tensor, V: Tensor) -> Tensor:
    """The share of sum sigma^2 that lies on the columns of V when component i lies along column i of W."""
    on_V = ((W.mT @ V) * sigma[..., None]).square().sum((-2, -1))
    return _ratio(on_V, sigma.square().sum(-1)).clamp(max=1)


def _principal_cosines(W: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """Largest and mean cosine of the min(dim W, dim V) principal angles; zero columns are no dimensions."""
    if 0 in (W.shape[-1], V.shape[-1]):
        zero = W.new_zeros(W.shape[:-2])
        return zero, zero
    cosines = torch.linalg.svdvals(W.mT @ V).clamp(max=1)
    angles = torch.minimum(*((X.square().sum(-2) > 0.5).sum(-1) for X in (W, V)))
    return cosines[..., 0], _ratio(cosines.sum(-1), angles.to(cosines.dtype))


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, and 0 where there is no whole."""
    return torch.where(whole > 0, part / torch.where(whole > 0, whole, 1), 0)
