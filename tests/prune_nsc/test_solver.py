"""NSC-DP against brute force, integer programming and linear programming that nobody here wrote."""

import itertools
import time
from collections import Counter

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, linprog, milp

from nipstool.prune_nsc.bounds import upper_bound
from nipstool.prune_nsc.capacity import Scale
from nipstool.prune_nsc.fronts import solve_by_fronts, undominated_by_bits
from nipstool.prune_nsc.solver import Group, InfeasibleError, Problem, Solution, runner_up, solve, solve_uniform


def problem(seed: int, groups: int, choices: int, budgets: int, *, equal: bool = False) -> Problem:
    """Random groups of up to `choices` choices with 3 costs; small integers as values, so that many tie.

    Of every other seed the groups are of three kinds, which take turns as parts of layers do.
    """
    rng = np.random.default_rng(seed)
    made = []
    for i in range(groups):
        n = int(rng.integers(1, choices + 1))
        values = rng.integers(0, 12, n) if rng.random() < 0.5 else rng.random(n)
        costs = rng.integers(1, 60, (n, 3)) * int(rng.integers(1, 4))
        kind = "abc"[i % 3 * (seed // 3 % 2)]
        made.append(Group(kind, tuple(map(float, values)), tuple(tuple(map(int, c)) for c in costs)))
    if equal:
        made = [made[0]] * (groups // 2) + [made[-1]] * (groups - groups // 2)
    free = Problem(tuple(made), (None,) * 3)
    limits = [int(low + (high - low) * rng.random()) for low, high in map(free.reachable, range(3))]
    chosen = rng.permutation(3)[:budgets]
    return Problem(free.groups, tuple(limits[r] if r in chosen else None for r in range(3)))


def outcomes(p: Problem) -> list[tuple[float, int, tuple[int, ...]]]:
    """(value, parameters, choices) of everything feasible, the best first by the order that solve promises."""
    found = []
    for choices in itertools.product(*(range(len(g.values)) for g in p.groups)):
        costs = [sum(g.costs[c][r] for g, c in zip(p.groups, choices, strict=True)) for r in range(3)]
        if all(costs[r] <= (p.limits[r] or 0) for r in p.bounded):
            value = sum(g.values[c] for g, c in zip(p.groups, choices, strict=True))
            found.append((round(value, 12), costs[0], choices))
    return sorted(found, key=lambda o: (-o[0], o[1], o[2]))


@pytest.mark.parametrize("start", range(0, 500, 50))
def test_it_is_brute_force(start: int) -> None:
    infeasible = 0
    for seed in range(start, start + 50):
        p = problem(seed, 1 + seed % 6, 4, 1 + seed % 3)
        every = outcomes(p)
        if not every:
            infeasible += 1
            with pytest.raises(InfeasibleError):
                solve(p)
            continue
        found = solve(p)
        assert (found.value, found.costs[0], found.choices) == (
            pytest.approx(every[0][0], rel=1e-9),
            *every[0][1:],
        )
        assert all(found.costs[r] <= (p.limits[r] or 0) for r in p.bounded)
    assert infeasible < 25


@pytest.mark.parametrize("seed", range(40))
def test_the_table_and_the_fronts_agree(seed: int) -> None:
    p = problem(seed, 8, 5, 3)
    only = Problem(p.groups, (p.limits[0], None, None))
    by_table, by_fronts = solve(only), solve_by_fronts(only)
    assert (by_table.method, by_fronts.method) == ("table", "fronts")
    assert by_table.choices == by_fronts.choices


def layers(seed: int, budgets: int, kinds: int = 32) -> Problem:
    """32 groups of 20 choices, costs as parameters and FLOPs are: near to proportional."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(kinds):
        params = np.sort(rng.integers(10**5, 10**7, 20))[::-1]
        flops = (params * rng.uniform(1.9, 2.1) + rng.integers(0, 10**5, 20)).astype(int)
        values = np.log1p(params / 1e6) * rng.uniform(0.5, 2) + rng.normal(0, 0.02, 20)
        costs = tuple((int(a), int(b), int(a // 7)) for a, b in zip(params, flops, strict=True))
        made.append(Group("g", tuple(map(float, values)), costs))
    free = Problem(tuple(made), (None,) * 3)
    shares = rng.uniform(0.3, 0.8, 3)
    limits = [
        int(low + (high - low) * s) for (low, high), s in zip(map(free.reachable, range(3)), shares, strict=True)
    ]
    return Problem(free.groups, tuple(limit if r < budgets else None for r, limit in enumerate(limits)))


def programme(p: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values, costs of the bounded resources, their limits, and which group a choice belongs to."""
    value = np.concatenate([g.values for g in p.groups])
    cost = np.concatenate([np.array(g.costs)[:, p.bounded] for g in p.groups]).T.astype(float)
    limits = np.array([p.limits[r] for r in p.bounded], dtype=float)
    owner = np.repeat(np.arange(len(p.groups)), [len(g.values) for g in p.groups])
    return value, cost, limits, (owner[None] == np.arange(len(p.groups))[:, None]).astype(float)


def unrelated(seed: int, budgets: int, groups: int = 32) -> Problem:
    """Groups of 20 choices whose values and three costs have nothing to do with each other."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(groups):
        costs = tuple(tuple(map(int, c)) for c in rng.integers(1, 10**6, (20, 3)))
        made.append(Group("g", tuple(map(float, rng.random(20))), costs))
    free = Problem(tuple(made), (None,) * 3)
    limits = [int(low + (high - low) * rng.uniform(0.15, 0.5)) for low, high in map(free.reachable, range(3))]
    return Problem(free.groups, tuple(limit if r < budgets else None for r, limit in enumerate(limits)))


@pytest.mark.parametrize("start", range(0, 50, 10))
def test_it_is_the_integer_programme(start: int) -> None:
    exact = 0
    for seed in range(start, start + 10):
        p = (layers if seed % 4 == 0 else unrelated)(seed, 1 + seed % 3)
        value, cost, limits, one = programme(p)
        scale = limits[:, None]
        rules = [LinearConstraint(cost / scale, -np.inf, 1), LinearConstraint(one, 1, 1)]
        answer = milp(-value, constraints=rules, integrality=np.ones(len(value)), options={"mip_rel_gap": 0})
        if answer.status == 2:
            with pytest.raises(InfeasibleError, match="together"):
                solve(p)
            exact += 1
            continue
        theirs = np.round(answer.x).astype(bool)
        found = solve(p)
        assert np.all(np.array(found.costs)[p.bounded] <= limits)
        if np.all(cost[:, theirs].sum(axis=1) <= limits):  # its tolerance lets a budget be passed by 1e-6
            assert found.value == pytest.approx(value[theirs].sum(), rel=1e-9)
            exact += 1
        else:
            assert found.value <= -answer.fun * (1 + 1e-9)
    assert exact >= 9


def test_budgets_that_pull_apart_take_few_labels() -> None:
    """Counted, not timed: bounds that fit each label keep three budgets from growing into millions of labels."""
    assert max(solve(unrelated(seed, 3)).explored for seed in range(100, 104)) < 30_000


@pytest.mark.parametrize(("count", "high"), [(1, 5), (63, 9), (65, 9), (700, 40), (2048, 10**6), (3000, 10**6)])
def test_a_label_goes_where_an_earlier_one_takes_no_more(count: int, high: int) -> None:
    costs = _first_seen(np.random.default_rng(count).integers(0, high, (count, 3)))
    free = [i for i in range(len(costs)) if not np.any(np.all(costs[:i] <= costs[i], axis=1))]
    found = undominated_by_bits(costs).tolist()
    assert set(free) <= set(found)
    assert len(found) <= len(free) * (1 if count <= 2048 else 1.1)


def _first_seen(costs: np.ndarray) -> np.ndarray:
    return np.array(list(dict.fromkeys(map(tuple, costs.tolist()))))


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_is_the_linear_programme(seed: int) -> None:
    p = layers(seed, 1 + seed % 3)
    value, cost, limits, one = programme(p)
    answer = linprog(
        -value,
        A_ub=cost / limits[:, None],
        b_ub=np.ones(len(limits)),
        A_eq=one,
        b_eq=np.ones(len(one)),
        bounds=(0, 1),
    )
    assert upper_bound(p) == pytest.approx(-answer.fun, rel=1e-9)
    assert upper_bound(p) >= solve(p).value * (1 - 1e-12)


def kinds_of(p: Problem, choices: tuple[int, ...]) -> Counter[tuple[Group, int]]:
    return Counter(zip(p.groups, choices, strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_the_runner_up_is_the_best_that_is_no_reordering(seed: int) -> None:
    p = problem(seed, 4, 4, 1 + seed % 3, equal=seed % 2 == 0)
    every = outcomes(p)
    if not every:
        return
    best = solve(p)
    others = [o for o in every if kinds_of(p, o[2]) != kinds_of(p, best.choices)]
    found = runner_up(p, best)
    assert (found is None) == (not others)
    if found is not None:
        assert found.value == pytest.approx(others[0][0], rel=1e-9)


def test_equal_layers_give_the_widest_first() -> None:
    group = Group("ffn", (4.0, 3.0, 1.0), ((30, 0, 0), (20, 0, 0), (10, 0, 0)))
    found = solve(Problem((group,) * 4, (90, None, None)))
    assert found.choices == (0, 1, 1, 1)
    assert found.costs == (90, 0, 0)


def test_among_equal_values_the_smaller_is_taken() -> None:
    group = Group("ffn", (2.0, 2.0, 1.0), ((30, 1, 0), (20, 9, 0), (10, 0, 0)))
    assert solve(Problem((group,), (50, None, None))).choices == (1,)
    assert solve(Problem((group,), (50, 20, None))).choices == (1,)
    assert solve(Problem((group,), (50, 5, None))).choices == (0,)


def test_an_infeasible_budget_tells_what_is_reachable() -> None:
    group = Group("ffn", (2.0, 1.0), ((30, 1, 0), (20, 0, 0)))
    with pytest.raises(InfeasibleError, match="reachable are 40 to 60"):
        solve(Problem((group, group), (39, None, None)))


def test_budgets_that_exclude_each_other_are_infeasible() -> None:
    group = Group("ffn", (2.0, 1.0), ((30, 1, 0), (20, 2, 0)))
    with pytest.raises(InfeasibleError, match="together"):
        solve(Problem((group,), (20, 1, None)))


@pytest.mark.parametrize("seed", range(20))
def test_uniform_is_the_best_of_each_kind_alike(seed: int) -> None:
    p = problem(seed, 6, 4, 1 + seed % 3, equal=True)
    groups = tuple(Group("ab"[i // 3], g.values, g.costs) for i, g in enumerate(p.groups))
    p = Problem(groups, p.limits)
    alike = [o for o in outcomes(p) if len(set(o[2][:3])) == len(set(o[2][3:])) == 1]
    try:
        found: Solution | None = solve_uniform(p)
    except InfeasibleError:
        found = None
    assert (found.choices if found else None) == (alike[0][2] if alike else None)


def cpu_seconds(p: Problem) -> float:
    """The least of three."""
    times = []
    for _ in range(3):
        fresh, start = Problem(p.groups, p.limits), time.process_time()
        solve(fresh)
        times.append(time.process_time() - start)
    return min(times)


def test_the_lonas_space_of_llama_7b_takes_no_time() -> None:
    scale, a_layer = Scale(), 4 * 4096**2 + 2 * 4096
    widths = (11008, 9632, 8256, 6880, 5504)
    values = tuple(2 * scale.nsc(w, 4096) + scale.nsc(4096, w) for w in widths)
    ffn = Group("ffn", values, tuple((3 * 4096 * w, 0, 0) for w in widths))
    rest = Group("rest", (0.0,), ((32 * a_layer + 2 * 32000 * 4096 + 4096, 0, 0),))
    p = Problem((ffn,) * 32 + (rest,), (5_700_000_000, None, None))
    assert solve(p).costs[0] == 5_690_101_760
    assert Counter(solve(p).choices[:32]) == {1: 2, 2: 30}
    assert cpu_seconds(p) < 0.1


def test_a_fine_grid_of_64_groups_is_solved_by_the_table() -> None:
    ffn = Group(
        "ffn", tuple(np.log1p(np.arange(87, 0, -1))), tuple((c * 64 * 12288, 0, 0) for c in range(87, 0, -1))
    )
    heads = Group(
        "h", tuple(2 * np.log1p(np.arange(33, 0, -1))), tuple((c * 4 * 524288, 0, 0) for c in range(33, 0, -1))
    )
    free = Problem((ffn, heads) * 32, (None,) * 3)
    p = Problem(free.groups, (int(0.7 * free.reachable(0)[1]), None, None))
    found = solve(p)
    assert found.method == "table"  # the quick one: its steps are the grid's cells, whatever the groups hold
    assert found.costs[0] <= (p.limits[0] or 0)
    assert cpu_seconds(p) < 2
