"""From one file to a recording: its header judged, its channels placed, its own annotations at hand."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nipstool.eeg_pretrain.edf import EdfSource, pieces_of
from nipstool.eeg_pretrain.edf_annotations import Annotation, Lists, read_lists
from nipstool.eeg_pretrain.edf_header import Header, Signal, read_header
from nipstool.eeg_pretrain.montage import clean, place_channels, volts
from nipstool.eeg_pretrain.recording import Channel, Point, Recording, Segment
from nipstool.kit.errors import DataError

MIN_FS = 64.0  # of EEG: below, half of the beta band is gone and the band-pass has no room
EDF_SUFFIXES = (".edf", ".bdf", ".rec")
OTHER_SUFFIXES = (".fif", ".fif.gz", ".set", ".vhdr")
PROBES = 8  # places that are looked at to tell whether a channel is flat, and how large its signals are
PROBE_S = 1.0
USUAL_UV = (0.05, 3000.0)  # spread of EEG in microvolts, artefacts and high-gain amplifiers included
SENSORS = ("spo2", "hr")


@dataclass(frozen=True)
class Opened:
    """A recording without labels or text, what its file says beside the signals, and whose it may be."""

    recording: Recording
    annotations: tuple[Annotation, ...]
    patient: str  # a digest of the patient field, "" where that is anonymous


def open_file(path: Path, known: dict[str, Point] | None = None) -> Opened:
    """The recording in a file of any format.

    Raises InputMissingError where the file cannot be read, DataError (one line) where there is no EEG to be had.
    """
    if path.name.lower().endswith(OTHER_SUFFIXES):
        from nipstool.eeg_pretrain.other_formats import open_other

        return open_other(path, known)
    return open_edf(path, known)


def open_edf(path: Path, known: dict[str, Point] | None = None) -> Opened:
    """The recording in an EDF or BDF file (errors as `open_file`). `known`: positions by label in lower case."""
    opened = read_edf(path, known)
    return replace(opened, recording=judged(opened.recording))


def read_edf(path: Path, known: dict[str, Point] | None = None) -> Opened:
    """The same before its signals are looked at: header, annotations, places of the channels."""
    header = read_header(path)
    lists = read_lists(header)
    record_s, warnings = _record_seconds(header, lists)
    places, dropped, notices = _usable(header)
    pieces, told = pieces_of(header, lists.record_starts, record_s)
    signals = [header.signals[place] for place in places]
    channels = place_channels(
        [signal.label for signal in signals],
        [signal.unit for signal in signals],
        [signal.samples / record_s for signal in signals],
        known,
    )
    factors = tuple(volts(signal.unit) or 1.0 for signal in signals)
    sensors = frozenset(number for number, channel in enumerate(channels) if channel.kind in SENSORS)
    source = EdfSource(header, record_s, pieces, places, factors, sensors)
    starts = lists.record_starts[np.isfinite(lists.record_starts)]
    origin = float(starts[0]) if len(starts) else 0.0
    recording = Recording(
        path=path,
        subject="",
        start_time=header.start_time,
        channels=channels,
        segments=source.segments(),
        seizures=(),
        labelled=False,
        source=source,
        format=header.format,
        warnings=(*header.warnings, *warnings, *dropped, *told, *_rates(channels)),
        notices=notices,
    )
    annotations = lists.annotations
    if origin:
        annotations = tuple(Annotation(a.onset_s - origin, a.duration_s, a.text) for a in annotations)
    return Opened(recording, annotations, _digest(header))


def _record_seconds(header: Header, lists: Lists) -> tuple[float, list[str]]:
    """Seconds a record. A header that says 0 is believed only where there are no samples to time."""
    if header.record_s > 0:
        return header.record_s, []
    steps = np.diff(lists.record_starts[np.isfinite(lists.record_starts)])
    if len(steps) and np.median(steps) > 0:
        return float(np.median(steps)), ["the header says records last 0 s; their time stamps say how long"]
    return 1.0, ["the header says records last 0 s; taken as 1 s"]


def _usable(header: Header) -> tuple[tuple[int, ...], list[str], tuple[str, ...]]:
    """The signals that can be read, by number; what is dropped with a warning; and what is worth a notice."""
    places: list[int] = []
    seen: dict[str, Signal] = {}
    dashes, doubles = 0, Counter[str]()
    for number, signal in enumerate(header.signals):
        if signal.is_annotation or signal.gain is None or not signal.samples:
            continue
        if not signal.label.strip("-. "):
            dashes += 1
            continue
        key = clean(signal.label).lower()
        if key in seen and signal.samples == seen[key].samples:
            doubles[signal.label] += 1
            continue
        seen[key] = signal
        places.append(number)
    dropped = [f"dropped {dashes} channels without a name ('-')"] if dashes else []
    notices = tuple(f"{name} occurs {n + 1} times; the first is used" for name, n in doubles.items())
    return tuple(places), dropped, notices


def _rates(channels: tuple[Channel, ...]) -> list[str]:
    """A warning where signals of voltage have several rates: some readers bring all to the highest."""
    rates = {kind: sorted({c.fs for c in channels if c.kind == kind}) for kind in ("eeg", "ecg")}
    every = {fs for found in rates.values() for fs in found}
    if len(every) < 2:
        return []
    told = ", ".join(
        f"{k.upper()} {'/'.join(f'{fs:g}' for fs in found)} Hz" for k, found in rates.items() if found
    )
    return [f"signals with different rates ({told}); each is read at its own"]


def judged(recording: Recording) -> Recording:
    """The recording without EEG that is too slow or all flat, and with a warning about unlikely amplitudes.

    Raises DataError where no EEG is left.
    """
    path, eeg = recording.path, recording.of_kind("eeg")
    if not eeg:
        names = ", ".join(channel.label for channel in recording.channels[:6]) or "none"
        raise DataError(f"{path}: holds no EEG (channels: {names})")
    slow = [number for number in eeg if recording.channels[number].fs < MIN_FS]
    if len(slow) == len(eeg):
        fs = recording.channels[slow[0]].fs
        raise DataError(f"{path}: its EEG is sampled at {fs:g} Hz; expected {MIN_FS:g} or more")
    kept = [number for number in eeg if number not in slow]
    spreads = _spreads(recording, kept)
    flat = [number for number, spread in spreads.items() if spread == 0.0 and _is_flat(recording, number)]
    if len(flat) == len(kept):
        raise DataError(f"{path}: all of its EEG is flat")
    warnings = [*recording.warnings, *_odd_spreads({n: s for n, s in spreads.items() if n not in flat})]
    for what, numbers in (("too slow", slow), ("flat", flat)):
        if numbers:
            warnings.append(f"dropped as {what}: {', '.join(recording.channels[n].label for n in numbers)}")
    notices = [*recording.notices, *_places(recording, [n for n in kept if n not in flat])]
    return replace(without(recording, slow + flat), warnings=tuple(warnings), notices=tuple(notices))


def without(recording: Recording, numbers: list[int]) -> Recording:
    """The recording without some channels."""
    if not numbers:
        return recording
    kept = [number for number in range(len(recording.channels)) if number not in numbers]
    source = recording.source.only(kept)
    return replace(recording, channels=tuple(recording.channels[n] for n in kept), source=source)


def _probes(segments: tuple[Segment, ...]) -> list[tuple[float, float]]:
    """Windows spread over the recording: start and seconds."""
    total = sum(segment.duration_s for segment in segments)
    found = []
    for probe in range(PROBES):
        at = (probe + 0.5) / PROBES * total
        for segment in segments:
            if at < segment.duration_s:
                length = min(PROBE_S, segment.duration_s)
                found.append((segment.start_s + min(at, segment.duration_s - length), length))
                break
            at -= segment.duration_s
    return found


def _spreads(recording: Recording, numbers: list[int]) -> dict[int, float]:
    """The median over probes of each channel's standard deviation within a second: offsets do not count."""
    found: dict[int, float] = {}
    for fs in {recording.channels[number].fs for number in numbers}:
        same = [number for number in numbers if recording.channels[number].fs == fs]
        windows = [recording.read(start, length, same) for start, length in _probes(recording.segments)]
        shortest = min(window.shape[1] for window in windows)
        spreads = _deviations(np.concatenate([window[:, :shortest] for window in windows]))
        found |= dict(zip(same, np.median(spreads.reshape(len(windows), -1), axis=0).tolist(), strict=True))
    return found


def _deviations(window: np.ndarray) -> np.ndarray:
    """Of each row of (C, n); 0 for a constant, whatever the rounding of its mean."""
    if not np.isfinite(window).all():
        kept = [row[np.isfinite(row)] for row in window]
        return np.array([float(_deviations(row[None])[0]) if row.size else 0.0 for row in kept])
    low, high = window.min(axis=1), window.max(axis=1)
    centred = window - window.mean(axis=1, keepdims=True)
    return np.where(low < high, np.sqrt(np.einsum("cn,cn->c", centred, centred) / window.shape[1]), 0.0)


def _is_flat(recording: Recording, number: int) -> bool:
    """Whether a channel never changes, looked at in full, a minute at a time."""
    value: float | None = None
    for segment in recording.segments:
        for minute in np.arange(0.0, segment.duration_s, 60.0):
            length = min(60.0, segment.duration_s - minute)
            samples = recording.read(segment.start_s + minute, length, [number])
            samples = samples[np.isfinite(samples)]
            if not samples.size:
                continue
            value = float(samples[0]) if value is None else value
            if np.any(samples != value):
                return False
    return True


def _odd_spreads(spreads: dict[int, float]) -> list[str]:
    """A wrong unit is off by a factor of 1000 or more, in all channels: then the median says so."""
    middle = float(np.median(list(spreads.values()))) if spreads else 0.0
    if not spreads or USUAL_UV[0] <= middle <= USUAL_UV[1]:
        return []
    return [f"unlikely amplitudes: the EEG varies by {middle:.3g} uV (median over channels); is its unit right?"]


def _places(recording: Recording, numbers: list[int]) -> list[str]:
    """A notice about EEG whose electrodes have no known place."""
    unknown = [c.label for c in (recording.channels[n] for n in numbers) if not has_place(c)]
    if not unknown:
        return []
    shown = ", ".join(unknown[:8]) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
    return [f"position unknown: {shown}"]


def has_place(channel: Channel) -> bool:
    """Whether the place of each of its electrodes is known."""
    return channel.anode is not None and (channel.cathode is not None or not channel.bipolar)


def _digest(header: Header) -> str:
    """A digest of the patient field, so that files of one person can be told without telling who it is."""
    code = header.patient.split(" ")[0].strip()
    if not code or code.upper() in ("X", "0", "NN", "ANONYMOUS", "UNKNOWN"):
        return ""
    return "id-" + hashlib.sha256(header.patient.encode("utf-8", "replace")).hexdigest()[:8]
