"""The work itself: blocks in, tensors out, in batches of one shape where an accelerator gains by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nipstool.fuse_lora.engine import Measured, Terms, compose, load, merge, stack
from nipstool.fuse_lora.job import Job
from nipstool.fuse_lora.output import biases_of, copied, may_copy, tensors_of
from nipstool.fuse_lora.projection import concatenate, frobenius, rank_for_energy, singular_values
from nipstool.fuse_lora.report import ModuleReport, module_report
from nipstool.fuse_lora.targets import Block
from nipstool.fuse_lora.writing import Output
from nipstool.kit.progress import Progress
from nipstool.kit.runtime import in_order, torch_threads

BATCH = 32  # blocks of one shape that go to an accelerator together
_NO_LIMIT = 1 << 30


def mark_copy(block: Block, job: Job) -> Block:
    """Mark a target that can be copied byte for byte with the file it comes from."""
    held = [i for i, s in enumerate(block.units[0].sources) if s is not None]
    target = block.targets[0]
    if job.how.weights[held[0]] != 1.0 or not may_copy(target, block, job.adapters, job.style, job.dtype):
        return block
    source = block.units[0].sources[held[0]]
    assert source is not None
    alpha = job.adapters[held[0]].alpha(source.module)
    return replace(block, targets=(replace(target, verbatim=held[0], alpha=alpha),))


def limit_energy(block: Block, job: Job, energy: float) -> Block:
    """The block with its targets' ranks cut to the smallest that hold the share of energy: a pass of its own."""
    terms, _, _, _ = _terms([block], job, measure=False)
    wide = replace(block, targets=tuple(replace(t, rank=_NO_LIMIT) for t in block.targets))
    ranks = [rank_for_energy(singular_values(B, A), energy) for _, B, A, _ in compose(wide, terms)]
    targets = tuple(replace(t, rank=min(r, t.rank)) for t, r in zip(block.targets, ranks, strict=True))
    return replace(block, targets=targets)


def limit_energies(blocks: Sequence[Block], job: Job, energy: float) -> list[Block]:
    """`limit_energy` of every block, side by side."""
    with torch_threads(1):
        return list(in_order(lambda block: limit_energy(block, job, energy), blocks, job.threads))


def work(blocks: Sequence[Block], job: Job, out: Output, progress: Progress) -> Iterator[ModuleReport]:
    """Compute and write every block; yields the reports of its units."""
    done = 0
    for size, tensors, reports in _side_by_side(_fuse_batch, blocks, job):
        for key, tensor in tensors:
            out.write(key, tensor)
        yield from reports
        done += size
        progress(done, len(blocks))


def measure(blocks: Sequence[Block], job: Job, progress: Progress) -> Iterator[ModuleReport]:
    """The reports alone: nothing is written."""
    done = 0
    for size, _, reports in _side_by_side(_measure_batch, blocks, job):
        yield from reports
        done += size
        progress(done, len(blocks))


Made = tuple[int, list[tuple[str, Tensor]], list[ModuleReport]]
"""Of a batch: its number of blocks, the tensors to write by key, the reports of its units."""


def _side_by_side(
    work: Callable[[Sequence[Block], Job], Made], blocks: Sequence[Block], job: Job
) -> Iterator[Made]:
    def compute(batch: Sequence[Block]) -> Made:
        with torch.inference_mode():  # a setting of the thread, not of the process
            return work(batch, job)

    on_gpu = job.device.type == "cuda"
    with torch_threads(1):
        yield from in_order(compute, batches(blocks, BATCH if on_gpu else 1), 1 if on_gpu else job.threads)


def batches(blocks: Sequence[Block], size: int) -> Iterator[list[Block]]:
    """Blocks that can be computed as one batch, at most `size` together, in order of first appearance."""
    groups: dict[object, list[Block]] = {}
    for block in blocks:
        if size == 1 or block.targets[0].verbatim is not None:
            yield [block]
        else:
            groups.setdefault(_signature(block), []).append(block)
    for group in groups.values():
        for start in range(0, len(group), size):
            yield group[start : start + size]


def _signature(block: Block) -> object:
    units = tuple((u.rows, u.columns, tuple(s and s.rank for s in u.sources)) for u in block.units)
    targets = tuple((t.shape, t.rank, t.kernel) for t in block.targets)
    return units, targets, block.rows, block.members, block.shared


def _terms(
    batch: Sequence[Block], job: Job, *, measure: bool
) -> tuple[list[Terms], list[Measured | None], list[Tensor], list[Tensor]]:
    """Per unit of the batch's blocks: the terms of its sum, what was measured, the norm of the plain sum, and that
    of what folding has left out of it."""
    terms, measures, plain, left_out = [], [], [], []
    for index in range(len(batch[0].units)):
        factors, lost = [], torch.zeros(len(batch), dtype=torch.float64)
        for file, adapter in enumerate(job.adapters):
            pairs = [load(b.units[index], adapter, file, job.device, job.rank) for b in batch]
            held = [p for p in pairs if p is not None]
            factors.append(stack([(B, A) for B, A, _ in held]) if held else None)
            if any(error for _, _, error in held):
                lost += torch.tensor([(job.how.weights[file] * _lost(*p)) ** 2 for p in held])
        summands, measured = merge(factors, job.how, measure=measure)
        terms.append(summands)
        measures.append(measured)
        plain.append(measured.plain if measured else _norm(summands))
        left_out.append(lost.sqrt())
    return terms, measures, plain, left_out


def _lost(B: Tensor, A: Tensor, error: float) -> float:
    """The norm of what the best approximation B A of an update lacks, from its relative error."""
    return error / math.sqrt(1 - error**2) * float(frobenius(B, A))


def _norm(terms: Terms) -> Tensor:
    return frobenius(*concatenate([(1.0, B, A) for _, B, A in terms]))


def _measure_batch(batch: Sequence[Block], job: Job) -> Made:
    _, measures, plain, _ = _terms(batch, job, measure=True)
    reports = [
        module_report(block, index, place, measured, 0.0, float(norm[index]))
        for index, block in enumerate(batch)
        for place, (measured, norm) in enumerate(zip(measures, plain, strict=True))
    ]
    return len(batch), [], reports


def _fuse_batch(batch: Sequence[Block], job: Job) -> Made:
    if batch[0].targets[0].verbatim is not None:
        return _copy(batch[0], job)
    terms, measures, plain, left_out = _terms(batch, job, measure=True)
    composed = compose(batch[0], terms)
    tensors, reports = [], []
    for index, block in enumerate(batch):
        error = math.hypot(*(float(lost[index]) for _, _, _, lost in composed))
        norms, gone = ([float(values[index]) for values in per_unit] for per_unit in (plain, left_out))
        if any(gone):
            error = math.hypot(error * math.hypot(*norms), *gone) / math.hypot(*norms, *gone)
        for target, (_, B, A, _) in zip(block.targets, composed, strict=True):
            tensors += tensors_of(target, B[index], A[index], job.style, job.dtype)
        tensors += biases_of(block, job.adapters, job.how.weights, job.style).items()
        reports += [
            module_report(block, index, place, measured, error, math.hypot(norm, lost))
            for place, (measured, norm, lost) in enumerate(zip(measures, norms, gone, strict=True))
        ]
    return len(batch), tensors, reports


def _copy(block: Block, job: Job) -> Made:
    (target,) = block.targets
    assert target.verbatim is not None
    adapter = job.adapters[target.verbatim]
    names = copied(target, block, job.style)
    tensors = [(key, adapter.reader.read(name)) for key, name in names.items()]
    source = block.units[0].sources[target.verbatim]
    assert source is not None
    norm = float(frobenius(*adapter.factors(source.module)))
    return 1, tensors, [module_report(block, 0, 0, None, 0.0, norm)]
