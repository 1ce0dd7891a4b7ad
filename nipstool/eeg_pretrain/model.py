"""The model: tokens of any set of channels through space and time, and what is read off them.

Everything at token t is a function of the signals up to the end of patch t. A stream gives the same as a whole:
the state holds the mLSTM's memories and the last patches.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from nipstool.eeg_pretrain.config import CLIP, DESCRIPTORS, HISTORY, MODALITIES, TEXT_BUCKETS, Config
from nipstool.eeg_pretrain.layers import Layer, RMSNorm
from nipstool.eeg_pretrain.mlstm import State
from nipstool.eeg_pretrain.tokenizer import FLOOR_UV, Tokenizer


class Signals(NamedTuple):
    """What the model sees of a batch.

    Attributes:
        x: (B, C, T, P) band-passed, uV for EEG and ECG; any number where not valid.
        scale: (B, C, T) running scale at the end of the patch, in the same unit.
        valid: (B, C, T) bool: whether the patch is whole and its channel is there.
        geometry: (B, C, GEOMETRY); sign: (B, C); kind: (B, C), see tokenizer.Placement.
    """

    x: Tensor
    scale: Tensor
    valid: Tensor
    geometry: Tensor
    sign: Tensor
    kind: Tensor


class Memory(NamedTuple):
    """What is carried from one piece of a stream to the next."""

    layers: list[State]
    tail: Tensor  # (B, C, HISTORY - 1, P), in uV


class Outputs(NamedTuple):
    """What is read off the tokens.

    Attributes:
        next_patch: (B, C, T, P) expected next patch, over scale, in the channel's own sign.
        spread: (B, C, T) log of the Laplace scale of its error, over scale.
        descriptors: (B, C, T, D) standardised.
        detection, onset: (B, T) logits.
        hazard: (B, T, intervals) logits.
        embedding: (B, T, 2 d).
    """

    next_patch: Tensor
    spread: Tensor
    descriptors: Tensor
    detection: Tensor
    onset: Tensor
    hazard: Tensor
    embedding: Tensor


class NextPatch(nn.Module):
    """y_{t+1} / s_t = A u + U (G z * V u) + r W z, u the last patches over s_t and r the last one's rms.

    The first part is an autoregression, so that the network starts from one; the second turns it into another for
    every token; the third is free of the signal's shape.
    """

    def __init__(self, config: Config):
        super().__init__()
        d, width, rank = config.d, HISTORY * config.patch, config.bilinear
        self.patch = config.patch
        self.A = nn.Linear(width, config.patch, bias=False)
        self.V, self.G = nn.Linear(width, rank, bias=False), nn.Linear(d, rank)
        self.U = nn.Linear(rank, config.patch, bias=False)
        self.W, self.spread = nn.Linear(d, config.patch), nn.Linear(d, 1)
        for part in (self.A, self.U, self.W, self.spread):
            nn.init.zeros_(part.weight)
        nn.init.zeros_(self.W.bias)
        nn.init.constant_(self.spread.bias, -0.5)

    def forward(self, z: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """z (B, C, T, d), history (B, C, T, HISTORY P) -> patch (B, C, T, P), log spread (B, C, T)."""
        rms = torch.sqrt(history[..., -self.patch :].square().mean(-1, keepdim=True) + 1e-4)
        y = self.A(history) + self.U(self.G(z) * self.V(history)) + rms * self.W(z)
        return y, self.spread(z)[..., 0] + torch.log(rms[..., 0])


class Model(nn.Module):
    """Causal xLSTM over sets of channels."""

    def __init__(self, config: Config):
        super().__init__()
        d = config.d
        self.config = config
        self.tokenizer = Tokenizer(config)
        self.latents = nn.Parameter(torch.randn(config.latents, d) / d**0.5)
        self.layers = nn.ModuleList(Layer(d, config.heads) for _ in range(config.layers))
        self.norm = RMSNorm(d)
        self.next_eeg, self.next_ecg = NextPatch(config), NextPatch(config)
        self.next_spo2 = nn.Linear(d, 1)
        self.describe = nn.Linear(d, len(DESCRIPTORS))
        self.attend = nn.Linear(d, 1, bias=False)  # a softmax knows no constant
        self.judge = nn.Sequential(nn.Linear(3 * d, d), nn.SiLU(), nn.Linear(d, 2 + len(config.horizons_s)))
        self.text = nn.Parameter(0.02 * torch.randn(TEXT_BUCKETS, d)) if not config.text_width else None
        self.read_text = nn.Linear(config.text_width, d) if config.text_width else None
        self.register_buffer("descriptor_mean", torch.zeros(len(DESCRIPTORS)))
        self.register_buffer("descriptor_std", torch.ones(len(DESCRIPTORS)))

    def forward(self, signals: Signals, memory: Memory | None = None) -> tuple[Outputs, Memory]:
        """What is read off every token, and what the next piece needs."""
        history, tail = self._history(signals, memory)
        scale = signals.scale.clamp(min=FLOOR_UV)
        u = (history * (signals.sign[:, :, None] / scale)[..., None]).clamp(-CLIP, CLIP)
        z = self.tokenizer(u, scale, signals.geometry, signals.kind)  # (B, T, C, d)
        Q = self.config.latents
        x = torch.cat([self.latents.to(z.dtype).expand(*z.shape[:2], -1, -1), z], 2)
        there = signals.valid.transpose(1, 2)
        valid = torch.cat([there.new_ones(*there.shape[:2], Q), there], 2)
        states = []
        for number, layer in enumerate(self.layers):
            x, state = layer(x, valid, Q, memory.layers[number] if memory else None)
            states.append(state)
        x = self.norm(x)
        return self._read(x[:, :, :Q], x[:, :, Q:], u, signals), Memory(states, tail)

    def begin(self, channels: int, words: Tensor) -> Memory:
        """The memory before the first patch of recordings of which a text is known.

        Args:
            channels: C.
            words: (B, W) bucket numbers, -1 beyond a text's end; with a text model (B, text_width) vectors.
        """
        Q, P = self.config.latents, self.config.patch
        given = self._told(words)
        x = self.latents[None, None] + given[:, None, None]  # (B, 1, Q, d)
        # a text that says nothing leaves no trace
        valid = (words >= 0).any(1) if self.text is not None else words.abs().sum(1) > 0
        valid = valid[:, None, None].expand(-1, 1, Q)
        states = []
        for module in self.layers:
            assert isinstance(module, Layer)
            x, state = module.time(x, valid, None)
            x = module.forward_part(x)
            states.append(State(*(_widen(part, channels) for part in state)))
        return Memory(states, x.new_zeros(len(words), channels, HISTORY - 1, P))

    def _told(self, words: Tensor) -> Tensor:
        if self.read_text is not None:
            return self.read_text(words)
        assert self.text is not None
        ids = words + 1
        table = torch.cat([self.text.new_zeros(1, self.text.shape[1]), self.text])
        return embedding_bag(ids, table, mode="mean", padding_idx=0)

    def _history(self, signals: Signals, memory: Memory | None) -> tuple[Tensor, Tensor]:
        """(B, C, T, HISTORY P) the patches up to each token, oldest first; and the last HISTORY - 1 of them."""
        x = torch.where(signals.valid[..., None], signals.x, 0.0)
        tail = memory.tail if memory else x.new_zeros(*x.shape[:2], HISTORY - 1, x.shape[-1])
        long = torch.cat([tail, x], 2)
        T = x.shape[2]
        return torch.cat([long[:, :, j : j + T] for j in range(HISTORY)], -1), long[:, :, T:]

    def _read(self, g: Tensor, z: Tensor, u: Tensor, signals: Signals) -> Outputs:
        """g (B, T, Q, d) latents and z (B, T, C, d) channels."""
        there = signals.valid.transpose(1, 2) & (signals.kind == 0)[:, None]
        pooled = torch.cat([_largest(z, there), self._attended(z, there), g.mean(2)], -1)
        verdict = self.judge(pooled)
        count = there.sum(2, keepdim=True).clamp(min=1)
        mean = torch.where(there[..., None], z, 0.0).sum(2) / count
        by_channel = z.transpose(1, 2)
        patch, spread = self._next(by_channel, u, signals)
        return Outputs(
            next_patch=patch * signals.sign[:, :, None, None],
            spread=spread,
            descriptors=self.describe(by_channel),
            detection=verdict[..., 0],
            onset=verdict[..., 1],
            hazard=verdict[..., 2:],
            embedding=torch.cat([mean, g.mean(2)], -1),
        )

    def _attended(self, z: Tensor, there: Tensor) -> Tensor:
        """One vector (B, T, d) of the channels that matter; 0 where there is none."""
        scores = self.attend(z)[..., 0].masked_fill(~there, -1e9)
        share = torch.softmax(scores, 2) * there
        return (share[..., None] * z).sum(2)

    def _next(self, z: Tensor, u: Tensor, signals: Signals) -> tuple[Tensor, Tensor]:
        patch, spread = self.next_eeg(z, u)
        if bool((signals.kind == MODALITIES.index("ecg")).any()):
            here = (signals.kind == MODALITIES.index("ecg"))[:, :, None]
            other, its = self.next_ecg(z, u)
            patch, spread = torch.where(here[..., None], other, patch), torch.where(here, its, spread)
        if bool((signals.kind == MODALITIES.index("spo2")).any()):
            here = (signals.kind == MODALITIES.index("spo2"))[:, :, None]
            last = u[..., -self.config.patch :].mean(-1, keepdim=True)
            patch = torch.where(here[..., None], (last + self.next_spo2(z)).expand_as(patch), patch)
            spread = torch.where(here, spread.new_full((), -2.0), spread)
        return patch, spread


def _largest(z: Tensor, there: Tensor) -> Tensor:
    """(B, T, d) the largest value of each feature over channels: what is focal is not averaged away."""
    top = z.masked_fill(~there[..., None], -torch.inf).amax(2)
    return torch.where(there.any(2, keepdim=True), top, 0.0)


def _widen(part: Tensor, channels: int) -> Tensor:
    """The state of the latents (B, Q, ...), followed by empty ones for the channels."""
    return torch.cat([part, part.new_zeros(part.shape[0], channels, *part.shape[2:])], 1)
