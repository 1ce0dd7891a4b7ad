"""How a count is computed, chosen by predicted cost, in words before the work begins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nipstool.kit.errors import UsageError
from nipstool.rosetta_count.correlate import BLOCK
from nipstool.rosetta_count.count import Subject
from nipstool.rosetta_count.sketch import BUCKETS, CANDIDATES, LEAST_R
from nipstool.rosetta_count.units import LARGEST

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
METHODS = ("auto", "dense", "spool", "sketch")
SMALLEST_TILE = 256
SKETCHED, VERIFIED = 120, 1200  # multiplications and additions in the time of a value sketched, of a pair computed


@dataclass(frozen=True)
class Plan:
    """dense: all sums in memory; spool: activations on disk, sums tile by tile; sketch: candidates, then those."""

    method: str
    bytes: int
    tile: int  # rows of a tile
    text: str


@dataclass(frozen=True)
class Costs:
    """Predicted cost of either way, in the time of so many GFLOP of a matrix product."""

    exact: float
    sketch: float


def read_bytes(text: str, option: str = "--mem") -> int:
    """4G, 500M or a number of bytes. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"{option} {text}: expected a size such as 4G or 500M")
    return int(float(match[1]) * UNITS[match[2]])


def dense_bytes(subjects: Sequence[Subject], repeats: int, *, rotate: bool, samples: int) -> int:
    """Memory of sums, and of the units that permuted pairings need again."""
    first, *others = [subject.neurons for subject in subjects]
    unit = min(samples, LARGEST)
    sums = sum(8 * (1 + repeats) * first * other + 4 * BLOCK[0] * other for other in others)
    inner = (
        sum(8 * (c.columns.stop - c.columns.start) ** 2 for s in subjects[1:] for c in s.layers) if rotate else 0
    )
    held = unit * 4 * sum(repeats * n for n in (first, *others)) + 8 * unit * (first + max(others))
    return sums + inner + held


def tile_rows(memory: int, columns: int, repeats: int, itemsize: int = 4, unit: int = LARGEST) -> int:
    """Rows of a tile whose sums fit into `memory` beside `columns` columns; may be too few to be of use."""
    held = unit * columns * (8 + itemsize * (repeats + 1))
    return int((memory - held) // (columns * 8 * (1 + repeats) + unit * 8)) // SMALLEST_TILE * SMALLEST_TILE


def sketch_bytes(subjects: Sequence[Subject], *, samples: int) -> int:
    """Memory of sketches (of the first model, and of another as it is, while it is added up, and rotated)."""
    first, other = subjects[0].neurons, max(s.neurons for s in subjects[1:])
    unit = min(samples, LARGEST)
    return 4 * BUCKETS * (first + max(2 * first, 5 * other)) + 8 * unit * (first + other)


def costs(subjects: Sequence[Subject], *, samples: int, repeats: int, rotate: bool, untrained: bool) -> Costs:
    """What an exact count and one by a sketch are predicted to cost, controls included."""
    first, others = subjects[0].neurons, [s.neurons for s in subjects[1:]]
    pairings = 1 + repeats + (1 if untrained else 0)
    inner = sum((c.columns.stop - c.columns.start) ** 2 for s in subjects[1:] for c in s.layers) if rotate else 0
    exact = 2 * samples * (pairings * first * sum(others) + inner)
    looked_at = sum(min(first, other) for other in others)  # candidates: about so many, of the observed pairing
    moved = SKETCHED * (2 * first + pairings * sum(others)) + VERIFIED * looked_at
    sketch = 2 * BUCKETS * ((pairings + (1 if rotate else 0)) * first * sum(others) + inner) + moved * samples
    return Costs(exact / 1e9, sketch / 1e9)


def make_plan(
    subjects: Sequence[Subject],
    *,
    samples: int,
    repeats: int,
    rotate: bool,
    untrained: bool,
    memory: int,
    method: str,
    min_r: float = 0.0,
    k: int = 1,
) -> Plan:
    """Choose the method and say what it costs.

    Raises UsageError where memory is too small for any, or where a sketch is asked for what it cannot find.

    Args:
        samples: about how many there will be.
        untrained: whether a second pass with fresh weights can be made.
        min_r, k: what pairs are asked for; a sketch is never chosen where their raw count is.
    """
    if method not in METHODS:
        raise UsageError(f"--method {method}: expected {', '.join(METHODS)}")
    needed = dense_bytes(subjects, repeats, rotate=rotate, samples=samples)
    cost = costs(subjects, samples=samples, repeats=repeats, rotate=rotate, untrained=untrained)
    sketched = sketch_bytes(subjects, samples=samples)
    if method == "sketch":
        _check_sketch(min_r, k, sketched, memory)
    if method == "auto":
        can = min_r >= LEAST_R and k <= CANDIDATES and sketched <= memory
        method = "sketch" if can and cost.sketch < cost.exact else "dense" if needed <= memory else "spool"
    if method == "dense" and needed > memory:
        raise UsageError(f"--mem is too small: --method dense needs {_size(needed)}")
    rows, columns = _tile(subjects, samples, repeats, memory, needs_it=method == "spool")
    told = {
        "dense": f"exact, all sums in memory ({_size(needed)})",
        "spool": f"exact, activations on disk, sums in tiles of {rows} x {columns} (all take {_size(needed)})",
        "sketch": f"a sketch of {BUCKETS} buckets ({_size(sketched)}), then every candidate exactly from disk",
    }[method]
    told += f"; predicted cost {cost.exact:.3g} GFLOP exact"
    told += f", {cost.sketch:.3g} by a sketch" if min_r >= LEAST_R else ""
    extra = " + 1 untrained, a second pass of all models" if untrained else ""
    multiply = 2 * samples * subjects[0].neurons * sum(s.neurons for s in subjects[1:]) / 1e9
    text = f"plan: {told}; {multiply:.3g} GFLOP observed, controls {repeats} x as much permuted{extra}"
    text += (" + rotation of the sketch" if method == "sketch" else " + rotation of the sums") if rotate else ""
    return Plan(method, sketched if method == "sketch" else needed, rows, text)


def _check_sketch(min_r: float, k: int, needed: int, memory: int) -> None:
    if min_r < LEAST_R:
        raise UsageError(f"--method sketch finds pairs with --min-r of at least {LEAST_R}, not {min_r:g}")
    if k > CANDIDATES:
        raise UsageError(f"--method sketch knows {CANDIDATES} candidates of a neuron; --k {k} asks for more")
    if needed > memory:
        raise UsageError(f"--mem is too small: --method sketch needs {_size(needed)}")


def _tile(
    subjects: Sequence[Subject], samples: int, repeats: int, memory: int, *, needs_it: bool
) -> tuple[int, int]:
    """Rows and columns of a tile; UsageError where memory is too small for one that is needed."""
    first = subjects[0].neurons
    largest = max(c.columns.stop - c.columns.start for s in subjects[1:] for c in s.layers)
    unit = min(samples, LARGEST)
    rows = min(first, tile_rows(memory, largest, repeats, unit=unit))
    if needs_it and rows < min(first, SMALLEST_TILE):
        least = unit * largest * (8 + 4 * (repeats + 1)) + SMALLEST_TILE * (largest * 8 * (1 + repeats) + unit * 8)
        raise UsageError(f"--mem is too small: {_size(least)} are needed for a tile of {SMALLEST_TILE} neurons")
    return rows, largest


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1024:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} GB"
