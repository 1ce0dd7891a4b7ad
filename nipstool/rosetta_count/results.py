"""The folder that a count leaves: summary.json, pairs.csv, anchors.json, neurons.csv and plots; and reading it."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.files import check_input
from nipstool.kit.parts import reason
from nipstool.kit.records import parse_json, to_json
from nipstool.rosetta_count.count import FDR, THRESHOLD, UNIVERSAL, Count, PairCount, Subject, Tally
from nipstool.rosetta_count.selectivity import Gap, Labelled

if TYPE_CHECKING:
    import numpy as np

SUMMARY, PAIRS, ANCHORS, NEURONS, BUDDIES = (
    "summary.json",
    "pairs.csv",
    "anchors.json",
    "neurons.csv",
    "best_buddies.json",
)
PAIR_COLUMNS = ("layer_a", "neuron_a", "layer_b", "neuron_b", "r", "q", "model_b")
STATES = ("dead", "constant", "quantised", "duplicate")


def place(subject: Subject, neuron: int) -> tuple[int, int]:
    """(layer's number, neuron within the layer) of a neuron's place among all."""
    for layer in subject.layers:
        if neuron < layer.columns.stop:
            return layer.number, neuron - layer.columns.start
    raise ValueError(neuron)


def rosetta(count: Count) -> list[np.ndarray]:
    """Of each model the neurons that are shared: in a pair with r >= 0.5, the anchor's with every other model."""
    import numpy as np

    flags = [np.zeros(subject.neurons, dtype=bool) for subject in count.subjects]
    for anchor in count.anchors:
        if all(r >= THRESHOLD for r, _ in anchor.partners):
            flags[0][anchor.neuron] = True
            for at, (_, pair) in enumerate(anchor.partners):
                flags[at + 1][int(count.pairs[at].pairs.b[pair])] = True
    return flags


def summary(count: Count, gaps: Sequence[Sequence[Gap]], told: dict[str, Any]) -> dict[str, Any]:
    """What summary.json holds. `told` is what the run adds: options, method, inputs."""
    scores = [anchor.r for anchor in count.anchors]
    models = []
    for subject, neurons, own in zip(count.subjects, count.neurons, gaps, strict=True):
        states = {state: neurons.count(state) for state in ("live", *STATES)}
        layers = [
            {
                "name": layer.name,
                "number": layer.number,
                "neurons": layer.columns.stop - layer.columns.start,
                "live": int(neurons.live[layer.columns].sum()),
            }
            for layer in subject.layers
        ]
        about = {"model": subject.name, "parameters": subject.parameters, "neurons": subject.neurons}
        models.append({**about, **states, "layers": layers, "gaps": list(own)})
    return {
        "models": models,
        "samples": count.samples,
        "documents": count.documents,
        "pairs": [_pair(one) for one in count.pairs],
        "anchors": {"count": len(scores), "r": _spread(scores)},
        "untrained": count.untrained,
        "thresholds": {"r": THRESHOLD, "fdr": FDR, "excess": UNIVERSAL},
        "notes": list(count.notes),
        **told,
    }


def _pair(one: PairCount) -> dict[str, Any]:
    counts = {"raw": one.raw, "kept": one.kept, "thresholded": one.thresholded}
    counts |= {"fdr": one.fdr, "excess": one.excess}
    controls = {
        "permuted": [_tally(tally) for tally in one.permuted],
        "rotated": _tally(one.rotated),
        "untrained": _tally(one.untrained),
        "chance": one.chance,
    }
    means = control_means(one)
    over = {
        name: {
            "raw": None if one.raw is None or mean.raw is None else one.raw - mean.raw,
            "kept": one.kept - mean.kept,
            "thresholded": one.thresholded - mean.thresholded,
        }
        for name, mean in means
    }
    prefixes = [{"samples": n, "raw": raw, "thresholded": some} for n, raw, some in one.prefixes]
    return {
        "model": one.model,
        "counts": counts,
        "r": _spread(one.pairs.r.tolist()),
        "least_q": one.least_q,
        "controls": controls,
        "excess_over_controls": over,
        "prefixes": prefixes,
    }


def control_means(one: PairCount) -> list[tuple[str, Tally]]:
    """The controls that there are, the permuted one as the mean of its repetitions."""
    found: list[tuple[str, Tally]] = []
    if one.permuted:
        highest = [tally.highest for tally in one.permuted if tally.highest is not None]
        raw = [tally.raw for tally in one.permuted if tally.raw is not None]
        kept, some = (statistics.fmean(getattr(t, kind) for t in one.permuted) for kind in ("kept", "thresholded"))
        mean = statistics.fmean(raw) if raw else None
        found.append(("permuted", Tally(mean, kept, some, max(highest, default=None))))
    found += [(name, t) for name, t in (("rotated", one.rotated), ("untrained", one.untrained)) if t is not None]
    return found


def _tally(tally: Tally | None) -> dict[str, Any] | None:
    if tally is None:
        return None
    counts = {"raw": tally.raw, "kept": tally.kept, "thresholded": tally.thresholded}
    return {**counts, "highest_r": tally.highest}


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "mean": statistics.fmean(values),
        "median": statistics.median(values),
        "sd": statistics.pstdev(values),
        "min": min(values),
        "max": max(values),
    }


def write(
    folder: Path, count: Count, document: dict[str, Any], labels: Sequence[Labelled | None], *, compat: bool
) -> None:
    """Fill an empty folder with everything but the plots."""
    _write_json(folder / SUMMARY, document)
    _write_json(folder / ANCHORS, anchors(count))
    _write_csv(folder / PAIRS, PAIR_COLUMNS, pair_rows(count))
    rows, columns = neuron_rows(count, labels)
    _write_csv(folder / NEURONS, columns, rows)
    if compat:
        for at in range(len(count.pairs)):
            name = BUDDIES if len(count.pairs) == 1 else f"best_buddies_{at + 1}.json"
            _write_json(folder / name, buddies(count, at))


def _write_json(path: Path, value: Any) -> None:
    """A name that is no text (a file's that is not UTF-8) comes out as an escape."""
    path.write_text(to_json(value, indent=1) + "\n", encoding="utf-8", errors="backslashreplace")


def _write_csv(path: Path, columns: Sequence[str], rows: Iterator[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def pair_rows(count: Count) -> Iterator[Sequence[Any]]:
    """The rows of pairs.csv, model by model, r falling."""
    for at, one in enumerate(count.pairs):
        other = count.subjects[at + 1]
        for a, b, r, q in zip(
            one.pairs.a.tolist(), one.pairs.b.tolist(), one.pairs.r.tolist(), one.q, strict=True
        ):
            yield (*place(count.subjects[0], a), *place(other, b), f"{r:.9g}", f"{q:.6g}", one.model)


def anchors(count: Count) -> list[dict[str, Any]]:
    """anchors.json in the official schema, mean r falling."""
    found = []
    for anchor in count.anchors:
        layer, neuron = place(count.subjects[0], anchor.neuron)
        per_model = []
        for at, (r, pair) in enumerate(anchor.partners):
            other = place(count.subjects[at + 1], int(count.pairs[at].pairs.b[pair]))
            partner = {"model2_layer": other[0], "model2_neuron": other[1], "correlation": r}
            per_model.append({"model": count.subjects[at + 1].name, **partner})
        found.append(
            {"model1_layer": layer, "model1_neuron": neuron, "avg_correlation": anchor.r, "per_model": per_model}
        )
    return found


def buddies(count: Count, at: int) -> list[dict[str, Any]]:
    """best_buddies.json of one pair of models in the official schema."""
    pairs, found = count.pairs[at].pairs, []
    columns = (pairs.a, pairs.b, pairs.r, pairs.rank_a, pairs.rank_b)
    for a, b, r, rank_a, rank_b in zip(*(column.tolist() for column in columns), strict=True):
        (layer_a, neuron_a), (layer_b, neuron_b) = place(count.subjects[0], a), place(count.subjects[at + 1], b)
        found.append(
            {
                "model1_layer": layer_a,
                "model1_neuron": neuron_a,
                "model2_layer": layer_b,
                "model2_neuron": neuron_b,
                "correlation": r,
                "rank_in_model1": rank_a,
                "rank_in_model2": rank_b,
            }
        )
    return found


def neuron_rows(
    count: Count, labels: Sequence[Labelled | None]
) -> tuple[Iterator[Sequence[Any]], tuple[str, ...]]:
    """The rows and columns of neurons.csv; columns about labels only where documents had labels."""
    names = next((one.labels for one in labels if one is not None), ())
    columns = ("model", "layer", "neuron", "state", "mean", "sd", "skew", "kurtosis", "sparseness", "frequency")
    columns += ("best_r", "q", "rosetta")
    columns += ("selectivity", "domain", "auroc") if names else ()
    each = tuple(f"{kind}_{name}" for kind in ("selection_auroc", "auroc") for name in names)
    return _neuron_rows(count, labels), columns + each


def _neuron_rows(count: Count, labels: Sequence[Labelled | None]) -> Iterator[Sequence[Any]]:
    flags = rosetta(count)
    for at, (subject, neurons, own) in enumerate(zip(count.subjects, count.neurons, labels, strict=True)):
        best, q = _best_of(count, at)
        values = [neurons.mean, neurons.deviation, neurons.skew, neurons.kurtosis, neurons.sparseness]
        columns = [column.tolist() for column in (*values, neurons.frequency)]
        for index in range(subject.neurons):
            numbers = [f"{column[index]:.7g}" for column in columns]
            shared = [_cell(best[index]), _cell(q.get(index)), int(flags[at][index])]
            about = [] if own is None else _label_cells(own, index)
            yield (subject.name, *place(subject, index), neurons.state[index], *numbers, *shared, *about)


def _label_cells(own: Labelled, index: int) -> list[Any]:
    named = [f"{float(own.selectivity[index]):.6g}", own.labels[int(own.domain[index])]]
    values = [own.auroc[index], *own.selection[:, index], *own.held_out[:, index]]
    return [*named, *(f"{float(value):.6g}" for value in values)]


def _best_of(count: Count, at: int) -> tuple[list[float | None], dict[int, float]]:
    """Of one model each neuron's highest r with any other, and the lowest q of its pairs."""
    pairs = range(len(count.pairs)) if at == 0 else [at - 1]
    side = 0 if at == 0 else 1
    highest = None
    q: dict[int, float] = {}
    for number in pairs:
        r = count.best[number][side].r[:, 0]
        highest = r if highest is None else highest.maximum(r)
        one = count.pairs[number]
        for neuron, value in zip((one.pairs.b if side else one.pairs.a).tolist(), one.q.tolist(), strict=True):
            q[neuron] = min(value, q.get(neuron, 1.0))
    assert highest is not None
    return [value if value > -2 else None for value in highest.tolist()], q


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.7g}"


def read_summary(folder: str) -> dict[str, Any]:
    """summary.json of a count's folder. Raises InputMissingError or DataError."""
    file = check_input(folder) / SUMMARY
    try:
        document = parse_json(file.read_bytes())
    except OSError as error:
        raise InputMissingError(
            f"{file}: cannot be read: {reason(error)}; expected the folder of a count"
        ) from error
    except ValueError as error:
        raise DataError(f"{file}: is no JSON: {' '.join(str(error).split())}") from error
    models = document.get("models") if isinstance(document, dict) else None
    if not isinstance(models, list) or not models or not all(map(_is_model, models)):
        raise DataError(f"{file}: is no summary of a count, which lists models by name")
    return document


def _is_model(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("model"), str)


def read_rows(folder: str, name: str) -> list[dict[str, str]]:
    """A CSV file of a count's folder. Raises InputMissingError or DataError."""
    file = check_input(folder) / name
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except OSError as error:
        raise InputMissingError(
            f"{file}: cannot be read: {reason(error)}; expected the folder of a count"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: is no CSV: {error}") from error
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise DataError(f"{file}: line {number} has another number of fields than the first")
    return rows
