"""One piece of work on several processes, as torchrun starts them; a process started alone is a group of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")


@dataclass(frozen=True)
class Group:
    """This process's rank among `size`; a group of one talks to nobody."""

    rank: int = 0
    size: int = 1

    def share(self, items: Sequence[Item]) -> list[Item]:
        """This process's part of items, every size-th one."""
        return list(items[self.rank :: self.size])

    def gather(self, value: Any) -> list[Any]:
        """What every process gives, in the order of their ranks, on all of them."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def add(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Replace tensors, the same ones on every process, by their sums over the processes."""
        if self.size == 1:
            return
        import torch.distributed as dist

        for tensor in tensors:
            if tensor is not None:
                dist.all_reduce(tensor)

    def meet(self) -> None:
        """Wait for the other processes."""
        if self.size > 1:
            import torch.distributed as dist

            dist.barrier()


def launched() -> bool:
    """Whether torchrun started this process."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_torchelastic_launched()


def local_rank() -> int:
    """This process's number among those that torchrun started on this machine."""
    from torch.distributed.distributed_c10d import get_node_local_rank

    return get_node_local_rank(0)


@contextmanager
def joined(device: str = "cpu") -> Iterator[Group]:
    """The group that torchrun started this process in; gloo on the CPU, nccl on CUDA."""
    import torch
    import torch.distributed as dist

    if not launched():
        yield Group()
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(device)  # where objects are gathered, too
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Group(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
