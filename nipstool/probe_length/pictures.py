"""Pictures: R2 by layer beside the baselines, estimates along an answer, transfer, latency under load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit import plots
from nipstool.kit.files import AtomicFile
from nipstool.kit.plots import CATEGORIES, SEQUENTIAL
from nipstool.probe_length.comparison import BOTH, LENGTH, POSITION, PROBE, PROMPT, SMOOTH
from nipstool.probe_length.trace import smoothed

if TYPE_CHECKING:
    from nipstool.probe_length.fit import Report
    from nipstool.probe_length.metrics import Bucket
    from nipstool.probe_length.schedule import Schedule
    from nipstool.probe_length.trace import Trace
    from nipstool.probe_length.transfer import Transfer

BLUE, ORANGE, GREEN, PURPLE, SKY, RED = CATEGORIES


def save(path: Path, figure: Any, *, force: bool) -> None:
    """Write a picture in the form that its name says, whole or not at all."""
    form = path.suffix.lstrip(".").lower()
    with AtomicFile(path, force=force) as out:
        plots.save(figure, out.file, form)


def figure_of(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure and its axes [rows][columns], without a display."""
    figure = plots.new_figure(*size)
    axes = figure.subplots(rows, columns, squeeze=False)
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def layers(report: Report) -> Any:
    """R2 of both probes by layer, along the answer and at t = 0, with the baselines as lines."""
    figure, axes = figure_of(1, 2, (9.0, 3.6))
    places = [one.layer for one in report.layers]
    along, first = axes[0]
    along.plot(places, [one.both for one in report.layers], "o-", color=BLUE, label=BOTH)
    along.plot(places, [one.probe for one in report.layers], "s-", color=ORANGE, label=PROBE)
    first.plot(places, [one.first for one in report.layers], "s-", color=ORANGE, label=PROBE)
    _baselines(along, report.along)
    _baselines(first, report.first)
    if report.ceiling is not None:
        first.axhline(report.ceiling, color=RED, linestyle=":", linewidth=1.5, label="ceiling (ICC)")
    for axis, title in ((along, "along the answer"), (first, "before the answer begins (t = 0)")):
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xlabel("layer (0: token identity)")
        axis.set_xticks(places if len(places) <= 14 else places[:: -(-len(places) // 12)])
        axis.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    along.set_ylabel("R2 of log1p(remaining tokens), held out")
    return figure


def buckets(found: Sequence[Bucket]) -> Any:
    """R2 within stretches of positions, of both probes and of position alone."""
    figure, axes = figure_of(1, 1, (6.5, 3.4))
    axis = axes[0][0]
    labels = [f"{one.low}-{one.high}" for one in found]
    for name, colour in ((POSITION, GREEN), (PROBE, ORANGE), (BOTH, BLUE)):
        axis.plot(labels, [max(one.r2[name], -1.0) for one in found], "o-", color=colour, label=name)
    axis.axhline(0, color="#999999", linewidth=0.6)
    axis.set_xlabel("position t")
    axis.set_ylabel("R2 within (shown from -1)")
    axis.set_title("R2 by position: what is left when position says nothing", loc="left", fontsize=10)
    axis.legend(fontsize=8, frameon=False)
    return figure


def matrices(found: Sequence[Transfer]) -> Any:
    """R2 with the intercept fitted anew, of every kind of probe: rows fitted on, columns judged on."""
    size = len(found[0].names)
    figure, axes = figure_of(1, len(found), (3.2 * len(found) + 0.25 * size, 2.6 + 0.25 * size))
    for axis, one in zip(axes[0], found, strict=True):
        values = [[cell.shifted for cell in row] for row in one.cells]
        axis.imshow(values, cmap=SEQUENTIAL, vmin=0.0, vmax=1.0)
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                colour = "white" if value < 0.6 else "black"
                axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour)
        axis.set_xticks(range(size), labels=one.names, rotation=45, ha="right", fontsize=8)
        axis.set_yticks(range(size), labels=one.names, fontsize=8)
        axis.tick_params(length=0)
        axis.set_title(one.kind, loc="left", fontsize=10)
    axes[0][0].set_ylabel("fitted on")
    figure.supxlabel("judged on (R2, intercept anew)", fontsize=9)
    return figure


def traces(found: Sequence[Trace], window: int) -> Any:
    """Up to three answers, those with markers first: estimates raw and smoothed, position alone, and the loss."""
    chosen = sorted(found, key=lambda one: not one.markers)[:3]
    figure, axes = figure_of(2 * len(chosen), 1, (9.0, 3.6 * len(chosen)))
    for i, one in enumerate(chosen):
        above, below = axes[2 * i][0], axes[2 * i + 1][0]
        for kind, colour in ((PROBE, ORANGE), (BOTH, BLUE)):
            above.plot(one.estimates[kind], color=colour, linewidth=0.7, alpha=0.35)
            above.plot(smoothed(one.estimates[kind], window), color=colour, label=f"{kind}, smoothed")
        above.plot(one.estimates[SMOOTH], "--", color=GREEN, label="position alone")
        if one.length is not None:
            above.plot([one.length - t for t in range(len(one.tokens))], ":", color="#555555", label="truth")
        below.plot(one.nll, color=PURPLE, linewidth=0.8)
        for axis in (above, below):
            for t in one.markers:
                axis.axvline(t + 0.5, color=RED, linewidth=1.2)
        above.set_ylabel("remaining (tokens)")
        below.set_ylabel("loss (nats)")
        where = f"{one.id}" if one.id is not None else one.where
        above.set_title(
            f"{where}" + (": red where it is taken back" if one.markers else ""), loc="left", fontsize=10
        )
        above.legend(fontsize=8, frameon=False, ncols=4, loc="upper right")
    axes[-1][0].set_xlabel("position t (response tokens so far)")
    return figure


def latencies(found: Schedule) -> Any:
    """Mean and p99 latency over FCFS's, by load, one column a number of slots."""
    slots = list(dict.fromkeys(x.slots for x in found.latencies))
    orders = list(dict.fromkeys(x.order for x in found.latencies))
    figure, axes = figure_of(2, len(slots), (3.6 * len(slots) + 2.0, 5.4))
    for column, count in enumerate(slots):
        for order, colour in zip(orders, ("#555555", ORANGE, BLUE, GREEN, PURPLE), strict=True):
            rows = [x for x in found.latencies if x.slots == count and x.order == order]
            loads = [x.load for x in rows]
            axes[0][column].plot(loads, [x.of_mean for x in rows], "o-", color=colour, label=order)
            axes[1][column].plot(loads, [x.of_p99 for x in rows], "o-", color=colour, label=order)
        axes[0][column].set_title(f"{count} slot{'s' * (count > 1)}", loc="left", fontsize=10)
        axes[1][column].set_xlabel("load")
    axes[0][0].set_ylabel("mean latency / FCFS")
    axes[1][0].set_ylabel("p99 latency / FCFS")
    axes[0][-1].legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _baselines(axis: Any, lines: Sequence[Any]) -> None:
    styles = {POSITION: (GREEN, "--"), LENGTH: (PURPLE, "-."), PROMPT: (GREEN, "--")}
    for line in lines:
        if line.name in styles:
            colour, style = styles[line.name]
            axis.axhline(line.r2, color=colour, linestyle=style, linewidth=1.5, label=line.name)
    axis.axhline(0, color="#999999", linewidth=0.6)
