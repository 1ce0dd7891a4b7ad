"""Descriptors of one second of a channel: numbers that clinicians name, as targets (the idea of Neuro-KE)."""

from __future__ import annotations

import torch
from torch import Tensor

from nipstool.eeg_pretrain.config import DESCRIPTORS, USUAL_UV

BANDS_HZ = ((1.0, 4.0), (4.0, 8.0), (8.0, 13.0), (13.0, 30.0), (30.0, 45.0))
FLOOR = 1e-4


def describe(u: Tensor, scale: Tensor, fs: float) -> Tensor:
    """(..., D), in the order of config.DESCRIPTORS.

    Log share of the power in five bands, log line length (mean |x_{n+1} - x_n|, in units of the running scale) and
    log power in uV.

    Args:
        u: (..., n) signal over its running scale.
        scale: (...) running scale in uV.
        fs: Hz.
    """
    u, scale = u.float(), scale.float()
    window = torch.hann_window(u.shape[-1], periodic=False, device=u.device)
    bins = torch.fft.rfft(u * window)
    power = bins.real.square() + bins.imag.square()
    hertz = torch.fft.rfftfreq(u.shape[-1], 1.0 / fs, device=u.device)
    total = power[..., hertz >= BANDS_HZ[0][0]].sum(-1) + FLOOR
    shares = [power[..., (hertz >= low) & (hertz < high)].sum(-1) / total for low, high in BANDS_HZ]
    length = u.diff(dim=-1).abs().mean(-1)
    loud = torch.log(u.square().mean(-1) + FLOOR) / 2 + torch.log(scale / USUAL_UV)
    found = [*(torch.log(share + 1e-3) for share in shares), torch.log(length + FLOOR), loud]
    assert len(found) == len(DESCRIPTORS)
    return torch.stack(found, -1)
