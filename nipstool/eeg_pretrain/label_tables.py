"""Labels in tables: events of BIDS and SzCORE, the CSV files of TUSZ, the lists of SeizeIT."""

from __future__ import annotations

import re
from pathlib import Path

from nipstool.eeg_pretrain.label_words import BACKGROUND, Event, end_before_start, is_seizure, pair_up
from nipstool.eeg_pretrain.recording import Seizure
from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.records import read_csv

Found = tuple[list[Seizure], list[str]] | None

ONSETS = ("onset", "onset_s", "start", "start_time", "starttime", "begin", "start_s")
ENDS = ("offset", "end", "stop", "stop_time", "end_time", "offset_s", "stop_s", "end_s")
DURATIONS = ("duration", "duration_s")
MOST = 1e10  # seconds that a cell may tell: 300 years, and more than any clock's seconds since 1970
MISSING = ("n/a", "na", "nan")  # cells that say there is no number
TYPES = ("eventtype", "event_type", "trial_type", "event", "label", "type", "annotation", "description", "value")
NO_END_S = 30.0  # taken as the length of a seizure whose end SeizeIT gives as None, as its other readers do
SEIZEIT_TYPES = {
    "FIA": "sz_foc_ia",
    "FIAS": "sz_foc_ia",
    "FA": "sz_foc_a",
    "F-BTC": "sz_foc_f2b",
    "FBTC": "sz_foc_f2b",
}


def read_text(path: Path) -> str:
    """A text file in UTF-8 (with or without a mark) or Latin-1. Raises InputMissingError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputMissingError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def number(text: str | None) -> float | None:
    """A number within MOST; None for n/a, nan, an empty cell or anything else. A decimal comma is a point."""
    try:
        found = float((text or "").strip().replace(",", "."))
    except ValueError:
        return None
    return found if abs(found) <= MOST else None


def seconds(path: Path, line: int, column: str, text: str) -> float | None:
    """The number in a cell of a seizure; None for n/a. Raises DataError, naming the line, for anything else.

    A seizure with a time that cannot be read must not become none: the recording would count as free of seizures.
    """
    found = number(text)
    if found is None and text.strip().lower() not in MISSING:
        raise DataError(f"{path}:{line}: {column} {text!r}; expected seconds")
    return found


def columns_of(path: Path) -> list[str]:
    """The names of a table's columns in lower case; none where it is empty."""
    for line in read_text(path).splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            return [name.strip().lower() for name in re.split(r"[\t,;]", line)]
    return []


def rows_of(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Line numbers and cells by lower-case column name, of a table with a header; lines with # are comments."""
    lines = [(n, line) for n, line in enumerate(read_text(path).splitlines(), 1) if line.strip()]
    lines = [(n, line) for n, line in lines if not line.lstrip().startswith("#")]
    if not lines:
        return []
    separator = "\t" if "\t" in lines[0][1] else ";" if ";" in lines[0][1] else ","
    cells = [row for _, row in read_csv((line.replace("\0", "") for _, line in lines), str(path), separator)]
    names = [name.strip().lower() for name in cells[0]]
    return [
        (line, {name: cell.strip() for name, cell in zip(names, row, strict=False)})
        for (line, _), row in zip(lines[1:], cells[1:], strict=False)
    ]


def read_events(path: Path, recording: Path, fs: float) -> Found:
    """Events with a column for the onset, and one for the duration or the end. None where nothing tells seizures.

    Rows of other things than seizures are left out, and with a warning seizures with an onset of n/a. Without a
    column that tells what a row is, only X.seizures.tsv is read. Raises DataError, with the line, for a seizure
    with a time that is no number, or that runs backwards.
    """
    rows = rows_of(path)
    names = columns_of(path)
    has_type = any(name in TYPES for name in names)
    if not any(name in ONSETS for name in names) or not (has_type or path.name.endswith(".seizures.tsv")):
        return None
    events, warnings = [], []
    speaks = any(name in ("eventtype", "event_type") for name in names) or not has_type
    for line, row in rows:
        text = _cell(row, TYPES) or ("" if has_type else "sz")
        speaks = speaks or is_seizure(text) or bool(BACKGROUND.search(text.lower()))
        if not is_seizure(text):
            continue
        onset = seconds(path, line, "onset", _cell(row, ONSETS))
        if onset is None:
            warnings.append(f"{path.name}:{line}: a seizure without an onset is left out")
        else:
            events.append(Event(onset, _duration(path, line, row, names, onset), text, line))
    found, odd = pair_up(events, str(path))
    return (found, warnings + odd) if speaks else None


def _duration(path: Path, line: int, row: dict[str, str], names: list[str], onset: float) -> float | None:
    """From the duration's column, else from the end's; None where they say n/a, or are not there."""
    text, end_text = _cell(row, DURATIONS), _cell(row, ENDS)
    has_end = any(name in ENDS for name in names)
    needed = not has_end and any(name in DURATIONS for name in names)
    duration = seconds(path, line, "duration", text) if text or needed else None
    if duration is not None or not has_end or (text and not end_text):
        return duration
    end = seconds(path, line, "end", end_text)
    return None if end is None else end - onset


def _cell(row: dict[str, str], names: tuple[str, ...]) -> str:
    return next((row[name] for name in names if row.get(name)), "")


def _needed(path: Path, line: int, column: str, text: str) -> float:
    """The number in a cell, where not even n/a will do."""
    found = number(text)
    if found is None:
        raise DataError(f"{path}:{line}: {column} {text!r}; expected seconds")
    return found


def read_tusz(path: Path, recording: Path, fs: float) -> Found:
    """channel,start_time,stop_time,label,confidence: seiz in .csv_bi; fnsz, gnsz, ... a channel in .csv."""
    if not {"start_time", "stop_time", "label"} <= set(columns_of(path)):
        return None
    found = []
    for line, row in rows_of(path):
        if not re.fullmatch(r"seiz|[a-z]{2}sz|sz", row.get("label", "").lower()):
            continue
        start, stop = (_needed(path, line, name, row.get(name, "")) for name in ("start_time", "stop_time"))
        if stop < start:
            raise end_before_start(path, line, start, stop)
        found.append(Seizure(round(start, 2), round(start, 2) + round(stop - start, 2)))
    return found, []


def read_seizeit(path: Path, recording: Path, fs: float) -> Found:
    """Lines of start, end (whole seconds), type and localisation, after comments and perhaps a header."""
    found, warnings = [], []
    for line, text in enumerate(read_text(path).splitlines(), 1):
        cells = text.split("\t") if "\t" in text else text.split()
        if text.lstrip().startswith("#") or len(cells) < 2:
            continue
        typed = len(cells) > 2 and cells[2].strip().upper() in SEIZEIT_TYPES
        if not found and not typed and number(cells[0]) is None and number(cells[1]) is None:
            continue
        start = _needed(path, line, "start", cells[0])
        end = None if cells[1].strip().lower() == "none" else seconds(path, line, "end", cells[1])
        if end is None:
            end = start + NO_END_S
            warnings.append(f"{path.name}:{line}: a seizure without an end is taken to last {NO_END_S:g} s")
        if end < start:
            raise end_before_start(path, line, start, end)
        kind = SEIZEIT_TYPES[cells[2].strip().upper()] if typed else "sz"
        found.append(Seizure(start, end, kind))
    return found, warnings
