"""The .seizures files of CHB-MIT: annotations in the binary MIT format, '[' at a start and ']' at an end."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from nipstool.eeg_pretrain.recording import Seizure
from nipstool.kit.errors import DataError, InputMissingError

START, END, NOTE = 32, 33, 22  # codes of '[', ']' and '"'
_SKIP, _NUM, _SUB, _CHN, _AUX = 59, 60, 61, 62, 63


def read_seizures_file(path: Path, recording: Path, fs: float) -> tuple[list[Seizure], list[str]]:
    """Seizures in seconds; times are in samples of the recording unless the file gives its own resolution.

    Raises DataError where an end has no start or a start no end.
    """
    try:
        marks = read_marks(path.read_bytes())
    except OSError as error:
        raise InputMissingError(f"{path}: cannot be read: {error.strerror}") from error
    except (struct.error, ValueError) as error:
        raise DataError(f"{path}: is no MIT annotation file: {error}") from error
    rate, found, start = fs, [], None
    for sample, code, text in marks:
        told = re.match(r"## time resolution: ([\d.]+)", text) if code == NOTE else None
        if told:
            rate = float(told[1])
        elif code == START:
            start = sample
        elif code == END:
            if start is None:
                raise DataError(f"{path}: a seizure ends at sample {sample} without a start")
            found.append(Seizure(start / rate, sample / rate))
            start = None
    if start is not None:
        raise DataError(f"{path}: the seizure that starts at sample {start} has no end")
    return found, []


def read_marks(data: bytes) -> list[tuple[int, int, str]]:
    """(sample, code, text) of each annotation: 6 bits of code and 10 bits of samples since the last one."""
    found: list[tuple[int, int, str]] = []
    place = sample = 0
    while place + 2 <= len(data):
        (word,) = struct.unpack_from("<H", data, place)
        place += 2
        code, value = word >> 10, word & 0x3FF
        if word == 0:
            break
        if code == _SKIP:
            high, low = struct.unpack_from("<HH", data, place)
            sample += struct.unpack("<i", struct.pack("<HH", low, high))[0]
            place += 4
        elif code == _AUX:
            text = data[place : place + value].decode("latin-1").rstrip("\0")
            place += value + value % 2
            if found:
                found[-1] = (*found[-1][:2], text)
        elif code not in (_NUM, _SUB, _CHN):
            sample += value
            found.append((sample, code, ""))
    return found
