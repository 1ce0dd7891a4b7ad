"""A bounded sample of sequences with hidden states, for what sums cannot tell: ranks, quantiles, censored answers.

Of each sampled sequence two rows are kept, t = 0 and one position drawn evenly from 0..T, at all layers. The
sequences with the smallest hashes are taken, so that samples of parts merge into the sample of the whole.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, fields

import numpy as np

Array = np.ndarray
FACTS = ("group", "fold", "prompt", "length", "censored", "t", "seen")


@dataclass
class Sample:
    """One entry a sequence, sorted by hash."""

    key: Array  # [m] int64, hash of the sequence
    group: Array  # [m] int64
    fold: Array  # [m] int64
    prompt: Array  # [m] int64, P
    length: Array  # [m] int64, T, or how much of it was seen
    censored: Array  # [m] bool
    weight: Array  # [m] float64
    t: Array  # [m] int64, the drawn position
    seen: Array  # [m] int64, positions 0..seen could be drawn
    first: Array  # [m, layers, d] float32, hidden states at t = 0
    drawn: Array  # [m, layers, d] float32, at the drawn position

    def __len__(self) -> int:
        return len(self.key)

    def take(self, chosen: Array) -> Sample:
        """Some of the sequences."""
        return Sample(*(getattr(self, f.name)[chosen] for f in fields(self)))

    def plus(self, other: Sample, most: int) -> Sample:
        """The `most` sequences with the smallest hashes of both; a sequence that is in both counts twice."""
        both = [np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)]
        joined = Sample(*both)
        order = np.lexsort((joined.length, joined.group, joined.key))
        return joined.take(order[:most])


class Reservoir:
    """The sample while it is being filled: places for `most` sequences, the largest hash gives way."""

    def __init__(self, most: int, layers: int, width: int):
        self.most = most
        self._shape = (layers, width)
        self._held: dict[int, tuple[int, ...]] = {}  # place -> key, group, fold, P, T, censored, t, seen
        self._weights: dict[int, float] = {}
        self._largest: list[tuple[int, int]] = []  # a heap of (-key, place)
        self._first = np.zeros((0, layers, width), np.float32)
        self._drawn = np.zeros((0, layers, width), np.float32)

    def place(self, key: int, facts: tuple[int, ...], weight: float) -> int | None:
        """A place for the sequence's rows, or None where its hash is too large."""
        if len(self._held) < self.most:
            chosen = len(self._held)
            self._grow(chosen + 1)
            heapq.heappush(self._largest, (-key, chosen))
        elif not self._largest or -self._largest[0][0] <= key:
            return None
        else:
            chosen = self._largest[0][1]
            heapq.heapreplace(self._largest, (-key, chosen))
        self._held[chosen] = (key, *facts)
        self._weights[chosen] = weight
        return chosen

    def put(self, place: int, layer: int, first: Array, drawn: Array) -> None:
        """The two rows [d] of a sequence at the layer's place in the list of layers."""
        self._first[place, layer], self._drawn[place, layer] = first, drawn

    def _grow(self, size: int) -> None:
        if size > len(self._first):
            room = min(self.most, max(64, 2 * len(self._first)))
            for name in ("_first", "_drawn"):
                old = getattr(self, name)
                new = np.zeros((room, *self._shape), np.float32)
                new[: len(old)] = old
                setattr(self, name, new)

    def sample(self) -> Sample:
        """What is held now, sorted by hash."""
        places = sorted(self._held, key=lambda i: self._held[i])
        facts = np.array([self._held[i] for i in places], dtype=np.int64).reshape(len(places), 8).T
        key, group, fold, prompt, length, censored, t, seen = facts
        weight = np.array([self._weights[i] for i in places], dtype=np.float64)
        rows = (self._first[places], self._drawn[places])
        return Sample(key, group, fold, prompt, length, censored.astype(bool), weight, t, seen, *rows)

    def refill(self, sample: Sample) -> None:
        """Go on from a sample that was kept."""
        for i in range(len(sample)):
            facts = tuple(int(getattr(sample, name)[i]) for name in FACTS)
            place = self.place(int(sample.key[i]), facts, float(sample.weight[i]))
            assert place is not None
            self._first[place], self._drawn[place] = sample.first[i], sample.drawn[i]
