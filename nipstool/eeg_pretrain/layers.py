"""The two directions of the model: time, by the mLSTM, and space, by attention over the set of channels.

Tokens are (B, T, S, d): S streams, the latents first and the channels after them. Nothing here mixes times but the
mLSTM, which looks back only; nothing mixes streams but the attention, which knows no order of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from nipstool.eeg_pretrain import mlstm
from nipstool.eeg_pretrain.mlstm import State

CAP = 15.0  # of gate pre-activations, so that exp(-m) <= exp(15)


class RMSNorm(nn.Module):
    """x / rms(x), times a learned weight."""

    def __init__(self, d: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-6)


class TimeMixer(nn.Module):
    """One mLSTM layer as xLSTM-7B has it: q, k of half the width, output gate, a norm a head, residual."""

    def __init__(self, d: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm = RMSNorm(d)
        self.qkvo = nn.Linear(d, 3 * d, bias=False)
        self.gates = nn.Linear(d, 2 * heads)
        self.head_norm = nn.Parameter(torch.ones(d))
        self.out = nn.Linear(d, d, bias=False)
        nn.init.zeros_(self.gates.weight)
        with torch.no_grad():
            self.gates.bias.copy_(torch.cat([torch.full((heads,), -2.0), torch.linspace(1.0, 5.0, heads)]))

    def forward(self, x: Tensor, valid: Tensor, state: State | None) -> tuple[Tensor, State]:
        """x (B, T, S, d), valid (B, T, S): a token that is not valid leaves the state as it was."""
        d = x.shape[-1]
        y = self.norm(x)
        q, k, v, o = self.qkvo(y).split([d // 2, d // 2, d, d], -1)
        with torch.autocast(x.device.type, enabled=False):
            i, f = self._gates(y, valid)
            q, k, v = (self._by_head(u.to(i.dtype)) for u in (q, k, v))
            h, state = mlstm.chunkwise(q, k, v, i, f, state)  # (B, S, H, T, dv)
            h = nn.functional.rms_norm(h, h.shape[-1:], None, 1e-6)
        h = h.permute(0, 3, 1, 2, 4).flatten(-2).to(y.dtype) * self.head_norm.to(y.dtype)
        return x + self.out(torch.sigmoid(o) * h), state

    def _gates(self, y: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Input and forget gates (B, S, H, T), never in half precision."""
        y = y if y.dtype == torch.float64 else y.float()
        g = nn.functional.linear(y, self.gates.weight, self.gates.bias)
        g = CAP * torch.tanh(g / CAP)
        i, f = g.unflatten(-1, (2, self.heads)).permute(3, 0, 2, 4, 1)
        shut = ~valid.permute(0, 2, 1)[:, :, None]
        return i.masked_fill(shut, mlstm.CLOSED), f.masked_fill(shut, mlstm.OPEN)

    def _by_head(self, u: Tensor) -> Tensor:
        return u.unflatten(-1, (self.heads, -1)).permute(0, 2, 3, 1, 4)  # (B, S, H, T, d / H)


class FeedForward(nn.Module):
    """SwiGLU with a residual."""

    def __init__(self, d: int):
        super().__init__()
        width = max(64, round(8 * d / 3 / 64) * 64)
        self.norm = RMSNorm(d)
        self.up = nn.Linear(d, 2 * width, bias=False)
        self.down = nn.Linear(width, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Any (..., d)."""
        gate, value = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(silu(gate) * value)


class SpaceMixer(nn.Module):
    """Latents read from the channels of the same time step, then channels from the latents: cost linear in C."""

    def __init__(self, d: int, heads: int):
        super().__init__()
        self.norm = RMSNorm(d)
        self.read, self.write = Attention(d, heads), Attention(d, heads)

    def forward(self, x: Tensor, valid: Tensor, latents: int) -> Tensor:
        """x (B, T, S, d), valid (B, T, S): what is not valid is not looked at."""
        y = self.norm(x)
        g, z = y[:, :, :latents], y[:, :, latents:]
        g = g + self.read(g, z, valid[:, :, latents:])
        z = self.write(z, g, None)
        return x + torch.cat([g - y[:, :, :latents], z], 2)


class Attention(nn.Module):
    """Multi-head attention from one set to another at each time step, with one more key that is always there."""

    def __init__(self, d: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(d, d, bias=False)
        self.kv = nn.Linear(d, 2 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.nothing = nn.Parameter(torch.zeros(heads))  # the score of looking at nothing

    def forward(self, to: Tensor, of: Tensor, valid: Tensor | None) -> Tensor:
        """to (B, T, M, d) looks at of (B, T, N, d) where valid (B, T, N)."""
        q = self.q(to).unflatten(-1, (self.heads, -1)).transpose(2, 3)  # (B, T, H, M, d / H)
        k, v = self.kv(of).unflatten(-1, (2, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        scores = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) / math.sqrt(q.shape[-1])
        if valid is not None:
            scores = scores.masked_fill(~valid[:, :, None, None], -torch.inf)
        nothing = self.nothing.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        share = torch.softmax(torch.cat([scores, nothing], -1), -1)[..., :-1].to(v.dtype)
        return self.out((share @ v).transpose(2, 3).flatten(-2))


class Layer(nn.Module):
    """Space, time, and a feed-forward part."""

    def __init__(self, d: int, heads: int):
        super().__init__()
        self.space, self.time, self.forward_part = SpaceMixer(d, heads), TimeMixer(d, heads), FeedForward(d)

    def forward(self, x: Tensor, valid: Tensor, latents: int, state: State | None) -> tuple[Tensor, State]:
        """x (B, T, S, d), valid (B, T, S) -> the same shape, and the state after the last step."""
        x, after = self.time(self.space(x, valid, latents), valid, state)
        return self.forward_part(x), after
