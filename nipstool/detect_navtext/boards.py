"""Lines that stand on one board: together, of one size, close to each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.lines import Line

OVERLAP = 0.3  # of the narrower line, across the gap between two
GAP = 1.2  # heights of the lower line, between two lines one above the other
BESIDE = 1.5  # heights, between two lines side by side
RATIO = 2.0  # of two heights on one board, at most


def board_of(lines: Sequence[Line]) -> list[int]:
    """The number of each line's board, counted from 0 in the order of the lines."""
    if not lines:
        return []
    boxes = np.array([line.bbox for line in lines], np.float64)
    heights = np.array([max(line.height, 1.0) for line in lines])
    joined = _joined(boxes, heights)
    numbers = list(range(len(lines)))
    for i in range(len(lines)):
        for j in np.flatnonzero(joined[i, :i]):
            _union(numbers, i, int(j))
    roots = [_root(numbers, i) for i in range(len(lines))]
    order = {root: number for number, root in enumerate(dict.fromkeys(roots))}
    return [order[root] for root in roots]


def _joined(boxes: NDArray[np.float64], heights: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which pairs of lines touch: (n, n)."""
    low, high = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
    shared = np.minimum(high[:, None], high[None]) - np.maximum(low[:, None], low[None])  # (n, n, 2), < 0 is a gap
    narrower = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    smaller = np.minimum(heights[:, None], heights[None])
    alike = np.maximum(heights[:, None], heights[None]) <= RATIO * smaller
    stacked = (shared[..., 0] > OVERLAP * narrower[..., 0]) & (-shared[..., 1] < GAP * smaller)
    beside = (shared[..., 1] > OVERLAP * narrower[..., 1]) & (-shared[..., 0] < BESIDE * smaller)
    return alike & (stacked | beside)


def _root(parents: list[int], i: int) -> int:
    while parents[i] != i:
        parents[i] = i = parents[parents[i]]
    return i


def _union(parents: list[int], i: int, j: int) -> None:
    a, b = _root(parents, i), _root(parents, j)
    parents[max(a, b)] = min(a, b)
