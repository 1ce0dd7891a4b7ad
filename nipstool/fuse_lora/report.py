"""How much LoRAs interfere: per module, by block and kind, and in total, with the chance level beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from nipstool.fuse_lora.adapter import Adapter
from nipstool.fuse_lora.engine import Measured
from nipstool.fuse_lora.projection import leaked, retained
from nipstool.fuse_lora.targets import Block

SWEEP = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, math.inf)
NO_CHANGE = 0.02  # below this share the projection hardly differs from a plain sum


@dataclass(frozen=True)
class ModuleReport:
    """One unit of the fusion. Shares are of the content's energy ||dW_c||^2; None where one of the two is absent.

    rank: of the result. k: directions of the style that are protected. overlap: o = ||dW_c V||^2 / ||dW_c||^2 on
    the input side; chance: k/n, what independent updates share; ratio: overlap / chance; *_out: the output side.
    retained, leaked: energy kept in all, and on the style's directions, after the projection with mu.
    change: ||fused - plain sum|| / ||plain sum||. truncation: relative error of a rank limit, that of a LoHa or
    LoKr folded no further than it included.
    """

    name: str
    block: str
    kind: str
    files: tuple[int, ...]
    rank_content: int | None
    rank_style: int | None
    rank: int
    truncation: float
    k: int | None = None
    norm_content: float | None = None
    norm_style: float | None = None
    cosine: float | None = None
    overlap: float | None = None
    chance: float | None = None
    ratio: float | None = None
    overlap_out: float | None = None
    chance_out: float | None = None
    principal_max: float | None = None
    principal_mean: float | None = None
    mu: float | None = None
    retained: float | None = None
    leaked: float | None = None
    change: float | None = None
    top1_content: float | None = None
    top1_style: float | None = None
    stable_rank_content: float | None = None
    stable_rank_style: float | None = None
    likeness: float | None = None
    changed_norm: float = 0.0
    plain_norm: float = 0.0


@dataclass(frozen=True)
class Totals:
    """Over all modules where content and style meet, weighted by the content's energy."""

    modules: int
    projected: int
    overlap: float
    chance: float
    ratio: float
    overlap_out: float
    retained: float
    leaked: float
    change: float
    truncation: float
    norm_content: float
    norm_style: float
    likeness: float


@dataclass(frozen=True)
class SweepPoint:
    """What one mu would do: shares of the content's energy, and the relative change from a plain sum."""

    mu: float
    retained: float
    leaked: float
    change: float


def module_report(
    block: Block, index: int, unit_index: int, measured: Measured | None, error: float, plain_norm: float
) -> ModuleReport:
    """The report of one unit of item `index` of a batch."""
    unit = block.units[unit_index]
    ranks = [None if s is None else s.rank for s in unit.sources]
    styles = [r for r in ranks[1:] if r is not None]
    place, kind = block_and_kind(unit.name)
    report = ModuleReport(
        name=unit.name,
        block=place,
        kind=kind,
        files=tuple(i for i, s in enumerate(unit.sources) if s is not None),
        rank_content=ranks[0],
        rank_style=sum(styles) if styles else None,
        rank=max(t.rank for t in block.targets),
        truncation=error,
        plain_norm=plain_norm,
    )
    return report if measured is None else _measured(report, measured, index)


def _measured(report: ModuleReport, m: Measured, index: int) -> ModuleReport:
    i = m.interference

    def at(values: object) -> float:
        return float(values[index])  # type: ignore[index]

    overlap, mu = at(i.overlap), at(m.mu)
    changed, plain = at(m.changed), at(m.plain)
    return replace(
        report,
        k=int(m.k[index]),
        norm_content=at(i.norm_c),
        norm_style=at(i.norm_s),
        cosine=at(i.cosine),
        overlap=overlap,
        chance=at(i.chance),
        ratio=at(i.ratio),
        overlap_out=at(i.overlap_out),
        chance_out=at(i.chance_out),
        principal_max=at(i.principal_max),
        principal_mean=at(i.principal_mean),
        mu=mu,
        retained=float(retained(overlap, mu)),
        leaked=float(leaked(overlap, mu)),
        change=changed / plain if plain else 0.0,
        top1_content=at(i.top1_c),
        top1_style=at(i.top1_s),
        stable_rank_content=at(i.stable_rank_c),
        stable_rank_style=at(i.stable_rank_s),
        likeness=at(m.likeness),
        changed_norm=changed,
        plain_norm=plain,
    )


_UNET = re.compile(r"(down_blocks|up_blocks)\.(\d+)\.(attentions|resnets|downsamplers|upsamplers)\.(\d+)\.(.+)")
_UNET_MID = re.compile(r"mid_block\.(attentions|resnets)\.(\d+)\.(.+)")
_LAYER = re.compile(r"((?:[A-Za-z_]+\.)*?)([A-Za-z_]+)\.(\d+)\.(.+)")


def block_and_kind(name: str) -> tuple[str, str]:
    """Where in the network a module is, and which of the block's modules it is: the rows and columns of a picture.

    >>> block_and_kind("unet.down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q")
    ('down.1.attentions.0', 'attn1.to_q')
    >>> block_and_kind("transformer.h.3.attn.c_attn")
    ('h.3', 'attn.c_attn')
    """
    short = name.removeprefix("unet.")
    component = ""
    if (match := re.match(r"(text_encoder(?:_\d)?)\.(.+)", name)) is not None:
        component, short = match[1] + ":", match[2]
    if (match := _UNET.match(short)) is not None:
        place = f"{match[1].removesuffix('_blocks')}.{match[2]}.{match[3]}.{match[4]}"
        return place, re.sub(r"^transformer_blocks\.\d+\.", "", match[5])
    if (match := _UNET_MID.match(short)) is not None:
        return f"mid.{match[1]}.{match[2]}", re.sub(r"^transformer_blocks\.\d+\.", "", match[3])
    if (match := _LAYER.match(short)) is not None:
        return f"{component}{match[2]}.{match[3]}", match[4]
    return component + "other", short


def totals(reports: Sequence[ModuleReport]) -> Totals:
    """Sums over modules; every share is an energy over the content's energy."""
    met = [r for r in reports if r.overlap is not None]
    energy = sum(_n(r.norm_content) ** 2 for r in met)

    def mean(value: Callable[[ModuleReport], float | None]) -> float:
        return sum(_n(value(r)) * _n(r.norm_content) ** 2 for r in met) / energy if energy else 0.0

    plain = math.sqrt(sum(r.plain_norm**2 for r in reports))
    overlap, chance = mean(lambda r: r.overlap), mean(lambda r: r.chance)
    return Totals(
        modules=len(reports),
        projected=len(met),
        overlap=overlap,
        chance=chance,
        ratio=overlap / chance if chance else 0.0,
        overlap_out=mean(lambda r: r.overlap_out),
        retained=mean(lambda r: r.retained),
        leaked=mean(lambda r: r.leaked),
        change=math.sqrt(sum(r.changed_norm**2 for r in reports)) / plain if plain else 0.0,
        truncation=_root_share(reports),
        norm_content=math.sqrt(energy),
        norm_style=math.sqrt(sum(_n(r.norm_style) ** 2 for r in met)),
        likeness=median(_n(r.likeness) for r in met) if met else 0.0,
    )


def _n(value: float | None) -> float:
    return 0.0 if value is None else value


def _root_share(reports: Iterable[ModuleReport]) -> float:
    pairs = [(r.truncation * r.plain_norm, r.plain_norm) for r in reports]
    whole = math.sqrt(sum(p**2 for _, p in pairs))
    return math.sqrt(sum(lost**2 for lost, _ in pairs)) / whole if whole else 0.0


def sweep(reports: Sequence[ModuleReport], mus: Sequence[float] = SWEEP) -> list[SweepPoint]:
    """What each mu would do to the whole, in closed form from one measurement."""
    met = [r for r in reports if r.overlap is not None]
    energy = sum(_n(r.norm_content) ** 2 for r in met) or 1.0
    on_V = sum(_n(r.overlap) * _n(r.norm_content) ** 2 for r in met)
    plain = math.sqrt(sum(r.plain_norm**2 for r in reports)) or 1.0
    points = []
    for mu in mus:
        share = on_V / energy
        c = 1.0 if math.isinf(mu) else mu / (1.0 + mu)
        points.append(
            SweepPoint(mu, float(retained(share, mu)), float(leaked(share, mu)), c * math.sqrt(on_V) / plain)
        )
    return points


def warnings_about(found: Totals, adapters: Sequence[Adapter], mu: float | None) -> list[str]:
    """What a user should know before using the result, a line each."""
    lines = []
    if found.projected and found.overlap > 0.9 and found.overlap_out > 0.5:
        lines.append(
            f"shared lineage: {found.overlap:.1%} of the content lies in the style's subspace; these look like"
            " checkpoints of one run, and the projection erases the content"
        )
    elif found.likeness > 0.7:
        lines.append(
            f"shared initialisation: rows of A agree (median |cos| {found.likeness:.2f}); the overlap comes from"
            " the same starting point, not from what was learned"
        )
    if found.projected and (mu is None or mu > 0) and found.change < NO_CHANGE:
        lines.append(
            f"the result is within {found.change:.2%} of a plain sum: the overlap is {found.ratio:.2f} times"
            " what chance gives, so there is little interference to remove"
        )
    norms = sorted((found.norm_content, found.norm_style))
    if norms[0] > 0 and norms[1] > 10 * norms[0]:
        lines.append(
            f"the norms of content and style are {norms[1] / norms[0]:.3g} times apart: one will drown the other"
        )
    bases = {a.base_model for a in adapters if a.base_model}
    if len(bases) > 1:
        lines.append(f"trained on different base models: {', '.join(sorted(bases))}")
    return lines


def grid(
    reports: Sequence[ModuleReport], value: str = "overlap"
) -> tuple[list[str], list[str], list[list[float | None]]]:
    """Blocks x kinds of an energy-weighted share: (rows, columns, values), None where nothing meets."""
    met = [r for r in reports if r.overlap is not None]
    rows = sorted({r.block for r in met}, key=natural)
    columns = sorted({r.kind for r in met}, key=natural)
    sums: dict[tuple[str, str], list[float]] = {}
    for r in met:
        cell = sums.setdefault((r.block, r.kind), [0.0, 0.0])
        weight = _n(r.norm_content) ** 2
        cell[0] += weight * _n(getattr(r, value))
        cell[1] += weight
    values = [[_share(sums.get((row, column))) for column in columns] for row in rows]
    return rows, columns, values


def natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key by which h.2 comes before h.10."""
    return [(0, int(word)) if word.isdigit() else (1, word) for word in re.findall(r"\d+|\D+", name)]


def _share(cell: list[float] | None) -> float | None:
    return None if cell is None or cell[1] == 0 else cell[0] / cell[1]
