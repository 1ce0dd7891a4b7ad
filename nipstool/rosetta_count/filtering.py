"""Documents filtered by what a neuron says of their domain.

The neuron is chosen on one half of the documents of a count that had labels; the other half says how well it does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nipstool.kit.errors import DataError, UsageError
from nipstool.rosetta_count.contexts import Neuron, neuron_of, neuron_values, reading_of
from nipstool.rosetta_count.documents import parse, text_of
from nipstool.rosetta_count.results import NEURONS, read_rows, read_summary
from nipstool.rosetta_count.sources import TextModel, load_text_model
from nipstool.rosetta_count.text_model import Reader, reader_of

TOGETHER = 16  # documents of a batch


@dataclass(frozen=True)
class Choice:
    """Neurons with their mean and deviation in the count; the AUROC of the choice, None where it was given."""

    neurons: tuple[Neuron, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    selection: float | None = None
    held_out: float | None = None


@dataclass(frozen=True)
class Filter:
    """What scores documents: a model, how it reads, and the neurons."""

    model: TextModel
    reader: Reader
    choice: Choice
    text_field: str


def open_filter(folder: str, domain: str | None, neurons: Sequence[Neuron] = (), device: Any = "cpu") -> Filter:
    """The filter that a count's folder describes.

    Raises UsageError where the count had no labels, or none called `domain`; what the model's loading raises.
    """
    document = read_summary(folder)
    reading = reading_of(document, folder)
    if document.get("kind") != "text":
        raise UsageError(f"{folder}: is a count of vision models; filter-data reads text")
    name = document["models"][0]["model"]
    rows = [row for row in read_rows(folder, NEURONS) if row.get("model") == name]
    if not rows:
        raise DataError(f"{Path(folder) / NEURONS}: holds no neurons of {name}")
    choice = given(rows, neurons, folder) if neurons else choose(rows, domain, folder)
    model = load_text_model(name, reading, device)
    reader = reader_of(model.tokeniser, model.body.config, reading.context)
    return Filter(model, reader, choice, reading.text_field)


def choose(rows: Sequence[dict[str, str]], domain: str | None, told: str) -> Choice:
    """The neuron with the highest AUROC for `domain` on the first half; of shared ones, if there are any."""
    prefix = "selection_auroc_"
    domains = [column.removeprefix(prefix) for column in (rows[0] if rows else {}) if column.startswith(prefix)]
    if not domains:
        raise UsageError(f"{told}: knows no domains; count with --domain-field first, or give --neurons")
    if domain is None or domain not in domains:
        raise UsageError(f"--domain {domain}: {told} knows {', '.join(domains)}")
    live = [row for row in rows if row.get("state") == "live"]
    if not live:
        raise DataError(f"{Path(told) / NEURONS}: holds no live neuron of the first model")
    shared = [row for row in live if row.get("rosetta") == "1"]
    try:
        best = max(shared or live, key=lambda row: float(row[prefix + domain]))
        scores = float(best[prefix + domain]), float(best[f"auroc_{domain}"])
    except (KeyError, ValueError) as error:
        raise DataError(f"{Path(told) / NEURONS}: a row is not that of a count ({error})") from error
    return Choice(*_of_rows([best], told), *scores)


def given(rows: Sequence[dict[str, str]], neurons: Sequence[Neuron], told: str) -> Choice:
    """The named neurons."""
    by_name = {(row.get("layer"), row.get("neuron")): row for row in rows}
    missing = [n for n in neurons if (str(n.layer), str(n.index)) not in by_name]
    if missing:
        raise UsageError(f"--neurons {missing[0]}: {told} has no such neuron of the first model")
    return Choice(*_of_rows([by_name[str(n.layer), str(n.index)] for n in neurons], told))


def _of_rows(
    rows: Sequence[dict[str, str]], told: str
) -> tuple[tuple[Neuron, ...], tuple[float, ...], tuple[float, ...]]:
    try:
        neurons = tuple(neuron_of(row["layer"], row["neuron"]) for row in rows)
        return neurons, tuple(float(row["mean"]) for row in rows), tuple(float(row["sd"]) for row in rows)
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{told}: a row of {NEURONS} is not that of a count ({error})") from error


def score(found: Filter, texts: Sequence[str]) -> list[float | None]:
    """Of each text the mean over tokens of the neurons' z-scored activation; None for a text without tokens."""
    import torch

    tokens = found.reader.tokeniser(list(texts))
    values = neuron_values(found.model, found.reader, found.choice.neurons, tokens)
    deviation = torch.tensor(found.choice.deviations).clamp_min(1e-30)
    z = ((values - torch.tensor(found.choice.means)) / deviation).mean(1)
    scores: list[float | None] = []
    at = 0
    for one in tokens:
        scores.append(float(z[at : at + len(one.ids)].double().mean()) if len(one.ids) else None)
        at += len(one.ids)
    return scores


def scored_records(found: Filter, lines: Iterable[tuple[int, str]], told: str) -> Iterator[dict[str, Any]]:
    """Each record with a field `score` more, in order; DataError naming the line that is no record with a text."""
    empty = True
    for batch in _batches(lines):
        empty = False
        records = [parse(line, f"{told} line {number}") for number, line in batch]
        texts = [
            text_of(record, found.text_field, f"{told} line {number}")
            for (number, _), record in zip(batch, records, strict=True)
        ]
        for record, value in zip(records, score(found, texts), strict=True):
            yield {**record, "score": value}
    if empty:
        raise DataError(f"{told}: is empty; expected a record a line")


def _batches(lines: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    held: list[tuple[int, str]] = []
    for line in lines:
        held.append(line)
        if len(held) == TOGETHER:
            yield held
            held = []
    if held:
        yield held


def read_lines(source: BinaryIO, told: str) -> Iterator[tuple[int, str]]:
    """(number, line) of every line that is not blank. DataError where one is not UTF-8."""
    for number, raw in enumerate(source, 1):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{told} line {number}: is not UTF-8: {error.reason} at byte {error.start}") from error
        if line.strip():
            yield number, line


def best_share(records: Sequence[dict[str, Any]], share: float) -> list[dict[str, Any]]:
    """The share of records with the highest scores, at least one, in the order in which they came."""
    order = sorted(range(len(records)), key=lambda at: -_score_of(records[at]))
    kept = sorted(order[: max(1, round(share * len(records)))])
    return [records[at] for at in kept]


def _score_of(record: dict[str, Any]) -> float:
    return float("-inf") if record["score"] is None else record["score"]


def to_line(record: dict[str, Any]) -> str:
    """A record as it is written."""
    return json.dumps(record, ensure_ascii=False)
