"""The generator p(. | theta): a mixture of Gaussians in the canonical frame, x = m + L u.

Its density, moments, quantiles and modes are exact. Before training it is nearly N(0, I) in u, which makes the
filter a Gaussian particle filter (Kotecha and Djuric 2003). Written once for numpy and torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nipstool.filter_nbf.arrays import Array, namespace
from nipstool.filter_nbf.draws import Draws
from nipstool.filter_nbf.embedding import Frame, Parameters, affine, cast, linear, silu, theta_size
from nipstool.filter_nbf.weights import systematic

COMPONENTS, HIDDEN = 32, 192
LOG_SCALE = (-3.0, 7.0)  # of the precisions' diagonal: spreads of 20 down to 1e-3 in u
START = 0.3  # spread of the component means before training


@dataclass(frozen=True)
class Mixture:
    """B mixtures of K: log weights (B, K), means (B, K, d) and roots A of the precisions A'A (B, K, d, d) in u."""

    logw: Array
    mean: Array
    root: Array


def initial_mixture(d: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random parameters; the last layer starts near zero."""
    made = linear("gen.0", theta_size(d), HIDDEN, rng) | linear("gen.1", HIDDEN, HIDDEN, rng)
    made |= linear("gen.out", HIDDEN, COMPONENTS * (1 + d + d * (d + 1) // 2), rng, 0.1)
    bias = np.zeros((COMPONENTS, 1 + d + d * (d + 1) // 2), np.float32)
    bias[:, 1 : 1 + d] = START * rng.standard_normal((COMPONENTS, d))
    bias[:, 1 + d : 1 + 2 * d] = -0.5 * math.log(1.0 - START**2)
    return made | {"gen.out.b": bias.ravel()}


def mixture_of(params: Parameters, theta: Array, d: int) -> Mixture:
    """The mixture in u that theta (B, t) asks for."""
    xp = namespace(theta)
    h = cast(theta, params["gen.0.w"])[:, None]  # one product a belief: the same bits alone and in a batch
    h = silu(affine(params, "gen.1", silu(affine(params, "gen.0", h))))
    raw = cast(affine(params, "gen.out", h), theta).reshape((len(theta), COMPONENTS, -1))
    logits = raw[..., 0]
    top = xp.amax(logits, axis=-1)[:, None]
    logw = logits - top - xp.log(xp.exp(logits - top).sum(-1))[:, None]
    diagonal = xp.exp(xp.clip(raw[..., 1 + d : 1 + 2 * d], *LOG_SCALE))
    whole = xp.concatenate([diagonal, raw[..., 1 + 2 * d :]], axis=-1)
    root = xp.matmul(whole, _places(d, theta)).reshape((*whole.shape[:-1], d, d))
    return Mixture(logw, raw[..., 1 : 1 + d], root)


def _places(d: int, x: Array) -> Any:
    """(d (d + 1) / 2, d * d) ones where the entries of a lower triangle go, its diagonal first."""
    low = [(i, i) for i in range(d)] + [(i, j) for i in range(d) for j in range(i)]
    places = np.zeros((len(low), d * d), np.float32)
    for row, (i, j) in enumerate(low):
        places[row, i * d + j] = 1.0
    xp = namespace(x)
    return places.astype(x.dtype) if xp is np else xp.as_tensor(places, dtype=x.dtype, device=x.device)


def log_density(mixture: Mixture, u: Array) -> Array:
    """(B, n) log q(u) of points u (B, n, d)."""
    xp = namespace(u)
    parts = component_log_density(mixture, u)
    top = xp.amax(parts, axis=1)
    return top + xp.log(xp.exp(parts - top[:, None]).sum(1))


def component_log_density(mixture: Mixture, u: Array) -> Array:
    """(B, K, n) log of weight times density, by component."""
    xp = namespace(u)
    d = u.shape[-1]
    size, count = mixture.logw.shape
    roots = mixture.root.reshape((size, count * d, d))  # one product for all components: A u - A m
    centre = xp.matmul(mixture.root, mixture.mean[..., None]).reshape((size, count * d, 1))
    away = (xp.matmul(roots, xp.swapaxes(u, -1, -2)) - centre).reshape((size, count, d, -1))
    diagonal = xp.stack([mixture.root[..., i, i] for i in range(d)], axis=-1)
    level = mixture.logw + xp.log(diagonal).sum(-1) - 0.5 * d * math.log(2.0 * math.pi)
    return level[..., None] - 0.5 * (away * away).sum(-2)


@dataclass(frozen=True)
class Components:
    """B mixtures in a model's units; numpy: weights (B, K), means (B, K, d), roots of covariances (B, K, d, d)."""

    w: np.ndarray
    mean: np.ndarray
    root: np.ndarray


def draw(mixture: Components, count: int, rng: Draws) -> tuple[np.ndarray, np.ndarray]:
    """(B, count, d) draws and the component (B, count) of each. A draw has the mixture's law; together they are
    spread more evenly than independent ones: components are taken systematically, and every second noise is the
    first's opposite.
    """
    size, _, d = mixture.mean.shape
    which = systematic(mixture.w, rng.random((size,)), count)
    rows = np.arange(size).repeat(count)
    noise = rng.opposites((size, count, d)).reshape(-1, d)
    return draw_from(mixture, rows, which.ravel(), noise).reshape(size, count, d), which


def draw_from(mixture: Components, rows: np.ndarray, which: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """(L, d) what N(0, 1) noise (L, d) becomes in components `which` (L,) of the mixtures `rows` (L,)."""
    return mixture.mean[rows, which] + np.einsum("lij,lj->li", mixture.root[rows, which], noise)


def mixture_moments(w: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(M, d) means and (M, d, d) covariances of mixtures, weights (M, K), of Gaussians (K, d), (K, d, d)."""
    centre = w @ mean
    apart = mean - centre[:, None]
    within = (w @ cov.reshape(len(cov), -1)).reshape(len(w), *cov.shape[1:])
    return centre, within + np.swapaxes(w[..., None] * apart, -1, -2) @ apart


def in_state_space(mixture: Mixture, frame: Frame, params: Parameters) -> Components:
    """The mixtures in the model's own units; numpy."""
    root = frame.root[:, None] @ np.linalg.inv(mixture.root) * params["scale.std"][:, None]
    mean = frame.mean[:, None] + mixture.mean @ np.swapaxes(frame.root, -1, -2)
    return Components(np.exp(mixture.logw), mean * params["scale.std"] + params["scale.mean"], root)


def mixture_quantiles(w: np.ndarray, mean: np.ndarray, cov: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """(levels, d) marginal quantiles of one mixture (K,), (K, d), (K, d, d), by bisection of the exact CDF."""
    from scipy.special import ndtr

    sd = np.sqrt(np.diagonal(cov, axis1=-2, axis2=-1))
    goal = np.array(levels)[:, None]
    low = np.broadcast_to((mean - 10.0 * sd).min(0), (len(goal), mean.shape[1])).copy()
    high = np.broadcast_to((mean + 10.0 * sd).max(0), low.shape).copy()
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = (w[:, None] * ndtr((middle[:, None] - mean) / sd)).sum(1) < goal
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)
