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

from nipstool.filter_nbf.beliefs import Belief, Kernel, resample, unknown
from nipstool.filter_nbf.draws import Draws
from nipstool.filter_nbf.model import Dynamics, has_gaps
from nipstool.filter_nbf.weights import Tempering, weigh

POINTS = 16  # of the grid for a stage's exponent, a power of two
SMALL = 1 << 12  # log weights up to which all of them are tried at once
LOST_AFTER = 3  # collapses in a row until the prior is asked again
IMPLAUSIBLE = -100.0  # nats for each value observed: fourteen standard deviations, whatever sane unit it has
ALONE = 2.0  # effective particles below which a row was explained by one of them by chance
INFLATION = 2.0  # of the kernel after a collapse, in Silverman's bandwidths


@dataclass(frozen=True)
class Settings:
    """How the loop runs.

    n: particles. regenerate: "ess", "always" or "never".
    threshold: share of n below which "ess" acts. keep: share that resampling keeps. stage_size: share of n that a
    stage of an update must leave. None: as the belief has it.
    temper: whether updates may go in stages. stages: the most a step may take. least: smallest exponent.
    max_dt: longest time that the model is asked to bridge at once.
    """

    n: int = 256
    regenerate: str = "ess"
    threshold: float | None = None
    keep: float | None = None
    temper: bool = True
    stage_size: float | None = None
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
    surprised: the prediction did not explain y. Stages of an update leave many particles whatever y is, so it is
    told by how few one stage would have left, and by the evidence.
    """

    loglik: np.ndarray
    stages: np.ndarray
    regenerated: np.ndarray
    off_family: np.ndarray
    missing: np.ndarray
    collapsed: np.ndarray
    surprised: np.ndarray


def alive_at_least(belief: Belief, settings: Settings) -> float:
    """Effective particles that a stage of an update must leave."""
    return settings.n * (belief.stage_size if settings.stage_size is None else settings.stage_size)


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
    if all(time > 0.0 for time in dt.tolist()):
        moved = dynamics.transition_sample(cloud.x, held, dt, draws, settings.max_dt)
        cloud = Cloud(moved, cloud.logw, cloud.ess)
    elif len(rows := np.flatnonzero(dt > 0.0)):
        x = cloud.x.copy()
        some = draws.take(rows)
        x[rows] = dynamics.transition_sample(x[rows], held[rows], dt[rows], some, settings.max_dt)
        cloud = Cloud(x, cloud.logw, cloud.ess)
    in_a_row = np.zeros(len(dt), dtype=int) if collapses is None else collapses
    return _weight(dynamics, belief, settings, cloud, y, u, draws, in_a_row, (regenerated, off))


def _regenerate_where_low(
    dynamics: Dynamics, belief: Belief, settings: Settings, cloud: Cloud, dt: np.ndarray, draws: Draws
) -> tuple[Cloud, np.ndarray, np.ndarray]:
    threshold = belief.threshold if settings.threshold is None else settings.threshold
    low = cloud.ess < threshold * cloud.x.shape[1]
    if settings.regenerate == "always":
        low = ~np.isnan(dt)
    elif settings.regenerate == "never":
        low = np.zeros(len(dt), dtype=bool)
    if True not in (each := low.tolist()):
        return cloud, low, unknown(cloud.x)
    if False not in each:
        fresh, off = renew(dynamics, belief, settings, cloud.x, cloud.logw, draws)
        return uniform(fresh), low, off
    rows, off = np.flatnonzero(low), unknown(cloud.x)
    fresh, off[rows] = renew(dynamics, belief, settings, cloud.x[rows], cloud.logw[rows], draws.take(rows))
    return _put(cloud, rows, uniform(fresh)), low, off


def renew(
    dynamics: Dynamics,
    belief: Belief,
    settings: Settings,
    x: np.ndarray,
    logw: np.ndarray,
    draws: Draws,
) -> tuple[np.ndarray, np.ndarray]:
    """(B, n, d) equally weighted particles for weighted ones, and how far off its family each belief is."""
    n = x.shape[1]
    kept = round(n * (belief.keep if settings.keep is None else settings.keep))
    same = resample(x, logw, kept, draws) if kept else None
    if same is not None and kept == n:
        return same, unknown(x)
    sample = belief.sample(dynamics, x, logw, n - kept, draws)
    return (sample.x if same is None else np.concatenate([same, sample.x], axis=1)), sample.off_family


def _weight(
    dynamics: Dynamics,
    belief: Belief,
    settings: Settings,
    cloud: Cloud,
    y: np.ndarray,
    u: np.ndarray,
    draws: Draws,
    collapses: np.ndarray,
    renewed: tuple[np.ndarray, np.ndarray],
) -> tuple[Cloud, Outcome]:
    """Weights times the likelihood, in stages where one would leave too few alive.

    `renewed` is what Outcome says of the regeneration before; stages may find the belief further off its family.
    """
    regenerated, off_family = renewed
    if not y.size or (has_gaps(y) and np.isnan(y).all()):
        nothing = np.zeros(len(y))
        none = np.zeros(len(y), dtype=bool)
        return cloud, Outcome(nothing, nothing.astype(int), regenerated, off_family, ~none, none, none)
    loglik, told = dynamics.log_likelihood(y, cloud.x, u)
    logw, gain, ess = weigh(cloud.logw + loglik)
    stages = told.astype(int)
    found = Cloud(cloud.x, logw, ess)
    goal = alive_at_least(belief, settings)
    least = min(ess.tolist())  # for few tracks a list is quicker to go through
    if settings.temper and least < goal:
        low = np.flatnonzero(told & (ess < goal))
        part = Cloud(cloud.x[low], cloud.logw[low], cloud.ess[low])
        tempered, gain[low], stages[low], off = _temper(
            dynamics, belief, settings, part, loglik[low], y[low], u[low], draws.take(low)
        )
        off_family[low] = np.fmax(off_family[low], off)
        found = _put(found, low, tempered)
    dead = gain == -np.inf
    if min(gain.tolist()) == -np.inf:
        lost = np.flatnonzero(dead)
        part = Cloud(cloud.x[lost], cloud.logw[lost], cloud.ess[lost])
        found = _put(found, lost, _revive(dynamics, part, draws.take(lost), collapses[lost] + 1))
    surprised = np.zeros(len(y), dtype=bool)
    if least < ALONE:
        surprised = (ess < ALONE) & (gain < IMPLAUSIBLE * (~np.isnan(y)).sum(-1))
    return found, Outcome(gain, stages, regenerated, off_family, ~told, dead, surprised)


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
    size, n = cloud.logw.shape
    x, logw, ess = np.empty_like(cloud.x), np.empty_like(cloud.logw), np.empty(size)
    power, gain, off = np.zeros(size), np.zeros(size), unknown(x)
    stages = np.zeros(size, dtype=int)
    rows, now, weights = np.arange(size), cloud.x, cloud.logw  # those that are not done yet
    goal = alive_at_least(belief, settings)
    while len(rows):
        share = next_power(settings, goal, loglik, weights, 1.0 - power[rows], stages[rows])
        with np.errstate(invalid="ignore"):
            weights, more, alive = weigh(weights + share[:, None] * loglik)
        gain[rows] += more
        power[rows] += share
        stages[rows] += 1
        x[rows], logw[rows], ess[rows] = now, weights, alive
        going = power[rows] < 1.0 - 1e-9
        if not going.all():
            rows, now, weights = rows[going], now[going], weights[going]
        if not len(rows):
            break
        now, found = renew(dynamics, belief, settings, now, weights, draws.take(rows))
        off[rows] = np.fmax(off[rows], found)
        weights = np.full((len(rows), n), -np.log(n))
        loglik, _ = dynamics.log_likelihood(y[rows], now, u[rows])
        dead = loglik.max(-1) == -np.inf
        if dead.any():
            gain[rows[dead]] = -np.inf
            x[rows[dead]], logw[rows[dead]] = now[dead], weights[dead]
            rows, now, weights, loglik = rows[~dead], now[~dead], weights[~dead], loglik[~dead]
    return Cloud(x, logw, ess), gain, stages, off


def next_power(
    settings: Settings,
    goal: float,
    loglik: np.ndarray,
    logw: np.ndarray,
    left: np.ndarray,
    stages: np.ndarray,
) -> np.ndarray:
    """(B,) the largest share of the exponent left that keeps `goal` effective particles alive, all but exactly."""
    tempering = Tempering.of(loglik, logw)
    alive = tempering.sizes(left[:, None])[:, 0]
    enough = (alive >= goal) | (stages >= settings.stages - 1) | (left <= settings.least)
    if enough.all():
        return left
    if enough.any():
        share, rows = left.copy(), np.flatnonzero(~enough)
        share[rows] = _searched(settings.least, tempering.take(rows), left[rows], alive[rows], goal)
        return share
    return _searched(settings.least, tempering, left, alive, goal)


def _searched(least: float, tempering: Tempering, most: np.ndarray, alive: np.ndarray, goal: float) -> np.ndarray:
    """(B,) the exponent between `least` and `most`, which leaves `alive` < goal, that leaves `goal` alive.

    By halving a geometric grid, then between two of its points, where the logarithm of what is alive is nearly
    linear in that of the exponent.
    """
    rows = np.arange(len(most))
    ratio = np.log(most / least) / POINTS
    grid = least * np.exp(ratio[:, None] * np.arange(POINTS))
    # small sets cost calls and large ones numbers: every point at once, or one after the other
    table = tempering.sizes(grid[:, 1:]) if tempering.loglik.size <= SMALL else None
    low, high = np.zeros(len(most), dtype=int), np.full(len(most), POINTS)
    above, below = np.full(len(most), goal), alive
    while (high - low).max() > 1:
        middle = (low + high) // 2
        found = tempering.sizes(grid[rows, middle, None])[:, 0] if table is None else table[rows, middle - 1]
        fine = found >= goal
        low, high = np.where(fine, middle, low), np.where(fine, high, middle)
        above, below = np.where(fine, found, above), np.where(fine, below, found)
    step = np.log(above / goal) / np.log(above / np.maximum(below, 1e-300))
    return grid[rows, low] * np.exp(ratio * step)


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
