"""The best architecture of a space under budgets, with a certificate that it is.

A space is a TOML file: [base] config, a config.json beside it; [global] keys of it with the values to try, one
combination after the other; [per_layer] intermediate_size, num_key_value_heads and drop, solved by NSC-DP inside
each combination. Layers of the families that we take are alike, so one layer is built and its choices repeated.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

from nipstool.kit.errors import DataError, InputMissingError, UsageError
from nipstool.kit.files import check_input
from nipstool.kit.language_models import read_config_json
from nipstool.kit.parts import reason
from nipstool.kit.progress import Progress, silent
from nipstool.prune_nsc.bounds import upper_bound
from nipstool.prune_nsc.capacity import DEGENERATE_BELOW, Scale
from nipstool.prune_nsc.choices import Choices, Unit, at_initialisation, units_of
from nipstool.prune_nsc.decoder import FAMILIES, LARGEST, Decoder, Width, check_prunable, config_keys, decoder_of
from nipstool.prune_nsc.plan import RESOURCES, chosen_widths
from nipstool.prune_nsc.solver import InfeasibleError, Problem, Solution, runner_up, solve

MOST_COMBINATIONS = 100_000
_PER_LAYER = {"intermediate_size", "num_key_value_heads", "drop"}


@dataclass(frozen=True)
class Space:
    """The base configuration, the values of each global key, and each layer's choices."""

    told: str
    base: Mapping[str, Any]
    values: Mapping[str, Sequence[Any]]
    ffn: tuple[int, ...] | None
    kv: tuple[int, ...] | None
    drop: bool

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Every choice of global values, in the file's order."""
        for values in product(*self.values.values()):
            yield dict(zip(self.values, values, strict=True))


@dataclass(frozen=True)
class Found:
    """An architecture: the configuration, what its layers have (None: left out), its NSC and costs.

    `chosen` are the [global] values of its combination; layers left out are still counted in them.
    """

    config: Mapping[str, Any]
    chosen: Mapping[str, Any]
    layers: tuple[Width | None, ...]
    nsc: float
    params: int
    flops: int
    kv_bytes: int


@dataclass(frozen=True)
class Certificate:
    """Why nothing in the space is better: the optimum, the next best, the LP bound over all combinations."""

    optimum: float
    runner_up: float | None
    lp_bound: float
    gap: float
    labels: int
    combinations: int
    solved: int
    infeasible: int
    slack: Mapping[str, int]


@dataclass(frozen=True)
class SearchResult:
    """The best architecture, the next best that is not a reordering of it, and the certificate."""

    best: Found
    runner_up: Found | None
    certificate: Certificate
    init: str
    snr: float
    seq: int
    mean_snr: float
    warnings: tuple[str, ...]


def read_space(path: str) -> Space:
    """Reads a space. Raises InputMissingError, or DataError naming the table and key."""
    file = check_input(path)
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputMissingError(f"{path}: cannot be read: {reason(error)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is no TOML file: {error}") from error
    tables = {name: document.get(name, {}) for name in ("base", "global", "per_layer")}
    if odd := [key for key in document if key not in tables]:
        raise DataError(f"{path}: {odd[0]!r} is no table of a space; expected [base], [global], [per_layer]")
    if odd := [name for name, table in tables.items() if not isinstance(table, dict)]:
        raise DataError(f"{path}: {odd[0]} should be a table")
    config = tables["base"].get("config")
    if not isinstance(config, str):
        raise DataError(f'{path}: [base] has no config; expected config = "config.json"')
    layers = tables["per_layer"]
    if odd := sorted(layers.keys() - _PER_LAYER):
        raise DataError(f"{path}: [per_layer] {odd[0]}: expected {', '.join(sorted(_PER_LAYER))}")
    values = {key: _list(path, f"[global] {key}", value) for key, value in tables["global"].items()}
    if (count := math.prod(map(len, values.values()))) > MOST_COMBINATIONS:
        raise DataError(f"{path}: [global] has {count} combinations; expected at most {MOST_COMBINATIONS}")
    drop = layers.get("drop", False)
    if not isinstance(drop, bool):
        raise DataError(f"{path}: [per_layer] drop is {drop!r}; expected true or false")
    base = read_config_json(Path(path).parent / config)
    _check_keys(path, base, values)
    return Space(
        path,
        base,
        values,
        _sizes(path, layers, "intermediate_size"),
        _sizes(path, layers, "num_key_value_heads"),
        drop,
    )


def _check_keys(path: str, base: Mapping[str, Any], values: Mapping[str, Sequence[Any]]) -> None:
    """DataError for a global key that nothing reads: every value of it would be the same architecture."""
    families = [kind for kind in values.get("model_type", [base["model_type"]]) if kind in FAMILIES]
    if not families:  # refused by name where the first combination is built
        return
    known = {*base, *(key for family in families for key in config_keys(family))}
    for key in values:
        if key not in known:
            near = get_close_matches(key, sorted(known), n=1)
            hint = f"did you mean {near[0]}?" if near else "expected one such as hidden_size or num_hidden_layers"
            raise DataError(f"{path}: [global] {key}: no key of a {' or '.join(families)} configuration; {hint}")


def _list(path: str, where: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{path}: {where} is {value!r}; expected a list of values")
    return value


def _sizes(path: str, layers: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    if key not in layers:
        return None
    values = _list(path, f"[per_layer] {key}", layers[key])
    if not all(type(v) is int and 0 < v <= LARGEST for v in values):
        raise DataError(f"{path}: [per_layer] {key} is {values!r}; expected numbers from 1 to {LARGEST}")
    return tuple(sorted(set(values), reverse=True))


@dataclass(frozen=True)
class _Case:
    """One combination, ready to solve; `bound` is its LP bound."""

    config: Mapping[str, Any]
    chosen: Mapping[str, Any]
    decoder: Decoder
    count: int
    units: tuple[Unit, ...]
    problem: Problem
    bound: float


def search(
    space: Space, limits: Mapping[str, int], scale: Scale, *, seq: int, progress: Progress = silent
) -> SearchResult:
    """The best architecture of a space. Raises InfeasibleError where no combination keeps the limits."""
    if not limits:
        raise UsageError("nothing to keep: give --max-params, --max-flops or --max-kv-bytes")
    builder = _Builder(space, limits, scale, seq)
    total = math.prod(map(len, space.values.values()))
    cases = []
    for done, combination in enumerate(space.combinations(), 1):
        cases.append(builder.case(combination))
        progress(done, total)
    cases = [case for case in cases if case is not None]
    if not cases:
        raise InfeasibleError(builder.reachable())
    cases.sort(key=lambda case: -case.bound)
    ranked, explored, solved = _solve_in_turn(cases)
    if not ranked:
        raise InfeasibleError(f"{space.told}: no combination keeps all budgets together")
    case, solution = ranked[0]
    other = runner_up(case.problem, solution)
    rivals = [_found(*pair) for pair in ranked[1:2]]
    if other is not None:
        explored += other.explored
        rivals.append(_found(case, other))
    second = min(rivals, key=lambda f: (-f.nsc, f.params), default=None)
    best = _found(case, solution)
    used = {name: getattr(best, name) for name in RESOURCES}
    bound = cases[0].bound
    certificate = Certificate(
        optimum=best.nsc,
        runner_up=None if second is None else second.nsc,
        lp_bound=bound,
        gap=max(0.0, bound - best.nsc),
        labels=explored,
        combinations=total,
        solved=solved,
        infeasible=total - len(cases),
        slack={name: limit - used[name] for name, limit in limits.items()},
    )
    mean_snr = case.decoder.architecture().mean_snr(scale)
    low = f"mean s sigma^2 is {mean_snr:.2g}: NSC is nearly a multiple of the parameter count; raise --snr"
    warnings = (low,) if mean_snr < DEGENERATE_BELOW else ()
    return SearchResult(best, second, certificate, scale.init, scale.snr, seq, mean_snr, warnings)


def _solve_in_turn(cases: Sequence[_Case]) -> tuple[list[tuple[_Case, Solution]], int, int]:
    """The best two combinations: highest bound first, until no bound reaches the second."""
    ranked: list[tuple[_Case, Solution]] = []
    explored = solved = 0
    for case in cases:
        if len(ranked) == 2 and case.bound < ranked[1][1].value * (1 - 1e-12):
            break
        try:
            solution = solve(case.problem)
        except InfeasibleError:
            continue
        explored, solved = explored + solution.explored, solved + 1
        ranked = sorted([*ranked, (case, solution)], key=lambda pair: (-pair[1].value, pair[1].costs[0]))[:2]
    return ranked, explored, solved


class _Builder:
    """Makes the solver's problem of a combination; combinations that differ in depth alone share one layer."""

    def __init__(self, space: Space, limits: Mapping[str, int], scale: Scale, seq: int):
        self._space, self._limits, self._seq = space, limits, seq
        self._measure = at_initialisation(scale)
        self._layers: dict[str, tuple[Decoder, tuple[Unit, ...]]] = {}
        self._least: dict[str, int] = {}
        self._most: dict[str, int] = {}

    def case(self, combination: Mapping[str, Any]) -> _Case | None:
        """The problem, or None where a budget alone cannot be kept."""
        config = {**self._space.base, **combination}
        check_prunable(config, self._space.told)
        count = config["num_hidden_layers"]
        decoder, (*layer, rest) = self._layer(config)
        units = []
        for index in range(count):
            protected = self._space.drop and index == 0
            units += [replace(u, layer=index, group=_without_none(u) if protected else u.group) for u in layer]
        units.append(rest)
        problem = Problem(tuple(u.group for u in units), tuple(self._limits.get(name) for name in RESOURCES))
        for r, name in enumerate(RESOURCES):
            least, most = problem.reachable(r)
            self._least[name] = min(least, self._least.get(name, least))
            self._most[name] = max(most, self._most.get(name, most))
            if least > self._limits.get(name, least):
                return None
        return _Case(config, combination, decoder, count, tuple(units), problem, upper_bound(problem))

    def _layer(self, config: Mapping[str, Any]) -> tuple[Decoder, tuple[Unit, ...]]:
        """One layer's units and what stands beside the layers."""
        single = {k: v for k, v in config.items() if not (isinstance(v, list) and "layer" in k)}
        single["num_hidden_layers"] = 1
        key = repr(sorted(single.items(), key=lambda item: item[0]))
        if key not in self._layers:
            decoder = decoder_of(single, self._space.told)
            dense = decoder.dense
            heads = tuple((dense.heads, kv) for kv in self._space.kv or (dense.kv,))
            for _, kv in heads:
                if dense.heads % kv:
                    raise DataError(
                        f"{self._space.told}: {kv} key and value heads do not divide {dense.heads} heads"
                    )
            choices = Choices(self._space.ffn or (dense.ffn,), heads, (self._space.drop,))
            self._layers[key] = decoder, tuple(units_of(decoder, choices, self._seq, self._measure))
        return self._layers[key]

    def reachable(self) -> str:
        """What the space can reach, for the message that no combination keeps the limits."""
        words = [
            f"{name} {limit} (reachable {self._least[name]} to {self._most[name]})"
            for name, limit in self._limits.items()
        ]
        return f"{self._space.told}: no combination keeps the budget {', '.join(words)}"


def _without_none(unit: Unit) -> Any:
    """The group of a layer that stays."""
    stays = [i for i, width in enumerate(unit.widths) if width is not None]
    group = unit.group
    return replace(group, values=tuple(group.values[i] for i in stays), costs=tuple(group.costs[i] for i in stays))


def _found(case: _Case, solution: Solution) -> Found:
    layers = chosen_widths(case.decoder.dense, case.count, case.units, solution)
    kept = [width for width in layers if width is not None]
    config = {**case.config, "num_hidden_layers": len(kept)}
    if len(kept) != case.count:
        config = {k: v for k, v in config.items() if not (isinstance(v, list) and "layer" in k)}
    config |= {"intermediate_size": max(w.ffn for w in kept), "num_key_value_heads": max(w.kv for w in kept)}
    return Found(config, case.chosen, layers, solution.value, *solution.costs)
