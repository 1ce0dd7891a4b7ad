"""A count in the rows and words that a terminal shows."""

from __future__ import annotations

from collections.abc import Sequence

from nipstool.rosetta_count.count import FDR, THRESHOLD, Count, PairCount, Tally
from nipstool.rosetta_count.results import STATES, control_means

NOT_COMPUTED = "not computed"
Cell = str | float | int | None


def title(count: Count, one: PairCount) -> str:
    """What a table is about."""
    return f"{count.subjects[0].name} and {one.model}: {count.samples} samples of {count.documents} documents"


def columns(count: Count) -> tuple[str, ...]:
    """The heads of the table; pairs above --min-r have a column of their own where it asks for anything else."""
    kept = (f"r >= {count.min_r:g}",) if count.min_r not in (0.0, THRESHOLD) else ()
    return ("what", "pairs", *kept, f"r >= {THRESHOLD}", f"FDR {FDR}", "highest r")


def rows(count: Count, one: PairCount) -> list[tuple[Cell, ...]]:
    """The count and its controls, the permuted one as a mean over its repetitions."""
    highest = float(one.pairs.r[0]) if len(one.pairs) else None
    found: int | str = "too few pairs" if one.fdr is None else one.fdr
    shown: list[tuple[Cell, ...]] = [("observed", *_numbers(count, one), found, highest)]
    known = dict(control_means(one))
    for name in ("permuted", "rotated", "untrained"):
        tally = known.get(name)
        if tally is None:
            shown.append((f"{name} (not available)", *[None] * (len(columns(count)) - 1)))
        else:
            shown.append((name, *_numbers(count, tally), None, tally.highest))
    return shown


def _numbers(count: Count, found: PairCount | Tally) -> list[Cell]:
    kept = [found.kept] if len(columns(count)) == 6 else []
    return [NOT_COMPUTED if found.raw is None else found.raw, *kept, found.thresholded]


def words(count: Count) -> list[str]:
    """What the tables leave out, a line each."""
    lines = []
    for one in count.pairs:
        chance = f"{one.chance:.0f} mutual pairs are expected without any relation"
        excess = "" if one.excess is None else f"; {one.excess} anchor neurons with excess correlation > 0.5"
        floor = f"; q cannot be below {one.least_q:.2g}" if one.fdr is None else ""
        lines.append(f"{one.model}: {chance}{excess}{floor}")
    if len(count.pairs) > 1:
        lines.append(
            f"{len(count.anchors)} neurons of {count.subjects[0].name} have a partner in every other model"
        )
    for subject, neurons in zip(count.subjects, count.neurons, strict=True):
        out = ", ".join(f"{neurons.count(state)} {state}" for state in STATES if neurons.count(state))
        if out:
            lines.append(f"{subject.name}: left out of {subject.neurons} neurons: {out}")
    if count.untrained != "re-initialised":
        lines.append(f"untrained control: {count.untrained}")
    return [*lines, *count.notes]


def gap_rows(document: dict[str, object]) -> list[tuple[str, str, float, float, float, float, float]]:
    """The gap between shared and other neurons, model by model."""
    models = document["models"]
    assert isinstance(models, Sequence)
    return [
        (m["model"], g.measure, g.shared, g.others, g.gap, g.low, g.high)  # type: ignore[index]
        for m in models
        for g in m["gaps"]  # type: ignore[index]
    ]


GAP_COLUMNS = ("model", "median of", "shared", "others", "gap within layers", "low", "high")
