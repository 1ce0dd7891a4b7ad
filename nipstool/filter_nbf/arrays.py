"""The array namespace that domains and networks are written against: numpy or torch, told by the arrays."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

Array = Any
"""A numpy array or a torch tensor."""


def namespace(*arrays: Array) -> Any:
    """torch where one of the arrays is a tensor, else numpy; torch is never imported for it."""
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(array, torch.Tensor) for array in arrays):
        return torch
    return np


def like(value: Any, x: Array) -> Array:
    """`value` as an array of x's kind, dtype and device."""
    xp = namespace(x)
    if xp is np:
        return np.asarray(value, x.dtype)
    known = value if namespace(value) is xp else np.array(value)  # torch takes no array that is read-only
    return xp.as_tensor(known, dtype=x.dtype, device=x.device)


def wrap(angle: Array) -> Array:
    """An angle in radians, brought into [-pi, pi)."""
    return (angle + math.pi) % (2.0 * math.pi) - math.pi


def normal_logpdf(residual: Array, sd: Any) -> Array:
    """log N(residual | 0, sd^2), elementwise; sd a number or an array."""
    log_sd = math.log(sd) if isinstance(sd, (int, float)) else namespace(sd).log(sd)
    found = residual * residual
    found *= -0.5 / (sd * sd)
    found -= log_sd + 0.5 * math.log(2.0 * math.pi)
    return found
