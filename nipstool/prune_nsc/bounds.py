"""Upper bounds for NSC-DP: the linear programme's value, and planes that say which labels lead to an optimum.

The LP relaxation's dual is  min over lambda >= 0 of  lambda B + sum over groups of max_c (v_c - lambda a_c).
At every lambda it bounds the optimum from above; at the LP's own lambda it is the LP's value. For a label that has
used a part of the budgets every lambda gives such a bound with what is left, and each label has its own best one:
a label that spends too much of one budget and too little of another is seen to lead nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nipstool.prune_nsc.solver import Group, InfeasibleError, Ints, Problem

Floats = NDArray[np.float64]
_ROUNDING = 1e-9  # of a bound, which floats compute
_SPREADS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
_PLANES, _SAMPLE, _TRIED = 600, 200, 40
_FEW = 50  # labels that are not worth the choice of planes


def upper_bound(problem: Problem) -> float:
    """The LP bound on the value: a group may mix its choices in it; -inf where even so none fits."""
    try:
        lam = multipliers(problem)
    except InfeasibleError:
        return -math.inf
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
    """The LP's dual values, one for each bounded resource, in value a unit of cost. Raises InfeasibleError."""
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
    if found.status == 2:
        raise InfeasibleError("no choice keeps all budgets together")
    if found.status != 0:
        return (0.0,) * len(limits)
    return tuple(np.maximum(-found.ineqlin.marginals * scale / unit, 0.0))


class Planes:
    """Bounds  value + lambda left + sum over the groups to come of max_c (v_c - lambda a_c)  for many lambda.

    gain[g, j]: what group g can add at lambda j; loss[g][j, c]: what its choice c gives away there against its
    best one. Products are taken resource by resource: a matrix product's rounding would depend on the threads.
    """

    def __init__(self, groups: Sequence[Group], values: Sequence[Ints], costs: Sequence[Ints], lam: Floats):
        self.lam = lam  # [planes, resources]
        best: dict[Group, tuple[Floats, Floats]] = {}
        for group, value, cost in zip(groups, values, costs, strict=True):
            if group not in best:
                reduced = value[None] - _products(self.lam, cost)
                top = reduced.max(axis=1)
                best[group] = top, top[:, None] - reduced
        self.gain: Floats = np.array([best[group][0] for group in groups])
        self.loss = [best[group][1] for group in groups]

    def bounds(self, value: Ints | float, left: Ints, gain: Floats, plane: int) -> Floats:
        """The bounds of labels at one lambda, where the groups to come add gain[plane]."""
        return value + _products(left, self.lam[plane : plane + 1])[:, 0] + gain[plane]

    def best_of(self, value: Ints, left: Ints, gain: Floats) -> list[int]:
        """The planes that are the lowest one for some of the labels, the most frequent first."""
        at = np.linspace(0, len(value) - 1, min(_SAMPLE, 30 + len(value) // 20)).astype(int)
        bounds = value[at, None] + _products(left[at], self.lam) + gain
        planes, counts = np.unique(bounds.argmin(axis=1), return_counts=True)
        return planes[np.argsort(-counts, kind="stable")][:_TRIED].tolist()


def _products(some: NDArray, others: NDArray) -> Floats:
    """[some, others]: scalar products."""
    total = np.zeros((len(some), len(others)))
    for r in range(some.shape[1]):
        total += some[:, r, None].astype(float) * others[None, :, r]
    return total


@dataclass(frozen=True)
class ToCome:
    """Groups that labels do not decide yet: their gain at each plane, and the least that they take."""

    groups: frozenset[int]
    gain: Floats
    fit: Floats
    least: Ints


class Reach:
    """Which labels may lead to an optimum: they keep the budgets, and reach what a known solution reaches."""

    def __init__(self, problem: Problem, costs: Sequence[Ints]):
        self._limits = np.array([problem.limits[r] for r in problem.bounded], dtype=np.int64)
        lam = multipliers(problem) * problem.scale
        values = problem.values
        span = sum(int(value.max() - value.min()) for value in values)
        natural = span / np.maximum(self._limits, 1)
        random = np.random.default_rng(0)
        self._value = Planes(problem.groups, values, costs, _around(lam, natural, random))
        nothing = [np.zeros_like(value) for value in values]
        self._fit = Planes(problem.groups, nothing, costs, _directions(self._limits, random))
        self._least = np.array([cost.min(axis=0) for cost in costs])
        self._floor = _quick(problem, self._limits, costs, lam)

    def raise_floor(self, value: int) -> None:
        """A solution of this value is known."""
        self._floor = value if self._floor is None else max(value, self._floor)

    def to_come(self, groups: Iterable[int]) -> ToCome:
        """What the bounds say of groups that are not decided yet."""
        at = sorted(groups)
        return ToCome(
            frozenset(at),
            self._value.gain[at].sum(axis=0),
            self._fit.gain[at].sum(axis=0),
            self._least[at].sum(axis=0),
        )

    @property
    def _lowest(self) -> float:
        return -np.inf if self._floor is None else self._floor - _ROUNDING * abs(self._floor)

    def pairs(self, value: Ints, used: Ints, before: ToCome, group: int) -> tuple[NDArray, NDArray]:
        """(choices of a group, labels) that the linear programme's own bound lets through."""
        bound = self._value.bounds(value, self._limits - used, before.gain, 0)
        choices, labels = np.nonzero(bound[None] - self._value.loss[group][0][:, None] >= self._lowest)
        return choices, labels

    def joined(self, value: Ints, used: Ints, others: tuple[Ints, Ints], after: ToCome) -> tuple[NDArray, NDArray]:
        """(others, labels), by index: pairs of two sets that together keep the budgets and the LP's own bound."""
        places, labels = [], []
        alone = self._value.bounds(value, self._limits - used, after.gain, 0)
        for at, (more, taken) in enumerate(zip(*others, strict=True)):
            fits = alone + (more - taken.astype(float) @ self._value.lam[0]) >= self._lowest
            found = np.flatnonzero(fits & np.all(used + taken + after.least <= self._limits, axis=1))
            labels.append(found)
            places.append(np.full(len(found), at))
        return np.concatenate(places), np.concatenate(labels)

    def keeps(self, value: Ints, used: Ints, after: ToCome) -> tuple[NDArray, Floats]:
        """Indices of the labels that may lead to an optimum, and the bounds of all."""
        left = self._limits - used
        bound = self._value.bounds(value, left, after.gain, 0) if after.groups else value.astype(float)
        kept = np.flatnonzero(np.all(left >= after.least, axis=1) & (bound >= self._lowest))
        if after.groups and len(kept) > _FEW:
            kept = self._fitting(left, kept, after)
        if after.groups and len(kept) > _FEW:
            for plane in self._value.best_of(value[kept], left[kept], after.gain):
                found = self._value.bounds(value[kept], left[kept], after.gain, plane)
                bound[kept] = np.minimum(bound[kept], found)
                kept = kept[bound[kept] >= self._lowest]
        return kept, bound

    def _fitting(self, left: Ints, kept: NDArray, after: ToCome) -> NDArray:
        """Those for which a mixture of the groups to come keeps all budgets together."""
        for plane in self._fit.best_of(np.zeros(len(kept), dtype=np.int64), left[kept], after.fit):
            kept = kept[self._fit.bounds(0.0, left[kept], after.fit, plane) >= -_ROUNDING]
        return kept


def _around(lam: Floats, natural: Floats, random: np.random.Generator) -> Floats:
    """The LP's multipliers, and many beside them; a budget that does not bind there may do so for a label."""
    shape = (_PLANES, len(lam))
    spread = random.choice(_SPREADS, (_PLANES, 1)) * random.standard_normal(shape)
    free = natural * 10.0 ** random.uniform(-4, 0.5, shape)
    near = np.where(lam > 0, lam * np.exp(spread), free) * (random.random(shape) > 0.1)
    return np.concatenate((lam[None], near))


def _directions(limits: Ints, random: np.random.Generator) -> Floats:
    """Weights of the budgets, each vector with its own."""
    return random.exponential(1.0, (_PLANES // 5, len(limits))) / np.maximum(limits, 1) / max(len(limits), 1)


def _quick(problem: Problem, limits: Ints, costs: Sequence[Ints], lam: Floats) -> int | None:
    """The value of a feasible solution: the multipliers' own, made cheaper until it fits, then improved."""
    for factor in 1.0 + np.concatenate(([0.0], 2.0 ** np.arange(-20, 20))):
        reduced = [v - cost @ (lam * factor) for v, cost in zip(problem.values, costs, strict=True)]
        choices = [int(r.argmax()) for r in reduced]
        used = np.sum([cost[c] for cost, c in zip(costs, choices, strict=True)], axis=0)
        if np.all(used <= limits):
            return _improved(problem.values, costs, choices, limits - used)
    return None


def _improved(values: Sequence[Ints], costs: Sequence[Ints], choices: list[int], left: Ints) -> int:
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
