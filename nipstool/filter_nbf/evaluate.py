"""A belief against particle filters, both against a large reference: evidence and energy distance, with intervals.

Every scenario is a fresh member of the family, or held-out dynamics. The reference runs twice with other seeds:
what those two disagree by is the floor of what can be told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nipstool.filter_nbf.beliefs import Belief, Bootstrap, Kernel
from nipstool.filter_nbf.draws import Draws, KeyedGenerator
from nipstool.filter_nbf.filter import Cloud, Settings, prior, step
from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.pictures import Snapshot
from nipstool.filter_nbf.scores import energy_distance, spread
from nipstool.filter_nbf.simulate import Scenario, simulate
from nipstool.filter_nbf.weights import systematic
from nipstool.kit.errors import UsageError
from nipstool.kit.progress import Progress, silent

COMPARED = 800  # particles of the reference that a set is compared with
RESAMPLES = 2000  # of the bootstrap over scenarios
DYNAMICS = ("own", "family", "held-out")


@dataclass(frozen=True)
class Method:
    """A filter by name."""

    belief: Belief
    settings: Settings


@dataclass(frozen=True)
class Scores:
    """One method over S scenarios: errors of log evidence (S,), energy distances (S,) and by step (S, T), time."""

    evidence: np.ndarray
    distance: np.ndarray
    by_step: np.ndarray
    ms_per_step: float
    off_family: float


@dataclass(frozen=True)
class Evaluation:
    """Scores by method, and how the two references differ: RMSE of the evidence, mean energy distance."""

    scores: dict[str, Scores]
    reference_evidence: float
    reference_distance: float


def filtered(
    dynamics: Dynamics, method: Method, scenario: Scenario, key: KeyedGenerator
) -> Iterator[tuple[Cloud, float, float]]:
    """The belief after each row of a scenario, its log evidence, and its off-family score."""
    cloud: Cloud | None = None
    none, one = np.zeros(1, dtype=int), np.ones(1)
    collapses, dt, held = none, np.array([np.nan]), scenario.u[:1]
    for k in range(len(scenario.y)):
        draws = Draws([key.at(k)])
        cloud = prior(dynamics, method.settings.n, draws) if cloud is None else cloud
        y, u = scenario.y[k : k + 1], scenario.u[k : k + 1]
        cloud, outcome = step(dynamics, method.belief, method.settings, cloud, dt, held, y, u, draws, collapses)
        collapses = collapses + 1 if outcome.collapsed[0] else none
        dt, held = one, u
        yield cloud, float(outcome.loglik[0]), float(outcome.off_family[0])


def members(
    dynamics: Dynamics, kind: str, count: int, seed: int
) -> Iterator[tuple[Dynamics, np.random.Generator]]:
    """`count` members of the family with a generator for each; seeds never meet those of training."""
    source = {"family": "sample_params", "held-out": "held_out_params"}.get(kind)
    if source is not None and not dynamics.has(source):
        raise UsageError(f"--dynamics {kind}: {dynamics.label} has no {source}")
    for index in range(count):
        rng = np.random.default_rng([0xE7A1, seed, index])
        yield (dynamics.with_params(**getattr(dynamics.model, source)(rng)) if source else dynamics), rng


def evaluate(
    dynamics: Dynamics,
    methods: Mapping[str, Method],
    *,
    scenarios: int = 16,
    steps: int = 40,
    reference: int = 40_000,
    kind: str = "family",
    seed: int = 0,
    every: int = 1,
    progress: Progress = silent,
) -> Evaluation:
    """Run every method and two references of `reference` particles on fresh scenarios.

    Args:
        kind: "own" dynamics, a fresh member of the "family" for each scenario, or "held-out" dynamics.
        every: beliefs of every so many steps are compared; the evidence counts all.
    """
    large = Method(Bootstrap(), Settings(reference, temper=False))
    found: dict[str, list[tuple[float, list[float], float, float]]] = {name: [] for name in methods}
    floors = []
    for index, (member, rng) in enumerate(members(dynamics, kind, scenarios, seed)):
        scenario = simulate(member, steps, rng)
        first, second = (_reference(member, large, scenario, f"{seed} {index} {r}", every) for r in "ab")
        exact = float(np.logaddexp(first[0], second[0]) - np.log(2.0))
        floors.append((first[0] - second[0], np.mean(energy_distance(first[1], second[1]))))
        sets = np.concatenate([first[1], second[1]], axis=1)
        pool = (sets, np.concatenate([spread(one[None]) for one in sets]))
        for name, method in methods.items():
            key = KeyedGenerator(seed, f"{name} {index}")
            found[name].append(_score(member, method, scenario, key, exact, pool, every))
        progress(index + 1, scenarios)
    gap, apart = np.array(floors).T
    scores = {name: _gathered(rows) for name, rows in found.items()}
    return Evaluation(scores, float(np.sqrt(np.mean(gap**2))), float(np.mean(apart)))


def _reference(
    dynamics: Dynamics, method: Method, scenario: Scenario, name: str, every: int
) -> tuple[float, np.ndarray]:
    """Log evidence, and (T, COMPARED / 2, d) particles of every step that is compared."""
    total, sets = 0.0, []
    for k, (cloud, gain, _) in enumerate(filtered(dynamics, method, scenario, KeyedGenerator(1, name))):
        total += gain
        if k % every == 0:
            chosen = systematic(np.exp(cloud.logw), np.array([0.5]), COMPARED // 2)[0]
            sets.append(cloud.x[0, chosen])
    return total, np.stack(sets)


def _score(
    dynamics: Dynamics,
    method: Method,
    scenario: Scenario,
    key: KeyedGenerator,
    exact: float,
    pool: tuple[np.ndarray, np.ndarray],
    every: int,
) -> tuple[float, list[float], float, float]:
    """Error of the evidence, energy distance by step, seconds, share of steps that were off family."""
    total, apart, seconds, alarms = 0.0, [], 0.0, 0
    steps = filtered(dynamics, method, scenario, key)
    for k in range(len(scenario.y)):
        began = time.process_time()
        cloud, gain, off = next(steps)
        seconds += time.process_time() - began
        total += gain
        alarms += off > 1.0
        if k % every == 0:
            place = k // every
            apart.append(_apart(cloud, pool[0][place : place + 1], pool[1][place : place + 1]))
    return total - exact, apart, seconds, alarms / len(scenario.y)


def _apart(cloud: Cloud, reference: np.ndarray, within: np.ndarray) -> float:
    """Energy distance of a belief; one of more than COMPARED particles is thinned, or it would take for ever."""
    x, w = cloud.x, np.exp(cloud.logw)
    if x.shape[1] > COMPARED:
        x, w = x[:, systematic(w, np.array([0.5]), COMPARED)[0]], np.full((1, COMPARED), 1.0 / COMPARED)
    return float(energy_distance(x, reference, w, within_y=within)[0])


def _gathered(rows: Sequence[tuple[float, list[float], float, float]]) -> Scores:
    by_step = np.array([row[1] for row in rows])
    steps = len(rows) * by_step.shape[1]
    return Scores(
        np.array([row[0] for row in rows]),
        by_step.mean(1),
        by_step,
        1e3 * sum(row[2] for row in rows) / max(steps, 1),
        float(np.mean([row[3] for row in rows])),
    )


def contenders(dynamics: Dynamics, name: str, mine: Method, seed: int, *, timing: bool) -> dict[str, Method]:
    """`mine`, plain and tempered filters of its size, and with `timing` a plain one of its time."""
    n = mine.settings.n
    plain = Settings(n, temper=False)
    found = {
        f"{name}, n = {n}": mine,
        f"particle filter, n = {n}": Method(Bootstrap(), plain),
        f"tempered kernel filter, n = {n}": Method(Kernel(), Settings(n)),
    }
    if timing:
        equal = equal_time(dynamics, mine, seed=seed)
        found[f"particle filter, equal time, n = {equal}"] = Method(Bootstrap(), replace(plain, n=equal))
    return found


def rmse(errors: np.ndarray) -> float:
    """Root mean square; infinite errors (a filter that called a row impossible) make it infinite."""
    return float(np.sqrt(np.mean(errors**2)))


def ratio_interval(
    a: np.ndarray, b: np.ndarray, statistic: Callable[[np.ndarray], float], seed: int = 0
) -> tuple[float, float, float]:
    """statistic(a) / statistic(b) with its 95 % bootstrap interval over scenarios, both resampled together."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(len(a), size=(RESAMPLES, len(a)))
    ratios = [statistic(a[pick]) / max(statistic(b[pick]), 1e-12) for pick in picks]
    low, high = np.quantile(ratios, [0.025, 0.975])
    return statistic(a) / max(statistic(b), 1e-12), float(low), float(high)


def equal_time(dynamics: Dynamics, method: Method, *, seed: int = 0, steps: int = 30) -> int:
    """How many particles a plain particle filter may have for the CPU time that `method` takes."""
    scenario = simulate(dynamics, steps, np.random.default_rng([0xE7A1, seed, 1 << 20]))

    def seconds(which: Method) -> float:
        times = []
        for _ in range(3):
            began = time.process_time()
            for _ in filtered(dynamics, which, scenario, KeyedGenerator(seed, "time")):
                pass
            times.append(time.process_time() - began)
        return min(times)

    goal = seconds(method)
    small, large = 256, 8192
    a, b = (seconds(Method(Bootstrap(), Settings(n, temper=False))) for n in (small, large))
    each = max((b - a) / (large - small), 1e-9)
    return int(np.clip(small + (goal - a) / each, 16, 1 << 20))


def summary(found: Evaluation, base: str, *, timing: bool = True) -> dict[str, dict[str, Any]]:
    """Figures by method, and their ratios to those of `base` with 95 % intervals; times, which differ from run to
    run, where asked for."""
    plain = found.scores[base]
    rows = {}
    for name, s in found.scores.items():
        rows[name] = {
            "evidence_rmse": rmse(s.evidence),
            "distance_mean": float(s.distance.mean()),
            "distance_median": float(np.median(s.distance)),
            "distance_p90": float(np.quantile(s.distance, 0.9)),
            "off_family": s.off_family,
            "evidence_ratio": ratio_interval(s.evidence, plain.evidence, rmse),
            "distance_ratio": ratio_interval(s.distance, plain.distance, lambda v: float(np.mean(v))),
        }
        if timing:
            rows[name]["ms_per_step"] = s.ms_per_step
    return rows


def example(
    dynamics: Dynamics, methods: Mapping[str, Method], kind: str, seed: int, *, tried: int = 16, steps: int = 40
) -> list[tuple[str, list[Snapshot]]]:
    """Beliefs of every method at the same eight times, on the one scenario of some where the evidence of the last
    is farthest behind that of the first.
    """
    first, *_, last = methods.values()

    def evidence(member: Dynamics, method: Method, scenario: Scenario) -> float:
        return sum(gain for _, gain, _ in filtered(member, method, scenario, KeyedGenerator(seed, "example")))

    found: list[tuple[float, Dynamics, Scenario]] = []
    for member, rng in members(dynamics, kind, tried, seed):
        scenario = simulate(member, steps, rng)
        found.append((evidence(member, first, scenario) - evidence(member, last, scenario), member, scenario))
    _, member, scenario = max(found, key=lambda one: one[0])
    times = set(np.linspace(0, steps - 1, 8).round().astype(int).tolist())
    place = list(dynamics.positions[:2])
    return [
        (name.partition(",")[0], list(_snapshots(member, method, scenario, times, place, seed)))
        for name, method in methods.items()
    ]


def _snapshots(
    dynamics: Dynamics, method: Method, scenario: Scenario, times: set[int], place: list[int], seed: int
) -> Iterator[Snapshot]:
    for k, (cloud, _, _) in enumerate(filtered(dynamics, method, scenario, KeyedGenerator(seed, "example"))):
        if k in times:
            mark = scenario.u[k] if scenario.u.shape[1] == 2 and len(place) == 2 else None
            yield Snapshot(float(k), cloud.x[0][:, place], np.exp(cloud.logw[0]), scenario.x[k, place], mark)
