"""Where and how tensors are computed: device, dtype, threads."""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING

from nipstool.kit.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    import torch

OUTPUT_DTYPES = ("float32", "bfloat16", "float16")


def choose_device(name: str) -> torch.device:
    """The torch device that `--device` means: auto takes CUDA when there is one, else the CPU.

    Raises:
        UsageError: the name is no device.
        UnavailableError: the device is not on this machine.
    """
    import torch

    kind, _, index = name.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (index and not (kind == "cuda" and index.isdigit())):
        raise UsageError(f"--device {name}: expected auto, cpu, cuda, cuda:N or mps")
    if kind == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UnavailableError(f"--device {name}: torch {torch.__version__} sees no CUDA device here")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise UnavailableError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA device(s)")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UnavailableError("--device mps: no Metal device here")
    return torch.device(name)


def set_threads(count: int | None) -> int:
    """Use `count` CPU threads (None: all that this process may use); returns the number."""
    import torch

    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(count or available)
    return torch.get_num_threads()


def peak_memory_bytes() -> int:
    """The largest resident size this process has had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
