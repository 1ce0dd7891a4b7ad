"""NSC-DP for any set of budgets: levels of labels, without those that another dominates or that lead nowhere.

A label is a choice for the groups from one on: its value, what it takes, and its order. Labels go when another one
is at least as good in everything, and when a bound (bounds.py) says that they cannot reach a solution that is
known. What is left out beyond that, to find such a solution quickly, is said: a run is exact when nothing was.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nipstool.prune_nsc.bounds import Reach, ToCome
from nipstool.prune_nsc.solver import InfeasibleError, Ints, Problem, Solution, solution_of

_BEAM, _WIDER = 200, 8
_BLOCK, _ROWS = 512, 2048
_FEW_GO = 0.9  # where more labels than this share are undominated, comparing them does not pay


@dataclass
class _Labels:
    """Labels of one level: what the decided groups take and give, and how they were made."""

    value: Ints
    params: Ints
    costs: Ints  # [labels, bounded resources]
    rank: Ints  # lower is lexicographically wider
    first: Ints  # the choice that was added, or the place in the first set of a join
    parent: Ints

    def __getitem__(self, kept: NDArray) -> _Labels:
        return _Labels(*(part[kept] for part in vars(self).values()))


@dataclass(frozen=True)
class _Part:
    """Labels that have decided some of the groups; choices[label, group], 0 for the other groups."""

    labels: _Labels
    choices: NDArray[np.int16]
    decided: frozenset[int]


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
    """Groups of one kind are decided from the last to the first; then what is left of the kinds is joined.

    The costs of one kind are nearly proportional to each other, so that few labels of it are undominated.
    """

    def __init__(self, problem: Problem):
        self._problem = problem
        self._costs = [cost[:, problem.bounded] for cost in problem.costs]
        self._reach = Reach(problem, self._costs)
        self._explored = 0
        self._whole = True

    def run(self, beam: int) -> Solution | None:
        """The optimum, or None where more than `beam` labels of a level were promising."""
        self._whole = True
        kinds: dict[str, list[int]] = {}
        for i, group in enumerate(self._problem.groups):
            kinds.setdefault(group.kind, []).append(i)
        parts = sorted((self._decided(places, beam) for places in kinds.values()), key=lambda p: len(p.choices))
        part = parts[0]
        for other in parts[1:]:
            part = self._joined(part, other, beam)
        if not len(part.choices):
            return None
        best = np.lexsort((part.labels.rank, part.labels.params, -part.labels.value))[0]
        solution = solution_of(self._problem, part.choices[best].tolist(), self._explored, "fronts")
        self._reach.raise_floor(round(solution.value * self._problem.scale))
        return solution if self._whole else None

    def _to_come(self, decided: Iterable[int]) -> ToCome:
        return self._reach.to_come(set(range(len(self._costs))) - set(decided))

    def _decided(self, places: Sequence[int], beam: int) -> _Part:
        """Labels of all groups at `places`."""
        zero = np.zeros(1, dtype=np.int64)
        labels = _Labels(zero, zero, np.zeros((1, len(self._problem.bounded)), dtype=np.int64), zero, zero, zero)
        levels, before = [], self._to_come(())
        for start in reversed(range(len(places))):
            after = self._to_come(places[start:])
            labels = self._kept(self._extended(labels, before, places[start]), after, beam)
            levels.append(labels)
            before = after
        return _Part(labels, _read_off(levels, places, len(self._costs)), frozenset(places))

    def _extended(self, labels: _Labels, before: ToCome, group: int) -> _Labels:
        """Every label with every choice of one group more in front that the linear programme's bound allows."""
        n, values = len(labels.value), self._problem.values[group]
        params, costs = self._problem.costs[group][:, 0], self._costs[group]
        choice, parent = self._reach.pairs(labels.value, labels.costs, before, group)
        return _Labels(
            labels.value[parent] + values[choice],
            labels.params[parent] + params[choice],
            labels.costs[parent] + costs[choice],
            choice * n + labels.rank[parent],
            choice,
            parent,
        )

    def _kept(self, labels: _Labels, after: ToCome, beam: int) -> _Labels:
        """The labels that may lead to the optimum; at most `beam` of them."""
        kept, bound = self._reach.keeps(labels.value, labels.costs, after)
        labels, bound = labels[kept], bound[kept]
        kept = _undominated(labels)
        if len(kept) > beam:
            kept, self._whole = kept[np.argpartition(-bound[kept], beam)[:beam]], False
        if not len(kept) and self._whole:
            raise InfeasibleError("no choice keeps all budgets together")
        labels = labels[kept]
        labels.rank = np.argsort(np.argsort(labels.rank))
        self._explored += len(kept)
        return labels

    def _joined(self, one: _Part, two: _Part, beam: int) -> _Part:
        """Labels of both parts' groups."""
        a, b = one.labels, two.labels
        after = self._to_come(one.decided | two.decided)
        first, second = self._reach.joined(b.value, b.costs, (a.value, a.costs), after)
        labels = _Labels(
            a.value[first] + b.value[second],
            a.params[first] + b.params[second],
            a.costs[first] + b.costs[second],
            np.zeros(len(first), dtype=np.int64),
            first,
            second,
        )
        kept, _ = self._reach.keeps(labels.value, labels.costs, after)
        labels = labels[kept]
        labels.rank = _order(one.choices[labels.first] + two.choices[labels.parent])
        labels = self._kept(labels, after, beam)
        choices = one.choices[labels.first] + two.choices[labels.parent]
        return _Part(labels, choices, one.decided | two.decided)


def _order(choices: NDArray[np.int16]) -> Ints:
    """The place of each row in lexicographic order."""
    if not len(choices):
        return np.zeros(0, dtype=np.int64)
    rows = np.ascontiguousarray(choices.astype(">i2")).view(f"S{2 * choices.shape[1]}")[:, 0]
    return np.unique(rows, return_inverse=True)[1]


def _read_off(levels: Sequence[_Labels], places: Sequence[int], groups: int) -> NDArray[np.int16]:
    """The choices of the last level's labels, by the levels that led to them."""
    at = np.arange(len(levels[-1].value))
    choices = np.zeros((len(at), groups), dtype=np.int16)
    for level, place in zip(reversed(levels), places, strict=True):
        choices[:, place] = level.first[at]
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
    return order[undominated_by_bits(costs)]


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


def undominated_by_bits(costs: Ints) -> NDArray:
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
