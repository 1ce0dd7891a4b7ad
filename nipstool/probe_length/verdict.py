"""In words: whether the hidden state adds anything to what is known without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nipstool.probe_length.comparison import (
    BOTH,
    CONSTANT,
    HIDDEN,
    LENGTH,
    NOTHING,
    POSITION_ENDED,
    PROBE,
    TOBIT,
    Line,
)

if TYPE_CHECKING:
    from nipstool.probe_length.evaluate import Evaluation
    from nipstool.probe_length.fit import Report

    Judged = Report | Evaluation


def verdict(report: Judged) -> list[str]:
    """Sentences for people, the same numbers behind them as in the report's tables."""
    along = {line.name: line for line in report.along}
    first = {line.name: line for line in report.first}
    told = [_alone(report, along[PROBE]), _with_position(report, along[BOTH]), *_at_start(report, first)]
    if POSITION_ENDED in along:
        told.append(
            "along the answer only answers that ended take part, so position alone is shown both ways: with cut"
            " answers as censored (Kaplan-Meier), and without them; skill is over the better baseline"
        )
    return told


def adds_nothing(line: Line) -> bool:
    """Whether a skill is too small, or too uncertain, to speak of."""
    return line.skill <= NOTHING or (line.interval is not None and not line.interval[0] > 0)


def _best(lines: tuple[Line, ...]) -> Line:
    """The best baseline: what knows no hidden state."""
    return max((line for line in lines if line.name not in HIDDEN), key=lambda line: line.r2)


def _alone(report: Judged, probe: Line) -> str:
    plain = (line for line in report.along if line.name not in (*HIDDEN, LENGTH, CONSTANT))
    base = max(plain, key=lambda line: line.r2)
    beats = "beats" if probe.r2 > base.r2 + NOTHING * (1 - base.r2) else "does not beat"
    return (
        f"along the answer the probe alone (layer {probe.layer}, R2 {probe.r2:.3f}) {beats} position alone"
        f" (R2 {base.r2:.3f})"
    )


def _with_position(report: Judged, both: Line) -> str:
    low, high = both.interval or (float("nan"), float("nan"))
    base = _best(report.along)
    told = f"skill {both.skill:.3f} over {base.name}, R2 {base.r2:.3f}; 95 % interval {low:.3f} to {high:.3f}"
    if adds_nothing(both):
        return f"beside position the hidden state adds nothing: R2 {both.r2:.3f} ({told})"
    return f"beside position the hidden state adds to the estimate: R2 {both.r2:.3f} ({told})"


def _at_start(report: Judged, first: dict[str, Line]) -> list[str]:
    probe, base = first.get(PROBE) or first[TOBIT], _best(report.first)
    what = f"before the answer begins, the probe (layer {probe.layer}, R2 {probe.r2:.3f})"
    if adds_nothing(probe):
        told = [f"{what} adds nothing to {base.name} (R2 {base.r2:.3f})"]
    else:
        told = [f"{what} beats {base.name} (R2 {base.r2:.3f})"]
    if report.ceiling is not None and report.ceiling > 0:
        reached = max(probe.r2, 0) / report.ceiling
        told.append(
            f"sampling sets a ceiling: no predictor that sees the prompt alone can exceed R2 {report.ceiling:.3f}"
            f" here (ICC of several answers a prompt); the probe reaches {reached:.0%} of it"
        )
    return told
