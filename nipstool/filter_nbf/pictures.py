"""Beliefs over time as pictures: maps of where it lies, or in one dimension a band of quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.tracks import Answer
from nipstool.kit.files import AtomicFile
from nipstool.kit.plots import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 12
CELLS = 60
TRUTH, MARK = "#d55e00", "#cc79a7"


@dataclass(frozen=True)
class Snapshot:
    """A belief at a time: places (n, 1 or 2) with weights (n,), and the true place where it is known."""

    t: float
    x: np.ndarray
    w: np.ndarray
    truth: np.ndarray | None = None
    mark: np.ndarray | None = None


@dataclass
class Recorder:
    """Keeps evenly spaced beliefs of the first track it sees, never more than twice `most`."""

    columns: tuple[int, ...]
    most: int = PANELS
    track: str | None = None
    stride: int = 1
    seen: int = 0
    kept: list[Snapshot] = field(default_factory=list)

    def __call__(self, answers: Sequence[Answer]) -> None:
        """See the answers of a wave."""
        for answer in answers:
            if answer.track is None or answer.event in ("late", "failed"):
                continue
            self.track = answer.row.track if self.track is None else self.track
            if answer.row.track == self.track:
                self._see(answer)

    def _see(self, answer: Answer) -> None:
        track = answer.track
        if track is not None and self.seen % self.stride == 0:
            x = track.x[:, list(self.columns)]
            self.kept.append(Snapshot(track.t, x.copy(), np.exp(track.logw)))
            if len(self.kept) > 2 * self.most:
                self.kept = self.kept[::2]
                self.stride *= 2
        self.seen += 1

    def panels(self) -> list[Snapshot]:
        """At most `most` of them, the first and the last included."""
        if len(self.kept) <= self.most:
            return self.kept
        places = np.linspace(0, len(self.kept) - 1, self.most).round().astype(int)
        return [self.kept[place] for place in places]


def draw_beliefs(
    file: BinaryIO,
    rows: Sequence[tuple[str, Sequence[Snapshot]]],
    names: Sequence[str],
    *,
    title: str,
    form: str = "png",
    boxes: Sequence[tuple[float, float, float, float]] = (),
) -> None:
    """Draw one row of belief maps for each filter, or one chart for each in one dimension.

    Args:
        rows: a label and the beliefs of each filter, at the same times.
        names: of the one or two coordinates shown.
        boxes: obstacles, as left, right, bottom, top.
    """
    flat = len(names) > 1
    columns = max(len(beliefs) for _, beliefs in rows) if flat else 1
    wide, high = (columns, len(rows))
    if flat and len(rows) == 1:  # one filter: wrapped, so that a map stays large enough to be read
        wide, high = min(columns, 4), -(-columns // 4)
    figure = new_figure(2.1 * wide + 0.8 if flat else 8.0, 2.2 * high + 0.6)
    axes = figure.subplots(high, wide, squeeze=False)
    if flat:
        _draw_maps(figure, axes, rows, names, boxes)
    else:
        _draw_charts(axes, rows, names)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    save(figure, file, form, dpi=130)


def save_recording(path: Path, recorder: Recorder, dynamics: Dynamics, *, force: bool) -> None:
    """The picture of a recorded stream, if there was any; errors as AtomicFile has them."""
    if not recorder.kept:
        return
    names = [dynamics.names[j] for j in recorder.columns]
    beliefs = recorder.panels() if len(names) > 1 else recorder.kept
    title = f"{dynamics.label}: the belief over time" + (f", id {recorder.track}" if recorder.track else "")
    with AtomicFile(path, force=force) as out:
        draw_beliefs(out.file, [("belief", beliefs)], names, title=title, form=_form(path), boxes=_boxes(dynamics))


def save_comparison(
    path: Path, rows: Sequence[tuple[str, Sequence[Snapshot]]], dynamics: Dynamics, *, force: bool
) -> None:
    """The picture of several filters on one scenario; errors as AtomicFile has them."""
    names = [dynamics.names[j] for j in dynamics.positions[:2]]
    title = f"{dynamics.label}: + the truth, \u25b2 the observer"
    with AtomicFile(path, force=force) as out:
        draw_beliefs(out.file, rows, names, title=title, form=_form(path), boxes=_boxes(dynamics))


def _form(path: Path) -> str:
    return path.suffix.lstrip(".").lower()


def _boxes(dynamics: Dynamics) -> Sequence[tuple[float, float, float, float]]:
    return getattr(dynamics.model, "walls", ())


def _draw_maps(
    figure: Figure,
    axes: np.ndarray,
    rows: Sequence[tuple[str, Sequence[Snapshot]]],
    names: Sequence[str],
    boxes: Sequence[tuple[float, float, float, float]],
) -> None:
    limits = _limits([snapshot for _, beliefs in rows for snapshot in beliefs], boxes)
    for ax in axes.flat:
        ax.set_axis_off()
    for r, (label, beliefs) in enumerate(rows):
        for c, snapshot in enumerate(beliefs):
            ax: Axes = axes.flat[c] if len(rows) == 1 else axes[r, c]
            _map(ax, snapshot, limits, boxes)
            ax.set_title(f"{label}, t = {snapshot.t:g}" if c == 0 else f"t = {snapshot.t:g}", fontsize=8)
    figure.supxlabel(names[0], fontsize=8)
    figure.supylabel(names[1], fontsize=8)


def _limits(
    beliefs: Sequence[Snapshot], boxes: Sequence[tuple[float, float, float, float]]
) -> tuple[np.ndarray, np.ndarray]:
    if boxes:
        return np.array([-1.0, -1.0]), np.array([1.0, 1.0])
    places = np.concatenate([b.x for b in beliefs] + [b.truth[None] for b in beliefs if b.truth is not None])
    low, high = np.quantile(places, 0.002, axis=0), np.quantile(places, 0.998, axis=0)
    pad = 0.05 * (high - low) + 1e-9
    return low - pad, high + pad


def _map(
    ax: Axes,
    snapshot: Snapshot,
    limits: tuple[np.ndarray, np.ndarray],
    boxes: Sequence[tuple[float, float, float, float]],
) -> None:
    from matplotlib.patches import Rectangle

    (left, bottom), (right, top) = limits
    counts, _, _ = np.histogram2d(
        snapshot.x[:, 0], snapshot.x[:, 1], CELLS, [[left, right], [bottom, top]], weights=snapshot.w
    )
    ax.set_axis_on()
    ax.imshow(np.sqrt(counts.T), origin="lower", extent=(left, right, bottom, top), cmap="Blues", aspect="auto")
    for x0, x1, y0, y1 in boxes:
        ax.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, facecolor="#999999", edgecolor="none"))
    if snapshot.mark is not None:
        ax.plot(*snapshot.mark, "^", color=MARK, markersize=5)
    if snapshot.truth is not None:
        ax.plot(*snapshot.truth, "+", color=TRUTH, markersize=9, markeredgewidth=2)
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)
    ax.tick_params(labelsize=5, length=2)
    ax.locator_params(nbins=4)


def _draw_charts(axes: np.ndarray, rows: Sequence[tuple[str, Sequence[Snapshot]]], names: Sequence[str]) -> None:
    for ax, (label, beliefs) in zip(axes.flat, rows, strict=True):
        t = [snapshot.t for snapshot in beliefs]
        cuts = np.array([_cuts(snapshot) for snapshot in beliefs])
        ax.fill_between(t, cuts[:, 0], cuts[:, 2], color="#56b4e9", alpha=0.4, label="5 % to 95 %")
        ax.plot(t, cuts[:, 1], color="#0072b2", label="median")
        if beliefs and beliefs[0].truth is not None:
            ax.plot(t, [s.truth[0] for s in beliefs if s.truth is not None], color=TRUTH, label="truth")
        ax.set_ylabel(names[0], fontsize=8)
        ax.set_title(label, fontsize=8, loc="left")
        ax.legend(fontsize=7, frameon=False)


def _cuts(snapshot: Snapshot) -> list[float]:
    order = np.argsort(snapshot.x[:, 0])
    edges = np.cumsum(snapshot.w[order])
    places = np.minimum(np.searchsorted(edges, np.array([0.05, 0.5, 0.95]) * edges[-1]), len(order) - 1)
    return snapshot.x[order[places], 0].tolist()
