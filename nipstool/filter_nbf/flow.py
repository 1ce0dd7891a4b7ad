"""A generator of the paper's class: a conditional normalizing flow, here of rational-quadratic splines.

Coupling layers (Durkan et al. 2019) in the canonical frame: half of the coordinates goes through monotone splines
on [-5, 5] whose knots depend on the other half and on theta; outside the map is the identity. In one dimension the
other half is empty. Base: N(0, I). Written once for numpy and torch. Exact density; sampling costs more than a
mixture's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nipstool.filter_nbf.arrays import Array, namespace
from nipstool.filter_nbf.embedding import Parameters, affine, linear, silu, theta_size

LAYERS, BINS, HIDDEN, BOUND = 4, 8, 64, 5.0
LEAST = 1e-3  # smallest width and height of a bin, and smallest slope


def initial_flow(d: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random parameters; the last layers start near zero, which is near the identity."""
    made: dict[str, Any] = {}
    for layer in range(LAYERS):
        kept, moved = halves(d, layer)
        made |= linear(f"gen.{layer}.0", theta_size(d) + len(kept), HIDDEN, rng)
        made |= linear(f"gen.{layer}.1", HIDDEN, HIDDEN, rng)
        made |= linear(f"gen.{layer}.out", HIDDEN, len(moved) * (3 * BINS - 1), rng, 0.01)
    return made


def halves(d: int, layer: int) -> tuple[list[int], list[int]]:
    """The coordinates that a layer reads, and those that it moves."""
    if d == 1:
        return [], [0]
    moved = [j for j in range(d) if j % 2 == layer % 2]
    return [j for j in range(d) if j not in moved], moved


def flow_log_density(params: Parameters, theta: Array, u: Array) -> Array:
    """(B, n) log q(u | theta) of points u (B, n, d) given theta (B, t)."""
    xp = namespace(u)
    total = 0.0
    for layer in range(LAYERS):
        u, change = _layer(params, layer, theta, u, inverse=False)
        total = total + change
    return total - 0.5 * (u * u).sum(-1) - 0.5 * u.shape[-1] * math.log(2.0 * math.pi) + xp.zeros_like(u[..., 0])


def flow_of(params: Parameters, theta: Array, noise: Array) -> Array:
    """(B, count, d) draws of q(. | theta), made of N(0, 1) noise (B, count, d)."""
    u = noise
    for layer in reversed(range(LAYERS)):
        u, _ = _layer(params, layer, theta, u, inverse=True)
    return u


def _layer(params: Parameters, layer: int, theta: Array, u: Array, *, inverse: bool) -> tuple[Array, Array]:
    xp = namespace(u)
    kept, moved = halves(u.shape[-1], layer)
    seen = xp.broadcast_to(theta[:, None], (*u.shape[:2], theta.shape[-1]))
    h = xp.concatenate([seen, *(u[..., j : j + 1] for j in kept)], axis=-1)
    h = silu(affine(params, f"gen.{layer}.1", silu(affine(params, f"gen.{layer}.0", h))))
    raw = affine(params, f"gen.{layer}.out", h).reshape((*u.shape[:2], len(moved), 3 * BINS - 1))
    columns: list[Any] = [u[..., j] for j in range(u.shape[-1])]
    total = 0.0
    for place, j in enumerate(moved):
        columns[j], change = spline(u[..., j], raw[..., place, :], inverse=inverse)
        total = total + change
    return xp.stack(columns, axis=-1), total


def spline(x: Array, raw: Array, *, inverse: bool) -> tuple[Array, Array]:
    """Monotone rational-quadratic spline of x (...) with raw knots (..., 3 BINS - 1), and log of its slope."""
    xp = namespace(x)
    xs, ys = _knots(raw[..., :BINS]), _knots(raw[..., BINS : 2 * BINS])
    start = math.log(math.expm1(1.0 - LEAST))  # a raw slope of 0 is a slope of 1
    inner = LEAST + xp.log1p(xp.exp(xp.clip(raw[..., 2 * BINS :] + start, -30.0, 30.0)))
    ends = xp.ones_like(inner[..., :1])
    slopes = xp.concatenate([ends, inner, ends], axis=-1)
    inside = abs(x) < BOUND
    safe = xp.where(inside, x, xp.zeros_like(x))
    edges = ys if inverse else xs
    k = xp.clip((safe[..., None] >= edges[..., 1:-1]).sum(-1), 0, BINS - 1)
    x0, x1, y0, y1 = _at(xs, k), _at(xs, k + 1), _at(ys, k), _at(ys, k + 1)
    d0, d1 = _at(slopes, k), _at(slopes, k + 1)
    value, log_slope = _piece(safe, (x0, x1 - x0, y0, y1 - y0, d0, d1), inverse)
    return xp.where(inside, value, x), xp.where(inside, log_slope, xp.zeros_like(x))


def _piece(x: Array, piece: tuple[Array, ...], inverse: bool) -> tuple[Array, Array]:
    """Equations 4 to 8 of Durkan et al. (2019)."""
    xp = namespace(x)
    x0, width, y0, height, d0, d1 = piece
    slope = height / width
    bend = d0 + d1 - 2.0 * slope
    if inverse:
        away = x - y0
        a = height * (slope - d0) + away * bend
        b = height * d0 - away * bend
        root = xp.sqrt(xp.clip(b * b + 4.0 * a * slope * away, 0.0, None))
        t = 2.0 * slope * away / (b + root)
    else:
        t = (x - x0) / width
    below = slope + bend * t * (1.0 - t)
    change = slope * slope * (d1 * t * t + 2.0 * slope * t * (1.0 - t) + d0 * (1.0 - t) ** 2) / (below * below)
    value = x0 + t * width if inverse else y0 + height * (slope * t * t + d0 * t * (1.0 - t)) / below
    return value, -xp.log(change) if inverse else xp.log(change)


def _knots(raw: Array) -> Array:
    """(..., BINS + 1) increasing from -BOUND to BOUND."""
    xp = namespace(raw)
    share = xp.exp(raw - xp.amax(raw, axis=-1)[..., None])
    share = LEAST + (1.0 - LEAST * BINS) * share / share.sum(-1)[..., None]
    edges = xp.cumsum(share, axis=-1)
    edges = edges / edges[..., -1:]
    return 2.0 * BOUND * xp.concatenate([xp.zeros_like(edges[..., :1]), edges], axis=-1) - BOUND


def _at(values: Array, k: Array) -> Array:
    xp = namespace(values)
    if xp is np:
        return np.take_along_axis(values, k[..., None], -1)[..., 0]
    return values.gather(-1, k[..., None])[..., 0]
