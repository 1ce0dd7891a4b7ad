"""Places in images: activations of layers with different grids on one grid, a sample a place."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nipstool.kit.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

Grid = tuple[int, int]


def grid_of(shape: tuple[int, ...]) -> Grid:
    """The places of one row of [N, n], [N, C, H, W] or [N, T, n] (one line of T)."""
    if len(shape) == 4:
        return shape[2], shape[3]
    return (1, shape[1]) if len(shape) == 3 else (1, 1)


def common_grid(grids: Iterable[Grid], given: str | None = None) -> Grid:
    """The grid on which all are sampled: the given one (HxW), else the coarsest with more than one place.

    Averaging down invents nothing; layers without places (after pooling) are repeated at each.
    """
    if given is not None:
        match = re.fullmatch(r"([1-9]\d{0,3})(?:x([1-9]\d{0,3}))?", given)
        if match is None:
            raise UsageError(f"--grid {given}: expected HxW, such as 7x7")
        return int(match[1]), int(match[2] or match[1])
    spread = [grid for grid in grids if grid[0] * grid[1] > 1]
    return min(spread, key=lambda grid: grid[0] * grid[1]) if spread else (1, 1)


def samples(values: Tensor, grid: Grid) -> Tensor:
    """[B, n], [B, C, H, W] or [B, T, n] as [B * places, n]: averaged down, interpolated up, or as it is."""
    from torch.nn import functional

    if values.dim() == 2:
        return values.repeat_interleave(grid[0] * grid[1], 0)
    if values.dim() == 3:
        values = values.transpose(1, 2)[:, :, None]
    own = (values.shape[2], values.shape[3])
    if own != grid:
        wide = values if values.dtype.itemsize > 2 else values.float()
        if own[0] >= grid[0] and own[1] >= grid[1]:
            values = functional.adaptive_avg_pool2d(wide, grid)
        else:
            values = functional.interpolate(wide, grid, mode="bilinear", align_corners=False)
    return values.flatten(2).transpose(1, 2).reshape(-1, values.shape[1])
