"""NSC-DP for any set of budgets: levels of labels, without those that another dominates or that lead nowhere.

A label is a choice for the groups from one on: its value, what it takes, and its order. Labels go when another one
is at least as good in everything, and when a bound (bounds.py) says that they cannot reach a solution that is
known. What is left out beyond that, to find such a solution quickly, is said: a run is exact when nothing was.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nipstool.prune_nsc.bounds import Reach
from nipstool.prune_nsc.solver import InfeasibleError, Ints, Problem, Solution, solution_of

_BEAM, _WIDER = 200, 8
_BLOCK, _ROWS = 512, 2048
_FEW_GO = 0.9  # where more labels than this share are undominated, comparing them does not pay


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
        beam *= _WIDER
    return found


class _Search:
    """Levels of labels from the last group to the first, the choices then read off from the first on."""

    def __init__(self, problem: Problem):
        self._problem = problem
        self._costs = [cost[:, problem.bounded] for cost in problem.costs]
        self._reach = Reach(problem, self._costs)
        self._explored = 0

    def run(self, beam: int) -> Solution | None:
        """The optimum, or None where more than `beam` labels of a level were promising."""
        problem = self._problem
        zero = np.zeros(1, dtype=np.int64)
        labels = _Labels(zero, zero, np.zeros((1, len(problem.bounded)), dtype=np.int64), zero, zero, zero)
        levels, whole = [], True
        for group in reversed(range(len(self._costs))):
            labels = self._extended(labels, group)
            kept, bound = self._reach.keeps(labels.value, labels.costs, group)
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
        self._reach.raise_floor(round(solution.value * problem.scale))
        return solution if whole else None

    def _extended(self, labels: _Labels, group: int) -> _Labels:
        """Every label with every choice of one group more in front that the linear programme's bound allows."""
        n, values = len(labels.value), self._problem.values[group]
        params, costs = self._problem.costs[group][:, 0], self._costs[group]
        choice, parent = self._reach.pairs(labels.value, labels.costs, group)
        return _Labels(
            labels.value[parent] + values[choice],
            labels.params[parent] + params[choice],
            labels.costs[parent] + costs[choice],
            choice * n + labels.rank[parent],
            choice,
            parent,
        )


def _read_off(levels: list[_Labels]) -> list[int]:
    last = levels[-1]
    at = np.lexsort((last.rank, last.params, -last.value))[0]
    choices = []
    for level in reversed(levels):
        choices.append(int(level.choice[at]))
        at = level.parent[at]
    return choices


def _undominated(labels: _Labels) -> NDArray:
    """Indices of labels for which none is at least as good (value, parameters, order) and at most as costly.

    With three and more budgets and many labels some that are dominated stay.
    """
    order = np.lexsort((labels.rank, labels.params, -labels.value))
    costs = labels.costs[order]
    if costs.shape[1] == 0 or not len(order):
        return order[:1]
    if costs.shape[1] == 1:
        before = np.minimum.accumulate(costs[:, 0])
        return order[np.concatenate(([True], costs[1:, 0] < before[:-1]))]
    if costs.shape[1] == 2:
        return order[_staircase(costs[:, 0].tolist(), costs[:, 1].tolist())]
    first = _first_of_equal(costs)
    order, costs = order[first], costs[first]
    return order[_undominated_by_bits(costs)]


def _first_of_equal(costs: Ints) -> NDArray:
    """Places, in their order, at which a cost vector is seen for the first time."""
    order = np.lexsort(costs.T)  # stable: of equal ones the first stays the first
    new = np.concatenate(([True], np.any(costs[order[1:]] != costs[order[:-1]], axis=1)))
    return np.sort(order[new])


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


def _undominated_by_bits(costs: Ints) -> NDArray:
    """Places at which no earlier cost vector is at most as large in every resource; of many places, nearly those.

    Bit i of row k of a table stands for place i being among the k steps of places that are lowest in one
    resource, or earliest: the places that dominate one are where its rows of all tables have a bit in common.
    """
    n = len(costs)
    step = -(-n // _ROWS)
    tables = [_prefixes(np.arange(n), step), *(_prefixes(np.argsort(c, kind="stable"), step) for c in costs.T)]
    rows = [np.arange(n) // step, *(np.searchsorted(np.sort(c), c, side="right") // step for c in costs.T)]

    def free(places: NDArray) -> NDArray:
        common = tables[0][rows[0][places]]
        for table, row in zip(tables[1:], rows[1:], strict=True):
            common &= table[row[places]]
        return places[~common.any(axis=1)]

    some = np.linspace(0, n - 1, _BLOCK).astype(int)
    if n > _ROWS and len(free(some)) > _FEW_GO * len(some):
        return np.arange(n)
    return np.concatenate([free(np.arange(at, min(at + _BLOCK, n))) for at in range(0, n, _BLOCK)])


def _prefixes(order: NDArray, step: int) -> NDArray[np.uint64]:
    """Row k: a bit for each of the first k * step places of `order`."""
    n = len(order)
    table = np.zeros((n // step + 2, n // 64 + 1), dtype=np.uint64)
    bits = np.uint64(1) << (order % 64).astype(np.uint64)
    np.bitwise_or.at(table, (np.arange(n) // step + 1, order // 64), bits)
    return np.bitwise_or.accumulate(table, axis=0)
