"""Examples as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from nipstool.eeg_pretrain.corpus import Example
from nipstool.eeg_pretrain.model import Signals
from nipstool.eeg_pretrain.objectives import Labels
from nipstool.eeg_pretrain.tokenizer import Placement
from nipstool.eeg_pretrain.tracks import Tokens

Device = torch.device | str


def signals_of(
    tokens: Sequence[Tokens], placements: Sequence[Placement], device: Device, dtype: torch.dtype = torch.float32
) -> Signals:
    """Stretches of the same length and number of channels as one batch."""

    def together(arrays: Sequence[np.ndarray], kind: torch.dtype) -> Tensor:
        return torch.from_numpy(np.stack(arrays)).to(device=device, dtype=kind)

    return Signals(
        together([t.x for t in tokens], dtype),
        together([t.scale for t in tokens], dtype),
        together([t.valid for t in tokens], torch.bool),
        together([p.geometry for p in placements], dtype),
        together([p.sign for p in placements], dtype),
        together([p.kind for p in placements], torch.long),
    )


def batch_of(examples: Sequence[Example], device: Device) -> tuple[Signals, Labels]:
    """Windows of the same length and number of channels."""
    signals = signals_of([e.tokens for e in examples], [e.placement for e in examples], device)
    return signals, labels_of(examples, device)


def labels_of(examples: Sequence[Example], device: Device) -> Labels:
    """Their targets."""

    def together(name: str) -> Tensor:
        rows = [getattr(e.window.item.targets, name)[e.window.first : e.window.last] for e in examples]
        array = np.stack(rows)
        return torch.from_numpy(array if array.dtype == bool else array.astype(np.float32)).to(device)

    return Labels(**{name: together(name) for name in Labels._fields})


def texts_of(examples: Sequence[Example], texts: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """What is told with each example; nothing where it was dropped."""
    return [texts[e.window.item.number] if e.window.told else {} for e in examples]
