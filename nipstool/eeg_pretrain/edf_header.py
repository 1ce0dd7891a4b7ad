"""The header of EDF, EDF+ and BDF, read with doubt: what can be repaired is, with a warning, the rest is refused.

Source: Kemp et al., 1992 and 2003 (edfplus.info/specs). Numbers are ASCII of fixed width, left-justified.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from nipstool.kit.errors import DataError, InputMissingError

MAX_SIGNALS = 4096  # more than the largest arrays; the field could say 9999
SAMPLE = 1 << 14  # bytes of data that are looked at for text
MAX_RANGE = 1e15  # of physical values, in any unit
ANNOTATIONS = ("EDF Annotations", "BDF Annotations")
_WIDTHS = (16, 80, 8, 8, 8, 8, 8, 80, 8, 32)  # of a signal's fields, in the order of the file
_CONTROLS = dict.fromkeys((*range(32), 127), " ")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_PLACEHOLDERS = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
    (b"/annex/objects", "a git-annex pointer, not the file itself"),
    (b"../.git/annex", "a git-annex pointer, not the file itself"),
    (b".git/annex", "a git-annex pointer, not the file itself"),
    (b"<!DOCTYPE", "a web page"),
    (b"<html", "a web page"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "gzip-compressed; unpack it first"),
)


@dataclass(frozen=True)
class Signal:
    """One signal of the header. `gain`, `bias`: physical = gain * digital + bias; None where there is no scale."""

    label: str
    transducer: str
    unit: str
    gain: float | None
    bias: float
    digital_min: int
    samples: int  # a record
    offset: int  # of its first sample from the start of a record, in samples of all signals

    @property
    def is_annotation(self) -> bool:
        """Whether it holds text (EDF+)."""
        return self.label in ANNOTATIONS


@dataclass(frozen=True)
class Header:
    """A header whose numbers agree with the size of the file.

    Attributes:
        width: bytes a sample, 2 for EDF and 3 for BDF.
        start_time: None where it is unknown.
        data_start, records, record_s: where the records begin, how many are complete, seconds of each (0 where the
            file says so).
        patient: the field as it stands; for hashing only, never shown.
    """

    path: Path
    width: int
    variant: str  # "", "EDF+C", "EDF+D", "BDF+C", "BDF+D"
    start_time: datetime | None
    data_start: int
    records: int
    record_s: float
    signals: tuple[Signal, ...]
    patient: str
    warnings: tuple[str, ...]

    @cached_property
    def record_bytes(self) -> int:
        """Of one record."""
        return self.width * sum(signal.samples for signal in self.signals)

    @property
    def format(self) -> str:
        """As people call it: edf, edf+, edf+d, bdf."""
        kind = "bdf" if self.width == 3 else "edf"
        return kind + {"+C": "+", "+D": "+d"}.get(self.variant[3:5], "")


def read_header(path: Path) -> Header:
    """The header of a file.

    Raises InputMissingError where it cannot be read, DataError where it is no EDF or BDF.
    """
    try:
        with open(path, "rb") as file:
            return _parse(path, file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise InputMissingError(f"{path}: cannot be read: {error.strerror}") from error


def _parse(path: Path, file: BinaryIO, size: int) -> Header:
    head = file.read(256)
    warnings: list[str] = []
    width = _check_magic(path, head)
    count = _whole(head[252:256])
    if count is None or not 0 < count <= MAX_SIGNALS:
        told = head[252:256].decode("latin-1").strip()
        raise DataError(f"{path}: the header counts {told!r} signals; expected 1 to {MAX_SIGNALS}")
    body = file.read(256 * count)
    if len(body) < 256 * count:
        raise DataError(f"{path}: ends within the header: {256 + len(body)} bytes of {256 * (count + 1)}")
    head, body, extra = _undo_utf8(path, head, body, file)
    signals = _signals(path, body, count, warnings)
    start = 256 * (count + 1) + extra
    if extra:
        warnings.append(f"the header was saved as UTF-8; the data start {extra} bytes later than it says")
    elif _whole(head[184:192]) not in (start, None):
        warnings.append(f"the header says it has {_whole(head[184:192])} bytes; it has {start}")
    record_bytes = width * sum(signal.samples for signal in signals)
    if any(not signal.is_annotation for signal in signals):
        file.seek(start)
        _refuse_text(path, file.read(SAMPLE))
    records, shift = _count_records(path, head, body, size - start, record_bytes, warnings)
    return Header(
        path,
        width,
        _variant(head),
        _start_time(head, warnings),
        start + shift,
        records,
        _record_seconds(path, head),
        signals,
        head[8:88].decode("latin-1").strip(),
        tuple(warnings),
    )


def _check_magic(path: Path, head: bytes) -> int:
    """Bytes a sample. Raises DataError for what is neither EDF nor BDF, naming what it is if that can be told."""
    if not head:
        raise DataError(f"{path}: is empty; expected EDF or BDF")
    for magic, name in _PLACEHOLDERS:
        if magic in head[:120] if magic.startswith((b"/", b".")) else head.lstrip().startswith(magic):
            raise DataError(f"{path}: is {name}; expected EDF or BDF")
    if len(head) < 256:
        raise DataError(f"{path}: holds {len(head)} bytes; an EDF header has at least 512")
    if head[:1] in (b"\xff", b"\xfe") and head[1:8].upper() == b"BIOSEMI":
        return 3
    if head[:8].rstrip(b" \0") == b"0":
        return 2
    raise DataError(f"{path}: is neither EDF nor BDF: it starts with {head[:8]!r}")


def _variant(head: bytes) -> str:
    found = head[192:236].decode("latin-1").strip()[:5].upper()
    return found if re.fullmatch(r"(EDF|BDF)\+[CD]", found) else ""


def _undo_utf8(path: Path, head: bytes, body: bytes, file: BinaryIO) -> tuple[bytes, bytes, int]:
    """Header and number of bytes it grew by, where an editor re-saved it as UTF-8 (a micro sign became two bytes).

    Where the plain reading already gives numbers, left-justified, in the last such field, the file is left alone.
    """
    count = len(body) // 256
    if all(_whole(field) is not None for field in _fields(body, count)[8]) and not _indent(body):
        return head, body, 0
    more = file.read(256 * 4 * (count + 1) - len(head) - len(body))
    characters = (head[1:] + body + more).decode("utf-8", "surrogateescape")
    wanted = 256 * (count + 1) - 1
    text = characters[:wanted]
    grown = len(text.encode("utf-8", "surrogateescape")) - wanted
    if len(text) < wanted or grown <= 0:
        return head, body, 0
    if "\N{REPLACEMENT CHARACTER}" in characters:
        raise DataError(f"{path}: was re-saved as text, which destroyed its data (U+FFFD in place of bytes)")
    plain = text.encode("latin-1", "replace")
    return head[:1] + plain[:255], plain[255:], grown


def _refuse_text(path: Path, data: bytes) -> None:
    """Samples are no UTF-8. Where all of them are, beyond ASCII, an editor has re-saved the file as text."""
    try:
        text = data[: len(data) - 4].decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(data) - 8:
            return
        text = data[: error.start].decode("utf-8")
    if sum(character > "\x7f" for character in text) >= 16:
        lost = " (U+FFFD in place of bytes)" if "\N{REPLACEMENT CHARACTER}" in text else ""
        raise DataError(f"{path}: was re-saved as text, which destroyed its data{lost}")


def _fields(body: bytes, count: int) -> list[list[bytes]]:
    """The ten fields of all signals, as bytes of full width."""
    found, start = [], 0
    for width in _WIDTHS:
        found.append([body[start + i * width : start + (i + 1) * width] for i in range(count)])
        start += width * count
    return found


def _signals(path: Path, body: bytes, count: int, warnings: list[str]) -> tuple[Signal, ...]:
    signals, offset = [], 0
    for label, transducer, unit, pmin, pmax, dmin, dmax, _, samples, _ in zip(*_fields(body, count), strict=True):
        name, per_record = _text(label), _whole(samples)
        if per_record is None or per_record < 0:
            told = samples.decode("latin-1").strip()
            raise DataError(f"{path}: {name!r} has {told!r} samples a record; expected a number")
        low, high = _whole(dmin), _whole(dmax)
        gain, bias = (1.0, 0.0) if name in ANNOTATIONS else _scale(name, pmin, pmax, low, high, warnings)
        signals.append(
            Signal(name, _text(transducer), _text(unit), gain, bias, min(low or 0, high or 0), per_record, offset)
        )
        offset += per_record
    if not offset:
        raise DataError(f"{path}: no signal has a sample")
    return tuple(signals)


def _scale(
    name: str, pmin: bytes, pmax: bytes, low: int | None, high: int | None, warnings: list[str]
) -> tuple[float | None, float]:
    """Gain and bias; no gain where there is none to be had. A swapped physical range inverts the signal."""
    first, last = _number(pmin), _number(pmax)
    told = f"{_text(pmin)} to {_text(pmax)}"
    if b"," in pmin + pmax and first is not None and last is not None:
        warnings.append(f"{name}: decimal commas in the physical range {told}, read as points")
    if first is None or last is None or low is None or high is None or max(abs(first), abs(last)) > MAX_RANGE:
        warnings.append(f"{name}: dropped: its range is not a number ({told}, digital {low} to {high})")
        return None, 0.0
    if first == last:
        warnings.append(f"{name}: dropped: physical minimum and maximum are both {first:g}")
        return None, 0.0
    if low == high:
        warnings.append(f"{name}: dropped: digital minimum and maximum are both {low}")
        return None, 0.0
    gain = (last - first) / (high - low)
    return gain, first - gain * low


def _count_records(
    path: Path, head: bytes, body: bytes, left: int, record_bytes: int, warnings: list[str]
) -> tuple[int, int]:
    """Complete records by the size of the file, and by how many bytes the header is longer than it should be."""
    complete, rest = divmod(max(left, 0), record_bytes)
    told = _whole(head[236:244])
    if complete == 0:
        raise DataError(f"{path}: holds no complete data record ({max(left, 0)} bytes of {record_bytes})")
    if told is None or told <= 0:
        text = head[236:244].decode("latin-1").strip()
        warnings.append(f"the header counts {text!r} records; the file holds {complete}")
    elif told > complete:
        cut = ", the last one cut" if rest else ""
        warnings.append(f"ends early: {complete} complete records of {told}{cut}")
    elif told < complete:
        warnings.append(f"the header counts {told} records; the file holds {complete}")
    elif rest and rest <= 8 and _indent(body) == rest:
        warnings.append(f"the header is {rest} bytes longer than it says; the data start later")
        return complete, rest
    return complete, 0


def _indent(body: bytes) -> int:
    """By how many spaces the last numbers of the header, which are left-justified, are shifted to the right."""
    fields = _fields(body, len(body) // 256)[8]
    return min(len(field) - len(field.lstrip()) for field in fields)


def _record_seconds(path: Path, head: bytes) -> float:
    seconds = _number(head[244:252])
    if seconds is None or seconds < 0:
        told = head[244:252].decode("latin-1").strip()
        raise DataError(f"{path}: a record lasts {told!r}; expected seconds")
    return seconds


def _start_time(head: bytes, warnings: list[str]) -> datetime | None:
    """The clock of the first record. 01.01.85 at 00.00.00 is what writers put when they do not know it."""
    date, time = head[168:176].decode("latin-1").strip(), head[176:184].decode("latin-1").strip()
    days, hours = re.findall(r"\d+", date), re.findall(r"\d+", time)
    try:
        day, month, year = (int(word) for word in days)
        hour, minute, second = (int(word) for word in hours)
        year = _full_year(head) or (year + (1900 if year >= 85 else 2000) if year < 100 else year)
        found = datetime(year, month, day, hour, minute, second)
    except (ValueError, TypeError):
        warnings.append(f"the clock is unknown: the start is given as {date!r} {time!r}")
        return None
    return None if found == datetime(1985, 1, 1) else found


def _full_year(head: bytes) -> int | None:
    """EDF+ repeats the start date with four digits: 'Startdate 02-MAR-2002 ...'."""
    found = re.match(rb"Startdate \d\d?-([A-Za-z]{3})-(\d{4})", head[88:168])
    if not found or found[1].decode().upper() not in _MONTHS:
        return None
    return int(found[2])


def _text(field: bytes) -> str:
    """Header text: UTF-8 where it is, else Latin-1, as most writers mean it; control characters become spaces."""
    try:
        found = field.decode("utf-8")
    except UnicodeDecodeError:
        found = field.decode("latin-1")
    return found.translate(_CONTROLS).strip()


def _number(field: bytes) -> float | None:
    try:
        found = float(field.decode("ascii").strip(" \0").replace(",", "."))
    except (UnicodeDecodeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _whole(field: bytes) -> int | None:
    found = _number(field)
    return int(found) if found is not None and found == int(found) else None
