"""What is kept of a decoder: layers, and of each its FFN channels, query heads and KV heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nipstool.prune_nsc.decoder import Decoder, Unit, Width

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Kept:
    """A layer that stays: where it was, and the sorted indices of what it keeps."""

    source: int
    channels: tuple[int, ...]
    heads: tuple[int, ...]
    kv: tuple[int, ...]

    @property
    def width(self) -> Width:
        """Its widths."""
        return Width(len(self.channels), len(self.heads), len(self.kv))

    def rows(self, unit: Unit, head_dim: int) -> Tensor:
        """Indices along an axis that `unit` cuts."""
        import torch

        if unit == "ffn":
            return torch.tensor(self.channels)
        heads = torch.tensor(self.heads if unit == "query" else self.kv)
        return (heads[:, None] * head_dim + torch.arange(head_dim)).flatten()


@dataclass(frozen=True)
class Scores:
    """How much a layer's parts contribute to the residual stream; higher is kept. None where not measured."""

    channels: Tensor | None = None
    heads: Tensor | None = None  # one a KV group; one a query head where there is a single group


def select(
    decoder: Decoder, widths: Sequence[Width | None], scores: Mapping[int, Scores], turns: Sequence[float] | None
) -> list[Kept]:
    """The best-scored parts that the widths leave room for.

    Args:
        scores: by layer; where a layer or part has none, nothing of it is cut.
        turns: of whole layers, how much each one changes its input; as many of the lowest go as `widths` drops.
    """
    stays = [i for i, width in enumerate(widths) if width is not None]
    if turns is not None:
        count, free = len(widths) - len(stays), sorted(range(len(widths)), key=lambda i: (turns[i], -i))
        stays = sorted(set(range(len(widths))) - set(free[:count]))
        return [_kept(decoder, i, decoder.dense, Scores()) for i in stays]
    return [_kept(decoder, i, width, scores.get(i, Scores())) for i in stays if (width := widths[i]) is not None]


def _kept(decoder: Decoder, layer: int, width: Width, scores: Scores) -> Kept:
    dense = decoder.dense
    channels = top(scores.channels, width.ffn, dense.ffn)
    if dense.kv == 1:
        return Kept(layer, channels, top(scores.heads, width.heads, dense.heads), (0,))
    kv = top(scores.heads, width.kv, dense.kv)
    heads = tuple(group * decoder.ratio + i for group in kv for i in range(decoder.ratio))
    return Kept(layer, channels, heads, kv)


def top(scores: Tensor | None, count: int, size: int) -> tuple[int, ...]:
    """The `count` highest of `size` scores by index, sorted; among equal ones the first."""
    if count == size:
        return tuple(range(size))
    assert scores is not None, "a cut needs scores"
    order = scores.double().neg().argsort(stable=True)
    return tuple(sorted(order[:count].tolist()))
