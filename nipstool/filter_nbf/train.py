"""Training: the density that the generator gives to particles the encoder has not seen.

    minimise  - E_b E_{S, S'} [ 1/|S'| sum_{x in S'} log p(x | E(S)) ]      S and S' disjoint draws of a belief b

over a family of beliefs (family.py), with inputs of 12 to 256 particles, weighted in many ways, and beliefs mixed
in pairs. Validation is on scenarios that training never saw: snapshots of one scenario resemble each other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nipstool.filter_nbf.checkpoint import Checkpoint, describe, rounded
from nipstool.filter_nbf.embedding import embed, initial_encoder
from nipstool.filter_nbf.family import HELD, Snapshots
from nipstool.filter_nbf.flow import flow_log_density, initial_flow
from nipstool.filter_nbf.journal import Journal
from nipstool.filter_nbf.learned import BOUNDARIES, Learned, size_bin
from nipstool.filter_nbf.mixture import initial_mixture, log_density, mixture_of, mixture_quantiles
from nipstool.filter_nbf.model import Dynamics
from nipstool.kit.distributed import Group
from nipstool.kit.errors import NipsError
from nipstool.kit.progress import Progress, silent

TARGETS, SMALLEST, LARGEST = 32, 12, 256
RATE, DECAY, WARM_UP, CLIP = 2e-3, 1e-4, 100, 5.0
WORST = -40.0  # log densities below it teach nothing but where an outlier lay
MIXED = 0.15  # share of training beliefs that are mixtures of two
HELD_BACK = 0.1  # share of the scenarios for validation
ALARM = 0.99  # quantile of the off-family score over beliefs of the family
MARGIN = 1.5  # of the alarm: weights that come from a likelihood scatter the score more than those drawn here

LogDensity = Callable[[dict[str, Tensor], Tensor, Tensor, Tensor], Tensor]
ALONE = Group()


@dataclass(frozen=True)
class Training:
    """What was trained, and how well on held-back scenarios: mean negative log density (nats), and the share of
    particles within the 90 % intervals of their coordinates (None where the generator has no exact quantiles).
    """

    checkpoint: Checkpoint
    steps: int
    seconds: float
    validation: dict[str, float]
    coverage: float | None


def initial(dynamics: Dynamics, generator: str, sets: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Untrained parameters, scaled to the beliefs `sets` (N, n, d)."""
    rng = np.random.default_rng([seed, 1])
    d = dynamics.dim
    mean, std = sets.reshape(-1, d).mean(0), sets.reshape(-1, d).std(0) + 1e-6
    for j in dynamics.angles:
        mean[j], std[j] = 0.0, 1.0
    start = initial_mixture if generator == "gmm" else initial_flow
    params = initial_encoder(d, len(dynamics.angles), rng) | start(d, rng)
    return params | {"scale.mean": mean.astype(np.float32), "scale.std": std.astype(np.float32)}


def log_density_of(generator: str, angles: tuple[int, ...]) -> LogDensity:
    """log p(x' | E(x, w)) in scaled units: (B, m) of targets (B, m, d)."""

    def compute(params: dict[str, Tensor], x: Tensor, w: Tensor, targets: Tensor) -> Tensor:
        frame, theta, _ = embed(params, x, w, angles)
        away = targets - frame.mean[:, None]
        for j in angles:
            turned = (away[..., j] + math.pi) % (2.0 * math.pi) - math.pi
            away = torch.cat([away[..., :j], turned[..., None], away[..., j + 1 :]], -1)
        u = torch.linalg.solve_triangular(frame.root, away.mT, upper=False).mT
        found = (
            log_density(mixture_of(params, theta, x.shape[-1]), u)
            if generator == "gmm"
            else flow_log_density(params, theta, u)
        )
        return found - torch.log(torch.diagonal(frame.root, dim1=-2, dim2=-1)).sum(-1)[:, None]

    return compute


def train(
    dynamics: Dynamics,
    family: Snapshots,
    *,
    generator: str = "gmm",
    steps: int = 6000,
    batch: int = 128,
    seed: int = 0,
    start: Checkpoint | None = None,
    device: Any = "cpu",
    progress: Progress = silent,
    journal: Journal | None = None,
    group: Group = ALONE,
) -> Training:
    """Train encoder and generator on a family of beliefs: from random parameters, or at half rate from `start`.

    Args:
        journal: keeps the run, and goes on with one that was interrupted, to the same bytes.
        group: processes that share every batch; all of them hold the whole family, and get the same networks.

    Raises NipsError where the loss stops being a number; UsageError as Journal has it.
    """
    began = time.monotonic()
    count = int(family.scenario.max()) + 1
    held_back = family.scenario >= (count - max(1, round(HELD_BACK * count)) if count >= 4 else count)
    params = initial(dynamics, generator, family.sets[~held_back], seed)
    if start is not None:
        params = {name: start.params[name].astype(np.float32) for name in params}
    tensors = {name: torch.tensor(value, device=device) for name, value in params.items()}
    sets = torch.tensor((family.sets - params["scale.mean"]) / params["scale.std"], device=device)
    known, unseen = sets[torch.tensor(~held_back)], sets[torch.tensor(held_back)]
    compute = log_density_of(generator, dynamics.angles)
    rate = RATE if start is None else 0.5 * RATE
    _descend(tensors, known, compute, rate, (steps, batch, seed), progress, journal, group)
    arrays = rounded({name: t.detach().cpu().numpy() for name, t in tensors.items()})
    tensors = {name: torch.tensor(value.astype(np.float32), device=device) for name, value in arrays.items()}
    validation = validate(tensors, unseen, compute) if len(unseen) else {}
    total = steps + (start.about["steps"] if start is not None else 0)
    about = {**describe(dynamics), "generator": generator, "steps": total, "seed": seed, "validation": validation}
    about["family"] = {"scenarios": count, "beliefs": len(family.sets), "parameters": family.ranges}
    checkpoint = Checkpoint({name: value.astype(np.float64) for name, value in arrays.items()}, about)
    raw = _unscaled(unseen if len(unseen) else known, params)
    covered = coverage(checkpoint, raw) if len(unseen) and generator == "gmm" else None
    checkpoint = calibrate(checkpoint, dynamics, raw, seed)
    return Training(checkpoint, steps, time.monotonic() - began, validation, covered)


def _descend(
    tensors: dict[str, Tensor],
    known: Tensor,
    compute: LogDensity,
    rate: float,
    run: tuple[int, int, int],
    progress: Progress,
    journal: Journal | None,
    group: Group,
) -> None:
    """AdamW with a cosine schedule, `run` = (steps, batch, seed), on all tensors but the scales."""
    steps, batch, seed = run
    learned = {name: t.requires_grad_() for name, t in tensors.items() if not name.startswith("scale.")}
    optimiser = torch.optim.AdamW(learned.values(), lr=rate, weight_decay=DECAY)
    rng = np.random.default_rng([seed, 2])
    first = journal.restore(learned, optimiser, rng) if journal is not None else 0
    for k in range(first, steps):
        for setting in optimiser.param_groups:
            setting["lr"] = rate * _rate(k, steps)
        mine = slice(group.rank, None, group.size)
        x, w, targets = (part[mine] for part in batch_of(known, batch, rng))
        loss = -compute(tensors, x, w, targets).clamp(min=WORST).sum() / (batch * TARGETS)
        if not torch.isfinite(loss):
            raise NipsError(f"training step {k + 1}: the loss is {loss.item()}")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        group.add([value.grad for value in learned.values()])
        torch.nn.utils.clip_grad_norm_(learned.values(), CLIP)
        optimiser.step()
        progress(k + 1, steps)
        if journal is not None and group.rank == 0:
            journal.save(k + 1, learned, optimiser, rng)


def _unscaled(sets: Tensor, params: dict[str, np.ndarray]) -> np.ndarray:
    return sets.cpu().numpy().astype(np.float64) * params["scale.std"] + params["scale.mean"]


def _rate(step: int, steps: int) -> float:
    warm = min(WARM_UP, max(1, steps // 10))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def batch_of(sets: Tensor, size: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (B, n, d) with weights (B, n), and disjoint targets (B, 32, d); n differs from batch to batch."""
    n = round(math.exp(rng.uniform(math.log(SMALLEST), math.log(LARGEST))))
    chosen = torch.as_tensor(rng.integers(len(sets), size=(2, size)), device=sets.device)
    first = rng.integers(HELD - n - TARGETS + 1)  # snapshots are in random order
    inputs, targets = slice(first, first + n), slice(first + n, first + n + TARGETS)
    x, y = sets[chosen[0], inputs], sets[chosen[0], targets]
    w = torch.as_tensor(weights_of(size, n, rng), dtype=x.dtype, device=x.device)
    mixed = round(MIXED * size)
    if mixed:
        share = torch.as_tensor(rng.uniform(size=(mixed, 1)), dtype=x.dtype, device=x.device)
        x, y, w = _mix(x, y, w, sets[chosen[1, :mixed]], share, inputs, targets)
    return x, w, y


def _mix(
    x: Tensor, y: Tensor, w: Tensor, other: Tensor, share: Tensor, inputs: slice, targets: slice
) -> tuple[Tensor, Tensor, Tensor]:
    """The first beliefs of a batch become mixtures: every particle comes from one belief or from the other."""
    mixed = len(other)
    take_x = (torch.linspace(0, 1, x.shape[1], device=x.device)[None] < share)[..., None]
    take_y = (torch.linspace(0, 1, y.shape[1], device=x.device)[None] < share)[..., None]
    x, y = x.clone(), y.clone()
    x[:mixed] = torch.where(take_x, other[:, inputs], x[:mixed])
    y[:mixed] = torch.where(take_y, other[:, targets], y[:mixed])
    return x, y, w


def weights_of(size: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """(B, n) weights: 40 % of the sets uniform, the others Gamma(a) over their sum, a log-uniform in [0.2, 20]."""
    shape = np.exp(rng.uniform(math.log(0.2), math.log(20.0), (size, 1)))
    w = rng.gamma(np.broadcast_to(shape, (size, n))) + 1e-12
    w[rng.uniform(size=size) < 0.4] = 1.0
    return w / w.sum(-1, keepdims=True)


@torch.no_grad()
def validate(params: dict[str, Tensor], sets: Tensor, compute: LogDensity) -> dict[str, float]:
    """Mean negative log density, in scaled units, of targets given 16, 64 and 192 equally weighted particles."""
    found = {}
    for n in (16, 64, 192):
        x, y = sets[:512, :n], sets[:512, n : n + TARGETS]
        w = torch.full(x.shape[:2], 1.0 / n, dtype=x.dtype, device=x.device)
        found[str(n)] = round(float(-compute(params, x, w, y).clamp(min=WORST).mean()), 4)
    return found


def coverage(checkpoint: Checkpoint, sets: np.ndarray) -> float:
    """Share of particles, by coordinate but for angles, between the 5 and 95 % quantiles of the mixture that 192
    others of their belief embed to: 0.9 where it is calibrated.
    """
    belief, n = Learned(checkpoint, watch=False), 192
    columns = [j for j in range(sets.shape[-1]) if j not in belief.angles]
    inside = []
    for x in sets[:128]:
        found = belief.mixture(x[None, :n], np.full((1, n), -math.log(n)))
        cov = found.root[0] @ np.swapaxes(found.root[0], -1, -2)
        low, high = mixture_quantiles(found.w[0], found.mean[0], cov, (0.05, 0.95))
        targets = x[n : n + TARGETS]
        inside.append(((targets >= low) & (targets <= high))[:, columns].mean())
    return round(float(np.mean(inside)), 4)


def calibrate(checkpoint: Checkpoint, dynamics: Dynamics, sets: np.ndarray, seed: int) -> Checkpoint:
    """Add the off-family alarm's thresholds, one for each range of the effective size."""
    from nipstool.filter_nbf.draws import Draws

    rng = np.random.default_rng([seed, 3])
    belief = Learned(checkpoint, watch=False)
    scores: list[list[float]] = [[] for _ in range(len(BOUNDARIES) + 1)]
    for x in sets[rng.permutation(len(sets))[:400]]:
        for n in (32, 128):
            w = weights_of(1, n, rng)
            some = x[rng.choice(len(x), n, replace=False)][None]
            fresh = belief.generate(dynamics, some, np.log(w), n // 2, Draws([rng]))
            scores[size_bin(np.log(w))[0]].append(float(belief.score(dynamics, some, np.log(w), fresh)[0]))
    every = [s for some in scores for s in some]
    limits = [MARGIN * np.quantile(some if len(some) >= 50 else every, ALARM) for some in scores]
    params = checkpoint.params | {"cal.threshold": np.array(limits)}
    return Checkpoint(params, checkpoint.about)
