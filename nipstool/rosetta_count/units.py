"""Units of work: fixed runs of documents, one float32 product and one float64 sum each.

What a unit holds depends on the documents and the options alone, not on how many processes share the work or where
an interrupted run took it up: that is why results do not depend on either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LARGEST, SMALLEST = 4096, 256  # samples of a unit; a float64 sum costs as much as a product of about 400
WANTED = 16  # units at least, so that permuting them is a permutation
FEW_DOCUMENTS = 20
PREFIXES = (8, 4, 2, 1)  # the shares 1/8 ... 1 after which the count is taken


@dataclass(frozen=True)
class Unit:
    """A run of documents [start, stop), of so many samples if that is known before."""

    index: int
    start: int
    stop: int


def make_units(sizes: Sequence[int], *, repeats: int, largest: int = LARGEST) -> list[Unit]:
    """Cut documents, given by their sizes in samples, into units of whole documents.

    Args:
        repeats: permuted repetitions: there are more units than that wherever there are more documents.
        largest: samples of a unit that memory allows.
    """
    total = sum(sizes)
    share = total // max(WANTED, 2 * (repeats + 1))
    target = max(1, min(largest, max(share, min(SMALLEST, total // (repeats + 2)))))
    units: list[Unit] = []
    start, held = 0, 0
    for index, size in enumerate(sizes):
        held += size
        if held >= target or index == len(sizes) - 1:
            units.append(Unit(len(units), start, index + 1))
            start, held = index + 1, 0
    return units


def segments(count: int) -> list[tuple[int, int]]:
    """[start, stop) of units between the prefixes N/8, N/4, N/2 and N after which a count is taken."""
    ends = sorted({max(1, count // part) for part in PREFIXES})
    return list(zip([0, *ends[:-1]], ends, strict=True))


def share(start: int, stop: int, rank: int, world: int) -> tuple[int, int]:
    """The run of units that one process of several works on."""
    length = stop - start
    return start + length * rank // world, start + length * (rank + 1) // world
