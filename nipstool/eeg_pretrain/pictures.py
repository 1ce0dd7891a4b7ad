"""Pictures of a run: how the loss fell, what was predicted, and a recording's risk over time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from nipstool.eeg_pretrain.config import NOTICE
from nipstool.kit.plots import CATEGORIES, new_figure, save

if TYPE_CHECKING:
    from nipstool.eeg_pretrain.outputs import Detected

MOST_ROWS = 12
TERMS = ("ntp", "detection", "onset", "hazard", "descriptors")
DPI = 110


@dataclass(frozen=True)
class Example:
    """Channels of a held-out window: (C, n) signal and its prediction a patch ahead, in uV, at fs Hz."""

    labels: Sequence[str]
    signal: np.ndarray
    predicted: np.ndarray
    fs: float


def draw_losses(log: Path, file: BinaryIO | Path) -> None:
    """Every term of the loss over steps, and the next-patch R2 on held-out windows."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "loss" in line]
    checks = [line for line in lines if line.get("validation")]
    figure = new_figure(8.0, 3.2)
    left, right = figure.subplots(1, 2)
    for name, colour in zip(TERMS, CATEGORIES, strict=False):
        values = np.array([line[name] if line[name] is not None else np.nan for line in steps], float)
        if np.nanmax(np.abs(values), initial=0.0) > 0:
            left.plot([line["step"] for line in steps], _smooth(values), label=name, color=colour, linewidth=1.2)
    left.set_title("Training loss, by term", loc="left", fontsize=10)
    left.legend(fontsize=8, frameon=False)
    at, r2 = [c["step"] for c in checks], [c["validation"]["r2"] for c in checks]
    right.plot(at, [np.nan if v is None else v for v in r2], "o-", color=CATEGORIES[0], markersize=3)
    right.set_title("Next-patch R² on held-out windows", loc="left", fontsize=10)
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, file, dpi=DPI)


def _smooth(values: np.ndarray, width: int = 9) -> np.ndarray:
    if len(values) < 3 * width:
        return values
    return np.convolve(np.pad(values, width // 2, mode="edge"), np.ones(width) / width, mode="valid")


def draw_example(example: Example, file: BinaryIO | Path) -> None:
    """Some channels, and over them what was predicted of every patch from those before it."""
    figure = new_figure(8.0, 0.8 + 0.8 * len(example.labels))
    axes = figure.subplots()
    t = np.arange(example.signal.shape[1]) / example.fs
    step = 6.0 * float(np.median(example.signal.std(axis=1))) or 1.0
    for row in range(len(example.labels)):
        axes.plot(t, example.signal[row] - row * step, color="#999999", linewidth=0.8)
        axes.plot(t, example.predicted[row] - row * step, color=CATEGORIES[0], linewidth=0.8)
    axes.set_yticks([-row * step for row in range(len(example.labels))], labels=list(example.labels), fontsize=8)
    axes.set_xlabel("seconds")
    title = "A held-out window: grey as recorded, blue as predicted a patch ahead"
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.0)
    save(figure, file, dpi=DPI)


def draw_detections(
    file: BinaryIO, found: Sequence[Detected], threshold: float, horizons_s: Sequence[float], *, form: str = "png"
) -> None:
    """Probability of a seizure and risk within the nearest horizon over time, a row a recording, with its labels.

    What lies further ahead is in the table of risks: where seizures are never far apart it is always near 1.
    """
    shown, ahead = found[:MOST_ROWS], f"risk within {horizons_s[0] / 60.0:g} min"
    figure = new_figure(9.0, 0.9 + 1.5 * len(shown))
    rows = np.atleast_1d(figure.subplots(len(shown), 1))
    for axes, one in zip(rows, shown, strict=True):
        minutes = np.arange(1, len(one.smoothed) + 1) / 60.0
        axes.plot(minutes, one.track.risk[:, 0], color=CATEGORIES[2], linewidth=0.6, label=ahead)
        axes.plot(minutes, one.smoothed, color=CATEGORIES[0], linewidth=0.9, label="seizure now")
        for seizure in one.recording.seizures:
            axes.axvspan(seizure.onset_s / 60.0, seizure.offset_s / 60.0, color=CATEGORIES[1], alpha=0.4, lw=0)
        for event in one.events:
            axes.plot(
                [event.onset_s / 60.0, event.offset_s / 60.0], [1.08, 1.08], color=CATEGORIES[5], linewidth=4
            )
        axes.axhline(threshold, color="#666666", linewidth=0.8, linestyle="--")
        axes.set_ylim(0.0, 1.15)
        axes.margins(x=0.0)
        axes.set_title(one.recording.path.name, loc="left", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    rows[0].legend(fontsize=7, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    told = f"minutes (orange: labelled seizures; bars above: detections; dashed: threshold); {NOTICE}"
    rows[-1].set_xlabel(told, fontsize=8)
    save(figure, file, form, dpi=DPI)
