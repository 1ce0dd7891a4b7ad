"""Ridge regression where some targets are only known to be larger than a bound (Tobin 1958), by EM.

Model: y = b0 + w.x + s eps, eps normal. Of answers that ended y is known, through sums alone; of cut ones the
rows x and a bound c, y > c. With m = b0 + w.x and a = (c - m) / s, and h(a) = phi(a) / (1 - Phi(a)):
    E-step    y* = m + s h,   Var = s^2 (1 + a h - h^2)
    M-step    the ridge regression on known y and y*;   s^2 = (sum (y - m)^2 + sum [(y* - m)^2 + Var]) / n
Only the cross products change from step to step, so one eigendecomposition serves all steps and penalties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nipstool.probe_length.ridge import ALPHAS, Fit, cross_validate, spectrum, spread
from nipstool.probe_length.statistics import Sums, squared_deviation, squared_error

if TYPE_CHECKING:
    from torch import Tensor

STEPS, TOLERANCE = 2000, 1e-9


@dataclass(frozen=True)
class Cut:
    """Rows of cut answers: x [m, D], bounds c [m] in units of the target, weights [m], folds [m]."""

    x: Tensor
    bound: Tensor
    weight: Tensor
    fold: Tensor

    def take(self, chosen: Tensor) -> Cut:
        """Some of the rows."""
        return Cut(self.x[chosen], self.bound[chosen], self.weight[chosen], self.fold[chosen])


@dataclass(frozen=True)
class FirstFit:
    """The regression at t = 0, with its cross-validation."""

    alpha: float
    w: Tensor  # [D]
    b0: float
    sigma: float
    fold_w: Tensor  # [K, D]
    fold_b0: Tensor  # [K]
    score: float  # mean over folds: minus the held-out squared error, or the held-out log likelihood a row
    r2: float  # held out, on answers that ended
    at_edge: bool
    censored: bool  # whether cut answers took part

    def predict(self, x: Tensor, folds: Tensor) -> Tensor:
        """Out-of-fold predictions for rows x [rows, D] of the given folds [rows]."""
        return (x.double() * self.fold_w[folds]).sum(1) + self.fold_b0[folds]


def tobit(sums: Sums, cut: Cut, alphas: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """(w [D, A], b0 [A], s [A]) for every penalty; `sums` of answers that ended, of one fold or several."""
    import torch

    ended = sums.total()
    whole = Sums(*(x.clone() for x in vars(ended).values()))
    whole.add(0, cut.x, torch.zeros(len(cut.x), dtype=torch.float64), cut.weight)
    found = spectrum(whole)
    u = ((cut.x.double() - found.mean) / found.scale) @ found.vectors  # [m, D]
    offset = found.mean - ended.shift
    g = found.vectors.mT @ ((ended.b[0] - offset * ended.sy[0]) / found.scale)
    theta, mean, s = _em(ended, found.values, u, g, cut, torch.tensor(alphas, dtype=torch.float64))
    w = (found.vectors @ theta) / found.scale[:, None]
    return w, mean - found.mean @ w, s


def _em(ended: Sums, e: Tensor, u: Tensor, g: Tensor, cut: Cut, alphas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The steps in the eigenbasis, where all rows sum to 0 and their squares to diag(e); [D, A], [A], [A]."""
    import torch

    weight, bound = cut.weight.double()[:, None], cut.bound.double()[:, None]
    n_ended, sy, yy = ended.n[0], ended.sy[0], ended.yy[0]
    n = n_ended + weight.sum()
    pull = (u * weight).sum(0)  # minus the sum of u over answers that ended
    penalised = (e[:, None] + alphas).clamp_min(1e-300)
    theta = torch.zeros(len(e), len(alphas), dtype=torch.float64)
    mean = (sy / n_ended).expand(len(alphas)).clone()
    s = ((yy / n_ended - (sy / n_ended) ** 2).clamp_min(1e-12).sqrt()).expand(len(alphas)).clone()
    predicted = u @ theta + mean
    for _ in range(STEPS):
        a = (bound - predicted) / s
        h = hazard(a)
        y = predicted + s * h
        variance = s * s * (1 + a * h - h * h).clamp_min(0)
        theta = (g[:, None] + u.mT @ (weight * y)) / penalised
        before = predicted
        old, mean = mean, (sy + (weight * y).sum(0)) / n
        fitted = u @ theta
        predicted = fitted + mean
        known = yy - 2 * mean * sy + n_ended * mean**2 - 2 * (theta * g[:, None]).sum(0)
        known = known + (e[:, None] * theta**2).sum(0) - (weight * fitted**2).sum(0) - 2 * mean * (pull @ theta)
        s = ((known + (weight * ((y - predicted) ** 2 + variance)).sum(0)) / n).clamp_min(1e-24).sqrt()
        moved = max(float((predicted - before).abs().max()) if len(u) else 0.0, float((mean - old).abs().max()))
        if moved < TOLERANCE:
            break
    return theta, mean, s


def hazard(a: Tensor) -> Tensor:
    """phi(a) / (1 - Phi(a)), also far out where both vanish."""
    import torch

    return torch.exp(-0.5 * a * a - 0.9189385332046727 - torch.special.log_ndtr(-a))


def log_likelihood(sums: Sums, cut: Cut, w: Tensor, b0: Tensor, s: Tensor) -> Tensor:
    """Of known targets, through their sums, and of bounds; [A]."""
    import torch

    known = -0.5 * float(sums.n.sum()) * (2 * s.log() + 1.8378770664093453)
    known = known - squared_error(sums, w, b0) / (2 * s * s)
    if not len(cut.x):
        return known
    a = (cut.bound.double()[:, None] - cut.x.double() @ w - b0) / s
    return known + (cut.weight.double()[:, None] * torch.special.log_ndtr(-a)).sum(0)


def fit_first(sums: Sums, cut: Cut | None, alphas: Sequence[float] = ALPHAS) -> FirstFit:
    """The regression at t = 0: Tobit, its penalty by held-out likelihood; ridge where nothing is cut."""
    if cut is None or not len(cut.x):
        return _of_ridge(cross_validate(sums, alphas), sums)
    import torch

    used = [k for k in range(len(sums.n)) if float(sums.n[k]) > 0]
    scores, errors, w, b0 = [], [], [], []
    for k in used:
        fold_w, fold_b0, s = tobit(sums.without(k), cut.take(cut.fold != k), alphas)
        held = cut.take(cut.fold == k)
        rows = float(sums.n[k]) + float(held.weight.sum())
        scores.append(log_likelihood(sums.of(k), held, fold_w, fold_b0, s) / rows)
        errors.append(squared_error(sums.of(k), fold_w, fold_b0))
        w.append(fold_w)
        b0.append(fold_b0)
    curve = torch.stack(scores).mean(0)
    best = int(curve.argmax())
    final_w, final_b0, s = tobit(sums, cut, alphas[best : best + 1])
    spread_w = spread(used, len(sums.n), [x[:, best] for x in w], [x[best] for x in b0])
    sse = float(torch.stack(errors)[:, best].sum())
    edge = len(alphas) > 1 and best in (0, len(alphas) - 1)
    r2 = 1 - sse / squared_deviation(sums)
    return FirstFit(
        alphas[best], final_w[:, 0], float(final_b0[0]), float(s[0]), *spread_w, float(curve[best]), r2, edge, True
    )


def _of_ridge(fit: Fit, sums: Sums) -> FirstFit:
    sigma = (fit.sse / float(sums.n.sum())) ** 0.5
    return FirstFit(fit.alpha, fit.w, fit.b0, sigma, fit.fold_w, fit.fold_b0, -fit.mse, fit.r2, fit.at_edge, False)
