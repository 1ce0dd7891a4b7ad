"""The estimate at every position of given answers, beside what position alone says, and its shift at retractions.

At a marker that begins with response token t + 1, with estimates e in tokens and a window w:
    shift = mean e[t+1 .. t+w] - mean e[t-w+1 .. t],     ratio = the first mean over the second.
Position alone can only fall, so its shift is negative wherever answers grow shorter as they are written.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nipstool.kit.errors import DataError, UsageError
from nipstool.kit.progress import Progress, silent
from nipstool.probe_length.collect import batches
from nipstool.probe_length.comparison import BOTH, PROBE, SMOOTH
from nipstool.probe_length.encoding import Sequence as TokenSequence
from nipstool.probe_length.evaluate import Estimates, estimates
from nipstool.probe_length.formats import Layout, read_records
from nipstool.probe_length.hidden import Language
from nipstool.probe_length.metrics import to_tokens
from nipstool.probe_length.probe import Probe

Array = np.ndarray
KINDS = (PROBE, BOTH, SMOOTH)
PATTERNS = (
    r"\bwait\b",
    r"\bactually\b",
    r"\bno,",
    r"\bscratch that\b",
    r"\blet me (start|try) (again|over)\b",
    r"\bI made (a|an) (mistake|error)\b",
    r"\bcorrection\b",
    r"\bstart over\b",
)


@dataclass(frozen=True)
class Trace:
    """One answer: estimates of remaining tokens at t = 0..T by each of KINDS, and the loss of each token."""

    id: str | int | None
    where: str
    tokens: tuple[str, ...]  # [T + 1]; the first is the prompt's last
    length: int | None  # tokens, None where it was cut off
    estimates: dict[str, Array]  # [T + 1] each
    nll: Array  # [T + 1], 0 at t = 0
    markers: tuple[int, ...]  # response tokens before each
    begins: tuple[str, ...]  # the text that follows each


@dataclass(frozen=True)
class Marked:
    """A marker: shift and ratio of each kind's mean estimate."""

    id: str | int | None
    t: int
    text: str
    shift: dict[str, float]
    ratio: dict[str, float]


@dataclass(frozen=True)
class Shifts:
    """All markers together, for one kind: the mean shift in tokens with a 95 % interval, and how many rise."""

    kind: str
    markers: int
    shift: float
    low: float
    high: float
    ratio: float  # mean estimate after over mean estimate before
    risen: float  # share of markers with a positive shift


def trace(
    probe: Probe,
    language: Language,
    source: Iterable[TokenSequence],
    markers: Mapping[object, Sequence[int]] | None,
    patterns: Sequence[str] = PATTERNS,
    *,
    batch_tokens: int = 8192,
    high_loss: float = 1.0,
    progress: Progress = silent,
) -> list[Trace]:
    """Estimates along answers, in the order of the source.

    Args:
        markers: id -> positions; None finds `patterns` (regular expressions, case ignored) in the text.
        high_loss: keep this share of answers, those with the highest mean loss a token.

    Raises UsageError for a pattern that is none, DataError where there is nothing to trace.
    """
    found: list[Trace] = []
    expression = _expression(patterns)
    source = iter(source)
    while window := list(islice(source, 64)):
        place = {id(sequence): i for i, sequence in enumerate(window)}
        here: dict[int, Trace] = {}
        for batch in batches(window, batch_tokens):
            for one in estimates(probe, language, batch, logits=True):
                here[place[id(one.sequence)]] = _trace(one, language, markers, expression)
        found += [here[i] for i in range(len(window))]
        progress(len(found), 0)
    if not found:
        raise DataError("there are no answers to trace")
    return _with_high_loss(found, high_loss)


def _with_high_loss(found: list[Trace], share: float) -> list[Trace]:
    kept = max(1, round(share * len(found)))
    order = sorted(range(len(found)), key=lambda i: -float(found[i].nll[1:].mean()))
    return [found[i] for i in sorted(order[:kept])]


def _expression(patterns: Sequence[str]) -> re.Pattern[str]:
    try:
        return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"--pattern: is no regular expression: {error}") from error


def _trace(
    one: Estimates, language: Language, markers: Mapping[object, Sequence[int]] | None, expression: re.Pattern[str]
) -> Trace:
    s, tokenizer = one.sequence, language.encoder.tokenizer
    ids = [s.prompt[-1], *s.response]
    texts = tuple(str(i) for i in ids) if tokenizer is None else tuple(tokenizer.decode([i]) for i in ids)
    if markers is not None:
        places = tuple(t for t in markers.get(s.id, ()) if 0 < t < len(s.response))
    else:
        places = tuple(_found(s.response, tokenizer, expression))
    in_tokens = {kind: to_tokens(one.by_name[kind]) for kind in KINDS}
    length = None if s.censored else s.length
    nexts = [s.response[t : t + 6] for t in places]
    begins = tuple(" ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids) for ids in nexts)
    return Trace(s.id, s.where, texts, length, in_tokens, one.by_name["nll"], places, begins)


def _found(response: list[int], tokenizer: Any, expression: re.Pattern[str]) -> Iterator[int]:
    """Response tokens before each match: those whose text ends at or before it begins."""
    if tokenizer is None:
        return
    text = tokenizer.decode(response)
    for match in expression.finditer(text):
        before = bisect_right(
            range(len(response)), match.start(), key=lambda k: len(tokenizer.decode(response[:k]))
        )
        if 0 < before - 1 < len(response):
            yield before - 1


def smoothed(values: Array, window: int) -> Array:
    """Means over the last `window` positions."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def marked(found: Iterable[Trace], window: int) -> list[Marked]:
    """Shift and ratio at every marker of every answer."""
    rows = []
    for one in found:
        for t, text in zip(one.markers, one.begins, strict=True):
            before = {kind: e[max(t - window + 1, 0) : t + 1].mean() for kind, e in one.estimates.items()}
            after = {kind: e[t + 1 : t + 1 + window].mean() for kind, e in one.estimates.items()}
            shift = {kind: float(after[kind] - before[kind]) for kind in KINDS}
            ratio = {kind: float(after[kind] / max(before[kind], 1e-9)) for kind in KINDS}
            rows.append(Marked(one.id, t, text, shift, ratio))
    return rows


def together(rows: Sequence[Marked], found: Sequence[Trace], window: int, *, seed: int = 0) -> list[Shifts]:
    """The markers of all answers, by kind; intervals by bootstrap over answers."""
    if not rows:
        return []
    _, place = np.unique([str(row.id) for row in rows], return_inverse=True)
    random = np.random.default_rng(seed)
    groups = int(place.max()) + 1
    draws = np.array([np.bincount(random.integers(groups, size=groups), minlength=groups) for _ in range(1000)])
    result = []
    for kind in KINDS:
        shift = np.array([row.shift[kind] for row in rows])
        sums = np.bincount(place, weights=shift)
        means = (draws @ sums) / (draws @ np.bincount(place))
        low, high = np.percentile(means, [2.5, 97.5])
        before, after = _means(found, kind, window)
        risen = float((shift > 0).mean())
        result.append(
            Shifts(kind, len(rows), float(shift.mean()), float(low), float(high), after / max(before, 1e-9), risen)
        )
    return result


def _means(found: Sequence[Trace], kind: str, window: int) -> tuple[float, float]:
    """Mean over markers of the mean estimate before and after."""
    before, after = [], []
    for one in found:
        for t in one.markers:
            before.append(one.estimates[kind][max(t - window + 1, 0) : t + 1].mean())
            after.append(one.estimates[kind][t + 1 : t + 1 + window].mean())
    return float(np.mean(before)), float(np.mean(after))


def read_markers(path: str | Path) -> dict[object, list[int]]:
    """id -> response tokens before each marker, from records {"id", "t"}; DataError for others."""

    def fault(told: str) -> None:
        raise DataError(told)

    found: dict[object, list[int]] = {}
    for where, record in read_records(path, Layout(), fault):
        t = record.get("t") if isinstance(record, dict) else None
        if not isinstance(t, int) or isinstance(t, bool) or "id" not in record:
            raise DataError(f'{where}: expected a marker {{"id": ..., "t": tokens before it}}')
        found.setdefault(record["id"], []).append(t)
    return found


def position_rows(one: Trace, window: int) -> Iterator[dict[str, Any]]:
    """One record a position: raw and smoothed estimates, the truth where it is known, the loss."""
    smooth = {kind: smoothed(one.estimates[kind], window) for kind in (PROBE, BOTH)}
    for t, token in enumerate(one.tokens):
        row: dict[str, Any] = {"id": one.id, "t": t, "token": token, "nll": round(float(one.nll[t]), 4)}
        row["remaining"] = None if one.length is None else one.length - t
        for kind in KINDS:
            row[kind] = round(float(one.estimates[kind][t]), 2)
        for kind, values in smooth.items():
            row[f"{kind}, smoothed"] = round(float(values[t]), 2)
        row["marker"] = (t - 1) in one.markers
        yield row
