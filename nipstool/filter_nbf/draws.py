"""Random draws keyed by (seed, id, step): batching, interleaving or splitting a stream never changes them.

Every track has its own Philox generator (Salmon et al. 2011), whose counter is set anew at each step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

FILTER, FORECAST, EMIT = 0, 1, 2  # what a step's draws are for: looking at a belief must not change the next one


class KeyedGenerator:
    """One track's generator; `at(step)` puts it where that step's draws begin.

    >>> a, b = KeyedGenerator(0, "x"), KeyedGenerator(0, "x")
    >>> bool(a.at(7).random() == b.at(7).random() != b.at(8).random())
    True
    """

    def __init__(self, seed: int, track: str):
        digest = hashlib.blake2b(f"{seed}\0{track}".encode(errors="surrogatepass"), digest_size=16).digest()
        self._bits = np.random.Philox(key=np.frombuffer(digest, dtype=np.uint64))
        self._state = self._bits.state
        self._generator = np.random.Generator(self._bits)

    def at(self, step: int, purpose: int = FILTER) -> np.random.Generator:
        """The generator, set to the first draw of this step and purpose."""
        self._state["state"]["counter"] = np.array([0, 0, purpose, step], dtype=np.uint64)
        self._state["buffer_pos"] = 4  # nothing is left over from another step
        self._state["has_uint32"] = 0
        self._bits.state = self._state
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

    def random(self, size: tuple[int, ...]) -> np.ndarray:
        """(B, ...) independent uniforms in [0, 1)."""
        return self._fill(size, np.random.Generator.random)

    def _fill(self, size: tuple[int, ...], method: Callable[..., object]) -> np.ndarray:
        if size[0] != len(self.generators):
            raise ValueError(f"draws of {len(self.generators)} tracks were asked for {size[0]}")
        out = np.empty(size)
        rows = out if out.ndim > 1 else out[:, None]  # the rows of a vector would be numbers, not views
        for generator, row in zip(self.generators, rows, strict=True):
            method(generator, out=row)
        return out
