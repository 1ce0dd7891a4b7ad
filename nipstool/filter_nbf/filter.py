"""Neural Bayesian Filtering: regenerate, propagate, weight, embed again (arXiv 2510.03614).

The loop for B tracks at once; (x_i, w_i) is what the last step left:

    x_i ~ p(. | theta)             regenerate: theta embeds the weighted set        (belief.sample)
    x'_i ~ f(. | x_i, u, dt)       propagate through the user's model
    l_i = log g(y | x'_i, u)       logZ = log sum w_i exp(l_i);  w_i <- w_i exp(l_i) / exp(logZ)
    log p(y_1:t) += logZ

`paper` does exactly this every step. Ours, and not the paper's: regenerate only when the effective sample size is
low, and keep half by systematic resampling; and a tempered update, g^b in stages with re-embedding in between,
where one stage would leave too few particles alive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nipstool.filter_nbf.beliefs import Belief, Kernel, unknown
from nipstool.filter_nbf.draws import Draws
from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.weights import systematic, take, tempered_size, weigh

HALVINGS = 8  # of the interval for a stage's exponent
LOST_AFTER = 3  # collapses in a row until the prior is asked again
INFLATION = 2.0  # of the kernel after a collapse, in Silverman's bandwidths


@dataclass(frozen=True)
class Settings:
    """How the loop runs.

    n: particles. regenerate: "ess", "always" or "never". threshold: share of n below which "ess" acts.
    keep: share kept by systematic resampling (None: the belief's own). temper: whether updates may go in stages.
    stage_size: share of n that a stage must leave. stages: the most a step may take. least: smallest exponent.
    max_dt: longest time that the model is asked to bridge at once.
    """

    n: int = 256
    regenerate: str = "ess"
    threshold: float = 0.5
    keep: float | None = None
    temper: bool = True
    stage_size: float = 0.3
    stages: int = 20
    least: float = 0.02
    max_dt: float | None = None

    @staticmethod
    def paper(n: int = 256) -> Settings:
        """The paper's loop, with nothing of ours."""
        return Settings(n, regenerate="always", keep=0.0, temper=False)


@dataclass(frozen=True)
class Cloud:
    """B weighted sets: x (B, n, d), normalised log weights (B, n), their effective sizes (B,)."""

    x: np.ndarray
    logw: np.ndarray
    ess: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """What a step did, each (B,).

    loglik: log p(y_t | y_1:t-1), -inf where every particle is impossible.
    stages: of the update, 0 where y is missing.
    off_family: how far outside its family the belief was that was regenerated, 1 at the alarm, NaN if not known.
    """

    loglik: np.ndarray
    stages: np.ndarray
    regenerated: np.ndarray
    off_family: np.ndarray
    missing: np.ndarray
    collapsed: np.ndarray


def prior(dynamics: Dynamics, n: int, draws: Draws) -> Cloud:
    """n equally weighted draws of the prior for each track."""
    return uniform(dynamics.init_sample(n, draws))


def uniform(x: np.ndarray) -> Cloud:
    """A set in which every particle weighs the same."""
    n = x.shape[1]
    return Cloud(x, np.full(x.shape[:2], -np.log(n)), np.full(len(x), float(n)))


def step(
    dynamics: Dynamics,
    belief: Belief,
    settings: Settings,
    cloud: Cloud,
    dt: np.ndarray,
    held: np.ndarray,
    y: np.ndarray,
    u: np.ndarray,
    draws: Draws,
    collapses: np.ndarray | None = None,
) -> tuple[Cloud, Outcome]:
    """One step of B tracks.

    Args:
        dt: (B,) time since the last row; NaN for a track's first row, which is weighted but not propagated.
        held: (B, k) control in force until now; u: (B, k) control from now on, which the likelihood sees.
        y: (B, m) observations, NaN = missing.
        collapses: (B,) how many rows before this one left no particle alive.
    """
    cloud, regenerated, off = _regenerate_where_low(dynamics, belief, settings, cloud, dt, draws)
    rows = np.flatnonzero(dt > 0.0)
    if len(rows) == len(dt):
        moved = dynamics.transition_sample(cloud.x, held, dt, draws, settings.max_dt)
        cloud = Cloud(moved, cloud.logw, cloud.ess)
    elif len(rows):
        x = cloud.x.copy()
        some = draws.take(rows)
        x[rows] = dynamics.transition_sample(x[rows], held[rows], dt[rows], some, settings.max_dt)
        cloud = Cloud(x, cloud.logw, cloud.ess)
    before = np.zeros(len(dt), dtype=int) if collapses is None else collapses
    return _weight(dynamics, belief, settings, cloud, y, u, draws, before, (regenerated, off))


def _regenerate_where_low(
    dynamics: Dynamics, belief: Belief, settings: Settings, cloud: Cloud, dt: np.ndarray, draws: Draws
) -> tuple[Cloud, np.ndarray, np.ndarray]:
    low = cloud.ess < settings.threshold * cloud.x.shape[1]
    if settings.regenerate == "always":
        low = ~np.isnan(dt)
    elif settings.regenerate == "never":
        low = np.zeros(len(dt), dtype=bool)
    off = unknown(cloud.x)
    if not low.any():
        return cloud, low, off
    rows = np.flatnonzero(low)
    fresh, off[rows] = renew(
        dynamics, belief, settings, cloud.x[rows], cloud.logw[rows], draws.take(rows), cloud.ess[rows]
    )
    return _put(cloud, rows, uniform(fresh)), low, off


def renew(
    dynamics: Dynamics,
    belief: Belief,
    settings: Settings,
    x: np.ndarray,
    logw: np.ndarray,
    draws: Draws,
    ess: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(B, n, d) equally weighted particles for weighted ones, and how far off its family each belief is."""
    n = x.shape[1]
    keep = belief.keep if settings.keep is None else settings.keep
    kept = round(keep * n)
    parts = []
    off = unknown(x)
    if kept:
        parts.append(take(x, systematic(np.exp(logw), draws.random((len(x),)), kept)))
    if kept < n:
        sample = belief.sample(dynamics, x, logw, n - kept, draws)
        parts.append(sample.x)
        off = sample.off_family
    return (parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)), off


def _weight(
    dynamics: Dynamics,
    belief: Belief,
    settings: Settings,
    cloud: Cloud,
    y: np.ndarray,
    u: np.ndarray,
    draws: Draws,
    collapses: np.ndarray,
    before: tuple[np.ndarray, np.ndarray],
) -> tuple[Cloud, Outcome]:
    """Weights times the likelihood, in stages where one would leave too few alive."""
    told: np.ndarray = np.asarray(~np.isnan(y).all(-1)) if y.shape[1] else np.zeros(len(y), dtype=bool)
    if not told.any():
        nothing = np.zeros(len(y))
        return cloud, Outcome(nothing, nothing.astype(int), *before, np.ones_like(told), told)
    loglik, told = dynamics.log_likelihood(y, cloud.x, u)
    logw, gain, ess = weigh(cloud.logw + loglik)
    dead = np.isneginf(gain)
    stages = told.astype(int)
    found = Cloud(cloud.x, logw, ess)
    low = np.flatnonzero(told & ~dead & (ess < settings.stage_size * cloud.x.shape[1]))
    if settings.temper and len(low):
        part = Cloud(cloud.x[low], cloud.logw[low], cloud.ess[low])
        tempered, gain[low], stages[low], off = _temper(
            dynamics, belief, settings, part, loglik[low], y[low], u[low], draws.take(low)
        )
        before[1][low] = np.fmax(before[1][low], off)
        found = _put(found, low, tempered)
    lost = np.flatnonzero(dead)
    if len(lost):
        part = Cloud(cloud.x[lost], cloud.logw[lost], cloud.ess[lost])
        found = _put(found, lost, _revive(dynamics, part, draws.take(lost), collapses[lost] + 1))
    return found, Outcome(gain, stages, *before, np.logical_not(told), np.asarray(dead))


def _temper(
    dynamics: Dynamics,
    belief: Belief,
    settings: Settings,
    cloud: Cloud,
    loglik: np.ndarray,
    y: np.ndarray,
    u: np.ndarray,
    draws: Draws,
) -> tuple[Cloud, np.ndarray, np.ndarray, np.ndarray]:
    """Stages b_1 < b_2 < ... = 1 of g^b; after each but the last the set is embedded and drawn anew."""
    size = len(y)
    x, logw, ess = cloud.x.copy(), cloud.logw.copy(), cloud.ess.copy()
    power, gain, off = np.zeros(size), np.zeros(size), unknown(x)
    stages = np.zeros(size, dtype=int)
    rows = np.arange(size)
    loglik = loglik.copy()
    while len(rows):
        share = _next_power(settings, loglik[rows], logw[rows], 1.0 - power[rows], stages[rows])
        with np.errstate(invalid="ignore"):
            logw[rows], more, ess[rows] = weigh(logw[rows] + share[:, None] * loglik[rows])
        gain[rows] += more
        power[rows] += share
        stages[rows] += 1
        rows = rows[power[rows] < 1.0 - 1e-9]
        if len(rows):
            moved = draws.take(rows)
            x[rows], found = renew(dynamics, belief, settings, x[rows], logw[rows], moved, ess[rows])
            off[rows] = np.fmax(off[rows], found)
            logw[rows] = -np.log(x.shape[1])
            loglik[rows], _ = dynamics.log_likelihood(y[rows], x[rows], u[rows])
            rows = rows[~_is_dead(rows, loglik, gain)]
    return Cloud(x, logw, ess), gain, stages, off


def _is_dead(rows: np.ndarray, loglik: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Whether no particle of a new set is possible; the evidence of those rows is -inf."""
    dead = np.asarray(np.isneginf(loglik[rows]).all(-1))
    gain[rows[dead]] = -np.inf
    return dead


def _next_power(
    settings: Settings, loglik: np.ndarray, logw: np.ndarray, left: np.ndarray, stages: np.ndarray
) -> np.ndarray:
    """(B,) the largest share of the exponent left that keeps enough particles alive, found by bisection."""
    goal = settings.stage_size * loglik.shape[1]
    enough = tempered_size(loglik, logw, left) >= goal
    low, high = np.zeros_like(left), left.copy()
    if enough.all():
        return left
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        alive = tempered_size(loglik, logw, middle) >= goal
        low, high = np.where(alive, middle, low), np.where(alive, high, middle)
    chosen = np.minimum(np.maximum(low, settings.least), left)
    return np.where(enough | (stages >= settings.stages - 1), left, chosen)


def _revive(dynamics: Dynamics, cloud: Cloud, draws: Draws, collapses: np.ndarray) -> Cloud:
    """The predicted set, spread; once a track has been lost for some rows, a quarter of it from the prior."""
    n = cloud.x.shape[1]
    x = Kernel(INFLATION).sample(dynamics, cloud.x, cloud.logw, n, draws).x
    lost = np.flatnonzero(collapses >= LOST_AFTER)
    if len(lost):
        x[lost, : n // 4] = dynamics.init_sample(n // 4, draws.take(lost))
    return uniform(x)


def _put(cloud: Cloud, rows: np.ndarray, part: Cloud) -> Cloud:
    """The cloud with some of its tracks replaced."""
    if len(rows) == len(cloud.x):
        return part
    x, logw, ess = cloud.x.copy(), cloud.logw.copy(), cloud.ess.copy()
    x[rows], logw[rows], ess[rows] = part.x, part.logw, part.ess
    return Cloud(x, logw, ess)
