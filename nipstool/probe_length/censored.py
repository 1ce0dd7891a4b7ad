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

STEPS, TOLERANCE = 300, 1e-9  # with more columns than rows and hardly a penalty s goes to 0: no end is reached


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
    bound, weight = cut.bound.double()[:, None], cut.weight.double()[:, None]
    problem = _Problem(ended, found.values, u, g, bound, weight, torch.tensor(alphas, dtype=torch.float64))
    theta, _, mean, s = problem.parts(_em(problem))
    w = (found.vectors @ theta) / found.scale[:, None]
    return w, mean - found.mean @ w, s


@dataclass(frozen=True)
class _Problem:
    """The regression in the eigenbasis, where all rows sum to 0 and their squares to diag(e); A penalties at once.

    A state is a column [D + m + 2] for each penalty: coefficients theta, their part u theta of the predictions for
    cut rows (so that a sum of states needs no product), intercept and log s.
    """

    ended: Sums
    e: Tensor  # [D]
    u: Tensor  # [m, D]
    g: Tensor  # [D]
    bound: Tensor  # [m, 1]
    weight: Tensor  # [m, 1]
    alphas: Tensor  # [A]

    def start(self) -> Tensor:
        """No slope, and the mean and spread of the answers that ended."""
        import torch

        n, sy, yy = self.ended.n[0], self.ended.sy[0], self.ended.yy[0]
        state = torch.zeros(len(self.e) + len(self.u) + 2, len(self.alphas), dtype=torch.float64)
        state[-2] = sy / n
        state[-1] = (yy / n - (sy / n) ** 2).clamp_min(1e-12).log() / 2
        return state

    def parts(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """theta [D, A], u theta [m, A], intercepts [A], s [A]."""
        return state[: len(self.e)], state[len(self.e) : -2], state[-2], state[-1].exp()

    def step(self, state: Tensor) -> Tensor:
        """One E-step and one M-step."""
        import torch

        _, fitted, mean, s = self.parts(state)
        a = (self.bound - fitted - mean) / s
        h = hazard(a)
        y = fitted + mean + s * h
        variance = s * s * (1 + a * h - h * h).clamp_min(0)
        n_ended, sy, yy = self.ended.n[0], self.ended.sy[0], self.ended.yy[0]
        n = n_ended + self.weight.sum()
        theta = (self.g[:, None] + self.u.mT @ (self.weight * y)) / (self.e[:, None] + self.alphas).clamp_min(
            1e-300
        )
        fitted = self.u @ theta
        mean = (sy + (self.weight * y).sum(0)) / n
        known = yy - 2 * mean * sy + n_ended * mean**2 - 2 * (theta * self.g[:, None]).sum(0)
        known = known + (self.e[:, None] * theta**2).sum(0) - (self.weight * fitted**2).sum(0)
        known = known - 2 * mean * (self.weight * fitted).sum(0)  # answers that ended: minus the cut rows' sum
        total = known + (self.weight * ((y - fitted - mean) ** 2 + variance)).sum(0)
        return torch.cat([theta, fitted, torch.stack([mean, (total / n).clamp_min(1e-24).log() / 2])])

    def moved(self, old: Tensor, new: Tensor) -> float:
        """How far any prediction went."""
        (_, fitted, mean, _), (_, new_fitted, new_mean, _) = self.parts(old), self.parts(new)
        cut = float((new_fitted + new_mean - fitted - mean).abs().max()) if len(fitted) else 0.0
        return max(cut, float((new_mean - mean).abs().max()))


def _em(problem: _Problem) -> Tensor:
    """The state in which steps end, by SQUAREM (Varadhan & Roland 2008, their third step length).

    Two steps show how the error shrinks; from that a long one is drawn, and kept for the penalties where a further
    step from there moves less than the first did.
    """
    import torch

    state = problem.start()
    for _ in range(0, STEPS, 3):
        one = problem.step(state)
        if problem.moved(state, one) < TOLERANCE:
            return one
        two = problem.step(one)
        r, v = one - state, two - 2 * one + state
        length = (r.norm(dim=0) / v.norm(dim=0).clamp_min(1e-300)).clamp(1.0, 1e3)
        far = state + 2 * length * r + length**2 * v
        after = problem.step(far)
        better = ((after - far).norm(dim=0) <= r.norm(dim=0)) & after.isfinite().all(dim=0)
        state = torch.where(better, after, two)
    return state


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
