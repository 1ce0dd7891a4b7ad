"""Sums over rows that are all a ridge regression needs: they merge across batches, machines and nights.

For rows x [D] with target y and weight v, and a fixed shift c near their mean, per fold of the groups:
    n = sum v,      s = sum v (x - c),      S = sum v (x - c)(x - c)^T,
    s_y = sum v y,  b = sum v (x - c) y,    yy = sum v y^2
in float64. The shift keeps S well conditioned; sums about different shifts are brought together exactly:
    S' = S + s d^T + d s^T + n d d^T,   s' = s + n d,   b' = b + d s_y        for d = c - c'.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Sums:
    """The sums of one design by fold; all float64. D is the number of columns, K of folds."""

    shift: Tensor  # [D]
    n: Tensor  # [K]
    s: Tensor  # [K, D]
    S: Tensor  # [K, D, D]
    sy: Tensor  # [K]
    b: Tensor  # [K, D]
    yy: Tensor  # [K]

    def add(self, fold: int, x: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Take up rows x [rows, D] of one fold with targets y [rows] and weights [rows] (None: 1 each)."""
        x = x.to(self.S) - self.shift
        y = y.to(self.S)
        weighted = x if weight is None else x * weight.to(self.S)[:, None]
        wy = y if weight is None else y * weight.to(self.S)
        self.n[fold] += len(x) if weight is None else weight.to(self.S).sum()
        self.s[fold] += weighted.sum(0)
        self.S[fold].addmm_(weighted.mT, x)
        self.sy[fold] += wy.sum()
        self.b[fold] += x.mT @ wy
        self.yy[fold] += wy @ y

    def plus(self, other: Sums) -> Sums:
        """The sums over both sets of rows, about this one's shift."""
        moved = other.about(self.shift)
        own = (getattr(self, f.name) + getattr(moved, f.name) for f in fields(self)[1:])
        return Sums(self.shift, *own)

    def about(self, shift: Tensor) -> Sums:
        """The same sums about another shift."""
        d = self.shift - shift.to(self.shift)
        cross = self.s[:, :, None] * d
        square = self.n[:, None, None] * (d[:, None] * d)
        return Sums(
            shift.to(self.shift),
            self.n,
            self.s + self.n[:, None] * d,
            self.S + cross + cross.mT + square,
            self.sy,
            self.b + self.sy[:, None] * d,
            self.yy,
        )

    def columns(self, chosen: Tensor | slice) -> Sums:
        """The sums of some columns alone."""
        S = self.S[:, chosen][:, :, chosen]
        return Sums(self.shift[chosen], self.n, self.s[:, chosen], S, self.sy, self.b[:, chosen], self.yy)

    def total(self) -> Sums:
        """All folds as one."""
        return Sums(self.shift, *(getattr(self, f.name).sum(0, keepdim=True) for f in fields(self)[1:]))

    def without(self, fold: int) -> Sums:
        """All folds but one, as one."""
        others = [k for k in range(len(self.n)) if k != fold]
        return Sums(self.shift, *(getattr(self, f.name)[others].sum(0, keepdim=True) for f in fields(self)[1:]))

    def of(self, fold: int) -> Sums:
        """One fold alone."""
        return Sums(self.shift, *(getattr(self, f.name)[fold : fold + 1] for f in fields(self)[1:]))

    def cpu(self) -> Sums:
        """The same in main memory."""
        return Sums(*(getattr(self, f.name).cpu() for f in fields(self)))


def empty(columns: int, folds: int, shift: Tensor | None = None, device: object = "cpu") -> Sums:
    """Sums over no rows."""
    import torch

    like = {"dtype": torch.float64, "device": torch.device(str(device))}
    return Sums(
        torch.zeros(columns, **like) if shift is None else shift.to(**like),
        torch.zeros(folds, **like),
        torch.zeros(folds, columns, **like),
        torch.zeros(folds, columns, columns, **like),
        torch.zeros(folds, **like),
        torch.zeros(folds, columns, **like),
        torch.zeros(folds, **like),
    )


def squared_error(sums: Sums, w: Tensor, b0: Tensor) -> Tensor:
    """Sum over rows of v (y - x.w - b0)^2, exactly, for coefficients w [D, A] and intercepts b0 [A]; result [A].

    With w about the shift, a = b0 + c.w:  yy - 2 w.b + w^T S w + n a^2 + 2 a s.w - 2 a s_y.
    """
    total = sums if len(sums.n) == 1 else sums.total()
    a = b0 + total.shift @ w
    quadratic = (w * (total.S[0] @ w)).sum(0)
    linear = -2 * total.b[0] @ w + 2 * a * (total.s[0] @ w - total.sy[0])
    return total.yy[0] + quadratic + linear + total.n[0] * a * a


def squared_deviation(sums: Sums) -> float:
    """Sum over rows of v (y - mean y)^2, all folds together."""
    total = sums.total()
    return float(total.yy[0] - total.sy[0] ** 2 / total.n[0])
