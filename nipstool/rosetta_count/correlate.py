"""Pearson's r between all neurons of two models, exact, from one pass over the samples.

r_ij = (sum z_i z_j - sum z_i sum z_j / N) / sqrt(var_i var_j), over values z that were shifted and scaled by the
mean and deviation of the first unit of work: r does not change by that, and the subtraction then loses nothing.
One product a unit in float32, added to sums in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 512  # of a matrix of correlations at a time
BLOCK = (1024, 4096)  # of a float32 product at a time: smaller ones are slower, larger ones take memory
CACHED = 64  # rows at a time of what is read once more at once: they still lie in the cache
NOTHING = float("-inf")  # the r of a neuron that takes no part


@dataclass(frozen=True)
class Frame:
    """What values are shifted and scaled by, [n] each, so that sums of products stay exact."""

    shift: Tensor
    scale: Tensor

    def __getitem__(self, columns: slice) -> Frame:
        return Frame(self.shift[columns], self.scale[columns])

    def __call__(self, values: Tensor, out: Tensor | None = None) -> Tensor:
        """(x - shift) scale in float32; the difference is taken in the values' own precision if that is wider.

        `out` is memory for it, if there is some: asking for it anew takes as long as the work.
        """
        import torch

        out = torch.empty(values.shape, device=values.device) if out is None else out
        for rows in row_blocks(len(values), CACHED):
            if values.dtype == torch.float64:
                out[rows] = (values[rows] - self.shift) * self.scale
            else:
                torch.sub(values[rows].float(), self.shift, out=out[rows]).mul_(self.scale)
        return out


def frame_of(values: Tensor) -> Frame:
    """The frame of the first unit's values [S, n]: their mean and one over their deviation, 1 where that is 0."""
    import torch

    total, squares = torch.zeros(2, values.shape[1], dtype=torch.float64, device=values.device)
    for rows in row_blocks(len(values), CACHED):
        total += values[rows].double().sum(0)
    shift = (total / len(values)).float()
    for rows in row_blocks(len(values), CACHED):
        squares += (values[rows].double() - shift).square_().sum(0)
    deviation = (squares / len(values)).sqrt_()
    usable = (deviation > 1e-30) & deviation.isfinite()
    scale = torch.where(usable, 1 / deviation.clamp_min(1e-30), torch.ones_like(deviation))
    return Frame(shift, scale.float())


@dataclass
class Sums:
    """Sums over samples, in float64: of values a [na], b [nb], squares aa, bb, and products ab [na, nb]."""

    ab: Tensor
    a: Tensor
    b: Tensor
    aa: Tensor
    bb: Tensor
    count: int = 0

    @classmethod
    def zeros(cls, na: int, nb: int, device: object = None) -> Sums:
        """Nothing summed yet."""
        import torch

        shapes = ((na, nb), (na,), (nb,), (na,), (nb,))
        return cls(*(torch.zeros(*shape, dtype=torch.float64, device=device) for shape in shapes))  # type: ignore[arg-type]

    def add(self, za: Tensor, zb: Tensor) -> None:
        """Add samples [S, na] and [S, nb], framed float32; surplus rows of the longer one are left out."""
        rows = min(len(za), len(zb))
        za, zb = za[:rows], zb[:rows]
        self.count += rows
        add_sums(za, self.a, self.aa)
        add_sums(zb, self.b, self.bb)
        self._add_products(za, zb)

    def _add_products(self, za: Tensor, zb: Tensor) -> None:
        """The products in float32, block by block into the same memory, and from there into float64."""
        import torch

        na, nb = za.shape[1], zb.shape[1]
        held = torch.empty(min(na, BLOCK[0]), min(nb, BLOCK[1]), device=za.device)
        for rows in row_blocks(na, BLOCK[0]):
            for columns in row_blocks(nb, BLOCK[1]):
                product = held[: rows.stop - rows.start, : columns.stop - columns.start]
                torch.mm(za[:, rows].T, zb[:, columns], out=product)
                block = self.ab[rows, columns]
                for part in row_blocks(len(block), CACHED):
                    block[part] += product[part]

    def variances(self) -> tuple[Tensor, Tensor]:
        """N times the variance of every column of a and of b."""
        n = max(self.count, 1)
        return self.aa - self.a.square() / n, self.bb - self.b.square() / n

    def covariance(self, rows: slice, columns: slice = slice(None)) -> Tensor:
        """N times the covariance of some rows with some columns."""
        outer = self.a[rows, None] * (self.b[columns] / max(self.count, 1))
        return self.ab[rows, columns] - outer

    def tensors(self) -> dict[str, Tensor]:
        """The state, for a checkpoint or an exchange between processes."""
        return {"ab": self.ab, "a": self.a, "b": self.b, "aa": self.aa, "bb": self.bb}


def add_sums(z: Tensor, total: Tensor, squares: Tensor) -> None:
    """Add the sums of columns of z [S, n], float32, and of their squares to float64 ones."""
    for rows in row_blocks(len(z), CACHED):
        total += z[rows].sum(0)
        squares += z[rows].square().sum(0)


def correlations(sums: Sums, live_a: Tensor, live_b: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """(rows, r [rows, nb]) in float64, block by block; -inf where a neuron takes no part (live: bool [n])."""
    va, vb = sums.variances()
    inverse_a, inverse_b = _inverse_root(va, live_a), _inverse_root(vb, live_b)
    for rows in row_blocks(len(va)):
        r = sums.covariance(rows).mul_(inverse_a[rows, None]).mul_(inverse_b)
        yield rows, masked(r, live_a[rows], live_b)


def _inverse_root(variance: Tensor, live: Tensor) -> Tensor:
    import torch

    return torch.where(live & (variance > 0), variance.clamp_min(1e-300).rsqrt(), torch.zeros_like(variance))


def masked(r: Tensor, live_a: Tensor, live_b: Tensor) -> Tensor:
    """r with -inf in the rows and columns of neurons that take no part; in place."""
    r[~live_a] = NOTHING
    r[:, ~live_b] = NOTHING
    return r.clamp_(max=1.0)


def row_blocks(rows: int, size: int = ROWS) -> Iterator[slice]:
    """Slices that cut `rows` into blocks."""
    for at in range(0, rows, size):
        yield slice(at, min(rows, at + size))


@dataclass(frozen=True)
class Best:
    """The k nearest neighbours of every neuron: r [n, k] falling, index [n, k]; -inf and -1 where there is none.

    Of equal r the lowest index is nearer.
    """

    r: Tensor
    index: Tensor

    @classmethod
    def none(cls, n: int, k: int, device: object = None) -> Best:
        """No neighbour found yet."""
        import torch

        r = torch.full((n, k), NOTHING, dtype=torch.float64, device=device)  # type: ignore[call-overload]
        return cls(r, torch.full((n, k), -1, dtype=torch.int64, device=device))  # type: ignore[call-overload]

    def merge(self, rows: slice, r: Tensor, offset: int) -> None:
        """Take in further candidates r [rows, m], whose indices begin at `offset`."""
        import torch

        k = self.r.shape[1]
        values, index = top(r, min(k, r.shape[1]))
        self.take(rows, values, torch.where(values > NOTHING, index + offset, -1))

    def take(self, rows: slice, values: Tensor, index: Tensor) -> None:
        """Take in candidates [rows, m] with their indices; -1 where there is none."""
        import torch

        k = self.r.shape[1]
        values = torch.cat([self.r[rows], values], 1)
        index = torch.cat([self.index[rows], index], 1)
        by_index = index.argsort(1)
        values, index = values.gather(1, by_index), index.gather(1, by_index)
        order = values.sort(dim=1, descending=True, stable=True)
        self.r[rows] = order.values[:, :k]
        self.index[rows] = index.gather(1, order.indices)[:, :k]


def top(r: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of every row and their indices; of equal ones those with the lowest index."""
    if k == 1:
        found = r.max(1, keepdim=True)  # the first of several maxima
        return found.values, found.indices
    values, index = r.topk(k, 1)
    tied = ((r >= values[:, -1:]).sum(1) > k).nonzero()[:, 0]
    if len(tied):
        order = r[tied].sort(dim=1, descending=True, stable=True)
        values[tied], index[tied] = order.values[:, :k], order.indices[:, :k]
    return values, index


def neighbours(sums: Sums, live_a: Tensor, live_b: Tensor, k: int = 1) -> tuple[Best, Best]:
    """The k nearest of every neuron of a among b, and of every neuron of b among a."""
    best_a = Best.none(len(live_a), k, sums.ab.device)
    best_b = Best.none(len(live_b), k, sums.ab.device)
    for rows, r in correlations(sums, live_a, live_b):
        best_a.merge(rows, r, 0)
        best_b.merge(slice(None), r.T, rows.start)
    return best_a, best_b


@dataclass(frozen=True)
class Pairs:
    """Mutual nearest neighbours, r falling: indices a and b [m], r [m] and each one's rank there, from 1."""

    a: Tensor
    b: Tensor
    r: Tensor
    rank_a: Tensor
    rank_b: Tensor

    def __len__(self) -> int:
        return len(self.a)


def mutual(best_a: Best, best_b: Best, min_r: float = 0.0) -> Pairs:
    """Pairs (i, j), each among the k nearest of the other, with r >= min_r; a negative r never counts."""
    found = best_a.index >= 0
    partner = best_a.index.clamp_min(0)
    back = best_b.index[partner]  # [na, k, k]
    own = back.new_tensor(range(len(best_a.index)))[:, None, None]
    hit = back == own
    keep = found & hit.any(2) & (best_a.r >= max(min_r, 0.0))
    a, rank = keep.nonzero(as_tuple=True)
    b, r = partner[a, rank], best_a.r[a, rank]
    rank_b = hit[a, rank].long().argmax(1)
    order = r.sort(dim=0, descending=True, stable=True).indices
    return Pairs(a[order], b[order], r[order], rank[order] + 1, rank_b[order] + 1)
