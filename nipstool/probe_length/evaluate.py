"""A probe on answers it was not fitted on: beside every baseline, and whether its intervals hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from nipstool.kit.errors import DataError
from nipstool.kit.progress import Progress, silent
from nipstool.probe_length.artefact import LARGEST
from nipstool.probe_length.collect import WINDOW, batches
from nipstool.probe_length.comparison import (
    BOTH,
    CONSTANT,
    LENGTH,
    POSITION,
    POSITION_ENDED,
    PROBE,
    PROMPT,
    SMOOTH,
    TOBIT,
    TOKEN,
    Line,
    lines_of,
    position_features,
)
from nipstool.probe_length.encoding import Sequence
from nipstool.probe_length.hidden import Language, padded, reading, run
from nipstool.probe_length.lengths import lookup, no_lengths
from nipstool.probe_length.metrics import Bucket, by_position, ceiling
from nipstool.probe_length.probe import Probe

if TYPE_CHECKING:
    from torch import Tensor

Array = np.ndarray
POSITION_HERE = "position (of these answers)"


@dataclass(frozen=True)
class Coverage:
    """How many answers that ended lie within lo..hi, and how many cut ones are already longer than hi."""

    nominal: float
    covered: float
    answers: int
    cut_beyond: int
    cut: int


@dataclass(frozen=True)
class Evaluation:
    """What was found; see fit.Report for the tables."""

    along: tuple[Line, ...]
    first: tuple[Line, ...]
    buckets: tuple[Bucket, ...]
    coverage: Coverage
    bias: float | None  # mean predicted / mean true tokens, less 1, of answers that ended
    ceiling: float | None
    sequences: int
    censored: int
    tokens: int
    groups: int
    verdict: tuple[str, ...]


@dataclass
class Estimates:
    """Per position of one answer, t = 0..seen: log1p of the remaining tokens by each predictor."""

    sequence: Sequence
    by_name: dict[str, Array] = field(default_factory=dict)
    first: float = float("nan")  # at t = 0, by the probe that predicts


def estimates(probe: Probe, language: Language, batch: list[Sequence], *, logits: bool = False) -> list[Estimates]:
    """Every predictor at every position of a batch; with `logits` also "nll", of each response token (first 0)."""
    found = [Estimates(sequence) for sequence in batch]
    layers = sorted({line.layer for line in (*probe.lines.values(), probe.first)})

    def read(layer: int, h: Tensor) -> None:
        for i, one in enumerate(found):
            start = len(one.sequence.prompt) - 1
            rows = h[i, start : start + len(one.sequence.response) + 1].float().cpu().numpy().astype(np.float64)
            _apply(probe, layer, rows, one)

    with reading(language, layers, read, stop=not logits):
        out = run(language, padded([s.prompt + s.response for s in batch], language.device), logits=logits)
    for i, one in enumerate(found):
        _add_baselines(probe, one)
        if out is not None:
            one.by_name["nll"] = _nll(out[i], one.sequence)
    return found


def _apply(probe: Probe, layer: int, rows: Array, one: Estimates) -> None:
    usable = (np.abs(rows) <= LARGEST).all(1)
    if not usable.all():
        t = int(np.flatnonzero(~usable)[0])
        where = one.sequence.where
        raise DataError(f"{where}: layer {layer}, row t = {t}: the hidden state is NaN or beyond {LARGEST:g}")
    for name, line in probe.lines.items():
        if line.layer == layer:
            x = np.concatenate([rows, position_features(np.arange(len(rows)))], 1) if name == BOTH else rows
            one.by_name[name] = line(x)
    if probe.first.layer == layer:
        one.first = float(probe.first(rows[:1])[0])


def _add_baselines(probe: Probe, one: Estimates) -> None:
    t = np.arange(len(one.sequence.response) + 1)
    prompt = np.full((len(t), 1), float(len(one.sequence.prompt)))
    one.by_name[CONSTANT] = np.full(len(t), probe.mean)
    one.by_name[POSITION] = lookup(probe.table, t)
    one.by_name[POSITION_ENDED] = lookup(probe.table_ended, t)
    one.by_name[SMOOTH] = probe.smooth(position_features(t))
    one.by_name[LENGTH] = probe.length(np.concatenate([position_features(t), prompt, np.log1p(prompt)], 1))


def _nll(logits: Tensor, sequence: Sequence) -> Array:
    """-log p of each response token given what is before it; 0 at t = 0, the last token of the prompt."""
    import torch

    start = len(sequence.prompt) - 1
    rows = logits[start : start + len(sequence.response)].float().log_softmax(-1)
    chosen = torch.tensor(sequence.response, device=rows.device)[:, None]
    return np.concatenate([[0.0], -rows.gather(1, chosen)[:, 0].cpu().numpy().astype(np.float64)])


def evaluate(
    probe: Probe,
    language: Language,
    source: Iterable[Sequence],
    *,
    coverage: float,
    batch_tokens: int = 8192,
    seed: int = 0,
    progress: Progress = silent,
) -> Evaluation:
    """Judge a probe on sequences. Raises DataError where none of them has an answer that ended."""
    found: list[Estimates] = []
    source = iter(source)
    while window := list(islice(source, WINDOW)):
        for batch in batches(window, batch_tokens):
            found += [_lean(one) for one in estimates(probe, language, batch)]
            progress(len(found), 0)
    ended = [one for one in found if not one.sequence.censored]
    if not ended:
        raise DataError(f"all {len(found)} answers were cut off; expected some that ended")
    along, buckets = _along(probe, ended, seed)
    lengths = np.array([one.sequence.length for one in ended], dtype=np.float64)
    groups = np.array([one.sequence.group for one in ended])
    result = Evaluation(
        tuple(along),
        tuple(_first(probe, ended, lengths, groups, seed)),
        tuple(buckets),
        _coverage(probe, language, found, coverage),
        _bias(probe, language, ended, lengths),
        ceiling(np.log1p(lengths), groups),
        len(found),
        len(found) - len(ended),
        sum(len(one.by_name[PROBE]) for one in ended),
        len(np.unique(groups)),
        (),
    )
    from nipstool.probe_length.verdict import verdict

    return replace(result, verdict=tuple(verdict(result)))


def _lean(one: Estimates) -> Estimates:
    """Without the prompt and at half the size: of long answers only numbers are kept."""
    s = one.sequence
    one.sequence = replace(s, prompt=s.prompt[:1] * len(s.prompt))
    one.by_name = {name: values.astype(np.float32) for name, values in one.by_name.items()}
    return one


def _along(probe: Probe, ended: list[Estimates], seed: int) -> tuple[list[Line], list[Bucket]]:
    names = [CONSTANT, POSITION, POSITION_ENDED, LENGTH, TOKEN, PROBE, BOTH]
    if np.array_equal(probe.table, probe.table_ended):
        names.remove(POSITION_ENDED)
    predicted = {name: np.concatenate([one.by_name[name] for one in ended]).astype(np.float64) for name in names}
    sizes = [len(one.by_name[PROBE]) for one in ended]
    t = np.concatenate([np.arange(size) for size in sizes])
    target = np.log1p(np.repeat([one.sequence.length for one in ended], sizes) - t)
    weight = np.repeat([one.sequence.weight for one in ended], sizes)
    group = np.repeat([one.sequence.group for one in ended], sizes)
    predicted = {**predicted, POSITION_HERE: _table_here(ended, t)}
    lines = _compared(predicted, target, weight, group, {n: line.layer for n, line in probe.lines.items()}, seed)
    shown = {name: predicted[name] for name in (POSITION, PROBE, BOTH)}
    return lines, by_position(t, target, shown, weight)


def _table_here(ended: list[Estimates], t: Array) -> Array:
    """Position alone as if fitted on these very answers: what no honest predictor from position can beat."""
    lengths = no_lengths(1)
    for one in ended:
        s = one.sequence
        lengths.add(0, s.length, len(s.response), False, s.weight)
    return lookup(lengths.targets[0] / np.maximum(lengths.rows[0], 1e-300), t)


def _compared(
    predicted: dict[str, Array], target: Array, weight: Array, group: Array, layers: dict[str, int], seed: int
) -> list[Line]:
    deviation = float((weight * (target - np.average(target, weights=weight)) ** 2).sum())
    if deviation == 0:
        raise DataError("every answer that ended has the same length; there is nothing to judge")
    errors = {name: float((weight * (target - p) ** 2).sum()) for name, p in predicted.items()}
    return lines_of(errors, deviation, predicted, target, weight, group, layers, seed)


def _first(probe: Probe, ended: list[Estimates], lengths: Array, groups: Array, seed: int) -> list[Line]:
    prompt = np.array([float(len(one.sequence.prompt)) for one in ended])
    name = TOBIT if probe.censored else PROBE
    predicted = {
        CONSTANT: np.full(len(ended), probe.mean_first),
        PROMPT: probe.prompt(np.stack([prompt, np.log1p(prompt)], 1)),
        name: np.array([one.first for one in ended]),
    }
    weight = np.array([one.sequence.weight for one in ended])
    return _compared(predicted, np.log1p(lengths), weight, groups, {name: probe.first.layer}, seed)


def _coverage(probe: Probe, language: Language, found: list[Estimates], nominal: float) -> Coverage:
    spread = probe.at_coverage(nominal)
    covered, beyond, ended = 0, 0, 0
    for one in found:
        lo, hi = spread.interval(one.first, float(language.encoder.context - len(one.sequence.prompt)))
        if one.sequence.censored:
            beyond += one.sequence.length > hi
        else:
            ended += 1
            covered += lo <= one.sequence.length <= hi
    return Coverage(nominal, covered / ended, ended, beyond, len(found) - ended)


def _bias(probe: Probe, language: Language, ended: list[Estimates], lengths: Array) -> float | None:
    context = language.encoder.context
    means = [probe.spread.mean(one.first, float(context - len(one.sequence.prompt))) for one in ended]
    return float(np.mean(means) / lengths.mean() - 1) if lengths.mean() else None
