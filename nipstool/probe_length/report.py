"""What the verbs show: tables and sentences, in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nipstool.probe_length.comparison import Line
    from nipstool.probe_length.evaluate import Evaluation
    from nipstool.probe_length.fit import Report
    from nipstool.probe_length.metrics import Bucket
    from nipstool.probe_length.schedule import Schedule
    from nipstool.probe_length.trace import Marked, Shifts, Trace
    from nipstool.probe_length.transfer import Transfer

Row = Sequence[str | float | int | None]


@dataclass(frozen=True)
class Table:
    """A table to show."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]


Shown = Table | str
LAYERS = "Layers, held out (penalties: probe, position-and-probe, t = 0)"
LAYER_COLUMNS = ("layer", "probe R2", "position-and-probe R2", "probe R2 at t = 0", "penalties")
LINE_COLUMNS = ("predictor", "layer", "R2", "skill", "95 % of skill", "Spearman", "MAE (tokens)")
ALONG, FIRST = "Along the answer (t = 0..T), log1p of remaining tokens", "Before the answer begins (t = 0)"
TRANSFER_COLUMNS = (
    "fitted on",
    "judged on",
    "R2",
    "R2, intercept anew",
    "Spearman",
    "position of the source",
    "position of the target",
    "asymmetry",
)


def of_fit(report: Report) -> list[Shown]:
    """Layers, predictors along the answer and before it, how much it was, and what it means."""
    rows: list[Row] = [
        (one.layer, _r(one.probe), _r(one.both), _r(one.first), " ".join(f"{a:.3g}" for a in one.alphas))
        for one in report.layers
    ]
    names = ", ".join(f"{name} {count}" for name, count in report.datasets.items())
    counts = f"{report.sequences} sequences ({names}), {report.censored} cut off, {report.tokens:.0f} rows"
    sources = (
        "R2, skill, penalties: exact, from the statistics, out of fold; ranks, tokens, positions, intervals: from"
        f" the sample of {report.sampled} sequences in {report.groups} groups, out of fold"
    )
    return [Table(LAYERS, LAYER_COLUMNS, rows), *_lines(report), counts, sources, *report.verdict]


def of_evaluation(found: Evaluation) -> list[Shown]:
    """The same for answers that were not fitted on, and whether the intervals hold."""
    c = found.coverage
    shown: list[Shown] = [
        *_lines(found),
        f"{found.sequences} sequences in {found.groups} groups, {found.censored} cut off, {found.tokens} rows",
        f"lo..hi at {c.nominal:g} holds {c.covered:.1%} of {c.answers} answers that ended",
    ]
    if c.cut:
        shown.append(f"{c.cut_beyond} of {c.cut} cut answers are longer than hi already")
    if found.bias is not None:
        shown.append(f"mean predicted length at t = 0 is {found.bias:+.1%} off the mean of the answers that ended")
    return [*shown, *found.verdict]


def _lines(found: Report | Evaluation) -> list[Shown]:
    tables: list[Shown] = [Table(ALONG, LINE_COLUMNS, [_line(line) for line in found.along])]
    if found.buckets:
        tables.append(_buckets(found.buckets))
    return [*tables, Table(FIRST, LINE_COLUMNS, [_line(line) for line in found.first])]


def _line(line: Line) -> Row:
    interval = None if line.interval is None else f"{line.interval[0]:.3f} to {line.interval[1]:.3f}"
    rank = None if line.scores is None or line.scores.spearman is None else _r(line.scores.spearman)
    mae = None if line.scores is None else f"{line.scores.mae:.1f}"
    return line.name, line.layer, _r(line.r2), _r(line.skill), interval, rank, mae


def _buckets(buckets: Sequence[Bucket]) -> Table:
    names = tuple(buckets[0].r2)
    rows: list[Row] = [(f"{b.low}-{b.high}", b.rows, *(_r(b.r2[name]) for name in names)) for b in buckets]
    return Table("R2 by position", ("positions", "rows", *names), rows)


def of_transfer(matrices: Iterable[Transfer]) -> list[Shown]:
    """One table a kind of probe, one row for each source and target."""
    return [Table(f"Transfer of {one.kind}", TRANSFER_COLUMNS, _cells(one)) for one in matrices]


def _cells(found: Transfer) -> list[Row]:
    return [
        (
            f"{cell.source} (layer {layer})",
            cell.target,
            _r(cell.r2),
            _r(cell.shifted),
            None if cell.spearman is None else _r(cell.spearman),
            _r(cell.position),
            _r(cell.own),
            _r(found.asymmetry[i][j]),
        )
        for i, (row, layer) in enumerate(zip(found.cells, found.layers, strict=True))
        for j, cell in enumerate(row)
    ]


def of_trace(found: Sequence[Trace], rows: Sequence[Marked], shifts: Sequence[Shifts]) -> list[Shown]:
    """The shift at every marker (the first 20), and of all together."""
    answers = f"{len(found)} answers, {len(rows)} markers"
    if not rows:
        return [f"{answers}: nothing is taken back in them, or --pattern and --markers do not say where"]
    each: list[Row] = [
        (row.id, row.t, row.text.strip(), *(f"{row.shift[k]:+.1f} (x{row.ratio[k]:.2f})" for k in row.shift))
        for row in rows[:20]
    ]
    all_rows: list[Row] = [
        (
            s.kind,
            s.markers,
            f"{s.shift:+.1f}",
            f"{s.low:+.1f} to {s.high:+.1f}",
            f"{s.ratio:.2f}",
            f"{s.risen:.0%}",
        )
        for s in shifts
    ]
    columns = ("estimate", "markers", "shift (tokens)", "95 %", "ratio", "risen")
    return [
        Table("Shift at each marker (tokens)", ("id", "t", "begins", *(s.kind for s in shifts)), each),
        Table("All markers", columns, all_rows),
        answers,
    ]


def of_schedule(found: Schedule) -> list[Shown]:
    """Latency of every order, what theory says of one slot, and what it means."""
    columns = ("load", "slots", "order", "mean (s)", "p50", "p99", "mean / FCFS", "p99 / FCFS")
    rows: list[Row] = [
        (
            f"{x.load:.2f}",
            x.slots,
            x.order,
            *(f"{value:.3g}" for value in (x.mean, x.p50, x.p99)),
            f"{x.of_mean:.2f}",
            f"{x.of_p99:.2f}",
        )
        for x in found.latencies
    ]
    shown: list[Shown] = [Table("Latency until the last token", columns, rows)]
    if found.theory:
        checks: list[Row] = [
            (
                f"{t.load:.2f}",
                t.order,
                f"{t.expected:.4g}",
                f"{t.simulated:.4g}",
                f"{t.simulated / t.expected:.3f}",
            )
            for t in found.theory
        ]
        title = "One slot: Pollaczek-Khinchine and Phipps beside the simulation (mean, s)"
        shown.append(Table(title, ("load", "order", "theory", "simulated", "ratio"), checks))
    rank = "none" if found.spearman is None else f"{found.spearman:.2f}"
    facts = (
        f"{found.answers} answers; Spearman of prediction and truth {rank}; CV^2 of service {found.variation:.2f}"
    )
    return [*shown, facts, *found.verdict]


def _r(value: float) -> str:
    return f"{value:.3f}"


def document(report: Any) -> dict[str, Any]:
    """A report as one document."""
    return dict(vars(report))
