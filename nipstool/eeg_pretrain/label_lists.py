"""Labels in lists written for people: summaries of CHB-MIT, seizure lists of Siena, typing errors included."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nipstool.eeg_pretrain.label_tables import Found, read_text, rows_of
from nipstool.eeg_pretrain.label_words import end_before_start
from nipstool.eeg_pretrain.recording import Seizure
from nipstool.kit.errors import DataError

DAY_S, HOUR_S = 86_400, 3_600
SIENA_TYPES = {"IAS": "sz_foc_ia", "WIAS": "sz_foc_a", "FBTC": "sz_foc_f2b"}


def read_chb_summary(path: Path, recording: Path, fs: float) -> Found:
    """The seizures of one recording in a chbNN-summary.txt; None where it is not listed."""
    listed, start = False, None
    found, inside = [], False
    for line, text in enumerate(read_text(path).splitlines(), 1):
        name = re.match(r"\s*File Name:\s*(\S+)", text, re.I)
        if name:
            inside = Path(name[1]).stem.lower() == recording.stem.lower()
            listed = listed or inside
        time = re.match(r"\s*Seizure\s*\d*\s*(Start|End) Time:\s*(.*?)\s*$", text, re.I)
        if start is not None and (name or (time and time[1].lower() == "start")):
            raise DataError(f"{path}:{line}: the seizure that starts at {start:g} s has no end")
        if not (inside and time):
            continue
        value = _seconds(path, line, time[1].lower(), time[2])
        if time[1].lower() == "start":
            start = value
        elif start is None:
            raise DataError(f"{path}:{line}: a seizure ends at {value:g} s without a start")
        else:
            if value < start:
                raise end_before_start(path, line, start, value)
            found.append(Seizure(start, value))
            start = None
    if start is not None:
        raise DataError(f"{path}: the seizure that starts at {start:g} s has no end")
    return (found, []) if listed else None


def _seconds(path: Path, line: int, what: str, text: str) -> float:
    value = re.match(r"(-?\d+(?:\.\d+)?)\s*sec", text, re.I)
    if value is None:
        raise DataError(f"{path}:{line}: {what} {text!r}; expected seconds")
    return float(value[1])


@dataclass
class _Block:
    """What has been said so far about one seizure of a Siena list; clock times in seconds of the day."""

    file: str = ""
    registration: int | None = None
    start: int | None = None
    end: int | None = None
    line: int = 0


def read_siena_list(path: Path, recording: Path, fs: float) -> Found:
    """The seizures of one recording in a Seizures-list-PNxx.txt; None where it is not listed.

    A block that names no file or registration continues with those of the block before. Clocks may pass midnight.
    """
    warnings: list[str] = []
    blocks = [b for b in _blocks(read_text(path)) if _same_file(b.file, recording.stem)]
    kind = _siena_kind(path, recording.stem)
    found = [_seizure(block, kind, path, warnings) for block in blocks]
    return (found, warnings) if blocks else None


def _blocks(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    current = _Block()
    for line, row in enumerate([*text.splitlines(), "seizure n"], 1):  # which ends the last block, too
        lower = row.lower().strip()
        name = re.match(r"file name\s*:\s*(\S+)", row.strip(), re.I)
        if re.match(r"seizure n", lower):
            blocks += [current] if current.line else []  # a start without an end
            current = _Block(current.file, current.registration)
        elif name:
            if name[1] != current.file:
                current.registration = None
            current.file = name[1]
        elif re.match(r"registration start", lower):
            current.registration = _clock(row)
        elif re.match(r"(seizure )?start time", lower):
            current.start, current.line = _clock(row), line
        elif re.match(r"(seizure )?end time", lower):
            current.end = _clock(row)
            current.line = line
            blocks.append(current)
            current = _Block(current.file, current.registration)
    return blocks


def _clock(row: str) -> int | None:
    """Seconds of the day from 'hh.mm.ss' or 'hh:mm:ss', with spaces anywhere."""
    digits = re.search(r"(\d{1,2})[.:](\d{1,2})[.:](\d{1,2})", re.sub(r"\s", "", row.partition(":")[2]))
    if digits is None:
        return None
    hours, minutes, seconds = (int(word) for word in digits.groups())
    return (hours * 60 + minutes) * 60 + seconds


def _same_file(listed: str, stem: str) -> bool:
    """Whether a name of the list means this file: 'PNO6-1' is PN06-1, 'PN01.edf' and 'PN11-.edf' the first."""
    name = re.sub(r"\.edf$", "", listed.strip().lower())
    name = re.sub(r"(?<=[a-z])o(?=\d)|(?<=\d)o", "0", name).rstrip("-")
    name = name if re.search(r"-\w", name) else f"{name}-1"
    return name == stem.lower()


def _seizure(block: _Block, kind: str, path: Path, warnings: list[str]) -> Seizure:
    if block.registration is None or block.end is None or block.start is None:
        raise DataError(f"{path}:{block.line}: a seizure without a clock time for its registration, start or end")
    onset = (block.start - block.registration) % DAY_S
    length = (block.end - block.start) % DAY_S
    if length > DAY_S // 2:
        raise end_before_start(path, block.line, block.start, block.end)
    if length >= HOUR_S and length % HOUR_S > 0:
        warnings.append(f"{path.name}:{block.line}: a seizure of {length} s is taken as {length % HOUR_S} s")
        length %= HOUR_S
    return Seizure(float(onset), float(onset + length), kind)


def _siena_kind(path: Path, stem: str) -> str:
    """The type that subject_info.csv gives for the patient. It is a label: it never enters the text."""
    table = path.parent.parent / "subject_info.csv"
    if not table.is_file():
        return "sz"
    for _, row in rows_of(table):
        if row.get("patient_id", "").lower() == stem.lower().partition("-")[0]:
            return SIENA_TYPES.get(row.get("seizure", "").upper(), "sz")
    return "sz"
