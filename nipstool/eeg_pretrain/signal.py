"""The one causal path from a recording's samples to a model's: resampling, then a band-pass, with their state.

No output depends on a later input, and none on how the input was cut into chunks: whatever the chunks, the same
operations are done on the same numbers in the same order, so outputs agree to the last bit.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from scipy import signal as dsp

LOW_HZ = 0.5
HIGH_SHARE = 0.45  # of the sampling rate
ORDER = 4
HALF_TAPS = 8  # of the resampling filter, on either side of its centre, in samples of the slower rate
MAX_PHASES = 20_000
KAISER_BETA = 6.0  # side lobes of about -60 dB


class Resampler:
    """Causal rational resampling: a windowed sinc (Kaiser) around `delay_s` before now, all phases in a table.

    Output k ends when input ends: after n inputs there are floor(n fs_out / fs_in) outputs, and output k is the
    signal at (k + 1) / fs_out - 1 / fs_in - delay_s seconds after the first input.
    """

    def __init__(self, fs_in: float, fs_out: float, channels: int):
        ratio = Fraction(fs_in / fs_out).limit_denominator(MAX_PHASES)  # inputs an output
        self._step, self._phases = ratio.numerator, ratio.denominator
        slower = min(1.0, fs_out / fs_in)
        self._identity = ratio == 1
        half = 0 if self._identity else int(np.ceil(HALF_TAPS / slower))
        self._table = _phase_table(self._phases, half, slower)  # (phases, taps)
        self.delay_s = half / fs_in
        self._history = np.zeros((channels, self._table.shape[1] - 1))
        self._seen = 0
        self._made = 0

    def start(self, first: np.ndarray, rows: np.ndarray) -> None:
        """The past of some channels is as if it had always been their first sample."""
        self._history[rows] = first[rows, None]

    def reset(self) -> None:
        """Forget all inputs."""
        self._seen = self._made = 0
        self._history[:] = 0.0

    def push(self, chunk: np.ndarray) -> np.ndarray:
        """(C, n) -> (C, m), the outputs that `chunk` completes."""
        if self._identity:
            return chunk
        position, phase = self._outputs(chunk.shape[1])
        taps = self._table.shape[1]
        line = np.concatenate([self._history, chunk], axis=1)
        found = np.zeros((chunk.shape[0], len(position)))
        for tap in range(taps):  # tap by tap, so that the order of additions is always the same
            found += self._table[phase, tap] * line[:, position + taps - 1 - tap]
        self._history = line[:, line.shape[1] - (taps - 1) :].copy()
        return found

    def nearest(self, chunk: np.ndarray, history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each output of `push(chunk)`, the flag at its centre, from flags (C, n); and the new history."""
        if self._identity:
            return chunk, history
        position, _ = self._outputs(chunk.shape[1], count=False)
        back = history.shape[1]
        line = np.concatenate([history, chunk], axis=1)
        half = (self._table.shape[1] - 1) // 2
        return line[:, position + back - half], line[:, line.shape[1] - back :].copy()

    def _outputs(self, n: int, *, count: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Where outputs end, as input numbers within the chunk, and their phases."""
        seen = self._seen + n
        total = seen * self._phases // self._step
        k = np.arange(self._made + 1, total + 1, dtype=np.int64)
        newest = -(-k * self._step // self._phases)
        position, part = newest - 1 - self._seen, newest * self._phases - k * self._step
        if count:
            self._seen, self._made = seen, total
        return position, part

    def state(self) -> dict[str, Any]:
        """What `load` needs to go on from here."""
        return {"history": self._history.copy(), "seen": self._seen, "made": self._made}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._history = np.array(state["history"])
        self._seen, self._made = int(state["seen"]), int(state["made"])


def _phase_table(phases: int, half: int, slower: float) -> np.ndarray:
    """(phases, 2 half + 1) taps; row p gives the signal (half + p / phases) inputs before the newest one."""
    if not half:
        return np.ones((phases, 1))
    distance = np.arange(2 * half + 1)[None, :] - half - np.arange(phases)[:, None] / phases
    cutoff = slower * (0.5 + HIGH_SHARE)
    window = np.i0(KAISER_BETA * np.sqrt(np.clip(1 - (distance / (half + 1)) ** 2, 0, None)))
    taps = np.sinc(cutoff * distance) * window
    return taps / taps.sum(axis=1, keepdims=True)


class CausalPath:
    """Samples in, band-passed samples at the model's rate out, chunk by chunk.

    A missing input (NaN) is replaced by the last one that was there, and the outputs at its place are NaN: whoever
    reads them masks them. A channel starts with its first sample as if it had always had that value, so an offset
    of an amplifier makes no transient.

    >>> path = CausalPath(256, 128, 2)
    >>> path.push(np.zeros((2, 300))).shape
    (2, 150)
    """

    def __init__(self, fs_in: float, fs_out: float, n_channels: int, *, low_hz: float = LOW_HZ):
        if not (fs_in > 0 and fs_out > 0):
            raise ValueError(f"rates of {fs_in} and {fs_out} Hz: expected numbers above 0")
        high_hz = HIGH_SHARE * min(fs_in, fs_out)
        self.fs_in, self.fs_out, self.n_channels = fs_in, fs_out, n_channels
        self._resampler = Resampler(fs_in, fs_out, n_channels)
        self.delay_s = self._resampler.delay_s
        self._sos = np.asarray(dsp.butter(ORDER, [low_hz, high_hz], "bandpass", fs=fs_out, output="sos"))
        self._steady = dsp.sosfilt_zi(self._sos)  # (sections, 2)
        self.reset()

    def reset(self) -> None:
        """Forget everything: at the start of a recording, and after a gap."""
        self._resampler.reset()
        self._zi = np.zeros((len(self._sos), self.n_channels, 2))
        self._started = np.zeros(self.n_channels, bool)
        self._held = np.zeros((self.n_channels, 1))
        half = round(self.delay_s * self.fs_in)
        self._absent = np.ones((self.n_channels, half), bool)

    def push(self, chunk: np.ndarray) -> np.ndarray:
        """(C, n) in microvolts -> (C, m) float32 in microvolts at fs_out.

        In all there are floor(n fs_out / fs_in) outputs after n inputs; output k is what was `delay_s` before.
        """
        chunk = np.asarray(chunk, np.float64)
        if chunk.ndim != 2 or chunk.shape[0] != self.n_channels:
            raise ValueError(f"a chunk of shape {chunk.shape}: expected ({self.n_channels}, n)")
        cuts = self._starts_within(chunk)
        pieces = [self._push(piece) for piece in np.split(chunk, cuts, axis=1) if piece.shape[1]]
        return np.concatenate(pieces, axis=1) if pieces else np.zeros((self.n_channels, 0), np.float32)

    def _starts_within(self, chunk: np.ndarray) -> list[int]:
        """Where channels that were absent so far have their first sample."""
        present = np.isfinite(chunk[~self._started])
        first = present.argmax(axis=1)[present.any(axis=1)]
        return sorted({int(place) for place in first} - {0})

    def _push(self, chunk: np.ndarray) -> np.ndarray:
        absent = ~np.isfinite(chunk)
        self._start(chunk[:, 0], ~absent[:, 0] & ~self._started)
        filled = _held(np.where(absent, np.nan, chunk), self._held) if absent.any() else chunk
        self._held = filled[:, -1:].copy()
        missing, self._absent = self._resampler.nearest(absent, self._absent)
        resampled = self._resampler.push(filled)
        if not resampled.shape[1]:
            return np.zeros(resampled.shape, np.float32)
        found, self._zi = dsp.sosfilt(self._sos, resampled, axis=1, zi=self._zi)
        return np.where(missing, np.nan, found).astype(np.float32)

    def _start(self, first: np.ndarray, rows: np.ndarray) -> None:
        if rows.any():
            self._resampler.start(first, rows)
            self._zi[:, rows] = self._steady[:, None, :] * first[None, rows, None]
            self._absent[rows] = False
            self._started |= rows

    def state(self) -> dict[str, Any]:
        """Everything that `load` needs to go on from here, as arrays and numbers."""
        own = {"zi": self._zi.copy(), "started": self._started.copy(), "held": self._held.copy()}
        return {**own, "absent": self._absent.copy(), **self._resampler.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state of a path with the same rates and channels."""
        self._zi, self._started = np.array(state["zi"]), np.array(state["started"])
        self._held, self._absent = np.array(state["held"]), np.array(state["absent"])
        self._resampler.load(state)


def _held(chunk: np.ndarray, before: np.ndarray) -> np.ndarray:
    """`chunk` with each NaN replaced by the last value before it."""
    line = np.concatenate([before, chunk], axis=1)
    places = np.where(np.isfinite(line), np.arange(line.shape[1]), 0)
    return np.take_along_axis(line, np.maximum.accumulate(places, axis=1), axis=1)[:, 1:]
