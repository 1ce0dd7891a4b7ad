"""How a count is computed, chosen by predicted cost, in words before the work begins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nipstool.kit.errors import UsageError
from nipstool.rosetta_count.correlate import ROWS
from nipstool.rosetta_count.count import Subject
from nipstool.rosetta_count.units import LARGEST

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
METHODS = ("auto", "dense", "spool")
SMALLEST_TILE = 256


@dataclass(frozen=True)
class Plan:
    """dense: all sums in memory; spool: activations on disk, sums tile by tile."""

    method: str
    bytes: int
    tile: int  # rows of a tile
    products: float  # of n_a x n_b x N multiplications, controls included
    text: str


def read_bytes(text: str, option: str = "--mem") -> int:
    """4G, 500M or a number of bytes. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"{option} {text}: expected a size such as 4G or 500M")
    return int(float(match[1]) * UNITS[match[2]])


def dense_bytes(
    subjects: Sequence[Subject], repeats: int, *, rotate: bool, samples: int, itemsize: int = 4
) -> int:
    """Memory of sums, and of the units that permuted pairings need again."""
    first, *others = [subject.neurons for subject in subjects]
    unit = min(samples, LARGEST)
    sums = sum(8 * (1 + repeats) * first * other + 4 * ROWS * other for other in others)
    inner = (
        sum(8 * (c.columns.stop - c.columns.start) ** 2 for s in subjects[1:] for c in s.layers) if rotate else 0
    )
    held = unit * 4 * sum(repeats * n for n in (first, *others)) + 8 * unit * (first + max(others))
    return sums + inner + held


def tile_rows(memory: int, columns: int, repeats: int, itemsize: int = 4, unit: int = LARGEST) -> int:
    """Rows of a tile whose sums fit into `memory` beside `columns` columns; may be too few to be of use."""
    held = unit * columns * (8 + itemsize * (repeats + 1))
    return int((memory - held) // (columns * 8 * (1 + repeats) + unit * 8)) // SMALLEST_TILE * SMALLEST_TILE


def make_plan(
    subjects: Sequence[Subject],
    *,
    samples: int,
    repeats: int,
    rotate: bool,
    untrained: bool,
    memory: int,
    method: str,
) -> Plan:
    """Choose the method and say what it costs. Raises UsageError where memory is too small for any.

    Args:
        samples: about how many there will be.
        untrained: whether a second pass with fresh weights can be made.
    """
    if method not in METHODS:
        raise UsageError(f"--method {method}: expected {', '.join(METHODS)}")
    needed = dense_bytes(subjects, repeats, rotate=rotate, samples=samples)
    first = subjects[0].neurons
    largest = max(c.columns.stop - c.columns.start for s in subjects[1:] for c in s.layers)
    unit = min(samples, LARGEST)
    rows = min(first, tile_rows(memory, largest, repeats, unit=unit))
    if method == "auto":
        method = "dense" if needed <= memory else "spool"
    if method == "dense" and needed > memory:
        raise UsageError(f"--mem is too small: --method dense needs {_size(needed)}")
    if method != "dense" and rows < min(first, SMALLEST_TILE):
        least = unit * largest * (8 + 4 * (repeats + 1)) + SMALLEST_TILE * (largest * 8 * (1 + repeats) + unit * 8)
        raise UsageError(f"--mem is too small: {_size(least)} are needed for a tile of {SMALLEST_TILE} neurons")
    work = (1 + repeats) + (1 if untrained else 0)
    told = {
        "dense": f"exact, all sums in memory ({_size(needed)})",
        "spool": f"exact, activations on disk, sums in tiles of {rows} x {largest} (all take {_size(needed)})",
    }[method]
    extra = " + 1 untrained, a second pass of all models" if untrained else ""
    multiply = 2 * samples * first * sum(s.neurons for s in subjects[1:]) / 1e9
    text = f"plan: {told}; {multiply:.3g} GFLOP observed, controls {repeats} x as much permuted{extra}"
    text += " + rotation of the sums" if rotate else ""
    return Plan(method, needed, rows, work, text)


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1024:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} GB"
