"""Which modules of several LoRAs meet, and at what granularity: known before any data is read.

A *unit* is what is projected and summed as a whole. Where FLUX's q, k and v are one block in every file,
the unit is that block; as soon as one file has them apart, every file is taken apart: A is shared by the
parts, B's rows are cut. (The style's subspace of a block contains those of its parts, so the granularity
changes the result; this rule makes it a function of the inputs alone.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nipstool.fuse_lora.adapter import Adapter
from nipstool.fuse_lora.algorithms import MAX_EXACT_RANK, delta_shape, exact_rank
from nipstool.fuse_lora.names import Module, part_rows
from nipstool.kit.errors import DataError, UsageError


@dataclass(frozen=True)
class Source:
    """What one file brings to a unit: a module (out, in * kernel), and which rows of its B (all where None)."""

    module: Module
    rank: int
    shape: tuple[int, int]
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class Unit:
    """One update that is projected and summed as a whole. `sources` has one entry a file, None where absent."""

    name: str
    parts: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int
    kernel: tuple[int, ...]
    sources: tuple[Source | None, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in * kernel)."""
        return sum(self.rows), self.columns

    @property
    def rank(self) -> int:
        """The rank of the exact sum."""
        return min(sum(s.rank for s in self.sources if s is not None), *self.shape)

    @property
    def projected(self) -> bool:
        """Whether the content (file 0) meets a style here."""
        return self.sources[0] is not None and any(s is not None for s in self.sources[1:])


@dataclass(frozen=True)
class _Seen:
    """A module of one file with its shape, or the rows of it that belong to one part."""

    module: Module
    shape: tuple[int, int]
    kernel: tuple[int, ...]
    rank: int
    rows: tuple[int, ...]
    cut: tuple[int, int] | None = None


_Holders = Mapping[str, _Seen]  # canonical name of a part -> the module of one file that covers it


def make_units(adapters: Sequence[Adapter], *, rank: int | None = None, match: bool = True) -> list[Unit]:
    """The units of a fusion, in the order of the first file that has each.

    Args:
        rank: the rank asked for; needed where a LoHa or LoKr is too large to be folded exactly.
        match: insist that the first file shares a module with each of the others.

    Raises:
        DataError: shapes do not meet, families differ, or no module is common.
        UsageError: a LoHa or LoKr of rank above 256, and no `rank`.
    """
    _check_families(adapters)
    files = [_survey(adapter, rank) for adapter in adapters]
    units: dict[str, Unit] = {}
    for file in files:
        for seen in file.values():
            for parts in _pieces(seen.module, files):
                unit = _unit(parts, seen.module, files, adapters)
                units.setdefault(unit.name, unit)
    found = list(units.values())
    if match:
        _check_common(found, adapters)
    return found


def _survey(adapter: Adapter, rank: int | None) -> _Holders:
    holders: dict[str, _Seen] = {}
    for module in adapter.layout.modules:
        seen = _look_at(adapter, module, rank)
        holders.update(dict.fromkeys(module.parts, seen))
    return holders


def _look_at(adapter: Adapter, module: Module, rank: int | None) -> _Seen:
    shapes = adapter.shapes(module)
    try:
        m, n, kernel = delta_shape(module.algorithm, shapes)
        exact = exact_rank(module.algorithm, shapes)
        rows = part_rows(module, m, n) if len(module.parts) > 1 else (m,)
    except DataError as error:
        raise DataError(f"{adapter.label}: {module.stem}: {error}") from error
    if module.algorithm != "lora" and exact > MAX_EXACT_RANK:
        if rank is None:
            raise UsageError(
                f"{adapter.label}: {module.stem}: the exact rank of this {module.algorithm} is {exact},"
                f" above {MAX_EXACT_RANK}: give fuse or convert --rank R"
            )
        exact = min(rank, exact)
    return _Seen(module, (m, n), kernel, exact, rows)


def _pieces(module: Module, files: Sequence[_Holders]) -> list[tuple[str, ...]]:
    """The module as one piece if no file has its parts apart, else its parts one by one."""
    for file in files:
        for part in module.parts:
            if part in file and file[part].module.parts != module.parts:
                return [(part,) for part in module.parts]
    return [module.parts]


def _unit(parts: tuple[str, ...], module: Module, files: Sequence[_Holders], adapters: Sequence[Adapter]) -> Unit:
    name = module.name if parts == module.parts else parts[0]
    pieces = [_piece(file.get(parts[0]), parts) for file in files]
    shapes = {a.label: (sum(p.rows), p.shape[1]) for a, p in zip(adapters, pieces, strict=True) if p is not None}
    _check_shapes(name, shapes)
    found = [p for p in pieces if p is not None]
    sources = tuple(p and Source(p.module, p.rank, p.shape, p.cut) for p in pieces)
    kernel = _kernel(name, found, any(a.layout.family == "sd15" for a in adapters))
    return Unit(name, parts, found[0].rows, found[0].shape[1], kernel, sources)


_CONV_3x3 = re.compile(r"^unet\.(?:.+\.)?(?:conv[12]|conv_in|conv_out|(?:down|up)samplers\.\d+\.conv)$")
_CONV_1x1 = re.compile(r"^unet\..+\.conv_shortcut$")
_CONV_1x1_SD15 = re.compile(r"^unet\..+\.proj_(?:in|out)$")  # later UNets have linear layers there


def _kernel(name: str, found: Sequence[_Seen], sd15: bool) -> tuple[int, ...]:
    """The kernel of the convolution a unit is, () for a linear layer.

    A LoHa or LoKr of a convolution is stored flattened: its kernel is known from another file or by its name.
    """
    kernels = {p.kernel for p in found if p.kernel}
    if len(kernels) > 1:
        raise DataError(f"{name}: shapes do not meet: kernels {' and '.join(map(str, map(list, kernels)))}")
    if kernels:
        return kernels.pop()
    if all(p.module.algorithm != "lora" for p in found):
        if _CONV_3x3.match(name):
            return (3, 3)
        if _CONV_1x1.match(name) or (sd15 and _CONV_1x1_SD15.match(name)):
            return (1, 1)
    return ()


def _piece(seen: _Seen | None, parts: tuple[str, ...]) -> _Seen | None:
    """What a module brings to a piece: itself, or the rows of one of its parts."""
    if seen is None or seen.module.parts == parts:
        return seen
    index = seen.module.parts.index(parts[0])
    start = sum(seen.rows[:index])
    return replace(seen, rows=(seen.rows[index],), cut=(start, start + seen.rows[index]))


def _check_shapes(name: str, shapes: Mapping[str, tuple[int, int]]) -> None:
    (first, expected), *others = shapes.items()
    for label, shape in others:
        if shape != expected:
            raise DataError(f"{name}: shapes do not meet: {list(expected)} in {first}, {list(shape)} in {label}")


def _check_families(adapters: Sequence[Adapter]) -> None:
    known = [(a.layout.family, a.label) for a in adapters if a.layout.family != "unknown"]
    for family, label in known[1:]:
        if family != known[0][0]:
            raise DataError(f"{known[0][1]} is for {known[0][0]}, {label} for {family}: they cannot be fused")


def _check_common(units: Sequence[Unit], adapters: Sequence[Adapter]) -> None:
    for index, adapter in enumerate(adapters[1:], start=1):
        if not any(u.sources[0] is not None and u.sources[index] is not None for u in units):
            names = [next((m.name for m in a.layout.modules), "none") for a in (adapters[0], adapter)]
            raise DataError(
                f"{adapters[0].label} and {adapter.label} have no module in common"
                f" (the first ones are {names[0]} and {names[1]})"
            )
