"""Counts over several sizes: from the folders of counts, or a table with a row a pair of models."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nipstool.kit.errors import DataError, UsageError
from nipstool.kit.files import check_input, spooled_input
from nipstool.kit.records import is_number, read_csv, shown
from nipstool.rosetta_count.law import LEAST_SIZES, Law, Trend, fit_law, sizes_for_aicc, trend
from nipstool.rosetta_count.results import read_summary

COUNTS = ("raw", "thresholded", "fdr", "excess")
OBSERVED = "observed"
MOST = 1e30  # of a count or a size: what is fitted squares it
CONTROLS = ("permuted", "rotated", "untrained")
MEASURES = ("kurtosis", "sparseness", "selectivity", "auroc")
PARTS = ("1/8", "1/4", "1/2", "1")


@dataclass(frozen=True)
class Row:
    """One pair of models of a size: x by name, counts by name, what was counted, gaps of its shared neurons."""

    x: Mapping[str, float]
    counts: Mapping[str, float]
    series: str
    gaps: Mapping[str, float] = field(default_factory=dict)
    parts: tuple[Mapping[str, float], ...] = ()  # the counts on the first 1/8, 1/4, 1/2, 1 of the samples


@dataclass(frozen=True)
class Fit:
    """Laws of the observed count and of the controls, on parts of the samples, and trends of the gaps."""

    count: str
    x: str
    laws: tuple[Law, ...]
    parts: tuple[Law, ...]
    trends: tuple[Trend, ...]
    missing: tuple[str, ...]  # series that have no law, and why

    def law(self, name: str) -> Law | None:
        """A law by its series."""
        return next((law for law in self.laws if law.name == name), None)


def read_rows_of(sources: Sequence[str]) -> list[Row]:
    """The rows of folders that counts left, or of one table ('-' is standard input).

    Raises UsageError where both are mixed, DataError naming the line of a table, InputMissingError.
    """
    folders = [name != "-" and check_input(name).is_dir() for name in sources]
    if all(folders):
        return [row for name in sources for row in rows_of_summary(read_summary(name), name)]
    if len(sources) > 1:
        raise UsageError("fit takes folders of counts, or one table; both, or several tables, were named")
    with spooled_input(sources[0]) as file:
        told = "stdin" if sources[0] == "-" else sources[0]
        return list(rows_of_table(_text(file, told), told))


def _text(file: Path, told: str) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{told}: is no UTF-8 text: {error.reason} at byte {error.start}") from error


def rows_of_summary(document: Mapping[str, Any], told: str) -> Iterable[Row]:
    """The rows of one count: of each pair of models the observed counts and the controls'."""
    try:
        anchor = document["models"][0]
        x = {"neurons": _counted(anchor["neurons"])}
        if anchor.get("parameters"):
            x["params"] = _counted(anchor["parameters"])
        gaps = {gap["measure"]: float(gap["gap"]) for gap in anchor["gaps"]}
        for pair in document["pairs"]:
            parts = tuple({name: _counted(one[name]) for name in COUNTS[:2]} for one in pair["prefixes"])
            yield Row(x, _numbers(pair["counts"]), OBSERVED, gaps, parts)
            for name, found in pair["controls"].items():
                tallies = found if isinstance(found, list) else [found]
                known = [_numbers(tally) for tally in tallies if isinstance(tally, dict)]
                if known:
                    kinds = [key for key in COUNTS[:2] if all(key in one for one in known)]
                    yield Row(x, {key: _mean(one[key] for one in known) for key in kinds}, name)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DataError(f"{told}: its summary is not that of a count ({type(error).__name__}: {error})") from error


def _numbers(counts: Mapping[str, Any]) -> dict[str, float]:
    return {name: _counted(counts[name]) for name in COUNTS if counts.get(name) is not None}


def _counted(value: Any) -> float:
    if not (is_number(value, MOST) and value >= 0):
        raise ValueError(f"{shown(value)} counts nothing")
    return float(value)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def rows_of_table(text: str, told: str) -> Iterable[Row]:
    """Rows `size,count[,neurons,params,raw,pair,control]`; without `neurons` the size stands for it."""
    rows = read_csv(io.StringIO(text, newline=""), told)
    columns = next(rows, (1, []))[1]
    if missing := [name for name in ("size", "count") if name not in columns]:
        raise DataError(f"{told}: no column {missing[0]!r}; expected size,count[,neurons,params,raw,pair,control]")
    empty = True
    for number, cells in rows:
        if not cells:
            continue
        empty = False
        line: dict[str, str] = dict.fromkeys(columns, "") | dict(zip(columns, cells, strict=False))
        x = {"neurons": _number(line.get("neurons") or line["size"], told, number, "size")}
        if line.get("params"):
            x["params"] = _number(line["params"], told, number, "params")
        counts = {"thresholded": _number(line["count"], told, number, "count", least=0.0)}
        for name in ("raw", "fdr", "excess"):
            if line.get(name):
                counts[name] = _number(line[name], told, number, name, least=0.0)
        yield Row(x, counts, (line.get("control") or "").strip() or OBSERVED)
    if empty:
        raise DataError(f"{told}: has no rows; expected a count of each pair of models")


def _number(value: str | None, told: str, line: int, name: str, least: float = 1e-300) -> float:
    try:
        number = float(value or "")
    except ValueError:
        number = math.nan
    if not least <= number <= MOST:
        raise DataError(f"{told}: line {line}: {name} is {value!r}; expected a number from {least:g} to {MOST:g}")
    return number


def fit_rows(rows: Sequence[Row], *, count: str = "thresholded", x: str = "neurons", seed: int = 0) -> Fit:
    """Fit every series. Raises DataError where the observed counts have no three sizes."""
    if count not in COUNTS:
        raise UsageError(f"--count {count}: expected {', '.join(COUNTS)}")
    if seed < 0:
        raise UsageError(f"--seed {seed}: expected 0 or more")
    if x not in ("neurons", "params"):
        raise UsageError(f"--x {x}: expected neurons or params")
    if not any(row.series == OBSERVED for row in rows):
        raise DataError("no observed counts among the rows; a control's name stands in the column `control`")
    laws, missing = [], []
    wanted = [(OBSERVED, count), *((name, count) for name in CONTROLS)]
    wanted += [(name, "raw") for name in (OBSERVED, *CONTROLS)] if count != "raw" else []
    others = sorted({row.series for row in rows} - {OBSERVED, *CONTROLS})
    wanted += [(name, count) for name in others]
    for series, kind in wanted:
        name = series if kind == count else f"{series} ({kind})"
        groups = _by_size([r for r in rows if r.series == series], kind, x)
        if not groups:
            continue
        try:
            laws.append(fit_law(name, list(groups), list(groups.values()), seed))
        except DataError as error:
            if series == OBSERVED and kind == count:
                raise
            missing.append(str(error))
    if not laws or laws[0].name != OBSERVED:
        raise DataError(f"no observed row has a count {count!r} and {x}; a law needs {LEAST_SIZES} sizes")
    observed = [row for row in rows if row.series == OBSERVED]
    parts = _parts(observed, count, x, seed)
    return Fit(count, x, tuple(laws), tuple(parts), tuple(_trends(observed, x, seed)), tuple(missing))


def _by_size(rows: Sequence[Row], kind: str, x: str) -> dict[float, list[float]]:
    groups: dict[float, list[float]] = {}
    for row in rows:
        if kind in row.counts and x in row.x:
            groups.setdefault(row.x[x], []).append(row.counts[kind])
    return dict(sorted(groups.items()))


def _parts(rows: Sequence[Row], count: str, x: str, seed: int) -> list[Law]:
    """The same law from the first 1/8, 1/4 and 1/2 of the samples, where the counts say so."""
    kind = "raw" if count == "raw" else "thresholded"
    if not rows or any(len(row.parts) != len(PARTS) for row in rows):
        return []
    found = []
    for at, name in enumerate(PARTS):
        part = [Row(row.x, row.parts[at], OBSERVED) for row in rows]
        groups = _by_size(part, kind, x)
        try:
            found.append(fit_law(f"{name} of the samples", list(groups), list(groups.values()), seed))
        except DataError:
            continue
    return found


def _trends(rows: Sequence[Row], x: str, seed: int) -> list[Trend]:
    found = []
    for measure in MEASURES:
        groups: dict[float, list[float]] = {}
        for row in rows:
            if measure in row.gaps and x in row.x:
                groups.setdefault(row.x[x], []).append(row.gaps[measure])
        places = sorted(groups)
        one = trend(measure, places, [_mean(groups[place]) for place in places], seed) if places else None
        found += [] if one is None else [one]
    return found


LAW_COLUMNS = ("series", "alpha", "low", "high", "R2", "quasi-Poisson", "Theil-Sen", "p(alpha >= 1)")
LawRow = tuple[str, float, float, float, float, float | None, float, float]


def law_rows(laws: Iterable[Law]) -> list[LawRow]:
    """Fits as rows of a table."""
    return [
        (
            law.name,
            law.line.alpha,
            law.line.low,
            law.line.high,
            law.line.r2,
            None if law.poisson is None else law.poisson.alpha,
            law.theil_sen,
            law.line.p_sublinear,
        )
        for law in laws
    ]


def verdict(fit: Fit) -> list[str]:
    """What the exponents say, beside those of the controls, in words."""
    first = fit.laws[0]
    lines = [f"observed: count = {_factor(first)} x {fit.x}^{first.line.alpha:.3f} over {len(first.x)} sizes"]
    lines.append(_best_law(first))
    names = [law for law in fit.laws if law.name.startswith(CONTROLS)]
    near = [law for law in names if abs(law.line.alpha - first.line.alpha) <= SAME]
    if names:
        told = ", ".join(f"{law.name} {law.line.alpha:.2f}" for law in names)
        same = f"{len(near)} of {len(names)} are of the same size (within {SAME})"
        lines.append(f"controls' exponents: {told}: {same}")
    if near:
        lines.append("so an exponent below 1 with a high R2 is no evidence of shared neurons by itself")
    return [*lines, *(f"no law for {told}" for told in fit.missing)]


def _best_law(law: Law) -> str:
    """The law with the lowest AICc; where it is undefined for some, what it needs instead of a winner."""
    told = ", ".join(f"{name} {value:.1f}" for name, value in law.aicc.items() if math.isfinite(value))
    lacking = [name for name, value in law.aicc.items() if not math.isfinite(value)]
    if not lacking:
        return f"AICc (lower is better): {told}: {min(law.aicc, key=lambda name: law.aicc[name])}"
    needs = ", ".join(f"{sizes_for_aicc(name)} sizes or more for the {name} law" for name in lacking)
    return f"AICc needs {needs}; no law is called the best{told and f' ({told})'}"


SAME = 0.25  # exponents that differ by less are called of the same size


def _factor(law: Law) -> str:
    return f"{math.exp(law.line.log_a):.3g}"
