"""Tokens: a patch of one channel, where its electrodes are, and how loud it is.

A channel is a pair of places on the head, not a name: any montage is a set of such pairs, in any order. The pair
is put in one order, and the signal's sign with it, so that FP1-F7 and F7-FP1 are one channel, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nipstool.eeg_pretrain.config import HISTORY, MODALITIES, USUAL_UV, Config
from nipstool.eeg_pretrain.recording import Channel, Point

RADIUS_M = 0.095  # of a head
GEOMETRY = 9  # anode xyz, cathode xyz in radii, has anode, has cathode, is bipolar
OCTAVES = 4
FLOOR_UV = 0.1  # below it a scale is a scale of nothing


@dataclass(frozen=True)
class Placement:
    """What a model knows of the channels besides their signals.

    Attributes:
        geometry: (C, GEOMETRY) float32.
        sign: (C,) +1 or -1: what the signal is multiplied by to belong to the pair in `geometry`.
        kind: (C,) index into MODALITIES.
    """

    geometry: np.ndarray
    sign: np.ndarray
    kind: np.ndarray


def place(channels: Sequence[Channel]) -> Placement:
    """The placement of channels of the kinds in MODALITIES."""
    rows, signs = [], []
    for channel in channels:
        anode, cathode, sign = _ordered(channel)
        known = [1.0 if point is not None else 0.0 for point in (anode, cathode)]
        xyz = [x / RADIUS_M for point in (anode, cathode) for x in (point or (0.0, 0.0, 0.0))]
        rows.append([*xyz, *known, 1.0 if channel.bipolar else 0.0])
        signs.append(sign)
    kind = [MODALITIES.index(channel.kind) for channel in channels]
    geometry = np.array(rows, np.float32).reshape(-1, GEOMETRY)
    return Placement(geometry, np.array(signs, np.float32), np.array(kind, np.int64))


def _ordered(channel: Channel) -> tuple[Point | None, Point | None, float]:
    """Anode, cathode and sign: first the electrode further to the front, and a known place before an unknown."""
    anode, cathode = channel.anode, channel.cathode
    if not channel.bipolar or cathode is None or (anode is not None and _front(anode) >= _front(cathode)):
        return anode, cathode, 1.0
    return cathode, anode, -1.0


def _front(point: Point) -> Point:
    x, y, z = point
    return y, x, z


class Tokenizer(nn.Module):
    """(B, C, T, P) signals -> (B, T, C, d) tokens."""

    def __init__(self, config: Config):
        super().__init__()
        d, width = config.d, HISTORY * config.patch
        self.patch = config.patch
        self.wave = nn.Linear(width, d, bias=False)
        self.spectrum = nn.Linear(width // 2, d)
        self.loudness = nn.Sequential(nn.Linear(2, d), nn.SiLU(), nn.Linear(d, d, bias=False))
        self.place = nn.Sequential(nn.Linear(6 * (2 * OCTAVES + 1) + 3, d), nn.SiLU(), nn.Linear(d, d, bias=False))
        self.ecg = nn.Linear(width, d)
        self.spo2 = nn.Linear(1, d)
        self.modality = nn.Parameter(0.02 * torch.randn(len(MODALITIES), d))
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(width, periodic=False), persistent=False)

    def forward(self, history: Tensor, scale: Tensor, geometry: Tensor, kind: Tensor) -> Tensor:
        """history (B, C, T, HISTORY P) over scale, scale (B, C, T) uV, geometry (B, C, GEOMETRY), kind (B, C)."""
        tokens = self._eeg(history, scale) + self._position(geometry)[:, :, None]
        for name, embed in (("ecg", self.ecg), ("spo2", self.spo2)):
            here = kind == MODALITIES.index(name)
            if bool(here.any()):
                value = history if name == "ecg" else history[..., -self.patch :].mean(-1, keepdim=True)
                tokens = torch.where(here[:, :, None, None], embed(value), tokens)
        return (tokens + self.modality[kind][:, :, None].to(tokens.dtype)).transpose(1, 2)

    def _eeg(self, history: Tensor, scale: Tensor) -> Tensor:
        current = history[..., -self.patch :]
        rms = torch.sqrt(current.square().mean(-1) + 1e-4)
        loud = torch.stack([torch.log(rms), torch.log(scale / USUAL_UV)], -1)
        return self.wave(history) + self.spectrum(self._log_spectrum(history)) + self.loudness(loud)

    def _log_spectrum(self, history: Tensor) -> Tensor:
        """log power of the bins above 0, about 0 for white noise of rms 1."""
        x = history if history.dtype == torch.float64 else history.float()
        bins = torch.fft.rfft(x * self.window.to(x.dtype))[..., 1:]
        power = (bins.real.square() + bins.imag.square()) / (0.375 * x.shape[-1])
        return torch.log(power + 1e-4).to(history.dtype)

    def _position(self, geometry: Tensor) -> Tensor:
        xyz, flags = geometry[..., :6], geometry[..., 6:]
        known = flags[..., :2].repeat_interleave(3, -1)
        angles = xyz[..., None] * (0.5 * math.pi * 2.0 ** torch.arange(OCTAVES, device=xyz.device))
        waves = torch.cat([torch.sin(angles), torch.cos(angles)], -1) * known[..., None]
        return self.place(torch.cat([waves.flatten(-2), xyz, flags], -1))
