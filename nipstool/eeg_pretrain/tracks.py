"""A recording as a stream of tokens: patches, their running scale, and which of them are whole.

The same path serves training, embedding and detection. Token k of a segment covers (k token_s, (k + 1) token_s]
after its start; at a gap everything starts anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nipstool.eeg_pretrain.config import Config
from nipstool.eeg_pretrain.recording import Recording, Segment
from nipstool.eeg_pretrain.signal import CausalPath
from nipstool.eeg_pretrain.tokenizer import Placement, place

LOWEST_HZ = 64.0
PIECE_S = 20.0  # read at once
SCALE_S = 10.0  # memory of the running scale
SURGE = 25.0  # power beyond so many times the usual counts as so many times the usual
SPO2_USUAL, SPO2_SPREAD = 95.0, 5.0


@dataclass(frozen=True)
class Tokens:
    """A stretch of one recording.

    Attributes:
        x: (C, T, P) float32, band-passed uV (SpO2: (percent - 95) / 5); 0 where missing.
        scale: (C, T) running rms at the end of the token, in the same unit.
        valid: (C, T) bool.
        start: number of the first token in its segment.
    """

    x: np.ndarray
    scale: np.ndarray
    valid: np.ndarray
    start: int

    def __len__(self) -> int:
        return self.x.shape[1]

    def cut(self, first: int, last: int) -> Tokens:
        """Tokens first to last, counted from the start of this stretch."""
        piece = slice(max(first, 0), last)
        return Tokens(self.x[:, piece], self.scale[:, piece], self.valid[:, piece], self.start + first)

    def of(self, rows: np.ndarray) -> Tokens:
        """Some channels."""
        return Tokens(self.x[rows], self.scale[rows], self.valid[rows], self.start)


@dataclass(frozen=True)
class Choice:
    """Which channels of a recording a model sees, in the order EEG, ECG, SpO2, and what is known of them."""

    numbers: list[int]
    placement: Placement


def choose(recording: Recording) -> Choice:
    """All EEG channels of at least 64 Hz, and the first of each other modality."""
    usable = [n for n in recording.of_kind("eeg") if recording.channels[n].fs >= LOWEST_HZ]
    ecg = [n for n in recording.of_kind("ecg") if recording.channels[n].fs >= LOWEST_HZ]
    numbers = usable + ecg[:1] + recording.of_kind("spo2")[:1]
    return Choice(numbers, place([recording.channels[n] for n in numbers]))


def whole_tokens(segment: Segment, config: Config) -> int:
    """Tokens that fit a segment."""
    return int(np.floor(segment.duration_s / config.token_s + 1e-6))


class RunningScale:
    """rms with a memory of SCALE_S seconds, of each channel, from the patches so far; bursts count little."""

    def __init__(self, channels: int, token_s: float):
        self._alpha = 1.0 - np.exp(-token_s / SCALE_S)
        self._sum, self._weight = np.zeros(channels), np.zeros(channels)

    def push(self, power: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Mean squares (C, T) of patches -> (C, T) scale at the end of each; missing patches change nothing."""
        found = np.empty(power.shape)
        for t in range(power.shape[1]):
            usual = self._sum / np.maximum(self._weight, 1e-12)
            seen = self._weight > 0.0
            p = np.where(seen, np.minimum(power[:, t], SURGE * np.maximum(usual, 1e-6)), power[:, t])
            step = self._alpha * valid[:, t]
            self._sum += step * (np.where(valid[:, t], p, 0.0) - self._sum)
            self._weight += step * (1.0 - self._weight)
            found[:, t] = np.sqrt(self._sum / np.maximum(self._weight, 1e-12))
        return np.where(self._weight[:, None] > 0.0, found, 1.0).astype(np.float32)


class _Group:
    """Channels of one rate and kind, on their way from samples to samples at the model's rate."""

    def __init__(self, recording: Recording, numbers: list[int], config: Config, start_s: float, end_s: float):
        channel = recording.channels[numbers[0]]
        self.fs, self.numbers, self._recording, self._start_s = channel.fs, numbers, recording, start_s
        self._left = round((end_s - start_s) * channel.fs)
        self._at = 0
        self._path = None if channel.kind == "spo2" else CausalPath(channel.fs, config.fs, len(numbers))
        self._fs_out, self._made = config.fs, 0
        self.ready = np.zeros((len(numbers), 0), np.float32)

    def fill(self, samples: int) -> bool:
        """Read until `samples` are ready; False where the recording ends first."""
        while self.ready.shape[1] < samples:
            n = min(max(1, round(PIECE_S * self.fs)), self._left)
            if n <= 0:
                return False
            chunk = self._recording.read(self._start_s + self._at / self.fs, n / self.fs, self.numbers)
            self._at, self._left = self._at + n, self._left - n
            made = self._path.push(chunk) if self._path else self._hold(chunk)
            self.ready = np.concatenate([self.ready, made], axis=1)
        return True

    def take(self, samples: int) -> np.ndarray:
        """(C, samples) of what is ready."""
        found, self.ready = self.ready[:, :samples], self.ready[:, samples:]
        return found

    def _hold(self, chunk: np.ndarray) -> np.ndarray:
        """Slow values, each held until the next; a percentage of 0 or less is a sensor that is off."""
        total = int(np.floor(self._at * self._fs_out / self.fs + 1e-9))
        at = np.floor(np.arange(self._made, total) * self.fs / self._fs_out + 1e-9).astype(int)
        first = self._at - chunk.shape[1]
        self._made = total
        values = chunk[:, np.clip(at - first, 0, chunk.shape[1] - 1)]
        return np.where(values > 0.0, (values - SPO2_USUAL) / SPO2_SPREAD, np.nan).astype(np.float32)


class TokenStream:
    """The tokens of one segment, in order. Memory does not grow with what was read."""

    def __init__(
        self,
        recording: Recording,
        choice: Choice,
        config: Config,
        segment: Segment,
        first: int = 0,
        last: int | None = None,
    ):
        """From token `first` to before `last` of the segment; the path starts at `first`."""
        self._config, self._choice = config, choice
        whole = whole_tokens(segment, config)
        last = whole if last is None else min(last, whole)
        start_s = segment.start_s + first * config.token_s
        end_s = min(segment.end_s, segment.start_s + last * config.token_s + 2 * config.token_s)
        kinds: dict[tuple[float, bool], list[int]] = {}
        for n in choice.numbers:
            channel = recording.channels[n]
            kinds.setdefault((channel.fs, channel.kind == "spo2"), []).append(n)
        self._groups = [_Group(recording, numbers, config, start_s, end_s) for numbers in kinds.values()]
        order = [n for numbers in kinds.values() for n in numbers]
        self._order = [order.index(n) for n in choice.numbers]
        self._scale = RunningScale(len(order), config.token_s)
        self._next, self._last = first, last

    def take(self, count: int) -> Tokens:
        """The next `count` tokens; fewer at the end of the segment, at last none."""
        P = self._config.patch
        count = min(count, self._last - self._next)
        whole = [group.fill(count * P) for group in self._groups]
        if not all(whole):
            count = min(count, *(group.ready.shape[1] // P for group in self._groups))
            self._last = self._next + count
        count = max(count, 0)
        lines = np.concatenate([group.take(count * P) for group in self._groups])[self._order]
        found = self._tokens(lines.reshape(len(lines), count, P))
        self._next += count
        return found

    def _tokens(self, x: np.ndarray) -> Tokens:
        valid = np.asarray(np.isfinite(x).all(-1))
        x = np.where(valid[..., None], x, np.float32(0.0))
        scale = self._scale.push(np.square(x.astype(np.float64)).mean(-1), valid)
        held = self._choice.placement.kind == 2
        scale = np.where(held[:, None], np.float32(1.0), scale)
        return Tokens(x, scale, valid, self._next)


def differences(tokens: Tokens, rows: np.ndarray, minus: np.ndarray, config: Config) -> Tokens:
    """Channels `rows`, each less the channel `minus` where that is not -1, with running scales of their own."""
    taken = (minus >= 0)[:, None]
    valid = tokens.valid[rows] & (tokens.valid[minus] | ~taken)
    x = tokens.x[rows] - np.where(taken[..., None], tokens.x[minus], np.float32(0.0))
    x = np.where(valid[..., None], x, np.float32(0.0))
    own = RunningScale(len(rows), config.token_s).push(np.square(x.astype(np.float64)).mean(-1), valid)
    return Tokens(x, np.where(taken, own, tokens.scale[rows]), valid, tokens.start)


def read_tokens(
    recording: Recording, choice: Choice, config: Config, segment: Segment, first: int, last: int, warm_up: int
) -> Tokens:
    """Tokens first to last of a segment, by a path that starts `warm_up` tokens before them."""
    start = max(0, first - warm_up)
    stream = TokenStream(recording, choice, config, segment, start, last)
    return stream.take(last - start).cut(first - start, last - start)


def pieces(
    recording: Recording, choice: Choice, config: Config, count: int
) -> Iterator[tuple[Segment, Tokens, bool]]:
    """All tokens of a recording, `count` at a time; True marks the first piece of a segment."""
    for segment in recording.segments:
        stream = TokenStream(recording, choice, config, segment)
        fresh = True
        while len(tokens := stream.take(count)):
            yield segment, tokens, fresh
            fresh = False
