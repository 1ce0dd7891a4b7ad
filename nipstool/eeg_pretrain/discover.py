"""From names on a command line to recordings: what can be read, whose it is, and why the rest is left out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from nipstool.eeg_pretrain.edf import EdfSource
from nipstool.eeg_pretrain.label_tables import number, rows_of
from nipstool.eeg_pretrain.labels import empty_files, find_labels, with_labels
from nipstool.eeg_pretrain.opening import EDF_SUFFIXES, OTHER_SUFFIXES, Opened, open_file
from nipstool.eeg_pretrain.recording import Found, Point, Problem, Recording
from nipstool.eeg_pretrain.text import find_text
from nipstool.kit.errors import DataError, InputMissingError, NipsError

SUFFIXES = (*EDF_SUFFIXES, *OTHER_SUFFIXES)
NOT_RAW = ("derivatives", "sourcedata")  # of a BIDS data set: the same recordings once more, or in another form
SAME_PERSON = {"chb21": "chb01"}  # recorded again after a year and a half
_SUBJECTS = (
    r"(?P<bids>sub-[A-Za-z0-9]+)",
    r"^(?P<chb>chb\d\d)[a-z]?[_+]",
    r"^(?P<siena>PN\d\d)-",
    r"^(?P<tusz>[a-z]{8})_s\d{3}_t\d{3}",
    r"^(?P<seizeit>P_ID\d+)_r\d+",
)


def find(paths: Iterable[Path | str], progress: Callable[[int, int], None] | None = None) -> Found:
    """The recordings in files and folders (looked through in full), in the order of their names.

    A file that cannot be used becomes a Problem, not an error; a name that does not exist too. A label file that
    contradicts itself makes a Problem of its recording: training on what it says would be wrong either way.
    """
    named, walked, skipped = expand(paths)
    recordings, problems = [], []
    total = len(named) + len(walked)
    for number_, (path, by_name) in enumerate([*((p, True) for p in named), *((p, False) for p in walked)]):
        try:
            recordings.append(open_recording(path))
        except NipsError as error:
            reason = str(error).removeprefix(f"{path}: ")
            problems.append(Problem(path, reason, isinstance(error, InputMissingError), by_name))
        if progress is not None:
            progress(number_ + 1, total)
    return Found(recordings, problems, skipped)


def failure(found: Found, paths: Sequence[Path | str], *, strict: bool = False) -> NipsError | None:
    """What to raise once the rest is done: for files that were named, and with `strict` for all that were found.

    With nothing left, at once: the reason, if it is one. InputMissingError where all that is wrong is missing.
    """
    wrong = [p for p in found.problems if p.named or strict or not found.recordings]
    if not wrong and not found.recordings:
        told = ", ".join(str(path) for path in list(paths)[:3])
        return InputMissingError(f"{told}: no recordings there; expected {', '.join(SUFFIXES)}")
    if not wrong:
        return None
    kind = InputMissingError if all(problem.missing for problem in wrong) else DataError
    if len(wrong) == 1:
        return kind(f"{wrong[0].path}: {wrong[0].reason}")
    return kind(f"{len(wrong)} of {len(found.recordings) + len(found.problems)} files cannot be used")


def expand(paths: Iterable[Path | str]) -> tuple[list[Path], list[Path], tuple[Path, ...]]:
    """Files that were named, and files of known formats in folders that were named; each once, sorted by name.

    Then the folders with such files that are no raw data, and so are not looked through.
    """
    named: dict[Path, Path] = {}
    walked: dict[Path, Path] = {}
    skipped: dict[Path, None] = {}
    all_given = [Path(path) for path in paths]
    for given in all_given:
        if given.is_dir() and not is_recording(given):
            for path in sorted(given.rglob("*")):
                if not is_recording(path) or any(part.startswith(".") for part in path.parts[len(given.parts) :]):
                    continue
                aside = set_aside(path, given)
                if aside is None:
                    walked.setdefault(_real(path), path)
                else:
                    skipped[aside] = None
        else:
            named.setdefault(_real(given), given)
    found = [path for real, path in walked.items() if real not in named]
    return list(named.values()), found, tuple(folder for folder in skipped if folder not in all_given)


def set_aside(path: Path, given: Path) -> Path | None:
    """The folder of derivatives or sources that a file lies in, directly below `given` or in a BIDS data set."""
    inside = [folder for folder in path.parents if given in folder.parents]
    for folder in reversed(inside):
        root = folder.parent
        if folder.name in NOT_RAW and (root == given or (root / "dataset_description.json").is_file()):
            return folder
    return None


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # which, unlike resolve(), bears links that lead to themselves


def is_recording(path: Path) -> bool:
    """Whether a name is that of a format that can be read; pieces of a split FIF beyond the first are not."""
    name = path.name.lower()
    if not name.endswith(SUFFIXES) or (name.endswith(".rec") and path.is_dir()):
        return False
    return not (
        name.endswith((".fif", ".fif.gz")) and re.search(r"(_split-(?!01)\d\d_|[-_](ave|cov|epo|fwd|inv)\.)", name)
    )


def open_recording(path: Path) -> Recording:
    """One recording with its labels, text and subject. Raises InputMissingError or DataError, in one line."""
    if not path.exists():
        raise InputMissingError(f"{path}: does not exist; expected a recording")
    if path.is_dir():
        raise DataError(f"{path}: is a folder without a recording in it")
    opened = open_file(path, electrodes(path))
    recording = opened.recording
    patient = recording.source.header.patient if isinstance(recording.source, EdfSource) else ""
    recording = replace(
        recording,
        subject=subject_of(path, opened.patient),
        text=find_text(path, patient, recording.start_time),
        warnings=(*recording.warnings, *empty_files(path)),
    )
    return with_labels(recording, find_labels(path, _fs(opened), opened.annotations))


def _fs(opened: Opened) -> float:
    recording = opened.recording
    return recording.channels[recording.of_kind("eeg")[0]].fs


def subject_of(path: Path, patient: str = "") -> str:
    """Whose recording it is, by the naming of BIDS, CHB-MIT, Siena, TUSZ and SeizeIT, else by the digest of its
    patient field, else the file's own name.

    >>> subject_of(Path("chb21_03.edf")), subject_of(Path("sub-07/eeg/sub-07_task-rest_eeg.edf"))
    ('chb01', 'sub-07')
    """
    for pattern in _SUBJECTS:
        match = re.search(pattern, path.name)
        if match:
            return SAME_PERSON.get(match[1], match[1])
    return patient or path.name.split(".")[0]


def electrodes(path: Path) -> dict[str, Point]:
    """Positions that a BIDS electrodes.tsv beside the recording gives, in metres by name in lower case.

    Only in a frame of the head: its coordsystem.json must not speak of an image's voxels.
    """
    stem = re.sub(r"_(eeg|ieeg)$", "", path.name.removesuffix("".join(path.suffixes[-1:])))
    shorter = re.sub(r"_(task|acq|run|split|desc)-[A-Za-z0-9]+", "", stem)
    for name in dict.fromkeys((stem, shorter)):
        for table in sorted(path.parent.glob(f"{name}*_electrodes.tsv")):
            rows = [row for _, row in rows_of(table)]
            return _positions(rows)
    return {}


def _positions(rows: Sequence[dict[str, str]]) -> dict[str, Point]:
    found: dict[str, Point] = {}
    for row in rows:
        x, y, z = (number(row.get(axis)) for axis in "xyz")
        if x is not None and y is not None and z is not None and row.get("name"):
            found[row["name"].lower()] = (x, y, z)
    largest = max((abs(value) for point in found.values() for value in point), default=0.0)
    scale = 1.0 if largest < 1 else 0.01 if largest < 30 else 1e-3  # a head is 0.1 m, 10 cm, 100 mm
    return {name: (x * scale, y * scale, z * scale) for name, (x, y, z) in found.items()}
