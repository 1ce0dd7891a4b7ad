"""FIF, EEGLAB and BrainVision files, read by MNE-Python; a window at a time where it can."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nipstool.eeg_pretrain.edf_annotations import Annotation
from nipstool.eeg_pretrain.label_tables import read_text
from nipstool.eeg_pretrain.montage import place_channels
from nipstool.eeg_pretrain.opening import Opened, judged
from nipstool.eeg_pretrain.recording import Point, Raw, Recording, Segment
from nipstool.kit.errors import DataError, InputMissingError

MOST_CHANNELS = 10_000
_KINDS = {
    "seeg": "eeg",
    "ecog": "eeg",
    "dbs": "eeg",
    "stim": "status",
    "misc": "other",
    "temperature": "temperature",
}
_KINDS |= {kind: kind for kind in ("eeg", "ecg", "eog", "emg", "resp")}
_BOUNDARY = re.compile(r"boundary|new segment|edge", re.I)
_SKIP = re.compile(r"bad_acq_skip", re.I)
HEAD_M = (0.04, 0.25)  # the farthest electrode from the centre; other numbers are in no known unit


@dataclass(frozen=True)
class MneSource:
    """Windows of a file that MNE reads (see recording.Source). Each process opens the file for itself."""

    path: Path
    fs: float
    n_samples: int
    segments: tuple[Segment, ...]
    places: tuple[int, ...]  # for each channel, its number in the file
    factors: tuple[float, ...]  # to the channel's unit
    _open: list[Any] = field(default_factory=list, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": []}

    def only(self, kept: list[int]) -> MneSource:
        """The same file with some of the channels."""
        places, factors = tuple(self.places[n] for n in kept), tuple(self.factors[n] for n in kept)
        return MneSource(self.path, self.fs, self.n_samples, self.segments, places, factors, self._open)

    def read(self, start_s: float, duration_s: float, channels: list[int]) -> np.ndarray:
        """(C, n) float32, NaN outside the segments."""
        first, n = round(start_s * self.fs), max(round(duration_s * self.fs), 0)
        found = np.full((len(channels), n), np.nan, np.float32)
        for segment in self.segments:
            begin = max(first, round(segment.start_s * self.fs))
            end = min(first + n, round(segment.end_s * self.fs), self.n_samples)
            if begin < end:
                found[:, begin - first : end - first] = self._values(begin, end, channels)
        return found

    def read_raw(self, start_s: float, duration_s: float, channels: list[int]) -> Raw:
        """The values, scaled already: MNE knows no others."""
        values = self.read(start_s, duration_s, channels)
        inside = any(s.start_s - 0.5 / self.fs <= start_s for s in self.segments) and not np.isnan(values).all()
        if not inside:
            raise ValueError(f"{self.path}: {start_s:g} s + {duration_s:g} s is not within one segment")
        return Raw(values, np.ones(len(channels), np.float32), np.zeros(len(channels), np.float32))

    def _values(self, begin: int, end: int, channels: list[int]) -> np.ndarray:
        if not self._open:
            self._open.append(_read(self.path)[0])
        picks = [self.places[channel] for channel in channels]
        values = self._open[0].get_data(picks=picks, start=begin, stop=end, verbose="ERROR")
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = (values * np.array([self.factors[c] for c in channels])[:, None]).astype(np.float32)
        return np.where(np.isfinite(scaled), scaled, np.float32(np.nan))


def open_other(path: Path, known: dict[str, Point] | None = None) -> Opened:
    """The recording in a file of another format than EDF; errors as `opening.open_file`."""
    raw, told = _read(path)
    labels, kinds = list(raw.ch_names), raw.get_channel_types()
    fs = float(raw.info["sfreq"])
    said = [_KINDS.get(kind, "other") for kind in kinds]
    units = ["uV" if kind in ("eeg", "ecg", "eog", "emg") else "as in the file" for kind in said]
    channels = place_channels(labels, units, [fs] * len(labels), _known(raw) | (known or {}), said)
    annotations = _annotations(raw)
    segments = _segments(annotations, raw.n_times / fs)
    factors = tuple(1e6 if channel.unit == "uV" else 1.0 for channel in channels)
    source = MneSource(path, fs, raw.n_times, segments, tuple(range(len(labels))), factors, [raw])
    recording = Recording(
        path=path,
        subject="",
        start_time=raw.info["meas_date"].replace(tzinfo=None) if raw.info["meas_date"] else None,
        channels=channels,
        segments=segments,
        seizures=(),
        labelled=False,
        source=source,
        format=path.suffix.lower().lstrip("."),
        warnings=tuple(told),
    )
    return Opened(judged(recording), annotations, "")


def _read(path: Path) -> tuple[Any, list[str]]:
    """MNE's view of a file, and what it warned about. Raises DataError with the reason in one line."""
    import mne

    name = path.name.lower()
    try:
        with warnings.catch_warnings(record=True) as caught, _repaired(path) as readable:
            warnings.simplefilter("always")
            if name.endswith(".set"):
                raw = mne.io.read_raw_eeglab(readable, preload=False, verbose="ERROR")
            elif name.endswith(".vhdr"):
                raw = mne.io.read_raw_brainvision(readable, preload=False, verbose="ERROR")
            else:
                raw = mne.io.read_raw_fif(readable, preload=False, allow_maxshield=True, verbose="ERROR")
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name if error.filename else str(error)
        raise InputMissingError(f"{path}: needs the file {missing}, which is not there") from error
    except Exception as error:  # whatever MNE raises about a broken file
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path}: cannot be read: {reason}") from error
    told = {" ".join(str(one.message).split())[:200] for one in caught if issubclass(one.category, RuntimeWarning)}
    return raw, sorted(told)


@contextmanager
def _repaired(path: Path) -> Iterator[Path]:
    """The file itself; a corrected copy of a BrainVision header that names files under their former names."""
    if path.suffix.lower() != ".vhdr":
        yield path
        return
    text = read_text(path)
    told = re.search(r"(?m)^NumberOfChannels\s*=\s*(\d+)", text)
    if told and int(told[1]) > MOST_CHANNELS:  # MNE would make a name for each
        raise ValueError(f"its header tells of {told[1]} channels; expected at most {MOST_CHANNELS}")
    fixed = _fix_header(path, text)
    if fixed == text:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="nipstool-") as folder:
        copy = Path(folder) / path.name
        (Path(folder) / "empty.vmrk").write_text(
            "Brain Vision Data Exchange Marker File, Version 1.0\n[Marker Infos]\n"
        )
        copy.write_text(re.sub(r"(?m)^Codepage=.*$", "Codepage=UTF-8", fixed), "utf-8")
        yield copy


def _fix_header(path: Path, text: str) -> str:
    """Names of data and markers as they are now, absolute; empty units are microvolts."""
    folder = path.absolute().parent
    data = re.search(r"(?m)^DataFile=(.*?)\s*$", text)
    marker = re.search(r"(?m)^MarkerFile=(.*?)\s*$", text)
    changed = re.sub(r"(?m)^(Ch\d+=[^,\n]*,[^,\n]*,[^,\n]*,)\s*$", "\\1\N{MICRO SIGN}V", text)
    good = data is not None and (folder / _named(path, data[1])).is_file()
    marked = marker is not None and (folder / _named(path, marker[1])).is_file()
    if good and marked and changed == text and "$b" not in text:  # which stands for the header's own name
        return text
    if data is not None:
        named = folder / _named(path, data[1])
        same = next((p for p in (path.with_suffix(s) for s in (".eeg", ".dat", ".EEG")) if p.is_file()), named)
        actual = named if named.is_file() else same.absolute()
        changed = changed.replace(data[0], f"DataFile={actual}")
    own = path.with_suffix(".vmrk")
    place = folder / _named(path, marker[1]) if marked and marker is not None else own.absolute()
    line = f"MarkerFile={place if place.is_file() else 'empty.vmrk'}"
    if marker is not None:
        return changed.replace(marker[0], line)
    return re.sub(r"(?m)^(DataFile=.*)$", lambda match: f"{match[1]}\n{line}", changed, count=1)


def _named(path: Path, name: str) -> str:
    return name.strip().replace("$b", path.stem)


def _annotations(raw: Any) -> tuple[Annotation, ...]:
    """In seconds from the first sample of the file."""
    shift = raw.first_time if raw.annotations.orig_time is not None else 0.0
    return tuple(
        Annotation(float(one["onset"]) - shift, float(one["duration"]) or None, str(one["description"]))
        for one in raw.annotations
    )


def _segments(annotations: tuple[Annotation, ...], duration_s: float) -> tuple[Segment, ...]:
    """What lies between boundaries, and outside of the stretches that acquisition skipped."""
    cuts = [(a.onset_s, a.onset_s) for a in annotations if _BOUNDARY.search(a.text)]
    cuts += [(a.onset_s, a.onset_s + (a.duration_s or 0.0)) for a in annotations if _SKIP.search(a.text)]
    found, start = [], 0.0
    for begin, end in [*sorted(cuts), (duration_s, duration_s)]:
        if begin - start > 1e-9:
            found.append(Segment(float(start), float(min(begin, duration_s) - start)))
        start = max(start, end)
    return tuple(found) or (Segment(0.0, float(duration_s)),)


def _known(raw: Any) -> dict[str, Point]:
    """Positions in the file, in metres by label in lower case; none where their unit makes no head."""
    montage = raw.get_montage()
    places = montage.get_positions()["ch_pos"] if montage is not None else {}
    found = {name.lower(): tuple(float(v) for v in xyz) for name, xyz in places.items() if np.isfinite(xyz).all()}
    found = {name: xyz for name, xyz in found.items() if any(xyz)}
    largest = max((float(np.linalg.norm(xyz)) for xyz in found.values()), default=0.0)
    return found if HEAD_M[0] <= largest <= HEAD_M[1] else {}  # type: ignore[return-value]
