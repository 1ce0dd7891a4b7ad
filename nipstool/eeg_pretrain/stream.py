"""A model along a recording, piece by piece: what it makes of a day needs no more memory than of a minute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nipstool.eeg_pretrain import words
from nipstool.eeg_pretrain.batches import signals_of
from nipstool.eeg_pretrain.model import Memory, Model
from nipstool.eeg_pretrain.objectives import risk
from nipstool.eeg_pretrain.recording import Recording
from nipstool.eeg_pretrain.tracks import Choice, Tokens, choose, pieces
from nipstool.kit.errors import DataError
from nipstool.kit.progress import Progress, silent

PIECE_S = 60.0  # of a stream
WHOLE_S = 1e9  # a piece that no segment exceeds


@dataclass(frozen=True)
class Reading:
    """What is read off T tokens in a row.

    Attributes:
        start_s: where the first token begins, in seconds of the recording.
        fresh: whether the model began anew here: at the start, and after a gap.
        detection, onset: (T,) probabilities.
        risk: (T, intervals) probability of an onset within each horizon.
        embedding: (T, 2 d).
        line_length, power: (T,) mean over EEG channels of |x_{n+1} - x_n| in uV, and of x^2: two plain detectors.
        seen: (T,) whether any EEG channel was there.
    """

    start_s: float
    fresh: bool
    detection: np.ndarray
    onset: np.ndarray
    risk: np.ndarray
    embedding: np.ndarray
    line_length: np.ndarray
    power: np.ndarray
    seen: np.ndarray


@torch.no_grad()
def readings(
    model: Model,
    recording: Recording,
    *,
    piece_s: float = PIECE_S,
    text: Mapping[str, str] | Tensor | None = None,
    shift: float = 0.0,
    progress: Progress = silent,
) -> Iterator[Reading]:
    """Everything the model says about a recording, in order.

    Args:
        piece_s: seconds a piece; at least as long as the recording for one pass over each segment.
        text: what is told before each segment: fields, or a text model's vector (1, text_width).
        shift: added to the detection logits.
        progress: called with seconds done and in all.

    Raises DataError where no channel can be read, or where the model's weights give what is no number.
    """
    config, choice = model.config, choose(recording)
    if not choice.numbers or (choice.placement.kind != 0).all():
        raise DataError(f"{recording.path}: has no EEG channel of at least 64 Hz")
    device = next(model.parameters()).device
    count = max(1, round(min(piece_s, recording.duration_s + 1.0) / config.token_s))
    memory: Memory | None = None
    for segment, tokens, fresh in pieces(recording, choice, config, count):
        if fresh:
            memory = _told(model, text, len(choice.numbers), device)
        outputs, memory = model(signals_of([tokens], [choice.placement], device, _dtype(model)), memory)
        start_s = segment.start_s + tokens.start * config.token_s
        verdict = (torch.sigmoid(outputs.detection[0] + shift), torch.sigmoid(outputs.onset[0]))
        rest = (risk(outputs.hazard[0]), outputs.embedding[0])
        detection, onset, risks, embedding = (value.float().cpu().numpy() for value in (*verdict, *rest))
        if not all(np.isfinite(part).all() for part in (detection, onset, risks, embedding)):
            raise DataError(f"{recording.path}: the model says NaN at {start_s:g} s; are its weights damaged?")
        yield Reading(start_s, fresh, detection, onset, risks, embedding, *plain_detectors(tokens, choice))
        progress(round(start_s + len(tokens) * config.token_s), round(recording.duration_s))


def _dtype(model: Model) -> torch.dtype:
    return next(model.parameters()).dtype


def _told(
    model: Model, text: Mapping[str, str] | Tensor | None, channels: int, device: torch.device
) -> Memory | None:
    if text is None or len(text) == 0:
        return None
    given = text if isinstance(text, Tensor) else torch.from_numpy(words.numbers([text]))
    return model.begin(channels, given.to(device))


def plain_detectors(tokens: Tokens, choice: Choice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Line length, power and whether any EEG channel was there, (T,) each; see Reading."""
    eeg = choice.placement.kind == 0
    x, valid = tokens.x[eeg], tokens.valid[eeg]
    count = np.maximum(valid.sum(0), 1)
    length = (np.abs(np.diff(x, axis=-1)).mean(-1) * valid).sum(0) / count
    power = (np.square(x).mean(-1) * valid).sum(0) / count
    return length, power, np.asarray(valid.any(0))
