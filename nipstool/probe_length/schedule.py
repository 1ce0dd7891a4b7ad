"""What serving the shortest predicted answers first would do to latency, beside first come, first served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nipstool.kit.errors import DataError, UsageError
from nipstool.kit.progress import Progress, silent
from nipstool.probe_length.formats import Layout, read_records
from nipstool.probe_length.metrics import spearman
from nipstool.probe_length.queueing import (
    first_come,
    in_order,
    pollaczek_khinchine,
    preemptive,
    shortest_first,
)

Array = np.ndarray
FCFS, SJF, SRPT, AGED, ORACLE = "FCFS", "SJF", "SRPT", "SJF, ageing", "SJF, oracle"
HELPS, HARMS = 0.98, 1.05  # a mean latency below, a p99 above this share of FCFS's is worth a word


@dataclass(frozen=True)
class Lengths:
    """Answers: true and predicted tokens [n], and arrival times in seconds where the records have them."""

    tokens: Array
    predicted: Array
    arrival: Array | None


@dataclass(frozen=True)
class Service:
    """Seconds that an answer takes: prefill_ms + tokens * ms_per_token; `ageing` seconds of priority a second."""

    prefill_ms: float = 50.0
    ms_per_token: float = 20.0
    ageing: float = 0.1


@dataclass(frozen=True)
class Latency:
    """Of one order at one load and number of slots: seconds from arrival to the last token."""

    load: float
    slots: int
    order: str
    mean: float
    p50: float
    p99: float
    of_mean: float  # the mean over FCFS's
    of_p99: float


@dataclass(frozen=True)
class Theory:
    """The mean latency in one slot that queueing theory gives, and what was simulated."""

    load: float
    order: str
    expected: float
    simulated: float


@dataclass(frozen=True)
class Schedule:
    """All of them, and what they mean in words."""

    answers: int
    spearman: float | None  # of prediction and truth
    variation: float  # squared coefficient of variation of service
    latencies: tuple[Latency, ...]
    theory: tuple[Theory, ...]
    verdict: tuple[str, ...]


def read_lengths(path: str | Path) -> Lengths:
    """Records {"n_response", "predicted", "arrival"?}; p50, as predict writes it, does for predicted.

    Raises DataError where a record lacks them, or only some have arrivals.
    """

    def fault(told: str) -> None:
        raise DataError(told)

    rows = [_row(record, where) for where, record in read_records(path, Layout(), fault)]
    told = "stdin" if path == "-" else str(path)
    if len(rows) < 2:
        raise DataError(f"{told}: has {len(rows)} answers; expected several")
    arrivals = [row[2] for row in rows]
    if len({arrival is None for arrival in arrivals}) > 1:
        raise DataError(f"{told}: some records have an arrival and some have none")
    tokens, predicted = (np.array([row[i] for row in rows], dtype=float) for i in (0, 1))
    known = [arrival for arrival in arrivals if arrival is not None]
    if not known:
        return Lengths(tokens, predicted, None)
    order = np.argsort(known, kind="stable")
    return Lengths(tokens[order], predicted[order], np.array(known)[order])


def _row(record: Any, where: str) -> tuple[float, float, float | None]:
    """(true tokens, predicted tokens, seconds of arrival) of a record."""
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object")
    predicted = next((name for name in ("predicted", "p50") if record.get(name) is not None), None)
    if predicted is None:
        raise DataError(f"{where}: no predicted or p50; expected the predicted number of tokens")
    if record.get("n_response") is None:
        wanted = f"the number of tokens that the answer had, beside {predicted}"
        raise DataError(f"{where}: no n_response; expected {wanted} (predict passes it on)")
    tokens = _number(record, where, "n_response", "a number of tokens")
    expected = _number(record, where, predicted, "a number of tokens")
    arrival = None if record.get("arrival") is None else _number(record, where, "arrival", "seconds")
    return tokens, expected, arrival


def _number(record: dict[str, Any], where: str, name: str, wanted: str) -> float:
    found = record[name]
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1e12:
        raise DataError(f"{where}: {name} is {found!r}; expected {wanted}")
    return float(found)


def schedule(
    lengths: Lengths,
    service: Service,
    loads: Sequence[float],
    slots: Sequence[int],
    *,
    jobs: int = 50_000,
    seed: int = 0,
    progress: Progress = silent,
) -> Schedule:
    """Simulate every order at every load and number of slots.

    Args:
        loads: shares of the slots' time; not used where the answers have arrival times.
        jobs: answers drawn for each simulation.
    """
    seconds = service_of(lengths.tokens, service)
    latencies: list[Latency] = []
    theory: list[Theory] = []
    places = [(load, count) for count in slots for load in (loads if lengths.arrival is None else (0.0,))]
    for done, (load, count) in enumerate(places):
        drawn = _drawn(lengths, seconds, load, count, jobs, seed)
        rows, checked = _simulated(drawn, service, load, count)
        latencies += rows
        theory += checked
        progress(done + 1, len(places))
    return Schedule(
        len(lengths.tokens),
        spearman(lengths.predicted, lengths.tokens),
        float(seconds.var() / seconds.mean() ** 2),
        tuple(latencies),
        tuple(theory),
        tuple(_verdict(latencies)),
    )


def service_of(tokens: Array, service: Service) -> Array:
    """Seconds of each answer."""
    return (service.prefill_ms + tokens * service.ms_per_token) / 1000


@dataclass(frozen=True)
class _Drawn:
    arrival: Array
    service: Array
    predicted: Array  # tokens
    load: float
    drawn_from: Array | None  # the service of the answers that were drawn from; None with real arrivals


def _drawn(lengths: Lengths, seconds: Array, load: float, slots: int, jobs: int, seed: int) -> _Drawn:
    if lengths.arrival is not None:
        span = max(float(np.ptp(lengths.arrival)), 1e-9)
        real = float(seconds.sum() / (span * slots))
        return _Drawn(lengths.arrival, seconds, lengths.predicted, real, None)
    random = np.random.default_rng([seed, slots, round(load * 1e6)])
    # every answer equally often, and arrivals at exactly this load: else a high load would be mostly chance
    rounds = -(-jobs // len(seconds))
    chosen = random.permutation(np.tile(np.arange(len(seconds)), rounds))[:jobs]
    arrival = np.sort(random.uniform(0, seconds[chosen].sum() / (load * slots), jobs))
    return _Drawn(arrival, seconds[chosen], lengths.predicted[chosen], load, seconds)


def _simulated(drawn: _Drawn, service: Service, load: float, slots: int) -> tuple[list[Latency], list[Theory]]:
    expected = service_of(drawn.predicted, service)
    orders: dict[str, Callable[[], Array]] = {
        FCFS: lambda: first_come(drawn.arrival, drawn.service, slots),
        SJF: lambda: in_order(drawn.arrival, drawn.service, expected, slots),
        AGED: lambda: in_order(drawn.arrival, drawn.service, expected + service.ageing * drawn.arrival, slots),
        SRPT: lambda: preemptive(drawn.arrival, drawn.service, expected, slots),
        ORACLE: lambda: in_order(drawn.arrival, drawn.service, drawn.service, slots),
    }
    latency = {name: run() - drawn.arrival for name, run in orders.items()}
    base = latency[FCFS]
    rows = [
        Latency(
            drawn.load,
            slots,
            name,
            float(took.mean()),
            float(np.median(took)),
            float(np.percentile(took, 99)),
            float(took.mean() / base.mean()),
            float(np.percentile(took, 99) / np.percentile(base, 99)),
        )
        for name, took in latency.items()
    ]
    if slots > 1 or drawn.drawn_from is None or load >= 1:
        return rows, []
    mean = float(drawn.drawn_from.mean())
    waits = {FCFS: pollaczek_khinchine(drawn.drawn_from, load), ORACLE: shortest_first(drawn.drawn_from, load)}
    return rows, [Theory(load, name, wait + mean, float(latency[name].mean())) for name, wait in waits.items()]


def _verdict(latencies: Sequence[Latency]) -> list[str]:
    """Where shortest predicted first helps, and where it harms the slowest answers."""
    told = []
    for row in (row for row in latencies if row.order == SJF):
        at = f"load {row.load:.2f}, {row.slots} slot{'s' * (row.slots > 1)}"
        aged = next(x for x in latencies if (x.load, x.slots, x.order) == (row.load, row.slots, AGED))
        if row.of_mean >= HELPS:
            why = "there is hardly a queue, or the predictions do not order it"
            sentence = f"{at}: no gain (mean latency x{row.of_mean:.2f}): {why}"
        else:
            sentence = f"{at}: helps, mean latency x{row.of_mean:.2f}"
        if row.of_p99 > HARMS:
            sentence += f"; harms the slowest, p99 x{row.of_p99:.2f}"
            sentence += f" (with ageing x{aged.of_p99:.2f}, mean x{aged.of_mean:.2f})"
        told.append(sentence)
    return told


def regimes(load: str, slots: str) -> tuple[list[float], list[int]]:
    """Loads and numbers of slots from options such as 0.5,0.9 and 1,8. Raises UsageError for others."""
    try:
        loads, counts = [float(x) for x in load.split(",")], [int(x) for x in slots.split(",")]
        if all(0 < x < 1 for x in loads) and all(0 < x <= 4096 for x in counts):
            return loads, counts
    except ValueError:
        pass
    raise UsageError(f"--load {load} --slots {slots}: expected loads between 0 and 1, and numbers of slots")
