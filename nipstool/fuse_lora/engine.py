"""From units to factors: the projection, the sum and what was measured on the way, for a batch of equal blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nipstool.fuse_lora import projection as np_lora
from nipstool.fuse_lora.adapter import Adapter
from nipstool.fuse_lora.plan import Unit
from nipstool.fuse_lora.projection import Factors, Interference, ThinSVD
from nipstool.fuse_lora.targets import Block, Target


@dataclass(frozen=True)
class Merge:
    """How LoRAs are merged.

    mu: strength of the projection; None chooses it per module so that at most `leak` of the energy stays.
    k, energy: cut of the style's subspace. weights: one a file, on the outputs.
    """

    weights: tuple[float, ...]
    mu: float | None = 0.5
    leak: float = 0.001
    k: int | None = None
    energy: float | None = None

    @property
    def damped(self) -> bool:
        """Whether the projection can change anything."""
        return self.mu is None or self.mu > 0


@dataclass(frozen=True)
class Measured:
    """What was measured on a batch of units: the interference, the mu used, and the size of the change."""

    interference: Interference
    mu: Tensor
    k: Tensor
    changed: Tensor
    plain: Tensor
    likeness: Tensor


Terms = list[tuple[int, Tensor, Tensor]]
"""(file, B, A) of each file that has the unit, weights in B."""

Styles = Sequence[tuple[int, Factors]]
"""(file, factors) of each style that has the unit."""


def load(
    unit: Unit, adapter: Adapter, file: int, device: torch.device, rank: int | None
) -> tuple[Tensor, Tensor, float] | None:
    """A unit's B [rows, r] and A [r, columns] in one file, in float64, and the relative error of having folded
    no further than `rank`; None where it is absent."""
    source = unit.sources[file]
    if source is None:
        return None
    B, A, error = adapter.folded(source.module, device=device, rank=rank)
    if source.rows is not None:
        B = B[source.rows[0] : source.rows[1]]
    return B, A, error


def stack(pairs: Sequence[Factors]) -> Factors:
    """Factors of equal shapes as one batch."""
    if len(pairs) == 1:  # no copy: this is every module on a CPU
        return pairs[0][0][None], pairs[0][1][None]
    return torch.stack([B for B, _ in pairs]), torch.stack([A for _, A in pairs])


def merge(factors: Sequence[Factors | None], how: Merge, *, measure: bool = True) -> tuple[Terms, Measured | None]:
    """Project the content (file 0) off the styles' subspace, and weigh: the terms of the sum.

    Args:
        factors: per file, a batch of (B [b, m, r], A [b, r, n]); None where the file lacks the unit.
        measure: also measure the interference, where content and style meet.
    """
    content, styles = factors[0], [(i, f) for i, f in enumerate(factors) if i and f is not None]
    measured = None
    if content is not None and styles:
        spectra = [np_lora.thin_svd(*f) for _, f in styles]
        bases = [np_lora.principal_directions(s.sigma, s.V, k=how.k, energy=how.energy).V for s in spectra]
        V = np_lora.union_basis(bases)
        found = None
        if measure or how.mu is None:
            found = np_lora.interference(np_lora.thin_svd(*content), V, _whole_style(styles, spectra, how))
        mu = _strength(content[0], found, how)
        if found is not None:
            measured = _measured(found, content, styles, mu, V, how)
        content = content[0], np_lora.project(content[1], V, mu)
    kept = ([(0, content)] if content is not None else []) + styles
    return [(i, B if how.weights[i] == 1.0 else how.weights[i] * B, A) for i, (B, A) in kept], measured


def _whole_style(styles: Styles, spectra: Sequence[ThinSVD], how: Merge) -> ThinSVD | Factors:
    """The style to measure against: the only one as it is, or the weighted sum of several."""
    return spectra[0] if len(styles) == 1 else np_lora.concatenate([(how.weights[i], *f) for i, f in styles])


def _strength(B: Tensor, found: Interference | None, how: Merge) -> Tensor:
    """mu of every item of a batch."""
    if how.mu is not None:
        return torch.full(B.shape[:-2], how.mu, dtype=B.dtype, device=B.device)
    assert found is not None
    return np_lora.automatic_mu(found.overlap, how.leak)


def _measured(
    found: Interference, content: Factors, styles: Styles, mu: Tensor, V: Tensor, how: Merge
) -> Measured:
    weight = how.weights[styles[0][0]] if len(styles) == 1 else 1.0  # of several they are in the sum already
    changed, plain = np_lora.change_norms(found, mu, how.weights[0], weight)
    _, likeness = np_lora.initialisation_likeness(content[1], styles[0][1][1])
    k = (V.square().sum(-2) > 0.5).sum(-1)  # a batch's zero columns are no directions
    return Measured(found, mu, k, changed, plain, likeness)


def compose(block: Block, terms: Sequence[Terms]) -> list[tuple[Target, Tensor, Tensor, Tensor]]:
    """The factors of a block's targets, before the precision of the output: (target, B, A, error).

    Args:
        terms: of each of the block's units.

    The errors of a rank limit are relative to the whole block: it has lost the root of the sum of their squares.
    """
    if block.joined:
        B, A = _joined(block, terms)
        return [_limit(block.targets[0], B, A)]
    B, A = np_lora.concatenate([(1.0, B, A) for _, B, A in terms[0]])
    if len(block.targets) == 1:
        return [_limit(block.targets[0], B, A)]
    return _cut(block, B, A)


def _limit(target: Target, B: Tensor, A: Tensor) -> tuple[Target, Tensor, Tensor, Tensor]:
    """Down to the target's rank, optimally; balanced otherwise."""
    if B.shape[-1] > target.rank:
        return target, *np_lora.truncate(B, A, target.rank)
    B, A = np_lora.balance(B, A)
    return target, B, A, B.new_zeros(B.shape[:-2])


def _cut(block: Block, B: Tensor, A: Tensor) -> list[tuple[Target, Tensor, Tensor, Tensor]]:
    """The parts of a block. They keep one A where none is truncated, so that they can be joined again."""
    parts = B.split([t.shape[0] for t in block.targets], dim=-2)
    if any(t.rank < B.shape[-1] for t in block.targets):
        return _cut_and_limited(block, parts, A)
    balanced, A = np_lora.balance_shared(parts, A)
    zero = B.new_zeros(B.shape[:-2])
    return [(t, part, A, zero) for t, part in zip(block.targets, balanced, strict=True)]


def _cut_and_limited(
    block: Block, parts: Sequence[Tensor], A: Tensor
) -> list[tuple[Target, Tensor, Tensor, Tensor]]:
    """Each part down to its rank; the errors are shares of the whole block, so that their squares add up."""
    limited = [_limit(t, part, A) for t, part in zip(block.targets, parts, strict=True)]
    norms = torch.stack([np_lora.frobenius(part, A) for part in parts])
    shares = norms / norms.norm(dim=0).clamp(min=torch.finfo(norms.dtype).tiny)
    return [(t, B, A, error * share) for (t, B, A, error), share in zip(limited, shares, strict=True)]


def _joined(block: Block, terms: Sequence[Terms]) -> Factors:
    """[A of each file and part] under B block-diagonal over the parts; one A a file where it is shared."""
    Bs, As = [], []
    for file in sorted({i for unit in terms for i, _, _ in unit}):
        placed = [
            (member, B, A)
            for member, unit in zip(block.members, terms, strict=True)
            for i, B, A in unit
            if i == file
        ]
        if block.shared[file]:
            Bs.append(sum(_at(block.rows, member, B) for member, B, _ in placed))
            As.append(placed[0][2])
        else:
            Bs += [_at(block.rows, member, B) for member, B, _ in placed]
            As += [A for _, _, A in placed]
    return torch.cat(Bs, dim=-1), torch.cat(As, dim=-2)


def _at(rows: Sequence[int], member: int, B: Tensor) -> Tensor:
    """B as the rows of a joined block that begin with one part, zero in the others."""
    whole = B.new_zeros((*B.shape[:-2], sum(rows), B.shape[-1]))
    start = sum(rows[:member])
    whole[..., start : start + B.shape[-2], :] = B
    return whole
