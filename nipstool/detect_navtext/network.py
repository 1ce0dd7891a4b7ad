"""The compact detector: a small network with two maps at a quarter of the picture's size.

An inverted-residual encoder (Sandler et al., MobileNetV2, CVPR 2018) and a feature pyramid, with the shrunk text
map of Differentiable Binarization (Liao et al., AAAI 2020) beside a map of where that text leads somewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

SCALE = 4  # the maps are so much smaller
WIDTHS = (12, 24, 32, 48, 64)
DEPTHS = (1, 1, 1, 1)
PYRAMID = 24


class Detector(nn.Module):
    """(n, 3, h, w) blue, green, red in -1 to 1 -> logits (n, 2, h/4, w/4): text (shrunk), text that navigates."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = convolution(3, WIDTHS[0], stride=2)
        # plain convolutions where the maps are large: widening there is what would cost most
        same = [Inverted(WIDTHS[1], WIDTHS[1], 1) for _ in range(DEPTHS[0])]
        stages = [nn.Sequential(convolution(WIDTHS[0], WIDTHS[1], stride=2), *same)]
        for before, after, depth in zip(WIDTHS[1:], WIDTHS[2:], DEPTHS[1:], strict=False):
            blocks = [Inverted(before, after, 2), *(Inverted(after, after, 1) for _ in range(depth))]
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.lateral = nn.ModuleList(nn.Conv2d(width, PYRAMID, 1) for width in WIDTHS[1:])
        self.smooth = nn.ModuleList(separable(PYRAMID, PYRAMID) for _ in WIDTHS[1:])
        self.text = head(PYRAMID)
        self.navigation = head(PYRAMID)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        top = self.smooth[-1](self.lateral[-1](features[-1]))
        for level in (2, 1, 0):
            up = functional.interpolate(top, scale_factor=2.0, mode="nearest")
            top = self.smooth[level](self.lateral[level](features[level]) + up)
        return torch.cat([self.text(top), self.navigation(top)], dim=1)


class Probabilities(nn.Module):
    """The detector as it is exported: probabilities rather than logits."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.detector(x))


class Inverted(nn.Module):
    """Widen, look around, narrow; add the input where it has the same shape."""

    def __init__(self, before: int, after: int, stride: int, expansion: int = 2) -> None:
        super().__init__()
        inner = before * expansion
        self.block = nn.Sequential(
            convolution(before, inner, size=1),
            convolution(inner, inner, size=5 if after >= WIDTHS[3] else 3, stride=stride, groups=inner),
            nn.Conv2d(inner, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.adds else self.block(x)


def convolution(before: int, after: int, *, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch normalisation, ReLU."""
    layer = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(after), nn.ReLU(inplace=True))


def separable(before: int, after: int) -> nn.Sequential:
    """A depthwise convolution and a pointwise one."""
    return nn.Sequential(convolution(before, before, size=3, groups=before), convolution(before, after, size=1))


def head(width: int) -> nn.Sequential:
    """One map of logits."""
    return nn.Sequential(convolution(width, width // 2), nn.Conv2d(width // 2, 1, 1))
