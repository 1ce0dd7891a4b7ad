"""Neural Spectral Capacity of a matrix: log det(I + s W W^T), at initialisation or of real weights.

At initialisation the entries of W (m x n) are independent with variance v, and the Marchenko-Pastur law gives the
sum over singular values without drawing any (Tulino & Verdu, "Random Matrix Theory and Wireless Communications",
2004, eq. 2.121). With N = max(m, n), K = min(m, n), beta = K/N in (0, 1] and gamma = s v N:

    p = sqrt(gamma (1 + sqrt beta)^2 + 1),  q = sqrt(gamma (1 - sqrt beta)^2 + 1)
    f = F/4 = (2 gamma sqrt(beta) / (p + q))^2
    V(gamma, beta) = log(1 + gamma - f) + log(1 + gamma beta - f)/beta - f/(beta gamma)
    C = K V

`f` in this rationalised form never subtracts two near numbers, so V keeps 12 digits from gamma = 1e-8 on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from nipstool.kit.errors import DataError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

INITS: dict[str, Callable[[int, int], float]] = {
    "lecun": lambda m, n: 1 / n,
    "torch": lambda m, n: 1 / (3 * n),  # kaiming_uniform(a=sqrt(5)), the default of torch.nn.Linear
    "he": lambda m, n: 2 / n,
    "xavier": lambda m, n: 2 / (m + n),
    "bert": lambda m, n: 0.02**2,
}
DEGENERATE_BELOW = 0.05  # mean s sigma^2: log(1 + x) is x there, and NSC a multiple of the parameter count
SUBSETS = 4


@dataclass(frozen=True)
class Scale:
    """What fixes the score: the initialisation's variance rule, and the signal-to-noise ratio s."""

    init: str = "lecun"
    snr: float = 1.0

    def __post_init__(self) -> None:
        self.variance(1, 1)
        if not (self.snr > 0 and math.isfinite(self.snr)):
            raise UsageError(f"--snr {self.snr:g}: expected a number above 0")

    def variance(self, m: int, n: int) -> float:
        """Variance of the entries of an m x n matrix (n inputs)."""
        if self.init in INITS:
            return INITS[self.init](m, n)
        word, _, number = self.init.partition("=")
        try:
            deviation = float(number)
        except ValueError:
            deviation = math.nan
        if word != "std" or not 0 < deviation < math.inf:
            raise UsageError(f"--init {self.init}: expected {', '.join(INITS)} or std=NUMBER")
        return deviation**2

    def nsc(self, m: int, n: int) -> float:
        """NSC of an m x n matrix at initialisation, in nats."""
        return _closed_form(self, m, n)

    def mean_snr(self, m: int, n: int) -> float:
        """Mean of s sigma^2 over the min(m, n) singular values."""
        return self.snr * self.variance(m, n) * max(m, n)


@cache
def _closed_form(scale: Scale, m: int, n: int) -> float:
    high, low = max(m, n), min(m, n)
    return low * shannon(scale.snr * scale.variance(m, n) * high, low / high) if low else 0.0


def shannon(gamma: float, beta: float) -> float:
    """V(gamma, beta): the mean of log(1 + gamma x) over the Marchenko-Pastur law, gamma > 0, 0 < beta <= 1.

    The law is that of the squared singular values of a K x N matrix, K = beta N, with entries of variance 1/N.
    """
    root = math.sqrt(beta)
    p = math.sqrt(gamma * (1 + root) ** 2 + 1)
    q = math.sqrt(gamma * (1 - root) ** 2 + 1)
    f = (2 * gamma * root / (p + q)) ** 2
    return math.log1p(gamma - f) + math.log1p(gamma * beta - f) / beta - f / (beta * gamma)


def degeneracy(shapes: Iterable[tuple[int, int, int]], scale: Scale) -> float:
    """Mean of s sigma^2 over all singular values of matrices (m, n, count); see DEGENERATE_BELOW."""
    total, values = 0.0, 0
    for m, n, count in shapes:
        total += count * min(m, n) * scale.mean_snr(m, n)
        values += count * min(m, n)
    return total / values if values else 0.0


def log_det(weight: Tensor, snr: float = 1.0, *, normalise: bool = False) -> float:
    """log det(I + s W W^T) of a real matrix, by one Gram matrix and one Cholesky factor, in float64.

    Args:
        weight: [m, n], any floating dtype.
        normalise: scale W to RMS 1/sqrt(n) first, so that the scale of a trained matrix does not count.

    Raises DataError where W has a NaN or an infinity.
    """
    import torch

    w = weight.detach().to(torch.float64)
    if normalise:
        w = _unit(w)
    gram = w @ w.mT if w.shape[0] <= w.shape[1] else w.mT @ w
    return float(_log_det_of_gram(gram, snr))


def _unit(w: Tensor) -> Tensor:
    rms = float(w.square().mean().sqrt())
    return w / (rms * math.sqrt(w.shape[1])) if rms else w


def _log_det_of_gram(gram: Tensor, snr: float) -> float:
    import torch

    factor, info = torch.linalg.cholesky_ex(torch.eye(len(gram), dtype=gram.dtype) + snr * gram)
    value = 2 * float(factor.diagonal().log().sum())
    if int(info) or not math.isfinite(value):
        raise DataError("a weight matrix holds NaN or infinity")
    return value


def log_dets_of_widths(
    weight: Tensor, widths: Sequence[int], axis: int, *, unit: int = 1, snr: float = 1.0, seed: int = 0
) -> list[float]:
    """Mean log-determinant of W with only a random part of its rows (axis 0) or columns (axis 1) left.

    Args:
        weight: [m, n]; each part is scaled so that RMS 1/sqrt(n) of the whole becomes 1/sqrt(its own inputs).
        widths: how many units to keep, each at most the number there are.
        unit: rows or columns that go together (a head's).
        seed: fixes the SUBSETS random orders; a width keeps the first units of each.

    Returns one value a width, in nats.
    """
    import torch

    w = _unit(weight.detach().to(torch.float64))
    w = w if axis == 0 else w.mT
    units = len(w) // unit
    if list(widths) == [units]:
        return [log_det(weight, snr, normalise=True)]
    generator = torch.Generator().manual_seed(seed)
    sums = dict.fromkeys(sorted(set(widths)), 0.0)
    for _ in range(SUBSETS):
        order = torch.randperm(units, generator=generator)
        rows = (order[:, None] * unit + torch.arange(unit)).flatten()
        part = _of_rows if axis == 0 else _of_columns
        for width, value in part(w[rows], list(sums), unit, snr).items():
            sums[width] += value / SUBSETS
    return [sums[width] for width in widths]


def _of_rows(w: Tensor, widths: Sequence[int], unit: int, snr: float) -> dict[int, float]:
    """The leading minors of I + s W W^T are products of one Cholesky factor's diagonal."""
    import torch

    factor, info = torch.linalg.cholesky_ex(torch.eye(len(w), dtype=w.dtype) + snr * (w @ w.mT))
    logs = 2 * factor.diagonal().log().cumsum(0)
    if int(info) or not bool(logs.isfinite().all()):
        raise DataError("a weight matrix holds NaN or infinity")
    return {width: float(logs[width * unit - 1]) if width else 0.0 for width in widths}


def _of_columns(w: Tensor, widths: Sequence[int], unit: int, snr: float) -> dict[int, float]:
    """`w` holds the columns as rows; the Gram matrix grows with the width, and its scale is the width's own."""
    import torch

    gram, done, found = torch.zeros(w.shape[1], w.shape[1], dtype=w.dtype), 0, {}
    for width in widths:
        more = w[done : width * unit]
        gram, done = gram + more.mT @ more, width * unit
        found[width] = _log_det_of_gram(gram, snr * len(w) / done) if width else 0.0
    return found
