"""Annotations of EDF+ and BDF+ (time-stamped annotation lists), and when each record begins."""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass, field

import numpy as np

from nipstool.eeg_pretrain.edf_header import Header, Signal

# a time, perhaps a duration, and texts; each ends with the mark 20, all with a zero
_LIST = re.compile(rb"(?<![^\0])([+-]\d+(?:\.\d*)?)(?:\x15(\d*(?:\.\d*)?))?\x14([^\0]*)")
MAX_ONSET_S = 1e9  # thirty years; digits beyond are damage
MAX_TEXT = 64 << 20  # bytes of annotations; more is no list of events
MAPPED = 16 << 20  # bytes of the file that are mapped at once: each record touches a page
_LONGEST = 15  # characters of a number that a float holds exactly


@dataclass(frozen=True)
class Annotation:
    """A text with its time; seconds from the header's start time. `duration_s` is None where none is given."""

    onset_s: float
    duration_s: float | None
    text: str


@dataclass(frozen=True)
class Lists:
    """All annotations of a file, and the start of each record (NaN for a record that does not tell)."""

    annotations: tuple[Annotation, ...] = ()
    record_starts: np.ndarray = field(default_factory=lambda: np.zeros(0))


def read_lists(header: Header) -> Lists:
    """The annotations of a file, read without the signals beside them. Empty where it has no such signal."""
    places = [signal for signal in header.signals if signal.is_annotation and signal.samples]
    if not places or header.width * sum(s.samples for s in places) * header.records > MAX_TEXT:
        return Lists()
    found: list[Annotation] = []
    starts = np.zeros(0)
    for number, place in enumerate(places):
        blocks = _gather(header, place)
        times, told = _stamps(blocks)
        starts = times if number == 0 else starts
        for record in np.flatnonzero(told):
            start, events = parse_block(blocks[record].tobytes())
            found += events
            if number == 0:
                starts[record] = np.nan if start is None else start
    return Lists(tuple(sorted(found, key=lambda event: event.onset_s)), starts)


def _gather(header: Header, place: Signal) -> np.ndarray:
    """(records, bytes) of one signal. The file is mapped piece by piece: a read a record would take longer."""
    size, first = place.samples * header.width, place.offset * header.width
    found = np.empty((header.records, size), np.uint8)
    step = max(MAPPED // header.record_bytes, 1)
    with open(header.path, "rb") as file:
        for record in range(0, header.records, step):
            count = min(step, header.records - record)
            begin = header.data_start + record * header.record_bytes
            page = begin // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            length = begin - page + count * header.record_bytes
            with mmap.mmap(file.fileno(), length, offset=page, access=mmap.ACCESS_READ) as view:
                view.madvise(mmap.MADV_RANDOM)
                table = np.frombuffer(view, np.uint8, count * header.record_bytes, begin - page)
                found[record : record + count] = table.reshape(count, -1)[:, first : first + size]
                del table
    return found


def _stamps(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The start that each record gives, and which records must be parsed as text.

    Most records hold their start and nothing else, '+12.5' and two marks: these are read all at once.
    """
    columns = np.ascontiguousarray(blocks.T)  # what is done below runs along records
    size, records = columns.shape
    end = (columns[: _LONGEST + 1] == 0x14).argmax(axis=0)
    after = columns[np.minimum(end + 1, size - 1), np.arange(records)]
    filled = (columns != 0).sum(axis=0, dtype=np.int32)
    told = (columns[0] != ord("+")) | (end < 2) | (after != 0x14) | (filled != end + 2)
    value, decimals, dots = np.zeros(records), np.zeros(records, np.int8), np.zeros(records, bool)
    for column in range(1, int(end.max(initial=0))):
        inside = column < end
        digit = columns[column] - np.uint8(ord("0"))  # below "0" this wraps round to more than 9
        number, dot = inside & (digit <= 9), inside & (columns[column] == ord("."))
        told |= (inside & ~dot & ~number) | (dot & dots)
        value = np.where(number, value * 10 + digit, value)
        decimals += number & dots
        dots |= dot
    return value / 10.0**decimals, told


def parse_block(block: bytes) -> tuple[float | None, list[Annotation]]:
    """One record's list: the record's own start (its first stamp without a text), and the annotations in it.

    Bytes that are not UTF-8 are taken for Latin-1: writers disagree, and no text is worth a file.
    """
    start: float | None = None
    events = []
    for match in _LIST.finditer(block):
        onset = float(match[1])
        if abs(onset) > MAX_ONSET_S:
            continue
        texts = match[3].split(b"\x14")
        if start is None and not texts[0]:
            start = onset
        if any(texts):
            duration = min(float(match[2]), MAX_ONSET_S) if match[2] and match[2] != b"." else None
            events += [Annotation(onset, duration, _decode(text)) for text in texts if text]
    return start, events


def _decode(text: bytes) -> str:
    try:
        return text.decode("utf-8").strip()
    except UnicodeDecodeError:
        return text.decode("latin-1").strip()
