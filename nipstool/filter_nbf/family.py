"""The beliefs that networks are trained on: snapshots of large particle filters over a family of dynamics.

Kinds: after a row, before it (predicted only), and part-way (likelihood to a random power). Mixtures of two
beliefs are made of these while training. The particles of a snapshot are distinct, or targets and inputs would
share some.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nipstool.filter_nbf.beliefs import Kernel
from nipstool.filter_nbf.draws import Draws
from nipstool.filter_nbf.filter import Cloud, Settings, prior, step
from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.simulate import simulate
from nipstool.filter_nbf.weights import effective_size, log_normalise
from nipstool.kit.distributed import Group
from nipstool.kit.progress import Progress, silent

HELD = 320  # particles a snapshot: 256 for the input, 32 for the target, and some to choose from
PARTICLES = 4096
STEPS = 40
DISTINCT = 4.0  # effective particles, in units of HELD, below which a snapshot is drawn through a kernel
KERNEL = Kernel(0.2)


@dataclass(frozen=True)
class Snapshots:
    """sets (N, HELD, d) of equally weighted particles, and (N,) the scenario each comes from.

    ranges: lowest and highest value of every parameter that is a number, over the members of the family.
    """

    sets: np.ndarray
    scenario: np.ndarray
    ranges: dict[str, list[float]] = field(default_factory=dict)


def snapshots(
    dynamics: Dynamics,
    scenarios: int,
    seed: int,
    *,
    per_scenario: int = 20,
    progress: Progress = silent,
    group: Group | None = None,
) -> Snapshots:
    """Filter `scenarios` random members of the family and keep some beliefs of each.

    The processes of a `group` filter a share each; all of them get the whole, which does not depend on the group.
    """
    group = group or Group()
    mine = group.share(range(scenarios))
    made: dict[int, tuple[np.ndarray, dict[str, Any]]] = {}
    for done, index in enumerate(mine):
        rng = np.random.default_rng([seed, index])
        params = dynamics.model.sample_params(rng)
        member = dynamics.with_params(**params)
        made[index] = np.stack(_beliefs(member, rng, per_scenario)).astype(np.float32), params
        progress(done + 1, len(mine))
    for others in group.gather(made):
        made |= others
    sets = [made[index][0] for index in range(scenarios)]
    owner = [np.full(len(some), index) for index, some in enumerate(sets)]
    return Snapshots(np.concatenate(sets), np.concatenate(owner), _ranges([made[i][1] for i in range(scenarios)]))


def _ranges(members: list[dict[str, Any]]) -> dict[str, list[float]]:
    numbers = [name for name, value in members[0].items() if isinstance(value, int | float)]
    return {name: [min(m[name] for m in members), max(m[name] for m in members)] for name in numbers}


def _beliefs(dynamics: Dynamics, rng: np.random.Generator, count: int) -> list[np.ndarray]:
    scenario = simulate(dynamics, STEPS, rng)
    chosen = set(rng.choice(STEPS, min(count, STEPS), replace=False).tolist())
    settings, draws = Settings(PARTICLES), Draws([rng])
    cloud = prior(dynamics, PARTICLES, draws)
    found: list[np.ndarray] = []
    for k in range(STEPS):
        u, held = scenario.u[k : k + 1], scenario.u[max(k - 1, 0) : max(k - 1, 0) + 1]
        dt = np.array([1.0 if k else np.nan])
        kind = rng.random()
        if k in chosen and kind < 0.35:
            found.append(_before(dynamics, cloud, held, scenario.y[k : k + 1], u, draws, rng, kind < 0.2))
        cloud, _ = step(dynamics, KERNEL, settings, cloud, dt, held, scenario.y[k : k + 1], u, draws)
        if k in chosen and kind >= 0.35:
            found.append(_draw(dynamics, cloud, rng))
    return found


def _before(
    dynamics: Dynamics,
    cloud: Cloud,
    held: np.ndarray,
    y: np.ndarray,
    u: np.ndarray,
    draws: Draws,
    rng: np.random.Generator,
    only_predicted: bool,
) -> np.ndarray:
    """The predicted belief, or the predicted one times the likelihood to a random power."""
    x = dynamics.transition_sample(cloud.x, held, np.ones(1), draws)
    logw = cloud.logw
    if not only_predicted:
        loglik, _ = dynamics.log_likelihood(y, x, u)
        logw, _ = log_normalise(logw + rng.random() * np.maximum(loglik, -1e6))
    return _draw(dynamics, Cloud(x, logw, effective_size(logw)), rng)


def _draw(dynamics: Dynamics, cloud: Cloud, rng: np.random.Generator) -> np.ndarray:
    """(HELD, d) distinct particles of equal weight, in random order.

    Without replacement, in proportion to the weights (Efraimidis and Spirakis 2006); where few carry most of the
    weight, with a narrow kernel around each instead.
    """
    if cloud.ess[0] < DISTINCT * HELD:
        x = KERNEL.sample(dynamics, cloud.x, cloud.logw, HELD, Draws([rng])).x[0]
        return rng.permutation(x)
    keys = cloud.logw[0] + rng.gumbel(size=cloud.logw.shape[1])
    return rng.permutation(cloud.x[0, np.argpartition(-keys, HELD)[:HELD]])
