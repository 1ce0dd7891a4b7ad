"""Where training starts: the autoregression at least squares, descriptors on one scale, a fair prior."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nipstool.eeg_pretrain.batches import batch_of
from nipstool.eeg_pretrain.config import CLIP, HISTORY, Recipe
from nipstool.eeg_pretrain.corpus import Corpus
from nipstool.eeg_pretrain.model import Model, Signals
from nipstool.eeg_pretrain.objectives import Labels, raw_descriptors
from nipstool.eeg_pretrain.tokenizer import FLOOR_UV

STEPS = 8  # whose windows are looked at
RIDGE = 1e-3  # of the mean square


@torch.no_grad()
def initialise(model: Model, corpus: Corpus, recipe: Recipe, seed: int) -> None:
    """Set what can be computed rather than learned, from some training windows."""
    width, P = HISTORY * model.config.patch, model.config.patch
    XX, XY = torch.zeros(width, width, dtype=torch.float64), torch.zeros(width, P, dtype=torch.float64)
    descriptors, seizure = [], []
    for step in range(1, STEPS + 1):
        for group in corpus.draw(step, seed, recipe):
            signals, labels = batch_of([corpus.read(window) for window in group], "cpu")
            x, y = _pairs(signals)
            XX += x.T @ x
            XY += x.T @ y
            raw, mask = raw_descriptors(model.config, signals)
            descriptors.append(raw[mask])
            seizure.append(_known_seizure(labels))
    lam = RIDGE * float(XX.diagonal().mean()) + 1e-9
    A = torch.linalg.solve(XX + lam * torch.eye(width, dtype=XX.dtype), XY).T
    model.next_eeg.A.weight.copy_(A)
    found = torch.cat(descriptors)
    if len(found) > 1:
        model.get_buffer("descriptor_mean").copy_(found.mean(0))
        model.get_buffer("descriptor_std").copy_(found.std(0).clamp(min=1e-2))
    share = torch.cat(seizure)
    if len(share) and 0.0 < (p := float(share.mean())) < 1.0:
        last = model.judge[-1]
        assert isinstance(last, torch.nn.Linear)
        last.bias[0] = math.log(p / (1.0 - p))


def _pairs(signals: Signals) -> tuple[Tensor, Tensor]:
    """Past patches and the next one, over the running scale, of EEG: (n, HISTORY P) and (n, P)."""
    both = signals.valid[:, :, HISTORY - 1 :] & (signals.kind == 0)[:, :, None]
    both = both[:, :, :-1] & both[:, :, 1:]
    x, T = signals.x, signals.x.shape[2] - HISTORY
    scale = signals.scale[:, :, HISTORY - 1 : -1].clamp(min=FLOOR_UV)[..., None]
    past = torch.cat([x[:, :, j : j + T] for j in range(HISTORY)], -1) / scale
    following = x[:, :, HISTORY:] / scale
    keep = both & (past.abs().amax(-1) < CLIP) & (following.abs().amax(-1) < CLIP)
    return past[keep].double(), following[keep].double()


def _known_seizure(labels: Labels) -> Tensor:
    return labels.seizure[labels.known]
