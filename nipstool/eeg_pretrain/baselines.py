"""Two plain detectors that always stand beside a model: line length and power, of the same causal path."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from nipstool.eeg_pretrain.config import PRESETS, Config
from nipstool.eeg_pretrain.detect import choose_threshold, track_of, trailing_mean
from nipstool.eeg_pretrain.recording import Recording
from nipstool.eeg_pretrain.stream import Reading, plain_detectors
from nipstool.eeg_pretrain.tracks import choose, pieces

PLAIN = ("line length", "power")
PIECE_S = 600.0


def plain_scores(recording: Recording, config: Config = PRESETS["tiny"]) -> dict[str, np.ndarray]:
    """Both detectors' scores of each second, (N,), NaN where there was no signal; higher is more of a seizure."""
    choice = choose(recording)
    if not choice.numbers:
        nothing = np.full(max(1, int(np.ceil(recording.duration_s))), np.nan)
        return dict.fromkeys(PLAIN, nothing)
    found = []
    for segment, tokens, fresh in pieces(recording, choice, config, round(PIECE_S / config.token_s)):
        length, power, seen = plain_detectors(tokens, choice)
        none = np.zeros(len(tokens))
        start_s = segment.start_s + tokens.start * config.token_s
        risk, nowhere = np.zeros((len(tokens), len(config.horizons_s))), np.zeros((len(tokens), 0))
        found.append(Reading(start_s, fresh, none, none, risk, nowhere, length, power, seen))
    track = track_of(found, recording.duration_s, config)
    return {name: track.scores(name) for name in PLAIN}


def cross_fitted(scores: Sequence[np.ndarray], recordings: Sequence[Recording]) -> tuple[list[float], bool]:
    """A threshold for each recording, chosen on the other subjects; False where there are none: then on itself.

    Infinity where those it could be chosen on have no seizure.
    """
    subjects = [recording.subject for recording in recordings]
    means = [trailing_mean(row) for row in scores]
    alone = len(set(subjects)) < 2
    by_subject = {}
    for subject in set(subjects):
        others = [n for n, other in enumerate(subjects) if alone or other != subject]
        chosen = choose_threshold([means[n] for n in others], [recordings[n] for n in others])
        by_subject[subject] = chosen.value if chosen else float("inf")
    return [by_subject[subject] for subject in subjects], not alone


def window_scores(scores: np.ndarray, window_s: float, count: int) -> np.ndarray:
    """(count,) the largest score of the seconds of each window; 0 where there is none."""
    filled = np.nan_to_num(scores)
    edges = [round(k * window_s) for k in range(count + 1)]
    return np.array([filled[a:b].max(initial=0.0) for a, b in pairwise(edges)])
