"""Fuse LoRAs, or convert one: read, project, sum and write, module by module.

Peak memory is a few modules: ranks and shapes are known from the headers, the output's header is written
first, and every tensor goes to its place as it is made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from nipstool.fuse_lora.adapter import Adapter, open_checked
from nipstool.fuse_lora.engine import Merge
from nipstool.fuse_lora.extras import Extra, collect_extras
from nipstool.fuse_lora.job import Job
from nipstool.fuse_lora.names import writable_formats
from nipstool.fuse_lora.output import output_dtype, with_common_alphas
from nipstool.fuse_lora.plan import Unit, make_units
from nipstool.fuse_lora.report import ModuleReport, Totals, totals, warnings_about
from nipstool.fuse_lora.targets import Style, make_blocks
from nipstool.fuse_lora.work import limit_energies, mark_copy, work
from nipstool.fuse_lora.writing import check_name, open_output
from nipstool.kit.errors import UsageError
from nipstool.kit.files import STDIO, check_output, is_stdio, sha256, spooled_input
from nipstool.kit.progress import Progress, silent
from nipstool.kit.runtime import available_threads, choose_device, in_order, return_large_blocks

LARGE = 16 << 20  # bytes of one module's factors in float64 from which memory matters more than page faults


@dataclass(frozen=True)
class Fusion:
    """What a fusion did: the report, where everything went, and what the user should know."""

    output: str
    format: str
    family: str
    dtype: str
    modules: tuple[ModuleReport, ...]
    totals: Totals
    passed: tuple[str, ...]
    left_out: tuple[str, ...]
    listed: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    inputs: dict[str, str]


def fuse(
    content: str | Path,
    styles: Sequence[str | Path],
    output: str | Path,
    *,
    mu: float | None = 0.5,
    leak: float = 0.001,
    k: int | None = None,
    energy: float | None = None,
    weights: Sequence[float] | None = None,
    rank: int | None = None,
    energy_rank: float | None = None,
    include: str | None = None,
    exclude: str | None = None,
    modules_to_save: str | None = None,
    drop_dora: bool = False,
    allow_unknown: bool = False,
    format: str | None = None,
    dtype: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Fusion:
    """Fuse a content LoRA with styles so that it does not write where they read (NP-LoRA, arXiv 2511.11051).

    Args:
        content: the LoRA that is projected; "-" reads standard input.
        styles: the LoRAs whose input subspace is protected; several: the union of their subspaces (ours).
        output: a .safetensors file, a folder (of another name) where the format is peft, or "-".
        mu: strength; 0 is the plain sum, math.inf the hard projection, None chooses it per module by `leak`.
        leak: with mu None, the share of the content's energy that may stay on the style's directions.
        k, energy: protect only the k strongest style directions, or those that hold this share of its energy.
        weights: one a file, on the outputs; default 1.
        rank, energy_rank: truncate every module optimally, to a rank or to a share of its energy.
        include, exclude: regular expressions on canonical module names; the rest is left out of the output.
        modules_to_save: "content" or "style" where both bring a full weight and the two differ.
        drop_dora: ignore dora_scale, which changes what the LoRA does.
        allow_unknown: leave out tensors that nobody can place instead of refusing.
        format: kohya, diffusers, peft or bfl; default the content's.
        dtype: float32, float16 or bfloat16; default the content's.
        threads: modules computed side by side on the CPU; the result does not depend on it.

    Raises:
        DataError, InputMissingError, OutputError, UsageError: each with one line that names the file.
    """
    how = Merge(_weights(weights, 1 + len(styles)), mu, leak, k, energy)
    limits = _Limits(rank, energy_rank, include, exclude)
    return run(
        [content, *styles],
        output,
        how,
        limits,
        saved_from=modules_to_save,
        drop_dora=drop_dora,
        allow_unknown=allow_unknown,
        format=format,
        dtype=dtype,
        device=device,
        threads=threads,
        force=force,
        progress=progress,
    )


def convert(
    source: str | Path,
    output: str | Path,
    *,
    format: str | None = None,
    rank: int | None = None,
    energy_rank: float | None = None,
    drop_dora: bool = False,
    allow_unknown: bool = False,
    dtype: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Fusion:
    """Write one LoRA in another format, dtype or rank; LoHa and LoKr become plain LoRA. Arguments as in `fuse`."""
    return run(
        [source],
        output,
        Merge((1.0,), 0.0),
        _Limits(rank, energy_rank),
        drop_dora=drop_dora,
        allow_unknown=allow_unknown,
        format=format,
        dtype=dtype,
        device=device,
        threads=threads,
        force=force,
        progress=progress,
    )


@dataclass(frozen=True)
class _Limits:
    rank: int | None = None
    energy_rank: float | None = None
    include: str | None = None
    exclude: str | None = None

    def __post_init__(self) -> None:
        if self.rank is not None and self.energy_rank is not None:
            raise UsageError("--rank and --energy-rank exclude each other")
        if self.rank is not None and self.rank < 1:
            raise UsageError(f"--rank {self.rank}: expected 1 or more")
        if self.energy_rank is not None and not 0 < self.energy_rank <= 1:
            raise UsageError(f"--energy-rank {self.energy_rank}: expected a share above 0 and at most 1")
        for name, pattern in (("--include", self.include), ("--exclude", self.exclude)):
            try:
                re.compile(pattern or "")
            except re.error as error:
                raise UsageError(f"{name} {pattern!r} is no regular expression: {error}") from error

    def wants(self, name: str) -> bool:
        if self.include is not None and not re.search(self.include, name):
            return False
        return self.exclude is None or not re.search(self.exclude, name)


def _weights(weights: Sequence[float] | None, files: int) -> tuple[float, ...]:
    if not weights:
        return (1.0,) * files
    if len(weights) != files:
        raise UsageError(f"{len(weights)} weights for {files} files: give one a file, in their order")
    if not all(math.isfinite(w) for w in weights):
        raise UsageError(f"weights should be finite numbers, found {list(weights)}")
    return tuple(weights)


def run(
    inputs: Sequence[str | Path],
    output: str | Path,
    how: Merge,
    limits: _Limits,
    *,
    format: str | None,
    dtype: str | None,
    device: str,
    threads: int | None,
    force: bool,
    progress: Progress,
    drop_dora: bool = False,
    allow_unknown: bool = False,
    saved_from: str | None = None,
) -> Fusion:
    """The steps that fuse and convert share."""
    where = device_for(device)
    with ExitStack() as stack, torch.inference_mode():
        paths = spool(inputs, stack)
        adapters = [
            open_checked(path, str(given), stack, drop_dora=drop_dora, allow_unknown=allow_unknown)
            for path, given in zip(paths, inputs, strict=True)
        ]
        style = choose_style(adapters, format, limits.rank)
        check_name(output, style.format)
        check_output(
            output, inputs=[p for p in inputs if str(p) != STDIO], force=force, folder=style.format == "peft"
        )
        units, left_out = _select(make_units(adapters, rank=limits.rank, match=len(adapters) > 1), limits)
        blocks = make_blocks(units, adapters, style, damped=how.damped)
        job = Job(
            adapters,
            how,
            style,
            output_dtype(dtype, adapters[0].dtype),
            where,
            limits.rank,
            threads or available_threads(),
        )
        if limits.energy_rank is not None:
            blocks = limit_energies(blocks, job, limits.energy_rank)
        blocks = with_common_alphas([mark_copy(b, job) for b in blocks], style)
        extras, dropped = collect_extras(adapters, style, how.weights, saved_from, allow_unknown=allow_unknown)
        if max(t.rank * sum(t.shape) * 8 for b in blocks for t in b.targets) > LARGE:
            return_large_blocks()
        hashes = list(in_order(sha256, [a.path for a in adapters], job.threads))
        with open_output(output, blocks, extras, job, hashes, force=force) as out:
            reports = list(work(blocks, job, out, progress))
    found = totals(reports)
    return Fusion(
        output=str(output),
        format=style.format,
        family=style.family,
        dtype=job.dtype,
        modules=tuple(reports),
        totals=found,
        passed=tuple(u.name for u in units if len([s for s in u.sources if s]) == 1) if len(adapters) > 1 else (),
        left_out=tuple(left_out),
        listed=tuple(key for a in adapters for key in _left_aside(a)) + tuple(dropped),
        warnings=tuple(warnings_about(found, adapters, how.mu)) if len(adapters) > 1 else (),
        notes=tuple(_notes(adapters, style, extras)),
        inputs={a.label: h for a, h in zip(adapters, hashes, strict=True)},
    )


def _left_aside(adapter: Adapter) -> list[str]:
    """Keys that are read and not used because the user said so: unknown ones, and DoRA's scales."""
    scales = [m.keys["dora_scale"] for m in adapter.layout.modules if "dora_scale" in m.keys]
    return [*adapter.layout.unknown, *adapter.layout.refused_keys, *scales]


def spool(inputs: Sequence[str | Path], stack: ExitStack) -> list[Path]:
    """Paths of the inputs; standard input, at most once, becomes a temporary file."""
    if sum(is_stdio(p) for p in inputs) > 1:
        raise UsageError("standard input can be read once: only one input may be -")
    return [stack.enter_context(spooled_input(p)) for p in inputs]


def device_for(name: str) -> torch.device:
    """The device that float64 work meant for `name` runs on."""
    device = choose_device(name)
    return torch.device("cpu") if device.type == "mps" else device  # Metal has no float64


def choose_style(adapters: Sequence[Adapter], format: str | None, rank: int | None) -> Style:
    """How the output is spelled: as asked, else like the content where we write that, else as diffusers does."""
    content = adapters[0].layout
    family = next((a.layout.family for a in adapters if a.layout.family != "unknown"), "unknown")
    if family == "unknown":
        return _own_style(adapters, format, rank)
    formats = writable_formats(family)
    if format is not None and format not in formats:
        raise UsageError(f"--format {format}: {family} is written as {', '.join(formats)}")
    chosen = format or (content.format if content.format in formats else "diffusers")
    return Style(family, chosen, max_rank=rank)


def _own_style(adapters: Sequence[Adapter], format: str | None, rank: int | None) -> Style:
    """A family in no table keeps its own names; PEFT and lora_A/lora_B files differ by a prefix alone."""
    content = adapters[0].layout
    flat = content.format in ("kohya", "onetrainer", "lycoris")
    own = "kohya" if flat else content.format if content.format in ("peft", "bfl") else "diffusers"
    chosen = format or own
    if chosen != own and ("kohya" in (chosen, own) or chosen == "bfl"):
        raise UsageError(
            f"--format {chosen}: {adapters[0].label} is of no family in the tables and keeps its own names ({own})"
        )
    prefix = content.prefix if chosen == own else "base_model.model." if chosen == "peft" else ""
    return Style("unknown", chosen, prefix, rank)


def _select(units: Sequence[Unit], limits: _Limits) -> tuple[list[Unit], list[str]]:
    chosen = [u for u in units if limits.wants(u.name)]
    if not chosen:
        raise UsageError("--include and --exclude leave no module; names look like " + units[0].name)
    return chosen, [u.name for u in units if not limits.wants(u.name)]


def _notes(adapters: Sequence[Adapter], style: Style, extras: Sequence[Extra]) -> Iterator[str]:
    """What happened that nobody asked for, a line each."""
    content = adapters[0].layout
    if content.format != style.format:
        yield f"{adapters[0].label} is {content.format}; written as {style.format}"
    for extra in extras:
        if extra.note:
            yield extra.note
