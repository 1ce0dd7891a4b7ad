"""What will be written: one target a module of the output's format, grouped with the units it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nipstool.fuse_lora.adapter import Adapter
from nipstool.fuse_lora.names import fusion_of, native_fused, spell, swaps_halves
from nipstool.fuse_lora.plan import Source, Unit
from nipstool.kit.errors import DataError


@dataclass(frozen=True)
class Target:
    """One module of the output.

    rank: of its factors. verbatim: the file whose tensors are copied as they are (None: computed).
    alpha: what a format that has one stores; None is the rank, that is scale 1.
    swap_halves: the format wants B's row halves in the other order. embedding: PEFT's lora_embedding_A/B.
    """

    name: str
    stem: str
    shape: tuple[int, int]
    kernel: tuple[int, ...]
    rank: int
    swap_halves: bool = False
    embedding: bool = False
    bias: bool = False
    verbatim: int | None = None
    alpha: float | None = None


@dataclass(frozen=True)
class Block:
    """Units and the targets they become: one to one, one block cut into parts, or parts joined to one block.

    rows: the output rows of each part of a joined block, also of parts that no file has.
    members: for a joined block, which part each unit is, or begins with.
    shared: for a joined block, per file, whether one copy of A serves all parts.
    """

    units: tuple[Unit, ...]
    targets: tuple[Target, ...]
    rows: tuple[int, ...] = ()
    members: tuple[int, ...] = ()
    shared: tuple[bool, ...] = ()

    @property
    def joined(self) -> bool:
        """Whether several parts become one target."""
        return bool(self.members)


@dataclass(frozen=True)
class Style:
    """How the output is spelled: its family and format, its prefix for families in no table, a rank limit."""

    family: str
    format: str
    prefix: str = ""
    max_rank: int | None = None

    def stem(self, name: str) -> str:
        """A canonical module name as the format spells it; DataError where it has no name for it."""
        if self.family == "unknown":
            return self.prefix + name
        try:
            return spell(name, self.family, self.format)
        except DataError as error:
            raise DataError(f"{error} (choose another --format, or --exclude it)") from error


def make_blocks(units: Sequence[Unit], adapters: Sequence[Adapter], style: Style, *, damped: bool) -> list[Block]:
    """Group units by what they are written as.

    Args:
        damped: whether the projection changes the content at all (mu > 0): a content's A that is projected
            differs from part to part and cannot be shared.
    """
    blocks: list[Block] = []
    joined: dict[str, list[Unit]] = {}
    native = native_fused(style.format, style.family)
    for unit in units:
        fusion = fusion_of(unit.parts[0], style.family) if native else None
        if fusion is not None and fusion[1] != unit.parts:
            group = joined.setdefault(fusion[0], [])
            if not group:
                blocks.append(Block((), (), members=(0,)))  # keeps the place; filled below
                blocks[-1] = replace(blocks[-1], targets=(_target(fusion[0], unit, style),))
            group.append(unit)
        elif len(unit.parts) > 1 and not native:
            blocks.append(Block((unit,), _cut(unit, style)))
        else:
            blocks.append(Block((unit,), (_target(unit.name, unit, style),)))
    made = [
        _join(joined[b.targets[0].name], b.targets[0], adapters, style, damped=damped) if b.joined else b
        for b in blocks
    ]
    return _with_biases(made) if style.format in ("diffusers", "peft") else made


def _with_biases(blocks: list[Block]) -> list[Block]:
    """PEFT's lora_bias holds for all modules of an adapter: where one has a bias delta, all have."""
    if not any(t.bias for b in blocks for t in b.targets):
        return blocks
    return [replace(b, targets=tuple(replace(t, bias=not t.embedding) for t in b.targets)) for b in blocks]


def _target(name: str, unit: Unit, style: Style) -> Target:
    sources = [s for s in unit.sources if s is not None]
    return Target(
        name,
        style.stem(name),
        unit.shape,
        unit.kernel,
        _limited(unit.rank, style),
        swap_halves=swaps_halves(name, style.family, style.format, *unit.shape),
        embedding=any(s.module.embedding for s in sources),
        bias=any("bias" in s.module.keys for s in sources),
    )


def _limited(rank: int, style: Style) -> int:
    return rank if style.max_rank is None else min(rank, style.max_rank)


def _cut(unit: Unit, style: Style) -> tuple[Target, ...]:
    """A block's parts as targets of their own; they share its A."""
    return tuple(
        replace(_target(part, unit, style), shape=(rows, unit.columns), rank=_limited(min(unit.rank, rows), style))
        for part, rows in zip(unit.parts, unit.rows, strict=True)
    )


def _join(units: list[Unit], target: Target, adapters: Sequence[Adapter], style: Style, *, damped: bool) -> Block:
    """Parts as one block: B block-diagonal, A stacked, one copy of an A that the parts share."""
    fusion = fusion_of(units[0].parts[0], style.family)
    assert fusion is not None
    heights = {part: rows for unit in units for part, rows in zip(unit.parts, unit.rows, strict=True)}
    rows = tuple(heights.get(part) or _rows_of_absent(part, units[0].columns) for part in fusion[1])
    members = tuple(fusion[1].index(unit.parts[0]) for unit in units)
    shared = tuple(
        _shares_A(adapters[i], [u.sources[i] for u in units])
        and not (i == 0 and damped and any(u.projected for u in units))
        for i in range(len(adapters))
    )
    shape = (sum(rows), units[0].columns)
    rank = min(sum(_rank_in(units, i, one) for i, one in enumerate(shared)), *shape)
    bias = any(s is not None and "bias" in s.module.keys for unit in units for s in unit.sources)
    whole = replace(target, shape=shape, rank=_limited(rank, style), bias=bias)
    return Block(tuple(units), (whole,), rows, members, shared)


def _rank_in(units: Sequence[Unit], file: int, shared: bool) -> int:
    ranks = [s.rank for u in units if (s := u.sources[file]) is not None]
    return max(ranks, default=0) if shared else sum(ranks)


def _rows_of_absent(part: str, columns: int) -> int:
    """The height of a part that no file has: attention is square, the MLP four times as wide (FLUX)."""
    return 4 * columns if part.endswith("proj_mlp") else columns


def _shares_A(adapter: Adapter, sources: Sequence[Source | None]) -> bool:
    """Whether the parts' A is one and the same tensor, as it is after a block was cut."""
    found = [s for s in sources if s is not None]
    if len(found) < 2:
        return False
    if all(s.module == found[0].module for s in found):
        return True
    if any(s.module.algorithm != "lora" or "mid" in s.module.keys for s in found):
        return False
    # an A of more rows than its part has is recompressed, part by part
    if any(s.rank != adapter.shapes(s.module)["down"][0] for s in found):
        return False
    first, *others = (adapter.reader.read_bytes(s.module.keys["down"]) for s in found)
    return all(other == first for other in others)
