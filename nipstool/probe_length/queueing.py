"""Queues of jobs: simulation of several slots under an order, and what theory says of one slot.

With arrivals at rate l, service S and load r = l E[S], the mean wait in an M/G/1 queue is
    first come, first served:   l E[S^2] / (2 (1 - r))                                (Pollaczek and Khinchine)
    shortest job first:         l E[S^2] / 2 * E[ 1 / ((1 - r(S-)) (1 - r(S))) ],     r(x) = l E[S; S <= x]
(Phipps 1956, Cobham's classes of priority, one a length), without preemption.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

import numpy as np

Array = np.ndarray


def pollaczek_khinchine(service: Array, load: float) -> float:
    """The mean wait of a service distribution given as equally likely values."""
    rate = load / service.mean()
    return float(rate * np.mean(service**2) / (2 * (1 - load)))


def shortest_first(service: Array, load: float) -> float:
    """The mean wait under shortest job first, of equally likely values; equal ones are one class."""
    rate = load / service.mean()
    values, counts = np.unique(service, return_counts=True)
    share = counts / len(service)
    upto = np.cumsum(rate * values * share)
    below = upto - rate * values * share
    return float(rate * np.mean(service**2) / 2 * (share / ((1 - below) * (1 - upto))).sum())


def first_come(arrival: Array, service: Array, slots: int = 1) -> Array:
    """Finishing times; one slot by Lindley's recursion at once, several by simulation. Arrivals ascend."""
    if slots > 1:
        return in_order(arrival, service, np.arange(len(arrival), dtype=float), slots)
    done = np.cumsum(service)
    return done + np.maximum.accumulate(arrival - np.concatenate([[0.0], done[:-1]]))


def in_order(arrival: Array, service: Array, key: Array, slots: int = 1) -> Array:
    """Finishing times [n] where a free slot takes the waiting job with the smallest key, and finishes it."""
    starts, work, keys = arrival.tolist(), service.tolist(), key.tolist()
    finish = [0.0] * len(starts)
    free = [0.0] * slots
    waiting: list[tuple[float, int]] = []
    came, count = 0, len(starts)
    for _ in range(count):
        now = free[0]
        if not waiting and starts[came] > now:
            now = starts[came]
        while came < count and starts[came] <= now:
            heappush(waiting, (keys[came], came))
            came += 1
        _, job = heappop(waiting)
        finish[job] = now + work[job]
        heapreplace(free, finish[job])
    return np.array(finish)


def preemptive(arrival: Array, service: Array, predicted: Array, slots: int = 1) -> Array:
    """Finishing times where the jobs with the least predicted remaining service run, interrupted ones go on later.

    A job that has outrun its prediction counts as about to end.
    """
    starts, left, guess = arrival.tolist(), service.tolist(), predicted.tolist()
    finish = [0.0] * len(starts)
    waiting: list[tuple[float, int]] = []
    running: list[int] = []
    now, came, count = 0.0, 0, len(starts)
    while came < count or running or waiting:
        arrives = starts[came] if came < count else float("inf")
        ends = now + min((left[job] for job in running), default=float("inf"))
        then = min(arrives, ends)
        for job in running:
            left[job] -= then - now
            guess[job] = max(guess[job] - (then - now), 0.0)
        now = then
        if ends <= arrives:
            job = min(running, key=left.__getitem__)
            running.remove(job)
            finish[job] = now
            if waiting:
                running.append(heappop(waiting)[1])
            continue
        _admit(came, guess, running, waiting, slots)
        came += 1
    return np.array(finish)


def _admit(job: int, guess: list[float], running: list[int], waiting: list[tuple[float, int]], slots: int) -> None:
    """A new job runs if a slot is free, or in the place of one that is predicted to take longer."""
    if len(running) < slots:
        running.append(job)
        return
    longest = max(running, key=guess.__getitem__)
    if guess[longest] > guess[job]:
        running[running.index(longest)] = job
        job = longest
    heappush(waiting, (guess[job], job))
