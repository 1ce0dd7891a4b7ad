"""Pictures of a count: the counts beside their controls, and the count on parts of the samples."""

from __future__ import annotations

import warnings
from math import exp
from typing import TYPE_CHECKING, BinaryIO

from nipstool.kit import plots
from nipstool.kit.plots import CATEGORIES, new_figure
from nipstool.rosetta_count.results import control_means

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nipstool.rosetta_count.count import Count, PairCount, Tally
    from nipstool.rosetta_count.law import Law
    from nipstool.rosetta_count.series import Fit

GREY = "#888888"


def save(made: Figure, file: BinaryIO, form: str = "png") -> None:
    """Write a figure whose texts may hold any character."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a name may have characters that the font has not
        plots.save(made, file, form)


def plain(axes: Axes, title: str, x: str, y: str) -> None:
    """The look that all axes have."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)


def draw_count(file: BinaryIO, count: Count) -> None:
    """One row a pair of models: counts, the distribution of r, and counts on parts of the samples."""
    rows = len(count.pairs)
    made = new_figure(12.5, 3.6 * rows)
    for at, one in enumerate(count.pairs):
        axes = [made.add_subplot(rows, 3, 3 * at + column) for column in (1, 2, 3)]
        _counts(axes[0], count, one)
        _distribution(axes[1], one)
        _prefixes(axes[2], one)
    save(made, file)


def _counts(axes: Axes, count: Count, one: PairCount) -> None:
    tallies: list[tuple[str, PairCount | Tally]] = [("observed", one), *control_means(one)]
    first = "kept" if one.raw is None else "raw"
    for at, (label, kind) in enumerate(
        ((f"r >= {count.min_r:g}" if first == "kept" else "raw", first), ("r >= 0.5", "thresholded"))
    ):
        values = [getattr(tally, kind) for _, tally in tallies]
        places = [x + 0.4 * at - 0.2 for x in range(len(tallies))]
        bars = axes.bar(places, values, 0.4, label=label, color=CATEGORIES[at])
        axes.bar_label(bars, fmt="%.4g", fontsize=7)
    axes.set_xticks(range(len(tallies)), labels=[t[0] for t in tallies])
    axes.axhline(one.chance, color=GREY, linestyle=":", label="chance, raw")
    axes.legend(fontsize=8, frameon=False)
    plain(axes, f"{_short(count.subjects[0].name)} and {_short(one.model)}", "", "mutual pairs")


def _distribution(axes: Axes, one: PairCount) -> None:
    import numpy as np

    values = one.pairs.r.cpu().numpy()
    axes.hist(values, bins=np.linspace(0, 1, 41).tolist(), color=CATEGORIES[0], label="observed pairs")
    highest = max((t.highest for t in one.permuted if t.highest is not None), default=None)
    if highest is not None:
        axes.axvline(highest, color=CATEGORIES[5], label=f"highest permuted r {highest:.3f}")
    axes.axvline(0.5, color=GREY, linestyle=":")
    axes.legend(fontsize=8, frameon=False)
    plain(axes, "how alike the pairs are", "r", "pairs")


def _prefixes(axes: Axes, one: PairCount) -> None:
    samples = [p[0] for p in one.prefixes]
    if samples:
        axes.plot(samples, [p[1] for p in one.prefixes], "o-", color=CATEGORIES[0], label="raw")
        axes.plot(samples, [p[2] for p in one.prefixes], "s-", color=CATEGORIES[1], label="r >= 0.5")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, frameon=False)
    else:
        axes.text(0.5, 0.5, "not computed by a sketch", ha="center", transform=axes.transAxes, color=GREY)
    axes.locator_params(axis="x", nbins=5)
    plain(axes, "the count on parts of the samples", "samples", "mutual pairs")


def draw_law(file: BinaryIO, fit: Fit, form: str = "png") -> None:
    """Counts over sizes with the fitted laws, the controls beside the observed; on the right the exponents."""
    made = new_figure(11.0, 4.4)
    left, right = made.subplots(1, 2, width_ratios=(1.7, 1.0))
    for at, law in enumerate(fit.laws):
        colour = _colour(fit, law)
        style = "--" if law.name.endswith("(raw)") else "-"
        for x, counts in zip(law.x, law.counts, strict=True):
            left.plot([x] * len(counts), counts, ".", color=colour, alpha=0.5, markersize=5)
        fitted = [exp(law.line.log_a) * x**law.line.alpha for x in law.x]
        left.plot(law.x, fitted, style, color=colour, linewidth=2.2 if at == 0 else 1.2, label=law.name)
    left.set_xscale("log", base=2)
    left.set_yscale("log")
    left.legend(fontsize=8, frameon=False)
    plain(left, "pairs of shared neurons over sizes, controls beside", fit.x, f"count ({fit.count})")
    _exponents(right, fit)
    save(made, file, form)


def _colour(fit: Fit, law: Law) -> str:
    """One colour for a series, whether its raw or its thresholded counts are fitted."""
    names = list(dict.fromkeys(one.name.partition(" (")[0] for one in fit.laws))
    return CATEGORIES[names.index(law.name.partition(" (")[0]) % len(CATEGORIES)]


def _exponents(axes: Axes, fit: Fit) -> None:
    for at, law in enumerate(fit.laws):
        line, colour = law.line, _colour(fit, law)
        axes.plot([line.low, line.high], [-at, -at], color=colour, linewidth=2)
        axes.plot([line.alpha], [-at], "o", color=colour)
        axes.annotate(f"{line.alpha:.2f}", (line.alpha, -at), (0, 5), textcoords="offset points", fontsize=8)
    axes.axvline(1.0, color=GREY, linestyle=":")
    axes.set_yticks([-at for at in range(len(fit.laws))], labels=[law.name for law in fit.laws], fontsize=8)
    axes.set_ylim(-len(fit.laws) + 0.4, 0.7)
    plain(axes, "alpha and its 95 % interval", "exponent", "")


def _short(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2][:28]
