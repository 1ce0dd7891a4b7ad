"""The work itself: blocks in, tensors out, in batches of one shape where an accelerator gains by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from nipstool.fuse_lora.engine import Measured, Terms, compose, load, merge, stack
from nipstool.fuse_lora.job import Job
from nipstool.fuse_lora.output import bias_of, copied, keys_of, may_copy, tensors_of
from nipstool.fuse_lora.projection import concatenate, frobenius, rank_for_energy, singular_values
from nipstool.fuse_lora.report import ModuleReport, module_report
from nipstool.fuse_lora.targets import Block
from nipstool.fuse_lora.writing import Output
from nipstool.kit.progress import Progress

BATCH = 32  # blocks of one shape that go to an accelerator together
_NO_LIMIT = 1 << 30


def mark_copy(block: Block, job: Job) -> Block:
    """Mark a target that can be copied byte for byte with the file it comes from."""
    held = [i for i, s in enumerate(block.units[0].sources) if s is not None]
    target = block.targets[0]
    if job.how.weights[held[0]] != 1.0 or not may_copy(target, block, job.adapters, job.style, job.dtype):
        return block
    return replace(block, targets=(replace(target, verbatim=held[0]),))


def limit_energy(block: Block, job: Job, energy: float) -> Block:
    """The block with its targets' ranks cut to the smallest that hold the share of energy: a pass of its own."""
    terms, _, _ = _terms([block], job, measure=False)
    wide = replace(block, targets=tuple(replace(t, rank=_NO_LIMIT) for t in block.targets))
    ranks = [rank_for_energy(singular_values(B, A), energy) for _, B, A, _ in compose(wide, terms)]
    targets = tuple(replace(t, rank=min(r, t.rank)) for t, r in zip(block.targets, ranks, strict=True))
    return replace(block, targets=targets)


def work(blocks: Sequence[Block], job: Job, out: Output, progress: Progress) -> Iterator[ModuleReport]:
    """Compute and write every block; yields the reports of its units."""
    done = 0
    for batch in batches(blocks, BATCH if job.device.type == "cuda" else 1):
        yield from _write_batch(batch, job, out)
        done += len(batch)
        progress(done, len(blocks))


def measure(blocks: Sequence[Block], job: Job, progress: Progress) -> Iterator[ModuleReport]:
    """The reports alone: nothing is written."""
    done = 0
    for batch in batches(blocks, BATCH if job.device.type == "cuda" else 1):
        _, measures, plain = _terms(batch, job, measure=True)
        for index, block in enumerate(batch):
            for place, (measured, norm) in enumerate(zip(measures, plain, strict=True)):
                yield module_report(block, index, place, measured, 0.0, float(norm[index]))
        done += len(batch)
        progress(done, len(blocks))


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
) -> tuple[list[Terms], list[Measured | None], list[Tensor]]:
    """Per unit of the batch's blocks: the terms of its sum, what was measured, and the norm of the plain sum."""
    terms, measures, plain = [], [], []
    for index in range(len(batch[0].units)):
        factors = []
        for file, adapter in enumerate(job.adapters):
            pairs = [load(b.units[index], adapter, file, job.device, job.rank) for b in batch]
            held = [p for p in pairs if p is not None]
            factors.append(stack(held) if held else None)
        summands, measured = merge(factors, job.how, measure=measure)
        terms.append(summands)
        measures.append(measured)
        plain.append(measured.plain if measured else _norm(summands))
    return terms, measures, plain


def _norm(terms: Terms) -> Tensor:
    return frobenius(*concatenate([(1.0, B, A) for _, B, A in terms]))


def _write_batch(batch: Sequence[Block], job: Job, out: Output) -> Iterator[ModuleReport]:
    if batch[0].targets[0].verbatim is not None:
        yield from (_copy(block, job, out) for block in batch)
        return
    terms, measures, plain = _terms(batch, job, measure=True)
    composed = compose(batch[0], terms)
    for index, block in enumerate(batch):
        errors = [float(error[index]) for _, _, _, error in composed]
        for target, (_, B, A, _) in zip(block.targets, composed, strict=True):
            for key, tensor in tensors_of(target, B[index], A[index], job.style, job.dtype):
                out.write(key, tensor)
            if target.bias:
                out.write(keys_of(target, job.style)["bias"], bias_of(block, job.adapters, job.how.weights))
        for place, (measured, norm) in enumerate(zip(measures, plain, strict=True)):
            yield module_report(block, index, place, measured, max(errors), float(norm[index]))


def _copy(block: Block, job: Job, out: Output) -> ModuleReport:
    (target,) = block.targets
    assert target.verbatim is not None
    adapter = job.adapters[target.verbatim]
    for key, name in copied(target, block, job.style).items():
        out.write(key, adapter.reader.read(name))
    source = block.units[0].sources[target.verbatim]
    assert source is not None
    return module_report(block, 0, 0, None, 0.0, float(frobenius(*adapter.factors(source.module))))
