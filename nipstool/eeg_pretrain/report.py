"""Results as rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nipstool.eeg_pretrain.config import NOTICE
from nipstool.eeg_pretrain.outputs import Detected
from nipstool.kit.counts import counted

Cell = str | float | int | None
Table = tuple[str, tuple[str, ...], list[tuple[Cell, ...]]]
"""Title, columns, rows."""


def training_tables(about: Mapping[str, Any]) -> list[Table]:
    """What a run reached on what was held out, and the thresholds that were chosen there."""
    names = {"r2": "next-patch R2"}
    rows: list[tuple[Cell, ...]] = [(names.get(name, name), value) for name, value in about["validation"].items()]
    tables: list[Table] = [("On what was held out", ("measure", "value"), rows)] if rows else []
    if about["thresholds"]["model"]["chosen"]:
        keys = ("value", "events", "sensitivity", "f1", "fp_per_day")
        rows = [(name, *(found.get(key) for key in keys)) for name, found in about["thresholds"].items()]
        columns = ("detector", "threshold", "events", "sensitivity", "F1", "FP/24 h")
        tables.append(("Thresholds, chosen on what was held out", columns, rows))
    return tables


def training_line(output: str, about: Mapping[str, Any]) -> str:
    """What was written, in a line."""
    skipped = f" ({about['skipped']} skipped)" if about["skipped"] else ""
    early = ", stopped early" if about["stopped_early"] else ""
    labels = "" if about["labelled"] else ", no seizure labels: it embeds and cannot detect"
    return (
        f"wrote {output}: {about['parameters']} parameters, {about['steps']} steps{skipped}{early},"
        f" {counted(about['recordings'], 'recording')} of {about['hours']:g} h{labels}; {NOTICE}"
    )


EVENT_COLUMNS = ("file", "hours", "events", "onsets in seconds", "highest score")


def event_rows(found: Sequence[Detected]) -> list[tuple[Cell, ...]]:
    """A recording's detections, a row each."""
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        onsets = [f"{event.onset_s:.0f}" for event in one.events]
        shown = ", ".join(onsets[:6]) + (f" and {len(onsets) - 6} more" if len(onsets) > 6 else "")
        hours, top = one.recording.duration_s / 3600.0, float(one.smoothed.max(initial=0.0))
        rows.append((one.recording.path.name, hours, len(onsets), shown or None, top))
    return rows


def detections(found: Sequence[Detected], threshold: Mapping[str, Any]) -> dict[str, Any]:
    """All of it as a document."""
    files = [
        {"file": str(one.recording.path), "seconds": one.recording.duration_s, "events": one.events}
        for one in found
    ]
    return {"note": NOTICE, "threshold": dict(threshold), "files": files}


def threshold_line(threshold: Mapping[str, Any]) -> str:
    """Where the threshold comes from."""
    if not threshold["chosen"]:
        return f"threshold {threshold['value']:.4g}: not chosen, since no held-out recording had a seizure"
    numbers = {name: threshold[name] for name in ("f1", "sensitivity", "fp_per_day")}
    f1, sensitivity, rate = ("-" if value is None else f"{value:.3g}" for value in numbers.values())
    return (
        f"threshold {threshold['value']:.4g}, chosen on {threshold['events']} held-out seizures:"
        f" F1 {f1}, sensitivity {sensitivity}, {rate} false alarms in 24 h"
    )


def evaluation_table(
    result: Mapping[str, Mapping[str, Any]], protocol: str
) -> tuple[tuple[str, ...], list[tuple]]:
    """Columns and rows of what evaluation.report gives for each detector."""
    if protocol == "szcore":
        names = ("sensitivity", "precision", "f1", "fp_per_day")
        rows = [
            (detector, f"{kind}, {how}", *(numbers[name] for name in names))
            for detector, kinds in result.items()
            for kind, ways in kinds.items()
            for how, numbers in ways.items()
        ]
        return ("detector", "counted", "sensitivity", "precision", "F1", "FP/24 h"), rows
    measures = [name for name, value in next(iter(result.values())).items() if not isinstance(value, dict)]
    rows = [(detector, *(numbers[name] for name in measures)) for detector, numbers in result.items()]
    return ("detector", *(name.replace("_", " ") for name in measures)), rows
