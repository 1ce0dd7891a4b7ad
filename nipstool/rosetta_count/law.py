"""How a count grows with size: C = a X^alpha, fitted three ways, with an interval that heeds what depends on what.

All of this is ours, after the paper's abstract: its body's equations were not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError

if TYPE_CHECKING:
    import numpy as np

RESAMPLES = 1999
LEAST_SIZES = 3
PARAMETERS = {"power": 2, "linear": 1, "saturating": 2}  # of each law that AICc compares, the variance apart


@dataclass(frozen=True)
class Line:
    """log C = log a + alpha log X by least squares on the sizes' mean counts, and its 95 % interval for alpha.

    `p_sublinear` is the one-sided probability of so small an alpha if it were 1.
    """

    alpha: float
    log_a: float
    low: float
    high: float
    r2: float
    p_sublinear: float
    dropped: int  # sizes whose mean count is 0


@dataclass(frozen=True)
class Poisson:
    """The same law by quasi-Poisson regression on single counts: zeros take part."""

    alpha: float
    log_a: float
    error: float  # standard error, dispersion included
    dispersion: float


@dataclass(frozen=True)
class Law:
    """One series, observed or a control: x and mean count of its sizes, and the fits."""

    name: str
    x: tuple[float, ...]
    means: tuple[float, ...]
    counts: tuple[tuple[float, ...], ...]  # of each size
    line: Line
    poisson: Poisson | None
    theil_sen: float
    aicc: Mapping[str, float]


def fit_law(name: str, x: Sequence[float], counts: Sequence[Sequence[float]], seed: int = 0) -> Law:
    """Fit one series.

    Args:
        x: of each size, different ones.
        counts: of each size, one or more (pairs of models).

    Raises DataError where fewer than three sizes have a count above 0.
    """
    import numpy as np

    means = np.array([np.mean(one) for one in counts], dtype=float)
    places = np.asarray(x, dtype=float)
    used = means > 0
    if used.sum() < LEAST_SIZES:
        raise DataError(f"{name}: {int(used.sum())} sizes have a count above 0; a law needs {LEAST_SIZES} or more")
    log_x, log_y = np.log(places[used]), np.log(means[used])
    rows = [(a, c) for a, one in zip(places, counts, strict=True) for c in one]
    return Law(
        name=name,
        x=tuple(map(float, places)),
        means=tuple(map(float, means)),
        counts=tuple(tuple(map(float, one)) for one in counts),
        line=fit_line(log_x, log_y, dropped=int((~used).sum()), seed=seed),
        poisson=quasi_poisson(np.array([a for a, _ in rows]), np.array([c for _, c in rows])),
        theil_sen=theil_sen(log_x, log_y),
        aicc=compare(places[used], means[used]),
    )


def fit_line(log_x: np.ndarray, log_y: np.ndarray, *, dropped: int = 0, seed: int = 0) -> Line:
    """Least squares on one mean a size, and a bootstrap of the studentised slope.

    What is drawn are the residuals of whole sizes: each model belongs to one size, so pairs that share a model are
    never taken apart, and what they have in common is in the size's residual. With seven sizes percentiles of
    drawn cases, and wild weights, give intervals that are too narrow; studentised residuals hold their level.
    """
    import numpy as np

    slope, intercept, fitted = _least_squares(log_x, log_y)
    residual = log_y - fitted
    centred = log_x - log_x.mean()
    leverage = 1 / len(log_x) + centred**2 / (centred**2).sum()
    error = _slope_error(centred, residual)
    random = np.random.default_rng(seed)
    pool = residual / np.sqrt(np.maximum(1 - leverage, 1e-9))
    drawn = (pool - pool.mean())[random.integers(len(pool), size=(RESAMPLES, len(pool)))]
    slopes = drawn @ centred / (centred**2).sum()
    left = drawn - drawn.mean(1, keepdims=True) - slopes[:, None] * centred
    t = slopes / np.maximum(_slope_error(centred, left), 1e-300)
    half = float(np.quantile(np.abs(t), 0.95)) * float(error)
    spread = ((log_y - log_y.mean()) ** 2).sum()
    r2 = 1 - float((residual**2).sum() / spread) if spread > 0 else 1.0
    below = float((t <= (slope - 1) / max(float(error), 1e-300)).mean())
    return Line(slope, intercept, slope - half, slope + half, r2, below, dropped)


def _least_squares(x: np.ndarray, y: np.ndarray) -> tuple[float, float, np.ndarray]:
    centred = x - x.mean()
    slope = float((centred * y).sum() / (centred**2).sum())
    intercept = float(y.mean() - slope * x.mean())
    return slope, intercept, intercept + slope * x


def _slope_error(centred: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """The usual standard error of a slope, from residuals [..., n]."""
    import numpy as np

    return np.sqrt((residual**2).sum(-1) / max(len(centred) - 2, 1) / (centred**2).sum())


def theil_sen(x: np.ndarray, y: np.ndarray) -> float:
    """The median of the slopes between all two points."""
    import numpy as np

    first, second = np.triu_indices(len(x), 1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def quasi_poisson(x: np.ndarray, counts: np.ndarray) -> Poisson | None:
    """log E[C] = log a + alpha log x by iteratively reweighted least squares; dispersion is Pearson's chi2 / df.

    None where it does not converge (all counts 0, a perfect separation, counts too far apart for one law).
    """
    import numpy as np

    try:
        return _reweighted(x, counts)
    except np.linalg.LinAlgError:
        return None


def _reweighted(x: np.ndarray, counts: np.ndarray) -> Poisson | None:
    import numpy as np

    design = np.stack([np.ones(len(x)), np.log(x)], 1)
    mean = (counts + counts.mean()) / 2
    if not (mean > 0).all():
        return None
    eta = np.log(mean)
    for _ in range(100):
        mean = np.exp(np.clip(eta, -300, 300))
        working = eta + (counts - mean) / mean
        information = design.T @ (mean[:, None] * design)
        beta = np.linalg.solve(information, design.T @ (mean * working))
        change = np.abs(design @ beta - eta).max()
        eta = design @ beta
        if change < 1e-10:
            break
    else:
        return None
    mean = np.exp(eta)
    information = design.T @ (mean[:, None] * design)
    dispersion = float(((counts - mean) ** 2 / mean).sum() / max(len(counts) - 2, 1))
    error = float(np.sqrt(dispersion * np.linalg.inv(information)[1, 1]))
    return Poisson(float(beta[1]), float(beta[0]), error, dispersion)


def compare(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """AICc of laws fitted on log counts: power a X^alpha, linear a X, saturating a X / (X + b). Lower is better.

    Infinite where there are too few sizes for a law's parameters.
    """
    import numpy as np
    from scipy.optimize import minimize_scalar

    log_y = np.log(y)

    def loss(shape: np.ndarray) -> float:
        left = log_y - shape
        return float(((left - left.mean()) ** 2).sum())  # log a is the mean of what is left

    def saturating(log_b: float) -> float:
        return loss(np.log(x / (x + np.exp(log_b))))

    edge = np.log(x.min()) - 5, np.log(x.max()) + 8
    best: Any = minimize_scalar(saturating, bounds=edge, method="bounded")
    bent = best.fun
    _, _, fitted = _least_squares(np.log(x), log_y)
    power = float(((log_y - fitted) ** 2).sum())
    losses = {"power": power, "linear": loss(np.log(x)), "saturating": float(bent)}
    return {name: _aicc(losses[name], len(x), free) for name, free in PARAMETERS.items()}


def sizes_for_aicc(law: str) -> int:
    """Sizes that AICc needs for a law: two more than it fits numbers, the variance among them."""
    return PARAMETERS[law] + 1 + 2


def _aicc(loss: float, n: int, free: int) -> float:
    import math

    k = free + 1  # the variance too
    if n - k - 1 <= 0:
        return math.inf
    return n * math.log(max(loss, 1e-300) / n) + 2 * k + 2 * k * (k + 1) / (n - k - 1)


@dataclass(frozen=True)
class Trend:
    """How the gap of shared neurons changes with size: slope over log x, and Spearman's rho."""

    measure: str
    x: tuple[float, ...]
    gaps: tuple[float, ...]
    slope: float
    low: float
    high: float
    rho: float


def trend(measure: str, x: Sequence[float], values: Sequence[float], seed: int = 0) -> Trend | None:
    """The trend of a gap over log x; None for fewer than three sizes."""
    import numpy as np
    from scipy.stats import spearmanr

    if len(set(x)) < LEAST_SIZES:
        return None
    line = fit_line(np.log(np.asarray(x, dtype=float)), np.asarray(values, dtype=float), seed=seed)
    rho = float(np.asarray(spearmanr(x, values))[0]) if len(set(values)) > 1 else 0.0
    return Trend(measure, tuple(x), tuple(values), line.alpha, line.low, line.high, rho)
