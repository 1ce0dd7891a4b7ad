"""NSC-DP beside an integer programming solver (HiGHS): CPU seconds and whether the optima agree.

    python tests/benchmarks/prune_nsc_solver.py

Spaces of LLaMA-7B with one, two and three budgets, and random problems of 32 groups x 20 choices. HiGHS gets 20 s.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from scipy.optimize import LinearConstraint, milp

from nipstool.prune_nsc.capacity import Scale
from nipstool.prune_nsc.choices import at_initialisation, choices_of, units_of
from nipstool.prune_nsc.decoder import decoder_of
from nipstool.prune_nsc.solver import Group, Problem, solve

LIMIT = 20.0
REPEATS = 5
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
LONAS = (11008, 9632, 8256, 6880, 5504)


def main() -> None:
    """One row a problem."""
    print("| problem | budgets | NSC-DP, CPU s | HiGHS, CPU s | HiGHS / NSC-DP | labels | optimum |")
    print("|---|---|---|---|---|---|---|")
    show("LLaMA-7B, LoNAS's 5 widths", llama("ffn", LONAS, (0.8459, None, None)), repeats=REPEATS)
    show("LLaMA-7B, 172 widths and 32 head counts", llama("ffn,groups", None, (0.8, None, None)))
    show("same, parameters and FLOPs", llama("ffn,groups", None, (0.8, 0.82, None)))
    show("same, parameters and cache", llama("ffn,groups", None, (0.8, None, 0.6)))
    show("same, all three", llama("ffn,groups", None, (0.7, 0.7, 0.6)))
    for kind in ("unrelated", "concave", "smallest", "summed", "equal"):
        show(f"32 x 20, values {kind}", random(kind, 1))


def llama(units: str, widths: Sequence[int] | None, shares: tuple[float | None, ...]) -> Problem:
    """The problem that planning makes, with budgets as shares of the dense model's costs."""
    decoder = decoder_of(LLAMA, "LLaMA-7B")
    choices = choices_of(decoder, units, widths=widths, multiple=None, ends=(1, 1))
    groups = tuple(unit.group for unit in units_of(decoder, choices, 2048, at_initialisation(Scale())))
    free = Problem(groups, (None,) * 3)
    limits = [None if share is None else int(share * free.reachable(r)[1]) for r, share in enumerate(shares)]
    return Problem(groups, tuple(limits))


def random(kind: str, seed: int) -> Problem:
    """Three costs that have nothing to do with each other; the values as `kind` says. "equal": 32 equal groups."""
    generator, made = np.random.default_rng(seed), []
    for _ in range(32):
        costs = generator.integers(1, 10**6, (20, 3))
        if kind == "unrelated":
            values = generator.random(20)
        elif kind in ("concave", "equal"):
            values = np.log1p(costs / 1e5).sum(axis=1) * generator.uniform(0.5, 2)
        elif kind == "smallest":
            values = costs.min(axis=1) / 1e6 + generator.random(20) * 0.05
        else:
            values = costs.sum(axis=1) / 1e6 + generator.random(20) * 0.3
        made.append(Group("g", tuple(values.tolist()), tuple(map(tuple, costs.tolist()))))
    free = Problem((made[0],) * 32 if kind == "equal" else tuple(made), (None,) * 3)
    least = np.sum([_least(group) for group in free.groups], axis=0)  # reached together, so there is an answer
    most = np.array([free.reachable(r)[1] for r in range(3)])
    limits = least + (most - least) * generator.uniform(0.05, 0.4, 3)
    return Problem(free.groups, tuple(map(int, limits)))


def _least(group: Group) -> np.ndarray:
    """The costs of the choice that takes least of all three."""
    costs = np.array(group.costs)
    return costs[costs.sum(axis=1).argmin()]


def show(name: str, problem: Problem, repeats: int = 1) -> None:
    """One row; the least CPU time of `repeats` for ours."""
    times = []
    for _ in range(repeats):
        fresh = Problem(problem.groups, problem.limits)  # nothing kept from the last time
        start = time.process_time()
        found = solve(fresh)
        times.append(time.process_time() - start)
    start = time.process_time()
    best = by_highs(problem)
    theirs = time.process_time() - start
    agree = "not finished" if best is None else "equal" if abs(best - found.value) < 1e-6 * best else f"{best:.9g}"
    budgets = len(problem.bounded)
    row = (
        name,
        budgets,
        f"{min(times):.3f}",
        f"{theirs:.2f}",
        f"{theirs / min(times):.1f}",
        found.explored,
        agree,
    )
    print("| " + " | ".join(map(str, row)) + " |", flush=True)


def by_highs(problem: Problem) -> float | None:
    """The optimum by integer programming with gap 0; None where the time did not suffice."""
    value = np.concatenate([group.values for group in problem.groups])
    cost = np.concatenate([cost[:, problem.bounded] for cost in problem.costs]).T.astype(float)
    limits = np.array([problem.limits[r] for r in problem.bounded], dtype=float)
    owner = np.repeat(np.arange(len(problem.groups)), [len(group.values) for group in problem.groups])
    one = (owner[None] == np.arange(len(problem.groups))[:, None]).astype(float)
    rules = [LinearConstraint(cost / limits[:, None], -np.inf, 1), LinearConstraint(one, 1, 1)]
    options = {"mip_rel_gap": 0, "time_limit": LIMIT}
    with quiet_stdout():
        answer = milp(-value, constraints=rules, integrality=np.ones(len(value)), options=options)
    return -answer.fun if answer.status == 0 else None


@contextmanager
def quiet_stdout() -> Iterator[None]:
    """HiGHS writes lines of its own on descriptor 1, in the middle of our table."""
    kept = os.dup(1)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


if __name__ == "__main__":
    main()
