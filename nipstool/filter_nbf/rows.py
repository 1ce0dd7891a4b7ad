"""Rows of a stream: NDJSON or CSV, whatever is readable now, and what is wrong with a line."""

from __future__ import annotations

import math
import os
import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, BinaryIO

from nipstool.filter_nbf import header
from nipstool.kit.errors import DataError
from nipstool.kit.records import parse_json, shown

CHUNK = 1 << 18
FEWEST, MOST = 4, 16384  # lines at once: few at first, so that the first answer comes soon
LONGEST = 1 << 24  # bytes of a line
KNOWN = ("t", "id", "obs", "control", "truth")


@dataclass(frozen=True, slots=True)
class Row:
    """One line: t in seconds (None: one after the last), track, y (m) and u (k; None: as before), NaN = missing.

    `told_t` and `told_id` are what the line said, to be repeated in the answer. dated: t was a date.
    """

    t: float | None
    track: str
    y: list[float]
    u: list[float] | None
    told_t: Any
    told_id: Any
    dated: bool = False


def readable_lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """Lists of the lines that can be read without waiting; waits only where there is none at all.

    Raises DataError for a line of more than LONGEST bytes.
    """
    read, ready = _reader(source)
    rest, most, ended = b"", FEWEST, False
    waiting: list[bytes] = []
    while waiting or not ended:
        while not ended and len(waiting) < most and (not waiting or ready()):
            chunk = read(CHUNK)
            ended = not chunk
            *lines, rest = (rest + chunk).split(b"\n")
            waiting += lines
            if ended and rest:
                waiting.append(rest)
            if len(rest) > LONGEST:
                raise DataError(f"a line of more than {LONGEST} bytes: expected one record a line")
        if waiting:
            yield waiting[:most]
            waiting, most = waiting[most:], min(4 * most, MOST)


def _reader(source: BinaryIO) -> tuple[Any, Any]:
    """How to read some bytes, and how to ask whether any can be read at once."""
    try:
        descriptor = source.fileno()
    except (OSError, AttributeError):
        return source.read, lambda: True

    def ready() -> bool:
        try:
            return bool(select.select([descriptor], [], [], 0.0)[0])
        except (OSError, ValueError):  # what cannot be waited for can be read
            return True

    return lambda size: os.read(descriptor, size), ready


class RowReader:
    """Turns lines into rows. CSV is told by a first line that is a header, of whatever names.

    Args:
        obs_names, control_names: of the model, in order.
        columns: field ("t", "id", an observation or a control) -> the name it has in the input. What is not named
            in it keeps its own name; where it is given at all, other columns are let be, and a CSV must have
            those it names.
    """

    def __init__(
        self, obs_names: Sequence[str], control_names: Sequence[str], columns: Mapping[str, str] | None = None
    ):
        self.obs_names, self.control_names = tuple(obs_names), tuple(control_names)
        self._names = {field: field for field in ("t", "id", *self.obs_names, *self.control_names)}
        for field in columns or {}:
            if field not in self._names:
                raise DataError(f"--columns {field}: expected one of {', '.join(self._names)}")
        self._names |= columns or {}
        self._mapped = tuple(columns or {})
        self._allowed = {*KNOWN, *self._names.values()}
        self._header: list[str] | None = None
        self._is_csv: bool | None = None

    def row(self, line: bytes) -> Row | None:
        """The row of a line; None for a blank one and for a CSV header. Raises DataError, without its place.

        A HeaderError is one that no later line can mend.
        """
        text = _decoded(line)
        if not text:
            return None
        if self._is_csv is None:
            self._is_csv = header.is_header(text, self._names)
        if not self._is_csv:
            return self._from_record(_object(text))
        if self._header is None:
            wanted = (*self.obs_names, *self.control_names)
            self._header = header.checked(text, self._names, wanted, mapped=self._mapped)
            return None
        fields = header.split(text)
        if len(fields) != len(self._header):
            raise DataError(f"has {len(fields)} fields, the header {len(self._header)}")
        return self._from_record(dict(zip(self._header, fields, strict=True)))

    def _hint(self, name: str) -> str:
        near = get_close_matches(name, self._allowed, n=1)
        return f": did you mean {near[0]!r}?" if near else f"; expected {', '.join(self._names)}, or --columns"

    def _from_record(self, record: dict[str, Any]) -> Row:
        obs, control = record.get("obs"), record.get("control")
        if not record.keys() <= self._allowed and not self._mapped:
            name = next(key for key in record if key not in self._allowed)
            raise DataError(f"unknown field {name!r}{self._hint(name)}")
        y = self._vector(record, obs, self.obs_names, "obs")
        has_control = bool(self.control_names) and (
            control is not None or any(self._names[name] in record for name in self.control_names)
        )
        if control is not None and not self.control_names:
            raise DataError("has a control, and the model takes none")
        u = self._vector(record, control, self.control_names, "control") if has_control else None
        if u is not None and all(math.isnan(value) for value in u):
            u = None
        told_t, told_id = record.get(self._names["t"]), record.get(self._names["id"])
        if told_id is not None and not isinstance(told_id, str | int | float):
            raise DataError(f"id is {shown(told_id)}, expected text or a number")
        t, dated = _time(told_t)
        if self._is_csv and isinstance(told_t, str) and t is not None and not dated:
            told_t = _as_number(told_t, t)
        return Row(t, "" if told_id is None else str(told_id), y, u, told_t, told_id, dated)

    def _vector(self, record: dict[str, Any], given: Any, names: Sequence[str], what: str) -> list[float]:
        if given is None:
            return [_number(record.get(self._names[name]), name) for name in names]
        if isinstance(given, list):
            if len(given) != len(names):
                raise DataError(f"{what} has {len(given)} values, expected {len(names)}: {', '.join(names)}")
            return [_number(value, name) for value, name in zip(given, names, strict=True)]
        if not isinstance(given, dict):
            raise DataError(f"{what} is {shown(given)}, expected an object with {', '.join(names)}")
        if not given.keys() <= set(names):
            name = next(key for key in given if key not in names)
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(names)}"
            raise DataError(f"unknown {what} field {name!r}: {hint}")
        return [_number(given.get(name), name) for name in names]


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise DataError(f"is not UTF-8: {error.reason} at byte {error.start}") from error


def _object(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise DataError(f"invalid JSON ({error})") from error
    if not isinstance(value, dict):
        raise DataError(f"is {shown(value)}, expected a JSON object")
    return value


def _number(value: Any, name: str) -> float:
    """A finite number; NaN for what is missing: null, NaN, an empty field."""
    if value is None:
        return math.nan
    if isinstance(value, str):
        value = value.strip() or math.nan
    if isinstance(value, str | int | float):
        with suppress(ValueError, OverflowError):
            number = float(value)
            if not math.isinf(number):
                return number
    raise DataError(f"{name} is {shown(value)}, expected a finite number")


def _time(value: Any) -> tuple[float | None, bool]:
    """Seconds, from a number or ISO 8601 (UTC where it names no zone), and whether it was the latter."""
    if value is None or value == "":
        return None, False
    if isinstance(value, str):
        with suppress(ValueError, OverflowError):
            when = datetime.fromisoformat(value)
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp(), True
    seconds = _number(value, "t")
    if math.isnan(seconds):
        raise DataError("t is NaN, expected seconds or ISO 8601")
    return seconds, False


def _as_number(text: str, value: float) -> int | float:
    """The number of a text as JSON would have it: 7 and not 7.0 where that was written."""
    with suppress(ValueError):
        return int(text)
    return value
