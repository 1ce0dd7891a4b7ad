"""Module names as patterns: one row says how the original code and diffusers call the same module.

A pattern is a dotted name in which `{}` stands for a number that both spellings share. A flat (kohya) name is
the same pattern with underscores; it is looked up, never cut at its underscores: `to_q` and `blocks_0` look alike.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

_NUMBER = re.compile(r"(?<![A-Za-z0-9])[0-9]+(?![A-Za-z0-9])")
_SLOT = re.compile(r"\{\}|(?<![A-Za-z0-9])[0-9]+(?![A-Za-z0-9])")

# text with every number replaced by '#' -> [(the numbers it must have, None where free; the pattern's position)]
_Index = dict[str, list[tuple[tuple[str | None, ...], int]]]


class Reading(NamedTuple):
    """A name found in a table: the canonical name without its component, and how it was spelled."""

    canonical: str
    pattern: str
    numbers: tuple[str, ...]
    native: bool


@dataclass(frozen=True)
class Table:
    """The modules of one model family.

    rows: (the original code's dotted pattern, the diffusers pattern); aliases: the same, only ever read;
    own: diffusers patterns that have no row, or a row for some of their numbers only.
    fused: pattern of a block the original code keeps in one matrix -> the patterns of its parts in row order.
    fused_aliases: the same for blocks that only an alias spells.
    swapped: patterns whose two output halves (shift, scale) stand in the other order in the original code.
    """

    component: str
    rows: tuple[tuple[str, str], ...]
    aliases: tuple[tuple[str, str], ...] = ()
    own: tuple[str, ...] = ()
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fused_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    swapped: frozenset[str] = frozenset()

    @cached_property
    def _pairs(self) -> tuple[tuple[str, str], ...]:
        return self.rows + self.aliases

    @cached_property
    def _native(self) -> tuple[_Index, _Index]:
        return _indexes(native for native, _ in self._pairs)

    @cached_property
    def _canonical(self) -> tuple[_Index, _Index]:
        return _indexes([*(canonical for _, canonical in self._pairs), *self.own])

    @cached_property
    def _fusions(self) -> tuple[tuple[str, _Index], ...]:
        return tuple((fused, _indexes(patterns)[0]) for fused, patterns in self.fused.items())

    def read(self, text: str, *, flat: bool) -> Reading | None:
        """Find a name without prefix in either spelling; diffusers' own wins where both are the same text."""
        for native, index in ((False, self._canonical[flat]), (True, self._native[flat])):
            found = _lookup(index, text)
            if found is not None:
                row, numbers = found
                pattern = self._pattern(row)
                return Reading(pattern.format(*numbers), pattern, numbers, native)
        return None

    def _pattern(self, row: int) -> str:
        pairs = self._pairs
        return pairs[row][1] if row < len(pairs) else self.own[row - len(pairs)]

    def write(self, canonical: str) -> str | None:
        """The original code's dotted name of a canonical one (without component); None if it has none."""
        found = _lookup(self._canonical[False], canonical)
        if found is None or found[0] >= len(self.rows):
            return None
        return self._pairs[found[0]][0].format(*found[1])

    def parts(self, reading: Reading) -> tuple[str, ...]:
        """Canonical names of what a module covers: itself, or the parts of a fused one in row order."""
        patterns = {**self.fused, **self.fused_aliases}.get(reading.pattern)
        if patterns is None:
            return (reading.canonical,)
        return tuple(pattern.format(*reading.numbers) for pattern in patterns)

    def fusion(self, canonical: str) -> tuple[str, tuple[str, ...]] | None:
        """The fused block a split name belongs to, and all its parts in row order."""
        for fused, index in self._fusions:
            found = _lookup(index, canonical)
            if found is not None:
                parts = tuple(pattern.format(*found[1]) for pattern in self.fused[fused])
                return fused.format(*found[1]), parts
        return None


def _indexes(patterns: Iterable[str]) -> tuple[_Index, _Index]:
    dotted: _Index = {}
    flat: _Index = {}
    for position, pattern in enumerate(patterns):
        for index, text in ((dotted, pattern), (flat, pattern.replace(".", "_"))):
            wanted = tuple(None if slot == "{}" else slot for slot in _SLOT.findall(text))
            index.setdefault(_SLOT.sub("#", text), []).append((wanted, position))
    return dotted, flat


def _lookup(index: _Index, text: str) -> tuple[int, tuple[str, ...]] | None:
    candidates = index.get(_NUMBER.sub("#", text))
    if candidates is None:
        return None
    numbers = _NUMBER.findall(text)
    for wanted, position in candidates:
        if len(wanted) != len(numbers):
            continue
        slots = list(zip(wanted, numbers, strict=True))
        if all(want in (None, number) for want, number in slots):
            return position, tuple(number for want, number in slots if want is None)
    return None
