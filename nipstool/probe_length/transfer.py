"""Probes fitted on one dataset and judged on another, from statistics alone: neither model nor texts are needed.

R2 of the regression fitted on A, over the rows of B, is exact: the squared error of given coefficients follows
from B's sums. On the diagonal it is held out by folds. "shifted" fits the intercept anew on B: datasets differ in
scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nipstool.kit.errors import DataError
from nipstool.probe_length.collected import Collected
from nipstool.probe_length.comparison import BOTH, PROBE, position_features
from nipstool.probe_length.metrics import spearman
from nipstool.probe_length.ridge import ALPHAS, Fit, cross_validate
from nipstool.probe_length.statistics import Sums, squared_deviation, squared_error

if TYPE_CHECKING:
    from torch import Tensor

FIRST = "probe at t = 0"
KINDS = (PROBE, BOTH, FIRST)


@dataclass(frozen=True)
class Cell:
    """Fitted on `source`, judged on `target`."""

    source: str
    target: str
    r2: float
    shifted: float
    spearman: float | None
    position: float  # R2 on the target of position alone, fitted on the source (at t = 0: its mean)
    own: float  # the same fitted on the target


@dataclass(frozen=True)
class Transfer:
    """The matrix of one kind of probe, at the layer chosen on each source."""

    kind: str
    names: tuple[str, ...]
    layers: tuple[int, ...]
    cells: tuple[tuple[Cell, ...], ...]  # [source][target]
    asymmetry: tuple[tuple[float, ...], ...]  # score(A -> B) - score(B -> A), by "shifted"


def transfer(parts: Sequence[tuple[str, Collected]], alphas: Sequence[float] = ALPHAS) -> list[Transfer]:
    """The dataset x dataset matrices of every kind of probe.

    Raises DataError where statistics are of other models or layers, or hold nothing to fit.
    """
    for name, part in parts:
        parts[0][1].origin.check_same(part.origin, name)
        if int((part.position.n > 0).sum()) < 2:
            raise DataError(f"{name}: its answers fall in one fold of groups; expected several groups")
        sums = (part.prompt, part.position, *part.first.values(), *part.along.values())
        if min(map(squared_deviation, sums)) <= 0:
            raise DataError(f"{name}: every answer that ended has the same length; there is nothing to judge")
    return [_matrix(kind, parts, alphas) for kind in KINDS]


def _matrix(kind: str, parts: Sequence[tuple[str, Collected]], alphas: Sequence[float]) -> Transfer:
    fits = [_best(kind, part, alphas) for _, part in parts]
    cells = tuple(
        tuple(_cell(kind, source, target, layer, fit, here=i == j) for j, target in enumerate(parts))
        for i, (source, (layer, fit)) in enumerate(zip(parts, fits, strict=True))
    )
    size = range(len(parts))
    asymmetry = tuple(tuple(cells[i][j].shifted - cells[j][i].shifted for j in size) for i in size)
    return Transfer(kind, tuple(name for name, _ in parts), tuple(layer for layer, _ in fits), cells, asymmetry)


def sums_of(kind: str, part: Collected, layer: int) -> Sums:
    """The sums that a kind of probe is fitted on at a layer."""
    if kind == FIRST:
        return part.first[layer]
    sums = part.along[layer]
    return sums if kind == BOTH else sums.columns(slice(0, part.origin.width))


def _best(kind: str, part: Collected, alphas: Sequence[float]) -> tuple[int, Fit]:
    fits = {layer: cross_validate(sums_of(kind, part, layer), alphas) for layer in part.origin.layers if layer}
    layer = min(fits, key=lambda i: fits[i].mse)
    return layer, fits[layer]


def _cell(
    kind: str, source: tuple[str, Collected], target: tuple[str, Collected], layer: int, fit: Fit, *, here: bool
) -> Cell:
    sums = sums_of(kind, target[1], layer)
    deviation = squared_deviation(sums)
    if here:
        r2, shifted = fit.r2, fit.r2
    else:
        r2, shifted = transferred(sums, fit.w, fit.b0)
    position, own = _positions(kind, source[1], target[1], deviation, here)
    return Cell(source[0], target[0], r2, shifted, _spearman(kind, target[1], layer, fit, here), position, own)


def transferred(sums: Sums, w: Tensor, b0: float) -> tuple[float, float]:
    """R2 of given coefficients over the rows of `sums`, as they are and with the intercept fitted anew."""
    import torch

    error = float(squared_error(sums, w[:, None], torch.tensor([b0], dtype=torch.float64))[0])
    total = sums.total()
    mean = float(total.sy[0] / total.n[0])
    fresh = mean - float((total.shift + total.s[0] / total.n[0]) @ w)
    least = float(squared_error(sums, w[:, None], torch.tensor([fresh], dtype=torch.float64))[0])
    deviation = squared_deviation(sums)
    return 1 - error / deviation, 1 - least / deviation


def _positions(
    kind: str, source: Collected, target: Collected, deviation: float, here: bool
) -> tuple[float, float]:
    """R2 on the target of position alone, fitted on the source and on the target; held out where both are one."""
    if kind == FIRST:
        mean = float(source.prompt.sy.sum() / source.prompt.n.sum())
        n, sy, yy = (float(x.sum()) for x in (target.prompt.n, target.prompt.sy, target.prompt.yy))
        return 1 - (yy - 2 * mean * sy + mean**2 * n) / deviation, 0.0
    own = _held_out(target, deviation)
    if here:
        return own, own
    squares = float(target.position.yy.sum())
    return 1 - target.lengths.error(source.lengths.table(), squares) / deviation, own


def _held_out(part: Collected, deviation: float) -> float:
    squares = part.position.yy.numpy()
    folds = [k for k in range(len(squares)) if part.lengths.ended[k].any()]
    errors = [part.lengths.error(part.lengths.table(k), float(squares[k]), k) for k in folds]
    return 1 - sum(errors) / deviation


def _spearman(kind: str, part: Collected, layer: int, fit: Fit, here: bool) -> float | None:
    """On the target's sample of answers that ended."""
    import torch

    sample = part.sample.take(~part.sample.censored)
    place = part.origin.layers.index(layer)
    t = np.zeros(len(sample), dtype=np.int64) if kind == FIRST else sample.t
    x = (sample.first if kind == FIRST else sample.drawn)[:, place].astype(np.float64)
    if kind == BOTH:
        x = np.concatenate([x, position_features(t)], 1)
    rows = torch.from_numpy(x)
    predicted = fit.predict(rows, torch.from_numpy(sample.fold)) if here else rows @ fit.w + fit.b0
    weight = sample.weight * (1 if kind == FIRST else sample.seen + 1)
    return spearman(np.log1p(sample.length - t), predicted.numpy(), weight)
