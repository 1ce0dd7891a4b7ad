"""Pictures in one look, made without a display. Colours are told apart by colour-blind readers and in grey."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEQUENTIAL = "viridis"
MISSING = "#e6e6e6"
CATEGORIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")  # Okabe and Ito


_UNDATED: dict[str, dict[str, str | None]] = {  # metadata that matplotlib would add
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, file: BinaryIO | Path, form: str = "png", *, dpi: int = 150) -> None:
    """Write a figure as png, pdf or svg, without a date or random names: the same run gives the same bytes.

    Characters that the font lacks, as in a Chinese file name, become boxes without a word about it.
    """
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "nipstool"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing", UserWarning)
        figure.savefig(file, format=form, dpi=dpi, metadata=_UNDATED.get(form, {}))


def heatmap(
    file: BinaryIO,
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    colour_label: str,
    subtitle: str = "",
    reference: float | None = None,
    reference_label: str = "",
    form: str = "png",
) -> None:
    """Draw rows x columns as coloured cells with their values; None is a grey cell.

    Args:
        file: binary file the picture is written to.
        values: [rows][columns].
        reference: a value marked on the colour bar, such as what chance would give.
        form: png, pdf or svg.
    """
    import numpy as np
    from matplotlib import colormaps

    grid = np.array([[np.nan if v is None else v for v in row] for row in values], dtype=float)
    width = 2.6 + 0.12 * max(map(len, rows)) + 0.62 * len(columns)
    height = 2.0 + 0.28 * len(rows) + 0.07 * max(map(len, columns))
    figure = new_figure(max(width, 6.5), max(height, 3.2))
    axes = figure.add_subplot()
    colours = colormaps[SEQUENTIAL].with_extremes(bad=MISSING)
    top = float(np.nanmax(grid)) if np.isfinite(grid).any() else 1.0
    image = axes.imshow(np.ma.masked_invalid(grid), cmap=colours, vmin=0.0, vmax=top or 1.0, aspect="auto")
    _label(axes, grid, rows, columns, top)
    axes.set_title(title if not subtitle else f"{title}\n{subtitle}", loc="left", fontsize=10)
    bar = figure.colorbar(image, ax=axes, label=colour_label, shrink=min(1.0, 8.0 / max(height, 1.0)))
    if reference is not None and reference <= (top or 1.0):
        bar.ax.axhline(reference, color="#d55e00", linewidth=2)
        bar.ax.set_xlabel(reference_label, color="#d55e00", fontsize=8)
    save(figure, file, form)


def bars(
    file: BinaryIO,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    form: str = "png",
) -> None:
    """Draw one bar a label and series, side by side, on an axis that begins at 0.

    Args:
        file: binary file the picture is written to.
        labels: of the places on the x axis.
        series: name -> one value a label.
        form: png, pdf or svg.
    """
    figure = new_figure(max(5.0, 1.5 + 0.3 * len(labels)), 3.4)
    axes = figure.add_subplot()
    width = 0.8 / max(1, len(series))
    for i, (name, values) in enumerate(series.items()):
        places = [x + (i + 0.5) * width - 0.4 for x in range(len(labels))]
        axes.bar(places, values, width, label=name, color=CATEGORIES[i % len(CATEGORIES)])
    axes.set_xticks(range(len(labels)), labels=labels, fontsize=8 if len(labels) <= 40 else 5)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
    save(figure, file, form)


def _label(axes: Axes, grid: np.ndarray, rows: Sequence[str], columns: Sequence[str], top: float) -> None:
    axes.set_xticks(
        range(len(columns)), labels=columns, rotation=45, ha="right", rotation_mode="anchor", fontsize=8
    )
    axes.set_yticks(range(len(rows)), labels=rows, fontsize=8)
    axes.tick_params(length=0)
    if grid.size > 600:  # figures in so many cells could not be read
        return
    for i, row in enumerate(grid):
        for j, value in enumerate(row):
            if value == value:
                dark = value < 0.6 * top
                axes.text(
                    j,
                    i,
                    f"{value:.2g}",
                    ha="center",
                    va="center",
                    fontsize=6,
                    color="white" if dark else "black",
                )
