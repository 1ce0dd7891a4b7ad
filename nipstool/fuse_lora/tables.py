"""Results as tables and JSON-able documents: columns, rows and sentences, for whoever shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nipstool.fuse_lora.compare import Comparison, Direction
from nipstool.fuse_lora.fuse import Fusion
from nipstool.fuse_lora.inspect import FileFacts
from nipstool.fuse_lora.report import ModuleReport, SweepPoint, Totals, natural, totals

Cell = str | float | int | None
Table = tuple[tuple[str, ...], list[tuple[Cell, ...]]]
"""Column names, and rows of cells."""


def by_block(modules: Sequence[ModuleReport]) -> Table:
    """One row a block of the network where content and style meet."""
    groups: dict[str, list[ModuleReport]] = {}
    for module in modules:
        if module.overlap is not None:
            groups.setdefault(module.block, []).append(module)
    rows: list[tuple[Cell, ...]] = []
    for name, group in sorted(groups.items(), key=lambda item: natural(item[0])):
        t = totals(group)
        worst = max(group, key=lambda m: m.ratio or 0.0)
        most = f"{worst.kind} {worst.ratio:.2f}"
        rows.append((name, len(group), t.overlap, t.chance, t.ratio, t.leaked, t.change, most))
    return ("block", "modules", "overlap", "chance", "ratio", "leaked", "change", "highest ratio"), rows


def by_module(modules: Sequence[ModuleReport]) -> Table:
    """One row a module where content and style meet."""
    columns = ("module", "ranks", "k", "|content|", "|style|", "overlap", "chance", "ratio", "overlap out")
    columns += ("mu", "leaked", "retained", "change", "truncation")
    rows: list[tuple[Cell, ...]] = [
        (
            m.name,
            f"{m.rank_content}+{m.rank_style}>{m.rank}",
            m.k,
            m.norm_content,
            m.norm_style,
            m.overlap,
            m.chance,
            m.ratio,
            m.overlap_out,
            m.mu,
            m.leaked,
            m.retained,
            m.change,
            m.truncation,
        )
        for m in modules
        if m.overlap is not None
    ]
    return columns, rows


def sweep_table(points: Sequence[SweepPoint]) -> Table:
    """One row a mu."""
    rows: list[tuple[Cell, ...]] = [(str(p.mu), p.retained, p.leaked, p.change) for p in points]
    return ("mu", "retained", "leaked", "change"), rows


def total_sentence(t: Totals) -> str:
    """The whole in one sentence, with the chance level that gives it meaning."""
    if not t.projected:
        return "content and style share no module: nothing was projected"
    return (
        f"overlap: {t.overlap:.4g} of the content's energy lies on the style's directions, {t.ratio:.2f} times"
        f" chance ({t.chance:.4g}); {t.leaked:.4g} is left there, {t.retained:.4g} is kept in all;"
        f" the result is {t.change:.2%} away from a plain sum"
    )


def result_sentence(fusion: Fusion) -> str:
    """What was written."""
    parts = [f"wrote {fusion.output}: {len(fusion.modules)} modules", fusion.family, fusion.format, fusion.dtype]
    if fusion.passed:
        parts.append(f"{len(fusion.passed)} in one file only")
    if fusion.left_out:
        parts.append(f"{len(fusion.left_out)} left out")
    if fusion.totals.truncation:
        parts.append(f"truncation error {fusion.totals.truncation:.2%}")
    return ", ".join(parts)


def facts_table(facts: FileFacts) -> Table:
    """What a file is, a row a fact."""
    refused = "; ".join(f"{what}: {key}" for what, key in facts.refused)
    unknown = ", ".join(facts.unknown[:5]) + (", ..." if len(facts.unknown) > 5 else "")
    lines: list[tuple[str, Cell]] = [
        ("file", facts.path),
        ("family", facts.family),
        ("format", facts.format),
        ("base model", facts.base_model),
        ("modules", ", ".join(f"{n} {name}" for name, n in facts.algorithms.items()) or 0),
        ("ranks", ", ".join(f"{r} ({n} modules)" for r, n in facts.ranks.items()) or None),
        ("dtype", facts.dtype),
        ("size", f"{facts.bytes / 1e6:.2f} MB in {facts.tensors} tensors"),
        ("norm", facts.norm),
        ("top-1 energy", _median(m.top1 for m in facts.modules)),
        ("stable rank", _median(m.stable_rank for m in facts.modules)),
        ("NaN or inf", facts.bad_values),
        ("trigger words", ", ".join(facts.trigger_words) or None),
        ("full weights", ", ".join(facts.saved) or None),
        ("full deltas", len(facts.additive) or None),
        ("unknown", unknown or None),
        ("cannot be fused", refused or None),
        ("sha256", facts.sha256),
    ]
    return ("what", "value"), [(name, value) for name, value in lines if value is not None]


def _median(values: Any) -> str | None:
    known = sorted(v for v in values if v is not None)
    return f"{known[len(known) // 2]:.4g} (median module)" if known else None


def module_facts_table(facts: FileFacts) -> Table:
    """One row a module of an inspected file."""
    columns = ("module", "algorithm", "shape", "rank", "alpha", "norm", "top-1 energy", "stable rank")
    rows: list[tuple[Cell, ...]] = [
        (m.name, m.algorithm, f"{m.shape[0]}x{m.shape[1]}", m.rank, m.alpha, m.norm, m.top1, m.stable_rank)
        for m in facts.modules
    ]
    return columns, rows


def fusion_document(fusion: Fusion, *, modules: bool = True) -> dict[str, Any]:
    """A fusion as one document; without `modules` as a manifest remembers it."""
    document = {
        "output": fusion.output,
        "format": fusion.format,
        "family": fusion.family,
        "dtype": fusion.dtype,
        "totals": asdict(fusion.totals),
        "passed": fusion.passed,
        "left_out": fusion.left_out,
        "listed": fusion.listed,
        "warnings": fusion.warnings,
        "notes": fusion.notes,
        "inputs": fusion.inputs,
    }
    return document | ({"modules": [_module(m) for m in fusion.modules]} if modules else {})


def comparison_document(found: Comparison) -> dict[str, Any]:
    """A comparison as one document."""
    return {
        "family": found.family,
        "inputs": found.inputs,
        "forward": _direction(found.forward),
        "backward": _direction(found.backward),
    }


def _direction(one: Direction) -> dict[str, Any]:
    return {
        "content": one.content,
        "style": one.style,
        "totals": asdict(one.totals),
        "sweep": [asdict(p) | {"mu": _mu(p.mu)} for p in one.sweep],
        "warnings": one.warnings,
        "modules": [_module(m) for m in one.modules],
    }


def _module(report: ModuleReport) -> dict[str, Any]:
    return asdict(report) | {"mu": _mu(report.mu)}


def _mu(mu: float | None) -> float | str | None:
    """JSON has no infinity: a word instead."""
    return "inf" if mu == math.inf else mu
