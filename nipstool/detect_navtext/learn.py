"""Training of the compact detector: losses, the loop, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from nipstool.detect_navtext import targets
from nipstool.detect_navtext.network import Detector
from nipstool.detect_navtext.targets import NAV, NAV_WEIGHT, TEXT, TEXT_MASK, Example
from nipstool.kit.progress import Progress, silent

REST = 4.0  # weight of pixels without text in the map of text, as one group
BACKGROUND = 0.1  # weight of pixels without text in the map of navigation
FROM_NOTHING = 1e-3  # learning rate for random weights
HARDEST = 3  # of the pixels without text, so many for each with text
FEW = 4  # lines: a picture with fewer is shown as often as one with so many


@dataclass(frozen=True)
class Course:
    """How long and how fast to train.

    Attributes:
        steps: gradient steps, each on `batch` crops of `side` x `side` pixels.
        rate: the highest learning rate; it rises over a twentieth of the steps and falls as a cosine. Weights that
            know text already forget some of it at three times the default.
        bfloat16: convolve in it, which processors that know it do in half the time.
        clutter: the share of crops that show textures where no text is.
        hard: weight of the hardest pixels without text, HARDEST for each of text, beside that of all of them.
        keeps_statistics: batch normalisation keeps its means and variances: those of a few crops say less than
            what weights that know text have learnt.
    """

    steps: int = 200
    batch: int = 4
    side: int = 320
    rate: float = 3e-4
    seed: int = 0
    bfloat16: bool = False
    clutter: float = 0.25
    hard: float = 1.0
    keeps_statistics: bool = False


def loss_of(logits: Tensor, truth: Tensor, hard: float = 0.0) -> Tensor:
    """The loss of (n, 2, h, w) logits against the four maps of `targets` (n, 4, h, w)."""
    text = text_loss(logits[:, 0], truth[:, TEXT], truth[:, TEXT_MASK], hard)
    return text + navigation_loss(logits[:, 1], truth[:, NAV], truth[:, NAV_WEIGHT], truth[:, TEXT_MASK])


def text_loss(logits: Tensor, target: Tensor, mask: Tensor, hard: float = 0.0) -> Tensor:
    """Cross-entropy with text and the rest each as one group, and Dice loss, weighed by the mask.

    All of the rest, and with `hard` its hardest part once more, as in Differentiable Binarization. That part alone
    will not do: from random weights it is the edges of the lines, and nothing is learnt for thousands of steps.
    """
    each = functional.binary_cross_entropy_with_logits(logits, target, reduction="none") * mask
    is_text = (target > 0.5).float()
    groups = (is_text, 1 - is_text)
    text, rest = ((each * group).sum() / (mask * group).sum().clamp(min=1.0) for group in groups)
    chance = torch.sigmoid(logits) * mask
    dice = 1 - (2 * (chance * target).sum() + 1) / ((chance + target * mask).sum() + 1)
    loss = text + REST * rest + dice
    return loss + hard * _hardest(each * (target == 0), HARDEST * int(is_text.sum())) if hard else loss


def _hardest(each: Tensor, count: int) -> Tensor:
    """The mean of the largest losses; at least of one in a hundred."""
    largest = torch.topk(each.flatten(), min(each.numel(), max(count, each.numel() // 100)), sorted=False)
    return largest.values.mean()


def navigation_loss(logits: Tensor, target: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy with the pixels of signs, those of other text and those without text each as one group."""
    each = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    groups = (weight * target, weight * (1 - target), (weight == 0) * mask)
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
    if course.keeps_statistics:
        _keep_statistics(network)
    often = _often(examples)
    optimiser = torch.optim.AdamW(network.parameters(), course.rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_at(step, course.steps))
    losses = []
    for step in range(course.steps):
        images, truth = _batch(random, examples, often, course)
        with torch.autocast(device.type, torch.bfloat16, enabled=course.bfloat16):
            logits = network(images.to(device, memory_format=torch.channels_last))
        loss = loss_of(logits.float(), truth.to(device), course.hard)
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


def _often(examples: Sequence[Example]) -> NDArray[np.float64]:
    """How often each picture is shown, as shares (n,): by the root of its lines, for a full shelf teaches more."""
    counts = [sum(truth.label != "ignore" for truth in example.truths) for example in examples]
    roots = np.sqrt(np.maximum(counts, FEW))
    return roots / roots.sum()


def _keep_statistics(network: Detector) -> None:
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


def _batch(
    random: np.random.Generator, examples: Sequence[Example], often: NDArray[np.float64], course: Course
) -> tuple[Tensor, Tensor]:
    chosen = random.choice(len(examples), size=course.batch, p=often)
    crops = [targets.crop(random, examples[i], course.side, course.clutter) for i in chosen]
    images, maps = zip(*crops, strict=True)
    return torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(maps))
