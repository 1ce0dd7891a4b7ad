"""The embedding E: a weighted set of particles becomes one vector theta, whatever its order and size.

A set is first made canonical: x = m + L u with its weighted mean m and the root L of its weighted covariance, so
that the network sees shapes and not places. theta = [m, vech(L), 0.2 log ESS, z], z from weighted mean pooling
over (u, x) (distributional invariance: arXiv 2505.18150). Written once for numpy (filtering) and torch (training).
The effective size is in theta on purpose: a belief known from three particles must come out wider.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nipstool.filter_nbf.arrays import Array, namespace, wrap

WIDTH, CODE = 64, 48
CLAMP = 6.0  # u beyond this says no more than "far away"
FLOOR = 1e-4  # added to the scaled covariance: a set may be degenerate

Parameters = Mapping[str, Array]


@dataclass(frozen=True)
class Frame:
    """Where and how wide B sets are, in scaled units: mean (B, d), root L (B, d, d), log ESS (B,)."""

    mean: Array
    root: Array
    log_size: Array


def initial_encoder(d: int, angles: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random parameters of the encoder for d coordinates, `angles` of which are angles."""
    made = linear("enc.in", 2 * d + 2 * angles, WIDTH, rng)
    for layer in (0, 1):
        made |= linear(f"enc.{layer}.self", WIDTH, WIDTH, rng)
        made |= {f"enc.{layer}.mean.w": linear("", WIDTH, WIDTH, rng)[".w"]}
    made |= linear("enc.pool", WIDTH, WIDTH, rng)
    return made | linear("enc.out", WIDTH, CODE, rng)


def linear(name: str, inputs: int, outputs: int, rng: np.random.Generator, gain: float = 1.0) -> dict[str, Any]:
    """Weights (inputs, outputs) of variance gain^2 / inputs, and zero biases."""
    w = (gain / math.sqrt(inputs) * rng.standard_normal((inputs, outputs))).astype(np.float32)
    return {f"{name}.w": w, f"{name}.b": np.zeros(outputs, np.float32)}


def scale(params: Parameters, x: Array) -> Array:
    """(..., d) states in units of the family's spread."""
    return (x - params["scale.mean"]) / params["scale.std"]


def unscale(params: Parameters, s: Array) -> Array:
    """The states that `scale` made s of."""
    return s * params["scale.std"] + params["scale.mean"]


def canonical(s: Array, w: Array, angles: Sequence[int] = ()) -> tuple[Frame, Array]:
    """The frame of scaled sets s (B, n, d) with weights w (B, n), and u (B, n, d) with s = m + L u.

    The covariance is unbiased, and widened and drawn towards its diagonal as 1 / (ESS + 1).
    """
    xp = namespace(s)
    square = (w * w).sum(-1)
    size = 1.0 / square
    mean = (w[..., None] * s).sum(-2)
    if angles:
        mean = _circular(mean, s, w, angles)
    u = s - mean[:, None]
    if angles:
        u = _wrapped(u, angles)
    cov = xp.matmul(xp.swapaxes(w[..., None] * u, -1, -2), u)
    cov = cov / xp.clip(1.0 - square, 1e-3, None)[:, None, None]
    lam = (1.0 / (size + 1.0))[:, None, None]
    eye = xp.eye(s.shape[-1], dtype=s.dtype) if xp is np else xp.eye(s.shape[-1], dtype=s.dtype, device=s.device)
    cov = (1.0 + lam) * (cov * (1.0 - 0.5 * lam) + 0.5 * lam * cov * eye) + FLOOR * eye
    root = xp.linalg.cholesky(cov)
    u = xp.matmul(u, xp.swapaxes(xp.linalg.inv(root), -1, -2))
    return Frame(mean, root, xp.log(size)), u


def _circular(mean: Array, s: Array, w: Array, angles: Sequence[int]) -> Array:
    xp = namespace(s)
    columns = [mean[:, j] for j in range(mean.shape[-1])]
    for j in angles:
        columns[j] = xp.arctan2((w * xp.sin(s[..., j])).sum(-1), (w * xp.cos(s[..., j])).sum(-1))
    return xp.stack(columns, axis=-1)


def _wrapped(u: Array, angles: Sequence[int]) -> Array:
    columns = [wrap(u[..., j]) if j in angles else u[..., j] for j in range(u.shape[-1])]
    return namespace(u).stack(columns, axis=-1)


def embed(params: Parameters, s: Array, w: Array, angles: Sequence[int] = ()) -> tuple[Frame, Array, Array]:
    """Frame, theta (B, t) and u (B, n, d) of scaled weighted sets s (B, n, d), w (B, n). Weights sum to one."""
    xp = namespace(s)
    frame, u = canonical(s, w, angles)
    weights = params["enc.in.w"]  # whose precision the network computes in
    code = cast(_encode(params, cast(_features(s, u, angles), weights), cast(w, weights)), s)
    return frame, xp.concatenate([*frame_features(frame), code], axis=-1), u


def frame_features(frame: Frame) -> list[Array]:
    """The part of theta that is computed, not learned: m, vech(L) with a logarithmic diagonal, 0.2 log ESS."""
    xp = namespace(frame.mean)
    d = frame.mean.shape[-1]
    parts = [frame.mean]
    for i in range(d):
        parts.append(frame.root[:, i, :i])
        parts.append(xp.log(frame.root[:, i, i : i + 1]))
    return [*parts, 0.2 * frame.log_size[:, None]]


def theta_size(d: int) -> int:
    """The length of theta for d coordinates."""
    return d + d * (d + 1) // 2 + 1 + CODE


def _features(s: Array, u: Array, angles: Sequence[int]) -> Array:
    xp = namespace(s)
    parts = [xp.clip(u, -CLAMP, CLAMP), xp.clip(s, -CLAMP, CLAMP)]
    for j in angles:
        parts += [xp.cos(s[..., j : j + 1]), xp.sin(s[..., j : j + 1])]
    return xp.concatenate(parts, axis=-1)


def _encode(params: Parameters, features: Array, w: Array) -> Array:
    """(B, CODE): two residual layers that see a particle and the weighted mean, then the weighted mean."""
    h = silu(affine(params, "enc.in", features))
    for layer in (0, 1):
        mean = namespace(h).matmul(w[:, None], h)  # (B, 1, WIDTH)
        seen = affine(params, f"enc.{layer}.self", h)
        seen += namespace(h).matmul(mean, params[f"enc.{layer}.mean.w"])
        h = h + silu(seen)
    pooled = namespace(h).matmul(w[:, None], h)[:, 0]
    code = affine(params, "enc.out", silu(affine(params, "enc.pool", pooled)))
    centred = code - code.mean(-1)[..., None]
    return centred / ((centred * centred).mean(-1)[..., None] + 1e-5) ** 0.5


def affine(params: Parameters, name: str, x: Array) -> Array:
    """x W + b."""
    xp, w, b = namespace(x), params[f"{name}.w"], params[f"{name}.b"]
    if xp is not np:
        return xp.nn.functional.linear(x, w.T, b)
    found = x @ w
    found += b
    return found


def cast(x: Array, like: Array) -> Array:
    """x in the precision of another array of its kind."""
    return x.astype(like.dtype, copy=False) if namespace(x) is np else x.to(like.dtype)


def silu(x: Array) -> Array:
    """x sigmoid(x) (Hendrycks and Gimpel 2016)."""
    xp = namespace(x)
    if xp is not np:
        return xp.nn.functional.silu(x)
    below = np.negative(x)
    with np.errstate(over="ignore"):  # infinite is right: x / inf is 0
        np.exp(below, out=below)
    below += 1.0
    return np.divide(x, below, out=below)
