"""The compact detector: a small network with two maps at half of the picture's size.

A residual encoder (He et al., CVPR 2016) and a feature pyramid (Lin et al., CVPR 2017), with the shrunk text map
of Differentiable Binarization (Liao et al., AAAI 2020) beside a map of where that text leads somewhere. The maps
are made at a quarter of the size, four values a cell, and put together by a sub-pixel shuffle (Shi et al., CVPR
2016).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

SCALE = 2  # the maps are so much smaller
WIDTHS = (16, 32, 64, 96, 128)
DEPTHS = (2, 1, 2, 1)
PYRAMID = 40
FINER = 2  # cells of the maps in one of the pyramid's, each way


class Detector(nn.Module):
    """(n, 3, h, w) blue, green, red in -1 to 1 -> logits (n, 2, h/2, w/2): text (shrunk), text that navigates.

    Plain convolutions throughout: on a CPU they are faster than depthwise ones of a quarter of the arithmetic.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = convolution(3, WIDTHS[0], stride=2)
        steps = zip(WIDTHS, WIDTHS[1:], DEPTHS, strict=False)
        self.stages = nn.ModuleList(stage(before, after, depth) for before, after, depth in steps)
        self.lateral = nn.ModuleList(nn.Conv2d(width, PYRAMID, 1) for width in WIDTHS[1:])
        self.smooth = nn.ModuleList(convolution(PYRAMID, PYRAMID) for _ in WIDTHS[1:])
        self.head = nn.Sequential(convolution(PYRAMID, PYRAMID), nn.Conv2d(PYRAMID, 2 * FINER**2, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        features = []
        for one in self.stages:
            x = one(x)
            features.append(x)
        top = self.smooth[-1](self.lateral[-1](features[-1]))
        for level in (2, 1, 0):
            up = functional.interpolate(top, scale_factor=2.0, mode="nearest")
            top = self.smooth[level](self.lateral[level](features[level]) + up)
        return functional.pixel_shuffle(self.head(top), FINER)


class Probabilities(nn.Module):
    """The detector as it is exported: probabilities rather than logits."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.detector(x))


class Residual(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        second = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        self.block = nn.Sequential(convolution(width, width), second)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.block(x))


def stage(before: int, after: int, depth: int) -> nn.Sequential:
    """Half the size, then so many residual blocks."""
    return nn.Sequential(convolution(before, after, stride=2), *(Residual(after) for _ in range(depth)))


def convolution(before: int, after: int, *, stride: int = 1) -> nn.Sequential:
    """Convolution, batch normalisation, ReLU."""
    layer = nn.Conv2d(before, after, 3, stride, 1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(after), nn.ReLU(inplace=True))
