"""NSC-DP: one choice for each group, the highest total value that keeps every budget, exactly.

A multiple-choice knapsack. One budget on parameters: a table over costs divided by their greatest common divisor
(grid). Any other set of budgets: fronts of labels that nothing dominates, shortened by a Lagrangian bound
(fronts.py). Values become integers on a grid 2^-k finer than 1e-14 of their sum, so that sums do not depend on
their order and equal optima are seen as equal: among them the one with fewer parameters, then the
lexicographically widest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from nipstool.kit.errors import UsageError

Ints = NDArray[np.int64]
_BITS = 50  # the sum of all values stays below 2^50: exact in float64 as well
_GRID_CELLS, _GRID_LONGEST = 50_000_000, 5_000_000
_NOTHING = -(1 << 60)


@dataclass(frozen=True)
class Group:
    """Choices of one unit, widest first: values[c], and costs[c][r] for each resource; resource 0 is parameters.

    Groups of one `kind` offer the same choices in the same order.
    """

    kind: str
    values: tuple[float, ...]
    costs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Problem:
    """Groups in the order of their layers, and a limit for each resource (None: not limited)."""

    groups: tuple[Group, ...]
    limits: tuple[int | None, ...]

    @cached_property
    def bounded(self) -> list[int]:
        """The resources that have a limit."""
        return [r for r, limit in enumerate(self.limits) if limit is not None]

    @cached_property
    def scale(self) -> float:
        """A power of two that makes all values integers."""
        total = sum(max(group.values) for group in self.groups)
        return math.ldexp(1.0, _BITS - math.frexp(total)[1]) if total > 0 else 1.0

    @cached_property
    def values(self) -> list[Ints]:
        """values[group][choice] as integers."""
        return [np.rint(np.array(g.values) * self.scale).astype(np.int64) for g in self.groups]

    @cached_property
    def costs(self) -> list[Ints]:
        """costs[group][choice, resource]."""
        return [np.array(g.costs, dtype=np.int64).reshape(len(g.values), -1) for g in self.groups]

    def reachable(self, resource: int) -> tuple[int, int]:
        """The least and the most of a resource that any choice takes."""
        columns = [cost[:, resource] for cost in self.costs]
        return sum(int(c.min()) for c in columns), sum(int(c.max()) for c in columns)


@dataclass(frozen=True)
class Solution:
    """choices[group], their value and costs; `explored` counts table cells or labels."""

    choices: tuple[int, ...]
    value: float
    costs: tuple[int, ...]
    explored: int
    method: str


class InfeasibleError(UsageError):
    """No choice keeps the budgets."""


def solve(problem: Problem) -> Solution:
    """The optimum; see the module's text for the order among equal optima. Raises InfeasibleError."""
    check_feasible(problem)
    if problem.bounded == [0] and (table := _table(problem)) is not None:
        return table
    from nipstool.prune_nsc.fronts import solve_by_fronts

    return solve_by_fronts(problem)


def check_feasible(problem: Problem, names: Sequence[str] = ("params", "flops", "kv-bytes")) -> None:
    """Raises InfeasibleError with the reachable minimum and maximum where one limit alone cannot be kept."""
    for r in problem.bounded:
        least, most = problem.reachable(r)
        limit = problem.limits[r]
        if limit is not None and limit < least:
            raise InfeasibleError(f"budget {names[r]} {limit}: reachable are {least} to {most}")


def solution_of(problem: Problem, choices: Sequence[int], explored: int, method: str) -> Solution:
    """The value and costs of given choices."""
    value = sum(int(v[c]) for v, c in zip(problem.values, choices, strict=True)) / problem.scale
    costs = np.sum([cost[c] for cost, c in zip(problem.costs, choices, strict=True)], axis=0)
    return Solution(tuple(choices), value, tuple(int(c) for c in costs), explored, method)


def _table(problem: Problem) -> Solution | None:
    """The grid solution, or None where the table would be too large.

    best[l][b]: the highest value of groups l.. that take exactly b units above the least; solved from the last
    group to the first, so that the choices can be read off from the first on, the widest of equal ones.
    """
    costs = [cost[:, 0] - cost[:, 0].min() for cost in problem.costs]
    unit = math.gcd(*(int(c) for cost in costs for c in cost)) or 1
    limit = (problem.limits[0] or 0) - problem.reachable(0)[0]
    size = min(limit // unit, sum(int(cost.max()) for cost in costs) // unit) + 1
    if size > _GRID_LONGEST or size * (len(costs) + 1) > _GRID_CELLS:
        return None
    steps = [cost // unit for cost in costs]
    best = [np.full(size, _NOTHING, dtype=np.int64)]
    best[0][0] = 0
    for values, step in zip(reversed(problem.values), reversed(steps), strict=True):
        best.append(_add(best[-1], values, step))
    best.reverse()
    left = int(best[0].argmax())  # the first of equal ones: the fewest parameters
    choices = []
    for group, (values, step) in enumerate(zip(problem.values, steps, strict=True)):
        fits = [c for c in range(len(values)) if step[c] <= left]
        found = (c for c in fits if best[group][left] == values[c] + best[group + 1][left - step[c]])
        choices.append(next(found))
        left -= int(step[choices[-1]])
    return solution_of(problem, choices, size * len(costs), "table")


def _add(after: Ints, values: Ints, steps: Ints) -> Ints:
    """One group more: for each cost the best of its choices."""
    new = np.full_like(after, _NOTHING)
    for value, step in zip(values, steps, strict=True):
        if step < len(after):
            np.maximum(new[step:], after[: len(after) - step] + value, out=new[step:])
    return new


def solve_uniform(problem: Problem) -> Solution:
    """The best with one choice for all groups of a kind, in the same order. Raises InfeasibleError."""
    check_feasible(problem)
    kinds = list(dict.fromkeys(group.kind for group in problem.groups))
    places = [[i for i, g in enumerate(problem.groups) if g.kind == kind] for kind in kinds]
    options = list(product(*(range(len(problem.groups[p[0]].values)) for p in places)))
    value = np.zeros(len(options), dtype=np.int64)
    cost = np.zeros((len(options), len(problem.limits)), dtype=np.int64)
    for at, place in enumerate(places):
        choice = np.array([option[at] for option in options])
        for group in place:
            value += problem.values[group][choice]
            cost += problem.costs[group][choice]
    keeps = np.all([cost[:, r] <= (problem.limits[r] or 0) for r in problem.bounded] or [True], axis=0)
    feasible = np.flatnonzero(np.broadcast_to(keeps, len(options)))
    if not len(feasible):
        raise InfeasibleError("no uniform width keeps all budgets together")
    first = min(feasible, key=lambda i: (-value[i], cost[i, 0], i))
    index = dict(zip(kinds, options[first], strict=True))
    return solution_of(problem, [index[g.kind] for g in problem.groups], len(options), "uniform")


def runner_up(problem: Problem, best: Solution) -> Solution | None:
    """The best solution that differs from `best` in more than the order of equal groups; None where none does.

    It has, for some class of equal groups, at least one group more with some choice than `best` has.
    """
    from nipstool.prune_nsc.bounds import upper_bound

    explored, found = 0, None
    trials = sorted(_forced(problem, best), key=lambda trial: -upper_bound(trial))
    for trial in trials:
        if found is not None and upper_bound(trial) < found.value * (1 - 1e-12):
            break
        try:
            other = solve(trial)
        except InfeasibleError:
            continue
        explored += other.explored
        if found is None or (other.value, -other.costs[0]) > (found.value, -found.costs[0]):
            found = other
    return None if found is None else replace(found, explored=explored)


def _forced(problem: Problem, best: Solution) -> list[Problem]:
    classes: dict[Group, list[int]] = {}
    for i, group in enumerate(problem.groups):
        classes.setdefault(group, []).append(i)
    trials = []
    for group, places in classes.items():
        taken = [best.choices[i] for i in places]
        for c in range(len(group.values)):
            more = taken.count(c) + 1
            if more > len(places):
                continue
            only = Group(f"{group.kind} forced", (group.values[c],), (group.costs[c],))
            groups = list(problem.groups)
            for place in places[:more]:
                groups[place] = only
            trials.append(Problem(tuple(groups), problem.limits))
    return [t for t in trials if all(t.reachable(r)[0] <= (t.limits[r] or 0) for r in t.bounded)]
