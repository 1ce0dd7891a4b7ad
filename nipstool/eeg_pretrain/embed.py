"""Embeddings of windows of a recording: the mean of the tokens' embeddings, causal, from a stream or a whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nipstool.eeg_pretrain.config import Config
from nipstool.eeg_pretrain.stream import Reading
from nipstool.kit.errors import UsageError


@dataclass(frozen=True)
class Embedded:
    """(N, 2 d) float32 embeddings, and where each window begins and ends in seconds of the recording."""

    embeddings: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray


def steps_of(window_s: float, hop_s: float, config: Config) -> tuple[int, int]:
    """Window and hop in tokens. Raises UsageError where one is no whole number of tokens."""
    found = []
    for name, value in (("--window", window_s), ("--hop", hop_s)):
        tokens = round(value / config.token_s)
        if tokens < 1 or abs(tokens * config.token_s - value) > 1e-6:
            raise UsageError(f"{name} {value:g}: expected a multiple of {config.token_s:g} s, a token's length")
        found.append(tokens)
    return found[0], found[1]


def embed(found: Iterable[Reading], config: Config, window_s: float = 10.0, hop_s: float = 10.0) -> Embedded:
    """Windows that lie whole in a segment, from its start on. Holds no more tokens than a window and a piece."""
    window, hop = steps_of(window_s, hop_s, config)
    rows: list[np.ndarray] = []
    starts: list[float] = []
    kept, kept_start, skip = np.zeros((0, 2 * config.d)), 0.0, 0
    for reading in found:
        if reading.fresh:
            kept, kept_start, skip = reading.embedding, reading.start_s, 0
        else:
            kept = np.concatenate([kept, reading.embedding])
        while skip + window <= len(kept):
            rows.append(kept[skip : skip + window].mean(0, dtype=np.float64))
            starts.append(kept_start + skip * config.token_s)
            skip += hop
        drop = min(skip, len(kept))
        kept, kept_start, skip = kept[drop:], kept_start + drop * config.token_s, skip - drop
    start = np.array(starts)
    embeddings = np.array(rows, np.float32).reshape(-1, 2 * config.d)
    return Embedded(embeddings, start, start + window * config.token_s)
