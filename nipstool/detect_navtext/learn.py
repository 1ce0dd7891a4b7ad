"""Training of the compact detector: losses, the loop, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nipstool.detect_navtext import targets
from nipstool.detect_navtext.network import Detector
from nipstool.detect_navtext.targets import NAV, NAV_WEIGHT, TEXT, TEXT_MASK, Example
from nipstool.kit.progress import Progress, silent

NEGATIVES = 3  # pixels without text that count, for each with: the hardest ones
BACKGROUND = 0.1  # weight of pixels without text in the map of navigation


@dataclass(frozen=True)
class Course:
    """How long and how fast to train.

    Attributes:
        steps: gradient steps, each on `batch` crops of `side` x `side` pixels.
        rate: the highest learning rate; it rises over a twentieth of the steps and falls as a cosine.
    """

    steps: int = 200
    batch: int = 4
    side: int = 320
    rate: float = 1e-3
    seed: int = 0


def loss_of(logits: Tensor, truth: Tensor) -> Tensor:
    """The loss of (n, 2, h, w) logits against the four maps of `targets` (n, 4, h, w)."""
    text = text_loss(logits[:, 0], truth[:, TEXT], truth[:, TEXT_MASK])
    return text + navigation_loss(logits[:, 1], truth[:, NAV], truth[:, NAV_WEIGHT], truth[:, TEXT_MASK])


def text_loss(logits: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy of text pixels and the hardest others, three for one, and the Dice loss of both."""
    each = functional.binary_cross_entropy_with_logits(logits, target, reduction="none") * mask
    is_text = (target > 0.5).float() * mask
    count = is_text.sum()
    others = each * (1 - is_text)
    most = min(others.numel(), int(NEGATIVES * count.item()) + 256)
    hardest = others.flatten().topk(most).values
    entropy = ((each * is_text).sum() + hardest.sum()) / (count + most)
    chance = torch.sigmoid(logits) * mask
    dice = 1 - (2 * (chance * target * mask).sum() + 1) / ((chance + target * mask).sum() + 1)
    return 3 * entropy + dice


def navigation_loss(logits: Tensor, target: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy with the pixels of signs, those of other text and those without text each as one group."""
    each = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    groups = (weight * target, weight * (1 - target), BACKGROUND * (1 - weight) * mask)
    means = [(each * group).sum() / group.sum().clamp(min=1.0) for group in groups]
    return means[0] + means[1] + BACKGROUND * means[2]


def train(
    network: Detector,
    examples: Sequence[Example],
    course: Course,
    *,
    device: torch.device | None = None,
    progress: Progress = silent,
) -> list[float]:
    """Train `network` in place; returns the loss of every step. On one device a seed gives the same weights."""
    device = device or torch.device("cpu")
    random = np.random.default_rng(course.seed)
    network.to(device).to(memory_format=torch.channels_last).train()  # pyright: ignore[reportCallIssue]
    optimiser = torch.optim.AdamW(network.parameters(), course.rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_at(step, course.steps))
    losses = []
    for step in range(course.steps):
        images, truth = _batch(random, examples, course)
        logits = network(images.to(device, memory_format=torch.channels_last))
        loss = loss_of(logits, truth.to(device))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
        progress(step + 1, course.steps)
    network.to("cpu").eval()
    return losses


def rate_at(step: int, steps: int) -> float:
    """The share of the learning rate at a step: a short rise, then a cosine down to 0.02."""
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.02 + 0.98 * (1 + float(np.cos(np.pi * (step - warm) / max(1, steps - warm)))) / 2


def _batch(random: np.random.Generator, examples: Sequence[Example], course: Course) -> tuple[Tensor, Tensor]:
    chosen = random.integers(len(examples), size=course.batch)
    crops = [targets.crop(random, examples[i], course.side) for i in chosen]
    images, maps = zip(*crops, strict=True)
    return torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(maps))
