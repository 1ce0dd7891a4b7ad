"""What is to be predicted at each token, from a person's labelled seizures on the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from nipstool.eeg_pretrain.config import Config
from nipstool.eeg_pretrain.recording import Recording, Segment

ONSET_S = 2.0  # standard deviation of an onset's soft label
POST_ICTAL_S = 1800.0  # after a seizure the time to the next one is not asked for
JOIN_S = 60.0  # files of one person that follow each other within this are one stretch of time


@dataclass(frozen=True)
class Targets:
    """Of the T tokens of one segment.

    Attributes:
        seizure: (T,) share of the token that lies in a seizure.
        onset: (T,) exp(-(t - onset)^2 / 2 sigma^2) of the nearest onset, t the token's end.
        wait_s: (T,) seconds from the token's end to the next onset, or to where the recording stops being known.
        event: (T,) bool: whether `wait_s` ends with an onset.
        known: (T,) bool: whether somebody looked for seizures.
        asked: (T,) bool: whether the hazard is asked for: not in a seizure, nor within half an hour after one.
    """

    seizure: np.ndarray
    onset: np.ndarray
    wait_s: np.ndarray
    event: np.ndarray
    known: np.ndarray
    asked: np.ndarray


@dataclass(frozen=True)
class Known:
    """A recording's seizures and those of the files that follow it without a gap, in its own seconds.

    Attributes:
        seizures: (onset, offset), sorted; those before it are negative.
        end_s: where what is known ends.
    """

    seizures: tuple[tuple[float, float], ...]
    end_s: float


def on_the_clock(recordings: Sequence[Recording]) -> list[Known]:
    """What is known of each recording: its own labels, and by clock time those of its neighbours."""
    return [_known(recording, _stretch(recording, recordings)) for recording in recordings]


def _stretch(recording: Recording, others: Sequence[Recording]) -> list[Recording]:
    """The recordings of the same person, joined to this one without a gap."""
    if recording.start_time is None or not recording.labelled:
        return [recording]
    same = [r for r in others if r.subject == recording.subject and r.start_time is not None and r.labelled]
    same.sort(key=_clock)
    at = next(number for number, r in enumerate(same) if r is recording)
    first = last = at
    while first > 0 and _gap_s(same[first - 1], same[first]) <= JOIN_S:
        first -= 1
    while last + 1 < len(same) and _gap_s(same[last], same[last + 1]) <= JOIN_S:
        last += 1
    return same[first : last + 1]


def _clock(recording: Recording) -> datetime:
    assert recording.start_time is not None
    return recording.start_time.replace(tzinfo=None)


def _gap_s(one: Recording, following: Recording) -> float:
    return abs((_clock(following) - _clock(one)).total_seconds() - one.duration_s)


def _known(recording: Recording, stretch: Sequence[Recording]) -> Known:
    found, end = [], recording.duration_s
    for other in stretch:
        shift = 0.0 if other is recording else (_clock(other) - _clock(recording)).total_seconds()
        found += [(s.onset_s + shift, s.offset_s + shift) for s in other.seizures]
        end = max(end, other.duration_s + shift)
    return Known(tuple(sorted(found)), end)


def targets_of(recording: Recording, known: Known, segment: Segment, tokens: int, config: Config) -> Targets:
    """The targets of the first `tokens` tokens of a segment. Time after a gap in the recording is not known."""
    starts = segment.start_s + config.token_s * np.arange(tokens)
    ends = starts + config.token_s
    seizure, onset = np.zeros(tokens), np.zeros(tokens)
    asked = np.full(tokens, recording.labelled)
    last_segment = segment is recording.segments[-1] or segment == recording.segments[-1]
    horizon = known.end_s if last_segment else segment.end_s
    wait, event = np.maximum(horizon - ends, 0.0), np.zeros(tokens, bool)
    for begin, stop in known.seizures:
        overlap = np.minimum(ends, stop) - np.maximum(starts, begin)
        seizure = np.maximum(seizure, np.clip(overlap / config.token_s, 0.0, 1.0))
        onset = np.maximum(onset, np.exp(-0.5 * ((ends - begin) / ONSET_S) ** 2))
        asked &= ~((ends > begin) & (starts < stop + POST_ICTAL_S))
        nearer = (begin >= ends) & (begin - ends < wait) & (begin <= horizon)
        wait, event = np.where(nearer, begin - ends, wait), event | nearer
    return Targets(seizure, onset, wait, event, np.full(tokens, recording.labelled), asked)
