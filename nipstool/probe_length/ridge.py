"""Ridge regression from sums: every penalty by one eigendecomposition, held-out errors without the rows.

On standardised columns (as a StandardScaler would make them from the training rows) with an unpenalised intercept:
    C = S - s s^T / n,  c = b - s s_y / n,  D = sqrt(diag C / n),  D^-1 C D^-1 = V diag(e) V^T,
    w(alpha) = D^-1 V (V^T D^-1 c) / (e + alpha),    b0 = mean y - w . mean x.
The penalty with the smallest mean over folds of the fold's mean squared error is chosen, the first of equals: the
rule of GridSearchCV(make_pipeline(StandardScaler(), Ridge()), scoring="neg_mean_squared_error").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nipstool.probe_length.statistics import Sums, squared_deviation, squared_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

ALPHAS = tuple(10.0 ** (i / 2) for i in range(-4, 13))


@dataclass(frozen=True)
class Spectrum:
    """The centred and standardised problem of one set of rows, ready for every penalty."""

    mean: Tensor  # [D] of x
    mean_y: Tensor
    scale: Tensor  # [D]
    values: Tensor  # [D] eigenvalues
    vectors: Tensor  # [D, D]

    def solve(self, c: Tensor, alphas: Tensor) -> Tensor:
        """Coefficients [D, A] for the centred cross products c [D]."""
        inner = self.vectors.mT @ (c / self.scale)
        denominator = self.values[:, None] + alphas
        # without a penalty a direction that the rows do not span has no coefficient
        least = len(self.values) * 2.2e-16 * float(self.values[-1].clamp_min(0))
        inverse = denominator.reciprocal().where(denominator > least, 0.0)
        return (self.vectors @ (inner[:, None] * inverse)) / self.scale[:, None]


def spectrum(sums: Sums) -> Spectrum:
    """The eigendecomposition behind every penalty; `sums` are of one fold or set of folds."""
    import torch

    n = sums.n[0]
    mean = sums.s[0] / n
    C = sums.S[0] - sums.s[0][:, None] * mean
    scale = _scale(C.diagonal() / n, sums.shift + mean, n)
    values, vectors = torch.linalg.eigh(C / scale / scale[:, None])
    return Spectrum(sums.shift + mean, sums.sy[0] / n, scale, values.clamp_min(0), vectors)


def _scale(variance: Tensor, mean: Tensor, n: Tensor) -> Tensor:
    """Standard deviations; 1 for columns that are constant but for rounding (StandardScaler's rule)."""
    eps = 2.220446049250313e-16
    noise = n * eps * variance + (n * mean * eps) ** 2
    return variance.clamp_min(0).sqrt().where(variance > noise, 1.0)


def centred(sums: Sums) -> Tensor:
    """c [D]: cross products of centred columns with the target."""
    return sums.b[0] - sums.s[0] * (sums.sy[0] / sums.n[0])


def coefficients(sums: Sums, alphas: Sequence[float]) -> tuple[Tensor, Tensor]:
    """(w [D, A], b0 [A]) in the units of x for every penalty."""
    import torch

    found = spectrum(sums)
    w = found.solve(centred(sums), torch.tensor(alphas, dtype=torch.float64, device=sums.n.device))
    return w, found.mean_y - found.mean @ w


@dataclass(frozen=True)
class Fit:
    """A ridge regression with its cross-validation."""

    alpha: float
    w: Tensor  # [D], fitted on all folds
    b0: float
    fold_w: Tensor  # [K, D], each fitted without its fold
    fold_b0: Tensor  # [K]
    mse: float  # mean over folds of the held-out mean squared error
    curve: tuple[float, ...]  # the same for every penalty
    sse: float  # held-out squared error of all folds together
    r2: float  # 1 - sse / squared deviation about the mean
    at_edge: bool  # the smallest or largest penalty was the best

    def predict(self, x: Tensor, folds: Tensor) -> Tensor:
        """Out-of-fold predictions for rows x [rows, D] of the given folds [rows]."""
        return (x.double() * self.fold_w[folds]).sum(1) + self.fold_b0[folds]


def cross_validate(sums: Sums, alphas: Sequence[float] = ALPHAS) -> Fit:
    """Choose the penalty by folds and fit on all rows. Folds without rows play no part; two must have some."""
    import torch

    sums = sums.cpu()
    used = [k for k in range(len(sums.n)) if float(sums.n[k]) > 0]
    errors, w, b0 = [], [], []
    for k in used:
        fold_w, fold_b0 = coefficients(sums.without(k), alphas)
        errors.append(squared_error(sums.of(k), fold_w, fold_b0))
        w.append(fold_w)
        b0.append(fold_b0)
    sse = torch.stack(errors)  # [used, A]
    curve = (sse / sums.n[used][:, None]).mean(0)
    best = int(curve.argmin())
    final_w, final_b0 = coefficients(sums.total(), alphas[best : best + 1])
    held = float(sse[:, best].sum())
    fold_w, fold_b0 = spread(used, len(sums.n), [x[:, best] for x in w], [x[best] for x in b0])
    return Fit(
        alphas[best],
        final_w[:, 0],
        float(final_b0[0]),
        fold_w,
        fold_b0,
        float(curve[best]),
        tuple(curve.tolist()),
        held,
        1 - held / squared_deviation(sums) if squared_deviation(sums) > 0 else 0.0,
        len(alphas) > 1 and best in (0, len(alphas) - 1),
    )


def spread(used: Sequence[int], folds: int, w: Sequence[Tensor], b0: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Coefficients by fold, NaN for folds without rows."""
    import torch

    fold_w = torch.full((folds, len(w[0])), torch.nan, dtype=torch.float64)
    fold_b0 = torch.full((folds,), torch.nan, dtype=torch.float64)
    for k, one, intercept in zip(used, w, b0, strict=True):
        fold_w[k], fold_b0[k] = one, intercept
    return fold_w, fold_b0
