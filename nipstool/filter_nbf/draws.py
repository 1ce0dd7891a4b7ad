"""Random draws keyed by (seed, id, step): batching, interleaving or splitting a stream never changes them.

Every track has its own SFC64 generator (Doty-Humphrey's PractRand; the quickest that numpy has), whose three words
of state are at each step a hash of seed and id, and the step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

FILTER, FORECAST = 0, 1  # what a step's draws are for: looking at a belief must not change the next one
MIXING = 18  # numbers that SFC64 throws away until its state no longer resembles the key


class KeyedGenerator:
    """One track's generator; `at(step)` puts it where that step's draws begin.

    >>> a, b = KeyedGenerator(0, "x"), KeyedGenerator(0, "x")
    >>> bool(a.at(7).random() == b.at(7).random() != b.at(8).random())
    True
    """

    def __init__(self, seed: int, track: str):
        digest = hashlib.blake2b(f"{seed}\0{track}".encode(errors="surrogatepass"), digest_size=16).digest()
        self._bits = np.random.SFC64(0)
        self._state: dict[str, Any] = {**self._bits.state, "has_uint32": 0}
        self._words = np.array([*np.frombuffer(digest, dtype=np.uint64), 0, 1], dtype=np.uint64)
        self._state["state"]["state"] = self._words
        self._generator = np.random.Generator(self._bits)

    def at(self, step: int, purpose: int = FILTER) -> np.random.Generator:
        """The generator, set to the first draw of this step and purpose."""
        self._words[2] = step << 1 | purpose
        self._bits.state = self._state  # type: ignore[assignment]
        self._bits.random_raw(MIXING)
        return self._generator


class Draws:
    """The generators of B tracks as one: the first axis of what it gives belongs to the tracks."""

    def __init__(self, generators: Sequence[np.random.Generator]):
        self.generators = generators

    def take(self, rows: Sequence[int] | np.ndarray) -> Draws:
        """The draws of some of the tracks; they go on where these left off."""
        return Draws([self.generators[row] for row in rows])

    def standard_normal(self, size: tuple[int, ...]) -> np.ndarray:
        """(B, ...) independent N(0, 1)."""
        return self._fill(size, np.random.Generator.standard_normal)

    def opposites(self, size: tuple[int, int, int]) -> np.ndarray:
        """(B, n, d) N(0, 1), every second of the n the opposite of the one before: their mean is exact."""
        some = self.standard_normal((size[0], (size[1] + 1) // 2, size[2]))
        out = np.empty(size)
        out[:, ::2] = some
        np.negative(some[:, : size[1] // 2], out=out[:, 1::2])
        return out

    def normals_of(self, rows: np.ndarray, d: int) -> np.ndarray:
        """(L, d) independent N(0, 1): every track draws as many as it has in `rows`, (L,) and in order."""
        counts = np.bincount(rows, minlength=len(self.generators))
        some = np.flatnonzero(counts).tolist()
        return np.concatenate([self.generators[b].standard_normal((counts[b], d)) for b in some])

    def random(self, size: tuple[int, ...]) -> np.ndarray:
        """(B, ...) independent uniforms in [0, 1)."""
        return self._fill(size, np.random.Generator.random)

    def _fill(self, size: tuple[int, ...], method: Callable[..., object]) -> np.ndarray:
        if size[0] != len(self.generators):
            raise ValueError(f"draws of {len(self.generators)} tracks were asked for {size[0]}")
        if len(self.generators) == 1:
            return np.asarray(method(self.generators[0], size))
        out = np.empty(size)
        rows = out if out.ndim > 1 else out[:, None]  # the rows of a vector would be numbers, not views
        for generator, row in zip(self.generators, rows, strict=True):
            method(generator, out=row)
        return out
