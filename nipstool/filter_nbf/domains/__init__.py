"""Domains that are built in, each written once for numpy and torch arrays.

x is (..., n, d); y, u and dt arrive so that y[..., j], u[..., j] and dt broadcast with (..., n): plain vectors and
a number for one track, (B, 1, m), (B, 1, k) and (B, 1) for B tracks at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

BUILT_IN = {
    "arena": ("arena", "Arena"),
    "grid": ("grid", "Grid"),
    "linear-gaussian": ("linear", "LinearGaussian"),
    "nile": ("linear", "nile"),
    "stochastic-volatility": ("volatility", "StochasticVolatility"),
    "landmarks": ("landmarks", "Landmarks"),
    "constant-velocity": ("velocity", "ConstantVelocity"),
}

COUNTED = ("grid", "linear-gaussian", "nile", "stochastic-volatility")
"""Domains whose unit of time is a step of their own, and not the second."""


def maker(name: str) -> Any:
    """What makes the built-in domain of this name, called with its parameters."""
    module, attribute = BUILT_IN[name]
    return getattr(import_module(f"{__name__}.{module}"), attribute)
