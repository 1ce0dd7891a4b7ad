"""Where and how tensors are computed: device, dtype, threads."""

from __future__ import annotations

import os
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from nipstool.kit.distributed import launched, local_rank
from nipstool.kit.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def choose_device(name: str) -> torch.device:
    """The torch device that `--device` means: auto takes CUDA when there is one, else the CPU.

    Of several processes that torchrun started on one machine each has a GPU of its own, unless one is named.

    Raises:
        UsageError: the name is no device.
        UnavailableError: the device is not on this machine.
    """
    import torch

    kind, _, index = name.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (index and not (kind == "cuda" and index.isdigit())):
        raise UsageError(f"--device {name}: expected auto, cpu, cuda, cuda:N or mps")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda" and not torch.cuda.is_available():
        raise UnavailableError(f"--device {name}: torch {torch.__version__} sees no CUDA device here")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise UnavailableError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA device(s)")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UnavailableError("--device mps: no Metal device here")
    if kind == "cuda" and not index and launched():
        return torch.device("cuda", local_rank() % torch.cuda.device_count())
    return torch.device(kind, int(index)) if index else torch.device(kind)


def float_dtype(name: str | None) -> str | None:
    """The full name of a floating dtype given as `--dtype`, also by its short name; None stays None.

    Raises:
        UsageError: it is none of float32, float16 and bfloat16.
    """
    if name is None or name in _SHORT.values():
        return name
    if name not in _SHORT:
        raise UsageError(f"--dtype {name}: expected float32, float16 or bfloat16")
    return _SHORT[name]


def available_threads() -> int:
    """The CPU threads that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(count: int | None) -> int:
    """Let torch use `count` CPU threads from now on (None: all that this process may use); returns the number."""
    import torch

    torch.set_num_threads(count or available_threads())
    return torch.get_num_threads()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads for one operation, and what it used before afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def return_large_blocks(size: int = 4 << 20) -> None:
    """Let the C library give every freed block of at least `size` bytes back to the system at once.

    glibc keeps large freed blocks by default, more of them the longer a process runs: with work on tensors of many
    shapes, several times what is in use. A setting of the process; elsewhere than on glibc it does nothing.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(-3, size)  # M_MMAP_THRESHOLD; a fixed one is no longer raised by the library
        mallopt(-1, size)  # M_TRIM_THRESHOLD


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """`map` over a pool of threads: results in the order of the items, at most two a thread in the making.

    For many small tensor operations this beats torch's own threads, which meet at every operation. Call it under
    `torch_threads(1)`.
    """
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def peak_memory_bytes() -> int:
    """The largest resident size this process has had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
