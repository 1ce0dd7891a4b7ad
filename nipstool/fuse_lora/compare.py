"""How much two LoRAs interfere, in both directions, without writing anything."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from nipstool.fuse_lora.adapter import open_checked
from nipstool.fuse_lora.engine import Merge
from nipstool.fuse_lora.fuse import choose_style, device_for, spool
from nipstool.fuse_lora.job import Job
from nipstool.fuse_lora.plan import make_units
from nipstool.fuse_lora.report import ModuleReport, SweepPoint, Totals, sweep, totals, warnings_about
from nipstool.fuse_lora.targets import Block, make_blocks
from nipstool.fuse_lora.work import measure
from nipstool.kit.files import sha256
from nipstool.kit.progress import Progress, silent
from nipstool.kit.runtime import available_threads


@dataclass(frozen=True)
class Direction:
    """One file as the content, the other as the style that is protected."""

    content: str
    style: str
    modules: tuple[ModuleReport, ...]
    totals: Totals
    sweep: tuple[SweepPoint, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Both directions, and the inputs' hashes."""

    family: str
    forward: Direction
    backward: Direction
    inputs: dict[str, str]


def compare(
    a: str | Path,
    b: str | Path,
    *,
    mu: float | None = 0.5,
    leak: float = 0.001,
    k: int | None = None,
    energy: float | None = None,
    drop_dora: bool = False,
    allow_unknown: bool = False,
    device: str = "auto",
    threads: int | None = None,
    progress: Progress = silent,
) -> Comparison:
    """Measure the interference of two LoRAs in both directions, and what every mu would do. See `fuse`."""
    where = device_for(device)
    how = Merge((1.0, 1.0), mu, leak, k, energy)
    with ExitStack() as stack, torch.inference_mode():
        paths = spool([a, b], stack)
        adapters = [
            open_checked(path, str(given), stack, drop_dora=drop_dora, allow_unknown=allow_unknown)
            for path, given in zip(paths, (a, b), strict=True)
        ]
        directions = []
        for step, pair in enumerate((adapters, adapters[::-1])):
            # nothing is written, and diffusers' format has a name for every module of a known family
            known = any(adapter.layout.family != "unknown" for adapter in pair)
            style = choose_style(pair, "diffusers" if known else None, None)
            blocks: Sequence[Block] = make_blocks(make_units(pair), pair, style, damped=True)
            job = Job(pair, how, style, "F32", where, threads=threads or available_threads())
            shown = _half(progress, step)
            reports = tuple(measure(blocks, job, shown))
            found = totals(reports)
            warnings = tuple(warnings_about(found, pair, mu))
            directions.append(
                Direction(pair[0].label, pair[1].label, reports, found, tuple(sweep(reports)), warnings)
            )
        hashes = {adapter.label: sha256(adapter.path) for adapter in adapters}
    return Comparison(style.family, directions[0], directions[1], hashes)


def _half(progress: Progress, step: int) -> Progress:
    """Progress of one of two passes of equal length."""
    return lambda done, total: progress(done + step * total, 2 * total)
