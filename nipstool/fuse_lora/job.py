"""What stays the same from block to block while LoRAs are fused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nipstool.fuse_lora.adapter import Adapter
from nipstool.fuse_lora.engine import Merge
from nipstool.fuse_lora.targets import Style


@dataclass(frozen=True)
class Job:
    """The files, how they are merged, how the output is spelled, its dtype, the device, and a rank asked for.

    threads: blocks that are computed side by side on the CPU.
    """

    adapters: Sequence[Adapter]
    how: Merge
    style: Style
    dtype: str
    device: torch.device
    rank: int | None = None
    threads: int = 1
