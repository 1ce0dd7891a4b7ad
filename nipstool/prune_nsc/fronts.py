"""NSC-DP for several budgets: labels that no other dominates, and the bound that linear programming gives.

The LP relaxation's dual is  min over lambda >= 0 of  lambda B + sum over groups of max_c (v_c - lambda a_c).
At every lambda it bounds the optimum from above; at the LP's own lambda it is the LP's value.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nipstool.prune_nsc.solver import InfeasibleError, Ints, Problem, Solution, solution_of

Floats = NDArray[np.float64]
_ROUNDING = 1e-9  # of the bound, which floats compute
_BLOCK = 512
_BEAM = 200


@dataclass
class _Labels:
    """Labels of one level: what the groups from there on take and give, and how they were made."""

    value: Ints
    params: Ints
    costs: Ints  # [labels, bounded resources]
    rank: Ints  # lower is lexicographically wider
    choice: Ints
    parent: Ints

    def __getitem__(self, kept: NDArray) -> _Labels:
        return _Labels(*(part[kept] for part in vars(self).values()))


def solve_by_fronts(problem: Problem) -> Solution:
    """The optimum for any number of budgets, in the order of `solver.solve`. Raises InfeasibleError.

    Runs with the most promising labels alone come first: what they find shortens the next run. The first run in
    which no label had to be left out is exact.
    """
    search = _Search(problem)
    beam = _BEAM
    while (found := search.run(beam)) is None:
        beam *= 8
    return found


class _Search:
    """Levels of labels from the last group to the first, the choices then read off from the first on."""

    def __init__(self, problem: Problem):
        self._problem = problem
        self._limits = np.array([problem.limits[r] for r in problem.bounded], dtype=np.int64)
        self._costs = [cost[:, problem.bounded] for cost in problem.costs]
        self._bound = _Bound(problem, self._limits, self._costs)
        self._explored = 0

    def run(self, beam: int) -> Solution | None:
        """The optimum, or None where more than `beam` labels of a level were promising."""
        problem = self._problem
        zero = np.zeros(1, dtype=np.int64)
        labels = _Labels(zero, zero, np.zeros((1, len(self._limits)), dtype=np.int64), zero, zero, zero)
        levels, whole = [], True
        for group in reversed(range(len(self._costs))):
            labels = _extended(labels, problem.values[group], problem.costs[group][:, 0], self._costs[group])
            kept, bound = self._bound.keeps(labels, group)
            labels, bound = labels[kept], bound[kept]
            kept = _undominated(labels)
            if len(kept) > beam:
                kept, whole = kept[np.argpartition(-bound[kept], beam)[:beam]], False
            if not len(kept) and whole:
                raise InfeasibleError("no choice keeps all budgets together")
            labels = labels[kept]
            labels.rank = np.argsort(np.argsort(labels.rank))
            self._explored += len(kept)
            levels.append(labels)
        if not len(labels.value):
            return None
        solution = solution_of(problem, _read_off(levels), self._explored, "fronts")
        self._bound.raise_floor(round(solution.value * problem.scale))
        return solution if whole else None


def _read_off(levels: list[_Labels]) -> list[int]:
    last = levels[-1]
    at = np.lexsort((last.rank, last.params, -last.value))[0]
    choices = []
    for level in reversed(levels):
        choices.append(int(level.choice[at]))
        at = level.parent[at]
    return choices


def _extended(labels: _Labels, values: Ints, params: Ints, costs: Ints) -> _Labels:
    """Every label with every choice of one group more in front."""
    n, c = len(labels.value), len(values)
    choice = np.repeat(np.arange(c), n)
    parent = np.tile(np.arange(n), c)
    return _Labels(
        labels.value[parent] + values[choice],
        labels.params[parent] + params[choice],
        labels.costs[parent] + costs[choice],
        choice * n + labels.rank[parent],
        choice,
        parent,
    )


def _undominated(labels: _Labels) -> NDArray:
    """Indices of labels for which none is at least as good (value, parameters, order) and at most as costly."""
    order = np.lexsort((labels.rank, labels.params, -labels.value))
    costs = labels.costs[order]
    if costs.shape[1] == 0 or not len(order):
        return order[:1]
    if costs.shape[1] == 1:
        before = np.minimum.accumulate(costs[:, 0])
        return order[np.concatenate(([True], costs[1:, 0] < before[:-1]))]
    if costs.shape[1] == 2:
        return order[_staircase(costs[:, 0].tolist(), costs[:, 1].tolist())]
    return order[_by_blocks(costs)]


def _staircase(first: list[int], second: list[int]) -> list[int]:
    """Places at which no earlier pair is at most as large in both; steps fall in `second` as `first` rises."""
    xs: list[int] = []
    ys: list[int] = []
    kept = []
    for i, (x, y) in enumerate(zip(first, second, strict=True)):
        at = bisect_right(xs, x)
        if at and ys[at - 1] <= y:
            continue
        begin = bisect_left(xs, x)
        end = begin
        while end < len(ys) and ys[end] >= y:
            end += 1
        xs[begin:end], ys[begin:end] = [x], [y]
        kept.append(i)
    return kept


def _by_blocks(costs: Ints) -> NDArray:
    """Places at which no earlier cost vector is at most as large in every resource."""
    kept = np.empty((0, costs.shape[1]), dtype=np.int64)
    places = [np.empty(0, dtype=np.int64)]
    for start in range(0, len(costs), _BLOCK):
        block = costs[start : start + _BLOCK]
        free = np.flatnonzero(~_below(kept, block).any(axis=0))
        block = block[free]
        inside = np.triu(_below(block, block), k=1).any(axis=0)
        places.append(start + free[~inside])
        kept = np.concatenate((kept, block[~inside]))
    return np.concatenate(places)


def _below(some: Ints, others: Ints) -> NDArray:
    """[some, others]: whether one is at most as large as the other in every resource."""
    found = some[:, None, 0] <= others[None, :, 0]
    for r in range(1, some.shape[1]):
        found &= some[:, None, r] <= others[None, :, r]
    return found


class _Bound:
    """Drops labels that keep no budget, or cannot reach what a quick solution reaches."""

    def __init__(self, problem: Problem, limits: Ints, costs: list[Ints]):
        self._limits = limits
        self._lambda = multipliers(problem) * problem.scale
        reduced = [v - cost @ self._lambda for v, cost in zip(problem.values, costs, strict=True)]
        # before[g]: the best and the least that groups 0..g-1 can still add
        self._gain = np.concatenate(([0.0], np.cumsum([r.max() for r in reduced])))
        least = [cost.min(axis=0) for cost in costs]
        self._least = np.concatenate((np.zeros((1, len(limits)), dtype=np.int64), np.cumsum(least, axis=0)))
        self._quick = _quick(problem, limits, costs, self._lambda)

    def raise_floor(self, value: int) -> None:
        """A solution of this value is known."""
        self._quick = value if self._quick is None else max(value, self._quick)

    def keeps(self, labels: _Labels, group: int) -> tuple[NDArray, Floats]:
        """Indices of the labels that may lead to an optimum, and the bounds of all."""
        left = self._limits - labels.costs
        bound = labels.value + left @ self._lambda + self._gain[group]
        keeps = np.all(left >= self._least[group], axis=1)
        if self._quick is not None:
            keeps &= bound >= self._quick - _ROUNDING * abs(self._quick)
        return np.flatnonzero(keeps), bound


def _quick(problem: Problem, limits: Ints, costs: list[Ints], lam: Floats) -> int | None:
    """The value of a feasible solution: the multipliers' own, made cheaper until it fits, then improved."""
    for factor in 1.0 + np.concatenate(([0.0], 2.0 ** np.arange(-20, 20))):
        reduced = [v - cost @ (lam * factor) for v, cost in zip(problem.values, costs, strict=True)]
        choices = [int(r.argmax()) for r in reduced]
        used = np.sum([cost[c] for cost, c in zip(costs, choices, strict=True)], axis=0)
        if np.all(used <= limits):
            return _improved(problem.values, costs, choices, limits - used)
    return None


def _improved(values: list[Ints], costs: list[Ints], choices: list[int], left: Ints) -> int:
    total = sum(int(v[c]) for v, c in zip(values, choices, strict=True))
    better = True
    while better:
        better = False
        for group, (value, cost) in enumerate(zip(values, costs, strict=True)):
            now = choices[group]
            gains = np.where(np.all(cost - cost[now] <= left, axis=1), value - value[now], 0)
            at = int(gains.argmax())
            if gains[at] > 0:
                left = left - (cost[at] - cost[now])
                choices[group], total, better = at, total + int(gains[at]), True
    return total


def upper_bound(problem: Problem) -> float:
    """The LP bound on the value: that of the relaxation in which a group may mix its choices."""
    lam = multipliers(problem)
    limits = np.array([problem.limits[r] for r in problem.bounded], dtype=float)
    total = float(limits @ lam)
    for group, cost in zip(problem.groups, problem.costs, strict=True):
        total += float(np.max(np.array(group.values) - cost[:, problem.bounded] @ lam))
    return total


@lru_cache(maxsize=64)
def _cached_multipliers(problem: Problem) -> tuple[float, ...]:
    if not problem.bounded:
        return ()
    if len(problem.bounded) == 1:
        return (_critical_slope(problem),)
    return _dual(problem)


def multipliers(problem: Problem) -> Floats:
    """The LP's dual values, one for each bounded resource, in value a unit of cost."""
    return np.array(_cached_multipliers(problem), dtype=float)


def _critical_slope(problem: Problem) -> float:
    """One budget: fill the groups along their upper hulls, steepest first; the slope at which the budget ends."""
    resource = problem.bounded[0]
    left = (problem.limits[resource] or 0) - problem.reachable(resource)[0]
    steps = []
    for group, cost in zip(problem.groups, problem.costs, strict=True):
        steps += _hull(np.array(group.values), cost[:, resource])
    for slope, width in sorted(steps, reverse=True):
        if width > left:
            return slope
        left -= width
    return 0.0


def _hull(values: Floats, costs: Ints) -> list[tuple[float, int]]:
    """Slopes and widths of the upper concave hull from the cheapest choice on, while it rises."""
    order = np.lexsort((-values, costs))
    corners: list[tuple[int, float]] = []
    for i in order:
        point = (int(costs[i]), float(values[i]))
        if corners and point[1] <= corners[-1][1]:
            continue
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) <= _slope(corners[-1], point):
            corners.pop()
        corners.append(point)
    return [(_slope(a, b), b[0] - a[0]) for a, b in pairwise(corners)]


def _slope(a: tuple[int, float], b: tuple[int, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def _dual(problem: Problem) -> tuple[float, ...]:
    """Several budgets: the dual values of the linear programme, by HiGHS."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    limits = np.array([problem.limits[r] for r in problem.bounded], dtype=float)
    sizes = [len(group.values) for group in problem.groups]
    value = np.concatenate([group.values for group in problem.groups])
    cost = np.concatenate([c[:, problem.bounded] for c in problem.costs]).astype(float)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    one = csr_array((np.ones(len(owner)), (owner, np.arange(len(owner)))))
    unit = np.maximum(limits, 1.0)
    scale = max(float(value.max()), 1e-300)
    found = linprog(
        -value / scale,
        A_ub=(cost / unit).T,
        b_ub=limits / unit,
        A_eq=one,
        b_eq=np.ones(len(sizes)),
        method="highs",
    )
    if found.status != 0:
        return (0.0,) * len(limits)
    return tuple(np.maximum(-found.ineqlin.marginals * scale / unit, 0.0))
