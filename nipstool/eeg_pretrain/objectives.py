"""The composite loss: next patch, detection, onset, time to seizure, descriptors.

Each term is a sum over what is known and a count of it, so that ranks with different windows agree on the mean.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, huber_loss, smooth_l1_loss, softplus

from nipstool.eeg_pretrain.config import CLIP, HISTORY, Config, Recipe
from nipstool.eeg_pretrain.descriptors import describe
from nipstool.eeg_pretrain.model import Model, Outputs, Signals
from nipstool.eeg_pretrain.tokenizer import FLOOR_UV


class Labels(NamedTuple):
    """Targets of a batch, (B, T) each; see targets.Targets."""

    seizure: Tensor
    onset: Tensor
    wait_s: Tensor
    event: Tensor
    known: Tensor
    asked: Tensor


class Term(NamedTuple):
    """A loss as a sum over `count` items."""

    total: Tensor
    count: Tensor


def terms(model: Model, outputs: Outputs, signals: Signals, labels: Labels) -> dict[str, Term]:
    """Every term of the loss; one that nothing is known of has the count 0."""
    known, asked = labels.known, labels.asked
    detection = binary_cross_entropy_with_logits(outputs.detection, labels.seizure, reduction="none")
    onset = binary_cross_entropy_with_logits(outputs.onset, labels.onset, reduction="none")
    hazard = hazard_nll(outputs.hazard, labels.wait_s, labels.event, model.config.horizons_s)
    return {
        "ntp": _next_patch(outputs, signals),
        "detection": _over(detection, known),
        "onset": _over(onset, known),
        "hazard": _over(hazard, asked),
        "descriptors": _descriptors(model, outputs, signals),
    }


def weights(recipe: Recipe) -> dict[str, float]:
    """What each term counts."""
    return {name: getattr(recipe, name) for name in ("ntp", "detection", "onset", "hazard", "descriptors")}


def _over(loss: Tensor, mask: Tensor) -> Term:
    return Term(torch.where(mask, loss, 0.0).sum(), mask.sum())


def _next_patch(outputs: Outputs, signals: Signals) -> Term:
    """Laplace: |y - y^| exp(-s) + s, and half of Huber's loss, in units of the running scale before the patch."""
    both = signals.valid[:, :, :-1] & signals.valid[:, :, 1:]
    scale = signals.scale[:, :, :-1].clamp(min=FLOOR_UV)[..., None]
    y = (signals.x[:, :, 1:] / scale).clamp(-CLIP, CLIP).to(outputs.next_patch.dtype)
    guess, s = outputs.next_patch[:, :, :-1], outputs.spread[:, :, :-1, None]
    laplace = (y - guess).abs() * torch.exp(-s) + s
    loss = (laplace + 0.5 * huber_loss(guess, y, reduction="none")).mean(-1)
    return _over(loss, both)


def hazard_nll(logits: Tensor, wait_s: Tensor, event: Tensor, horizons_s: tuple[float, ...]) -> Tensor:
    """-log likelihood (...) of a waiting time under hazards sigma(logits) of consecutive intervals (..., J).

    An onset in interval j gives log(hazard_j) + sum_{r<j} log(1 - hazard_r). A wait that ends without one
    (censored) gives the intervals it has outlived, and nothing about the one it ends in. Discrete-time survival
    (Cox 1972, section on grouped data).
    """
    ends = torch.tensor(horizons_s, dtype=wait_s.dtype, device=wait_s.device)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    outlived = torch.where(event[..., None], wait_s[..., None] > ends, wait_s[..., None] >= ends)
    here = event[..., None] & ~outlived & (wait_s[..., None] > starts)
    here[..., 0] |= event & (wait_s <= 0.0)
    return (softplus(logits) * outlived + softplus(-logits) * here).sum(-1)


def risk(logits: Tensor) -> Tensor:
    """Probability (..., J) of an onset within each horizon, from the hazards' logits."""
    return 1.0 - torch.exp(-softplus(logits).cumsum(-1))


def _descriptors(model: Model, outputs: Outputs, signals: Signals) -> Term:
    target, mask = descriptor_targets(model, signals)
    loss = smooth_l1_loss(outputs.descriptors[:, :, HISTORY - 1 :], target, reduction="none").mean(-1)
    return _over(loss, mask)


def descriptor_targets(model: Model, signals: Signals) -> tuple[Tensor, Tensor]:
    """Standardised descriptors (B, C, T - HISTORY + 1, D) of the second up to a token; and where it is whole."""
    raw, mask = raw_descriptors(model.config, signals)
    mean, std = model.get_buffer("descriptor_mean"), model.get_buffer("descriptor_std")
    return ((raw - mean) / std).clamp(-6.0, 6.0), mask


def raw_descriptors(config: Config, signals: Signals) -> tuple[Tensor, Tensor]:
    """The same before they are standardised."""
    x, valid = signals.x, signals.valid & (signals.kind == 0)[:, :, None]
    T = x.shape[2] - HISTORY + 1
    scale = signals.scale[:, :, HISTORY - 1 :].clamp(min=FLOOR_UV)
    u = torch.cat([x[:, :, j : j + T] for j in range(HISTORY)], -1) / scale[..., None]
    mask = torch.stack([valid[:, :, j : j + T] for j in range(HISTORY)]).all(0)
    return describe(u.clamp(-CLIP, CLIP), scale, config.fs), mask
