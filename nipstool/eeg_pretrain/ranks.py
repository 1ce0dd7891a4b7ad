"""Training on several processes (torchrun): sums over ranks, and which rank writes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def rank() -> int:
    """This process's number; 0 where there is one process."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def sum_over_ranks(values: Tensor) -> Tensor:
    """The elementwise sum of every rank's `values`."""
    if dist.is_initialized():
        values = values.clone()
        dist.all_reduce(values)
    return values


def sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Every parameter's gradient becomes its sum over ranks, in one message; 0 where no rank computed one.

    One process does the same: a parameter without a gradient would be left out of the weight decay.
    """
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    if not dist.is_initialized():
        return
    flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    dist.all_reduce(flat)
    at = 0
    for p in parameters:
        assert p.grad is not None
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


def together() -> None:
    """Wait for the other ranks."""
    if dist.is_initialized():
        dist.barrier()
