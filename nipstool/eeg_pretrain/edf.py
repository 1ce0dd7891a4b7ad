"""Windows of EDF and BDF files by pread: no memory map, so that a day-long file leaves no pages behind."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nipstool.eeg_pretrain.edf_header import Header, Signal
from nipstool.eeg_pretrain.recording import Raw, Segment
from nipstool.kit.errors import DataError

WHOLE_RECORDS_UP_TO = 4  # times the bytes that are wanted: beyond, only the wanted signals are read


@dataclass(frozen=True)
class Piece:
    """Consecutive records without a gap."""

    start_s: float
    first: int
    records: int


@dataclass(frozen=True)
class _Plan:
    """What reading some channels takes, for every window. `samples` a record, `offset` of the first one."""

    fs: float
    samples: int
    offset: int
    signals: tuple[Signal, ...]
    adjoining: bool  # whether they lie one after the other in each record
    gain: np.ndarray
    bias: np.ndarray
    alike: bool  # whether all have the same gain and bias


@dataclass(frozen=True)
class EdfSource:
    """The signals of one file (see recording.Source).

    Attributes:
        record_s: seconds a record.
        places: for each channel, its number among the header's signals.
        factors: for each channel, from its unit to that of `read` (1000 for millivolts).
        sensors: channels where values below the digital minimum, and those not above 0, mean "not attached".
    """

    header: Header
    record_s: float
    pieces: tuple[Piece, ...]
    places: tuple[int, ...]
    factors: tuple[float, ...]
    sensors: frozenset[int] = frozenset()
    _plans: dict[tuple[int, ...], _Plan] = field(default_factory=dict, repr=False, compare=False)

    def segments(self) -> tuple[Segment, ...]:
        """The pieces in seconds."""
        return tuple(Segment(p.start_s, p.records * self.record_s) for p in self.pieces)

    def only(self, kept: list[int]) -> EdfSource:
        """The same file with some of the channels."""
        places, factors = tuple(self.places[n] for n in kept), tuple(self.factors[n] for n in kept)
        sensors = frozenset(new for new, old in enumerate(kept) if old in self.sensors)
        return EdfSource(self.header, self.record_s, self.pieces, places, factors, sensors)

    def read(self, start_s: float, duration_s: float, channels: list[int]) -> np.ndarray:
        """(C, n) float32, NaN outside the pieces and where a sensor is not attached."""
        if not channels:
            return np.zeros((0, 0), np.float32)
        plan = self._plan(tuple(channels))
        n = max(round(duration_s * plan.fs), 0)
        place = self._piece_of(start_s, n, plan)
        if place is not None:
            return self._physical(place[0], place[1], place[1] + n, channels, plan)
        found = np.full((len(channels), n), np.nan, np.float32)
        for piece in self.pieces:
            first = round((start_s - piece.start_s) * plan.fs)
            begin, end = max(first, 0), min(first + n, piece.records * plan.samples)
            if begin < end:
                found[:, begin - first : end - first] = self._physical(piece, begin, end, channels, plan)
        return found

    def read_raw(self, start_s: float, duration_s: float, channels: list[int]) -> Raw:
        """The digital values; ValueError where the window leaves its piece."""
        plan = self._plan(tuple(channels))
        n = max(round(duration_s * plan.fs), 0)
        place = self._piece_of(start_s, n, plan)
        if place is None:
            raise ValueError(f"{self.header.path}: {start_s:g} s + {duration_s:g} s is not within one segment")
        dtype = np.int16 if self.header.width == 2 else np.int32
        return Raw(self._digital(*place, place[1] + n, plan, dtype), plan.gain, plan.bias)

    def _plan(self, channels: tuple[int, ...]) -> _Plan:
        if channels in self._plans:
            return self._plans[channels]
        signals = tuple(self.header.signals[self.places[c]] for c in channels)
        factors = [self.factors[c] for c in channels]
        gain = np.array([(s.gain or 0.0) * f for s, f in zip(signals, factors, strict=True)], np.float32)
        bias = np.array([s.bias * f for s, f in zip(signals, factors, strict=True)], np.float32)
        samples, offset = signals[0].samples, signals[0].offset
        adjoining = all(s.offset == offset + n * samples for n, s in enumerate(signals))
        alike = bool((gain == gain[0]).all() and (bias == bias[0]).all())
        plan = _Plan(samples / self.record_s, samples, offset, signals, adjoining, gain, bias, alike)
        self._plans[channels] = plan
        return plan

    def _piece_of(self, start_s: float, n: int, plan: _Plan) -> tuple[Piece, int] | None:
        for piece in self.pieces:
            first = round((start_s - piece.start_s) * plan.fs)
            if first >= 0 and first + n <= piece.records * plan.samples:
                return piece, first
        return None

    def _physical(self, piece: Piece, begin: int, end: int, channels: list[int], plan: _Plan) -> np.ndarray:
        """Samples [begin, end) of a piece, scaled."""
        values = self._digital(piece, begin, end, plan, np.float32)
        sensors = [row for row, channel in enumerate(channels) if channel in self.sensors] if self.sensors else []
        absent = [(row, values[row] < plan.signals[row].digital_min) for row in sensors]
        values *= plan.gain[0] if plan.alike else plan.gain[:, None]  # a scalar is three times as fast
        values += plan.bias[0] if plan.alike else plan.bias[:, None]
        for row, below in absent:
            values[row, below | (values[row] <= 0)] = np.nan
        return values

    def _digital(self, piece: Piece, begin: int, end: int, plan: _Plan, dtype: Any) -> np.ndarray:
        """(C, end - begin) as integers of the file, or in float32."""
        width, count = self.header.width, len(plan.signals)
        if begin >= end:
            return np.zeros((count, 0), dtype)
        first, last = begin // plan.samples, -(-end // plan.samples)
        whole = (last - first) * self.header.record_bytes
        if whole > WHOLE_RECORDS_UP_TO * width * count * (end - begin):
            return self._single_signals(piece, begin, end, plan).astype(dtype, copy=False)
        skip = begin - first * plan.samples
        return self._whole_records(piece, first, last, plan, dtype)[:, skip : skip + end - begin]

    def _whole_records(self, piece: Piece, first: int, last: int, plan: _Plan, dtype: Any) -> np.ndarray:
        header, step = self.header, 1 if self.header.width == 2 else 3
        base = header.data_start + (piece.first + first) * header.record_bytes
        block = self._bytes([(base, (last - first) * header.record_bytes)])[0]
        table = np.frombuffer(block, "<i2" if header.width == 2 else "u1").reshape(last - first, -1)
        size = plan.samples * step
        if plan.adjoining and step == 1:
            found = np.empty((len(plan.signals), last - first, size), dtype)
            wanted = table[:, plan.offset : plan.offset + size * len(plan.signals)]
            found[...] = wanted.reshape(last - first, -1, size).transpose(1, 0, 2)
            return found.reshape(len(plan.signals), -1)
        flat = np.stack([table[:, s.offset * step : s.offset * step + size].reshape(-1) for s in plan.signals])
        return (flat if step == 1 else _from_24_bits(flat)).astype(dtype, copy=False)

    def _single_signals(self, piece: Piece, begin: int, end: int, plan: _Plan) -> np.ndarray:
        """Where few of many signals are wanted, or few seconds of a very long record."""
        header, width = self.header, self.header.width
        ranges = []
        for signal in plan.signals:
            for record in range(begin // plan.samples, -(-end // plan.samples)):
                before = record * plan.samples
                low, high = max(begin - before, 0), min(end - before, plan.samples)
                base = header.data_start + (piece.first + record) * header.record_bytes
                ranges.append((base + (signal.offset + low) * width, (high - low) * width))
        joined = b"".join(self._bytes(ranges))
        if width == 2:
            return np.frombuffer(joined, "<i2").reshape(len(plan.signals), -1)
        return _from_24_bits(np.frombuffer(joined, "u1").reshape(len(plan.signals), -1))

    def _bytes(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """The bytes at (offset, size) pairs; DataError where the file has become shorter or cannot be read."""
        try:
            descriptor = os.open(self.header.path, os.O_RDONLY)
            try:
                blocks = [_pread(descriptor, size, offset) for offset, size in ranges]
            finally:
                os.close(descriptor)
        except OSError as error:
            raise DataError(f"{self.header.path}: cannot be read any more: {error.strerror}") from error
        if any(len(block) < size for block, (_, size) in zip(blocks, ranges, strict=True)):
            raise DataError(f"{self.header.path}: became shorter while it was read")
        return blocks


def _pread(descriptor: int, size: int, offset: int) -> bytes:
    """All `size` bytes: one call gives 2 GB at most."""
    block = os.pread(descriptor, size, offset)
    while len(block) < size:
        more = os.pread(descriptor, size - len(block), offset + len(block))
        if not more:
            break
        block += more
    return block


def _from_24_bits(octets: np.ndarray) -> np.ndarray:
    """(C, 3 n) bytes, little-endian and signed, as (C, n) int32."""
    wide = np.zeros((octets.shape[0], octets.shape[1] // 3, 4), np.uint8)
    wide[..., 1:] = octets.reshape(octets.shape[0], -1, 3)
    return wide.view("<i4")[..., 0] >> 8


def pieces_of(header: Header, starts: np.ndarray, record_s: float) -> tuple[tuple[Piece, ...], list[str]]:
    """Records grouped where one follows the other at once, in seconds from the first record, and warnings.

    `starts` are those that the records give, NaN or absent where they give none. A start that is missing, or lies
    before the end of what came before, is taken as no gap.
    """
    known = np.isfinite(starts)
    if not known.any():
        return (Piece(0.0, 0, header.records),), []
    own = starts - starts[known][0]
    own = own if known.all() else _without_holes(own, record_s)
    tolerance = max(0.5 * record_s / max(signal.samples for signal in header.signals) + 1e-4, 1e-3)
    late = np.diff(own) - record_s
    warnings = []
    early = np.flatnonzero(late < -record_s / 2)
    if len(early):
        warnings.append(f"record {early[0] + 1} says it starts before the end of record {early[0]}")
    firsts = [0, *(int(n) + 1 for n in np.flatnonzero(late > tolerance)), header.records]
    pieces: list[Piece] = []
    for first, following in itertools.pairwise(firsts):
        ended = pieces[-1].start_s + pieces[-1].records * record_s if pieces else 0.0
        pieces.append(Piece(max(float(own[first]), ended) if pieces else 0.0, first, following - first))
    if len(pieces) > 1:
        gaps = len(pieces) - 1
        warnings.append(f"{gaps} gap{'s' if gaps > 1 else ''}: read as {len(pieces)} segments")
    return tuple(pieces), warnings


def _without_holes(starts: np.ndarray, record_s: float) -> np.ndarray:
    """Starts with those that are missing counted on from the last one that is there."""
    known = np.maximum.accumulate(np.where(np.isfinite(starts), np.arange(len(starts)), 0))
    since = np.arange(len(starts)) - known
    return np.where(np.isfinite(starts), starts, np.nan_to_num(starts)[known] + since * record_s)
