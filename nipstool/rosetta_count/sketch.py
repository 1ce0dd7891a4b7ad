"""Pairs with r >= min-r found through a sketch of the samples; every r that is reported is exact.

CountSketch: each sample goes into one of s buckets with a random sign. The product of two sketched columns
estimates N r with a standard error of about N / sqrt(s), whatever N is. Pairs whose estimate is above
min-r - 4 / sqrt(s) and among the 8 highest of either neuron are then computed from the activations themselves, in
one more reading. Nothing is known of pairs below min-r, so their number, the raw count, is not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nipstool.kit.distributed import Group
from nipstool.kit.progress import Progress, silent
from nipstool.rosetta_count.controls import rotation
from nipstool.rosetta_count.correlate import BLOCK, Best, Frame, row_blocks
from nipstool.rosetta_count.dense import Recorded, Settings, width
from nipstool.rosetta_count.moments import Neurons
from nipstool.rosetta_count.stream import Activations, Found, Layer
from nipstool.rosetta_count.units import share

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BUCKETS = 2048
CANDIDATES = 8  # of each neuron
CLEAR = 4.0  # standard errors of the sketch below min-r that still make a candidate
LEAST_R = 0.3  # of min-r: below it there would be more candidates than is worth while
FAR = 100.0  # deviations from zero that a mean is far
ROWS, TOGETHER = 512, 128  # samples and pairs verified at a time

Read = Callable[[int], "Tensor"]
Pick = Callable[["Tensor", "Tensor"], "Tensor"]


@dataclass(frozen=True)
class Side:
    """One side of a pairing.

    Args:
        sketch: [s, n] of standardised values.
        live: bool [n]: which neurons take part.
        read: unit -> activations [S, m], of which `pick` makes neurons.
        pick: (activations [R, m], which) -> their values [len(which), R] in float32, of mean about 0 and deviation
            about 1. A neuron that `pick` makes may be a mixture of several recorded ones.
    """

    sketch: Tensor
    live: Tensor
    read: Read
    pick: Pick


def run_sketch(
    models: Sequence[Activations],
    neurons: Sequence[Neurons],
    units: int,
    settings: Settings,
    *,
    samples: int,
    min_r: float,
    buckets: int = BUCKETS,
    group: Group | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Recorded:
    """Of what run_dense finds the pairs with r >= min_r. Every unit is read several times: models lie on disk."""
    group = group or Group()
    repeats = min(settings.repeats, max(0, units - 1))
    mine = range(*share(0, units, group.rank, group.size))
    sketched = partial(sketch, units=mine, buckets=buckets, seed=settings.seed, group=group)
    first, frame = models[0], standard(neurons[0])
    left = Side(sketched(first.unit, frame), neurons[0].live, first.unit, partial(pick, frame))
    pairs, done = [], 0
    for model, known in zip(models[1:], neurons[1:], strict=True):
        found = Found.none(width(first), width(model), settings.k, repeats, rotate=settings.rotate, device=device)
        frame = standard(known)
        for k, target in enumerate([found.observed, *found.permuted]):
            read = partial(_shifted, model, k, units)
            right = Side(sketched(read, frame), known.live, read, partial(pick, frame))
            sides = [(right, target)]
            if k == 0 and found.rotated is not None:
                sides.append((rotated(right, frame, known, model.layers, samples, settings.seed), found.rotated))
            for side, both in sides:
                search(left, side, both, mine, samples, min_r, group)
                done += 1
                progress(done, (len(models) - 1) * (1 + repeats + settings.rotate))
        pairs.append(found)
    return Recorded(list(neurons), pairs, samples)


def _shifted(model: Activations, shift: int, units: int, index: int) -> Tensor:
    """The unit that a permuted pairing puts beside unit `index`."""
    return model.unit((index - shift) % units)


def standard(neurons: Neurons) -> Frame:
    """The frame that gives values of mean 0 and deviation 1; those of constant neurons become 0."""
    import torch

    scale = torch.where(
        neurons.deviation > 0, 1 / neurons.deviation.clamp_min(1e-300), torch.zeros_like(neurons.deviation)
    )
    return Frame(neurons.mean.float(), scale.float())


def pick(frame: Frame, values: Tensor, which: Tensor) -> Tensor:
    """Some columns of values [R, n] as rows [len(which), R], framed."""
    import torch

    taken = values.T.index_select(0, which)
    shift, scale = frame.shift[which, None], frame.scale[which, None]
    if taken.dtype == torch.float64:
        return ((taken - shift) * scale).float()
    return taken.float().sub_(shift).mul_(scale)


def sketch(read: Read, frame: Frame, *, units: range, buckets: int, seed: int, group: Group) -> Tensor:
    """The sketch [s, n] of framed values, added up over processes.

    Samples with either sign are kept apart until the end, and framed there: sums are linear. Only where means are
    far from zero, so that float32 sums would lose what lies beside them, are values framed first.
    """
    import torch

    n, device = len(frame.shift), frame.shift.device
    sums = torch.zeros(2 * buckets, n, device=device)
    counts = torch.zeros(2 * buckets, 1, device=device)
    far = bool((frame.shift.abs() * frame.scale).max() > FAR)
    for index in units:
        values = read(index)
        place = hashed(len(values), index, buckets, seed).to(device)
        sums.index_add_(0, place, frame(values) if far else values.float())
        counts.index_add_(0, place, torch.ones(len(values), 1, device=device))
    group.add([sums, counts])
    signed, number = sums[:buckets] - sums[buckets:], counts[:buckets] - counts[buckets:]
    return signed if far else signed.addmm_(number, frame.shift[None], alpha=-1).mul_(frame.scale)


def hashed(rows: int, unit: int, buckets: int, seed: int) -> Tensor:
    """int64 [rows]: a bucket for each sample of a unit, or `buckets` more where its sign is negative.

    The first samples' are the same however many rows there are.
    """
    import numpy as np
    import torch

    return torch.from_numpy(np.random.default_rng([seed, unit]).integers(2 * buckets, size=rows))


def rotated(side: Side, frame: Frame, neurons: Neurons, layers: Sequence[Layer], samples: int, seed: int) -> Side:
    """The side whose layers are each multiplied by a random matrix (see controls.rotation).

    The sketch is multiplied as a whole, activations only for those neurons that are looked at.
    """
    import torch

    sketch = torch.empty_like(side.sketch)
    live = torch.ones_like(side.live)
    parts: list[tuple[slice, Tensor]] = []
    for layer in layers:
        c = layer.columns
        matrix = rotation(c.stop - c.start, seed, layer.number).to(sketch.device) * neurons.deviation[c]
        product = side.sketch[:, c] @ matrix.T.float()
        deviation = product.norm(dim=0) / samples**0.5  # an estimate, within about sqrt(1/s)
        live[c] = deviation > 0
        inverse = torch.where(deviation > 0, 1 / deviation.clamp_min(1e-30), torch.zeros_like(deviation))
        sketch[:, c] = product * inverse
        parts.append((c, matrix.float() * inverse[:, None]))

    def mix(values: Tensor, which: Tensor) -> Tensor:
        found = []
        for c, matrix in parts:
            own = which[(which >= c.start) & (which < c.stop)] - c.start
            if len(own):
                found.append(matrix[own] @ frame[c](values[:, c]).T)
        return torch.cat(found)  # `which` rises, and layers stand in that order

    return Side(sketch, live, side.read, mix)


def search(
    left: Side, right: Side, both: tuple[Best, Best], units: range, samples: int, min_r: float, group: Group
) -> None:
    """Find candidates, compute each exactly, and keep the nearest of every neuron on both sides."""
    a, b = candidates(left, right, samples, min_r - CLEAR / len(left.sketch) ** 0.5)
    r = verified(left, right, a, b, units, group)
    enough = r >= min_r
    a, b, r = a[enough], b[enough], r[enough]
    keep_nearest(both[0], a, b, r)
    keep_nearest(both[1], b, a, r)


def candidates(left: Side, right: Side, samples: int, floor: float) -> tuple[Tensor, Tensor]:
    """Pairs (a, b) with an estimate of at least `floor` that is among the highest of either neuron."""
    import torch

    device = left.sketch.device
    a = b = torch.zeros(0, dtype=torch.int64, device=device)
    r = torch.zeros(0, device=device)
    for rows, columns in _blocks(left.sketch.shape[1], right.sketch.shape[1]):
        block = left.sketch[:, rows].T @ right.sketch[:, columns]
        i, j = (block >= floor * samples).nonzero(as_tuple=True)
        taking = left.live[rows][i] & right.live[columns][j]
        i, j = i[taking], j[taking]
        a, b = torch.cat([a, i + rows.start]), torch.cat([b, j + columns.start])
        r = torch.cat([r, block[i, j]])
        high = (ranks(a, b, r) < CANDIDATES) | (ranks(b, a, r) < CANDIDATES)
        a, b, r = a[high], b[high], r[high]
    return a, b


def _blocks(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    return ((i, j) for i in row_blocks(rows, BLOCK[0]) for j in row_blocks(columns, BLOCK[1]))


def ranks(own: Tensor, partner: Tensor, r: Tensor) -> Tensor:
    """The place of every pair among those of the same neuron, r falling; of equal r the lowest partner first."""
    import torch

    order = partner.argsort(stable=True)
    order = order[r[order].argsort(descending=True, stable=True)]
    order = order[own[order].argsort(stable=True)]
    sorted_own = own[order]
    place = torch.arange(len(order), device=own.device)
    rank = torch.empty_like(place)
    rank[order] = place - torch.searchsorted(sorted_own, sorted_own)
    return rank


def verified(left: Side, right: Side, a: Tensor, b: Tensor, units: range, group: Group) -> Tensor:
    """r of pairs, float64: float32 products over ROWS samples at most, everything else in float64."""
    import torch

    (of_a, place_a), (of_b, place_b) = (one.unique(return_inverse=True) for one in (a, b))
    sums = [torch.zeros(2, len(of), dtype=torch.float64, device=a.device) for of in (of_a, of_b)]
    products = torch.zeros(len(a), dtype=torch.float64, device=a.device)
    count = 0
    for index in units if len(a) else ():
        values = left.read(index), right.read(index)
        length = min(map(len, values))
        count += length
        for rows in row_blocks(length, ROWS):
            za, zb = left.pick(values[0][rows], of_a), right.pick(values[1][rows], of_b)
            for total, z in zip(sums, (za, zb), strict=True):
                total[0] += z.sum(1)
                total[1] += (z * z).sum(1)
            for part in row_blocks(len(a), TOGETHER):
                x, y = za.index_select(0, place_a[part]), zb.index_select(0, place_b[part])
                products[part] += x.mul_(y).sum(1)
    group.add([*sums, products])
    n = max(1, sum(group.gather(count)))
    (sa, aa), (sb, bb) = sums[0][:, place_a], sums[1][:, place_b]
    variances = (aa - sa.square() / n) * (bb - sb.square() / n)
    return ((products - sa * sb / n) / variances.clamp_min(1e-300).sqrt()).clamp_(max=1.0)


def keep_nearest(best: Best, own: Tensor, partner: Tensor, r: Tensor) -> None:
    """Fill `best` with the nearest of every neuron among pairs whose r is known."""
    rank = ranks(own, partner, r)
    near = rank < best.r.shape[1]
    best.r[own[near], rank[near]] = r[near]
    best.index[own[near], rank[near]] = partner[near]
