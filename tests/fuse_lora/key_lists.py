"""The key lists of real LoRA files as files of small random tensors: names as they are, every dimension scaled."""

import json
from pathlib import Path

import torch

from tests.fuse_lora.lora_files import State

LOKR = {"lokr_w1": (21, 1), "lokr_w1_a": (21, 1), "lokr_w1_b": (1, 1), "lokr_w2": (4, 4)}
"""Shapes whose product is 84 x 4: three equal parts, or three of 4 rows and a rest. The lists' are made up."""


def tiny_state(folder: Path, name: str) -> State:
    """A key list as tensors: widths a 64th of the real ones, ranks 2 at most, LoKr as above."""
    shapes = json.loads((folder / "fuse-lora" / "keylists" / f"{name}.json").read_text())
    draw = torch.Generator().manual_seed(1)
    state = {}
    for key, shape in shapes.items():
        known = LOKR.get(key.rpartition(".")[2])
        small = known or [size // 64 if size >= 512 else min(size, 2) for size in shape]
        state[key] = torch.ones(()) if key.endswith(".alpha") else torch.randn(*small, generator=draw)
    return state
