"""What a recording is to everything above the readers: channels with a place, segments, labels, and windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

Point = tuple[float, float, float]
"""Metres from the centre of the head: x to the right ear, y to the nose, z up."""

KINDS = ("eeg", "ecg", "spo2", "hr", "pleth", "resp", "emg", "eog", "temperature", "status", "other")
"""What a channel measures. Only "eeg" is ever taken for EEG; a model may have a modality for ecg, spo2 and hr."""


@dataclass(frozen=True)
class Channel:
    """One signal.

    Attributes:
        label: as the file spells it, stripped.
        kind: one of KINDS.
        anode, cathode: where its electrodes are; None where that is unknown (never guessed). A unipolar channel
            has no cathode.
        bipolar: whether it is the difference of two electrodes of the scalp.
        fs: samples a second.
        unit: of what `Recording.read` returns: "uV" for every kind measured in volts, else as in the file.
    """

    label: str
    kind: str
    anode: Point | None
    cathode: Point | None
    bipolar: bool
    fs: float
    unit: str = "uV"


@dataclass(frozen=True)
class Segment:
    """A piece without gaps; seconds from the start of the recording. State is reset at each start."""

    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        """Where it ends."""
        return self.start_s + self.duration_s


@dataclass(frozen=True)
class Seizure:
    """One labelled seizure; seconds from the start of the recording."""

    onset_s: float
    offset_s: float
    kind: str = "sz"


@dataclass(frozen=True)
class Raw:
    """A window as it lies in the file: microvolts are `values * scale[:, None] + offset[:, None]`.

    Attributes:
        values: (C, n), int16 for EDF, int32 for BDF, float32 for formats that another library reads.
        scale, offset: (C,) float32.
    """

    values: np.ndarray
    scale: np.ndarray
    offset: np.ndarray


class Source(Protocol):
    """Where windows come from. Holds no open file, so it may be pickled to other processes.

    Channels are numbers into the recording's `channels`.
    """

    def read(self, start_s: float, duration_s: float, channels: list[int]) -> np.ndarray:
        """(C, n) float32; NaN where there is no data. All channels have one sampling rate."""
        ...

    def read_raw(self, start_s: float, duration_s: float, channels: list[int]) -> Raw:
        """The same before scaling; the window lies within one segment."""
        ...

    def only(self, kept: list[int]) -> Source:
        """The same with some of the channels, which are then numbered anew."""
        ...


@dataclass(frozen=True)
class Recording:
    """One file (or set of files that belong together) with all that is known about it.

    Attributes:
        subject: the person; recordings of one person have one subject (chb21 is chb01).
        start_time: clock time of second 0; None where it is unknown.
        segments: in order, without overlap.
        seizures: sorted by onset.
        labelled: whether somebody looked for seizures here, so that none means none.
        text: what may be told about the person before the recording, by field (see text.FIELDS).
        warnings: what was repaired or left out, a line each; notices: what is merely worth knowing.
        labels_from: where the labels were found; "" where there are none.
    """

    path: Path
    subject: str
    start_time: datetime | None
    channels: tuple[Channel, ...]
    segments: tuple[Segment, ...]
    seizures: tuple[Seizure, ...]
    labelled: bool
    source: Source = field(repr=False, compare=False)
    text: dict[str, str] = field(default_factory=dict)
    format: str = "edf"
    warnings: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    labels_from: str = ""

    @property
    def duration_s(self) -> float:
        """From second 0 to the end of the last segment, gaps included."""
        return self.segments[-1].end_s if self.segments else 0.0

    def of_kind(self, kind: str) -> list[int]:
        """The numbers of the channels of a kind."""
        return [number for number, channel in enumerate(self.channels) if channel.kind == kind]

    def read(self, start_s: float, duration_s: float, channels: list[int] | None = None) -> np.ndarray:
        """A window, (C, n) float32 in the channels' units (microvolts for EEG), n = round(duration_s * fs).

        The first sample is the one nearest to `start_s`. What lies outside every segment, and samples of a
        sensor that was not attached, are NaN. `channels` are numbers into `self.channels` (all EEG by default)
        with one sampling rate, else ValueError. Raises DataError where the file cannot be read any more.
        """
        return self.source.read(start_s, duration_s, self._one_rate(channels))

    def read_raw(self, start_s: float, duration_s: float, channels: list[int] | None = None) -> Raw:
        """The same window unscaled. Raises ValueError where it does not lie within one segment."""
        return self.source.read_raw(start_s, duration_s, self._one_rate(channels))

    @cached_property
    def _eeg(self) -> tuple[list[int], bool]:
        """The EEG channels, and whether they have one rate: windows are read by the million."""
        numbers = self.of_kind("eeg")
        return numbers, len({self.channels[number].fs for number in numbers}) == 1

    def _one_rate(self, channels: list[int] | None) -> list[int]:
        if channels is None and self._eeg[1]:
            return self._eeg[0]
        chosen = self._eeg[0] if channels is None else list(channels)
        if len({self.channels[number].fs for number in chosen}) > 1:
            raise ValueError(f"{self.path}: channels with different rates cannot be read in one window")
        return chosen


@dataclass(frozen=True)
class Problem:
    """A file that is not used, and why. `named`: the user named it, rather than a folder it lies in."""

    path: Path
    reason: str
    missing: bool = False
    named: bool = False


@dataclass(frozen=True)
class Found:
    """What discovery gives: recordings in the order of their paths, files left out, folders not looked through."""

    recordings: list[Recording]
    problems: list[Problem]
    skipped: tuple[Path, ...] = ()


def as_plain(recording: Recording) -> dict[str, Any]:
    """Everything about a recording but its source, for JSON."""
    names = ("path", "subject", "format", "channels", "segments", "seizures", "labelled", "labels_from")
    found = {name: getattr(recording, name) for name in (*names, "text", "warnings", "notices")}
    start = recording.start_time
    return {**found, "start_time": start.isoformat() if start else None, "duration_s": recording.duration_s}
