"""Event files of any detector beside the recordings, or the reference event files, that they speak about."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nipstool.eeg_pretrain.discover import find, set_aside, subject_of
from nipstool.eeg_pretrain.evaluation import WINDOW_S, Judged, event_scores, window_count
from nipstool.eeg_pretrain.label_tables import read_events
from nipstool.eeg_pretrain.labels import merged
from nipstool.eeg_pretrain.recording import Found, Problem, Recording, Seizure
from nipstool.eeg_pretrain.scoring import Interval
from nipstool.eeg_pretrain.szcore import EventFile, intervals, read_file
from nipstool.kit.errors import DataError, InputMissingError, NipsError


@dataclass(frozen=True)
class Reference:
    """What is true about one recording; `recording` is None where only an event file stands for it."""

    stem: str
    subject: str
    duration_s: float
    seizures: tuple[Seizure, ...]
    recording: Recording | None = None


@dataclass(frozen=True)
class Matched:
    """Predictions beside their references, the stems without a prediction, and the files nobody asked about."""

    judged: list[Judged]
    references: list[Reference]
    missing: list[str]
    unused: list[Path]


def references(
    paths: Sequence[Path | str], progress: Callable[[int, int], None] | None = None
) -> tuple[list[Reference], Found, list[str]]:
    """References from labelled recordings and, where there are none, from event files; and what was left out.

    The last list names recordings without labels: nobody knows what is true there.
    """
    folders = [Path(path) for path in paths]
    found = find([path for path in folders if path.suffix.lower() != ".tsv"], progress)
    named = [_reference(recording) for recording in found.recordings if recording.labelled]
    unlabelled = [recording.path.name for recording in found.recordings if not recording.labelled]
    known = {reference.stem for reference in named}
    problems = list(found.problems)
    files, skipped = _event_files(folders)
    for path in files:
        if stem_of(path) not in known and not (
            unlabelled and stem_of(path) in map(stem_of, map(Path, unlabelled))
        ):
            try:
                named.append(_from_events(path))
            except NipsError as error:
                missing, reason = isinstance(error, InputMissingError), str(error).removeprefix(f"{path}: ")
                problems.append(Problem(path, reason, missing, named=path in folders))
    return (
        sorted(named, key=lambda one: one.stem),
        Found(found.recordings, problems, tuple(dict.fromkeys((*found.skipped, *skipped)))),
        unlabelled,
    )


def _event_files(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Files that were named or lie in folders, and the folders of derivatives or sources that hold more."""
    found, skipped = [], []
    for path in paths:
        for file in sorted(path.rglob("*_events.tsv")) if path.is_dir() else [path]:
            aside = set_aside(file, path)
            if aside is not None:
                skipped += [aside] * (aside not in paths)
            elif file.suffix.lower() == ".tsv":
                found.append(file)
    return found, skipped


def stem_of(path: Path) -> str:
    """What a recording and its event file have in common: 'sub-01_run-00' of sub-01_run-00_eeg.edf.

    >>> stem_of(Path("sub-01_run-00_eeg.edf")) == stem_of(Path("sub-01_run-00_events.tsv"))
    True
    """
    name = re.sub(r"(\.seizures)?\.tsv$", "", path.name)
    name = re.sub(r"\.(edf|bdf|rec|set|vhdr|fif|fif\.gz)$", "", name, flags=re.I)
    return re.sub(r"_(eeg|ieeg|events|a1)$", "", name)


def _reference(recording: Recording) -> Reference:
    return Reference(
        stem_of(recording.path), recording.subject, recording.duration_s, recording.seizures, recording
    )


def _from_events(path: Path) -> Reference:
    if not path.exists():
        raise InputMissingError(f"{path}: does not exist; expected an event file")
    labels = read_events(path, path, 0.0)
    length = read_file(path).duration_s
    if labels is None:
        raise DataError(f"{path}: tells no seizures; expected the columns of SzCORE")
    if not labels[0] and labels[1]:
        raise DataError(f"{path}: {labels[1][0]}")
    if length is None:
        raise DataError(f"{path}: does not say how long the recording is (recordingDuration)")
    if late := [seizure for seizure in labels[0] if seizure.onset_s >= length]:
        raise DataError(f"{path}: a seizure at {late[0].onset_s:g} s, the recording has {length:g} s")
    within = [replace(seizure, offset_s=min(seizure.offset_s, length)) for seizure in labels[0]]
    return Reference(stem_of(path), subject_of(path), length, merged(within))


def read_predictions(path: Path) -> dict[str, tuple[Path, EventFile]]:
    """The event files in a folder (or one file) by stem. Raises InputMissingError where there are none.

    A folder with two files about one recording is ambiguous: DataError.
    """
    if not path.exists():
        raise InputMissingError(f"{path}: does not exist; expected event files or a folder with them")
    files = sorted(path.rglob("*.tsv")) if path.is_dir() else [path]
    files = [file for file in files if file.name != "participants.tsv" and not file.name.startswith(".")]
    if not files:
        raise InputMissingError(f"{path}: holds no event files (.tsv)")
    found: dict[str, tuple[Path, EventFile]] = {}
    for file in files:
        stem = stem_of(file)
        if stem in found:
            raise DataError(f"{file}: is about the same recording as {found[stem][0]}")
        found[stem] = (file, read_file(file))
    return found


def match(predictions: dict[str, tuple[Path, EventFile]], known: Sequence[Reference]) -> Matched:
    """Each reference with its prediction. One without is left out and named: silence is not an answer."""
    if len(predictions) == len(known) == 1:  # then there is no doubt, whatever their names
        (found,) = predictions.values()
        predictions = {known[0].stem: found}
    judged, used, missing = [], [], []
    for one in known:
        if one.stem not in predictions:
            missing.append(one.stem)
            continue
        events = [e for e in predictions[one.stem][1].events if e.onset_s < one.duration_s]
        told = [(max(a, 0.0), min(b, one.duration_s)) for a, b in intervals(events)]
        scores = event_scores(told, window_count(one.duration_s), [event.confidence for event in events])
        judged.append(_judged(one, told, scores))
        used.append(one)
    stems = {one.stem for one in known}
    return Matched(judged, used, missing, [path for stem, (path, _) in predictions.items() if stem not in stems])


def beside(
    references: Sequence[Reference], progress: Callable[[int, int], None] | None = None
) -> dict[str, list[Judged]]:
    """What line length and power say about the same recordings, by name; empty where there are no signals.

    The threshold for a recording is the one that does best on the other subjects; windows are scored by the rank
    of their values, which lies in [0, 1] as probabilities do.
    """
    from nipstool.eeg_pretrain.baselines import PLAIN, cross_fitted, plain_scores, window_scores
    from nipstool.eeg_pretrain.detect import events_of, trailing_mean

    if any(one.recording is None for one in references):
        return {}
    scored = []
    for number, one in enumerate(references):
        scored.append(plain_scores(one.recording) if one.recording is not None else {})
        if progress is not None:
            progress(number + 1, len(references))
    found: dict[str, list[Judged]] = {}
    for name in PLAIN:
        rows = [row[name] for row in scored]
        thresholds, _ = cross_fitted(rows, [one.recording for one in references if one.recording is not None])
        windows = [
            window_scores(row, WINDOW_S, window_count(one.duration_s))
            for row, one in zip(rows, references, strict=True)
        ]
        found[name] = [
            _judged(one, [(e.onset_s, e.offset_s) for e in events_of(trailing_mean(row), threshold)], ranks)
            for one, row, threshold, ranks in zip(references, rows, thresholds, _ranks(windows), strict=True)
        ]
    return found


def _judged(one: Reference, told: list[Interval], scores: np.ndarray) -> Judged:
    return Judged(one.stem, one.subject, one.duration_s, one.seizures, tuple(told), scores)


def _ranks(rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Each value's place among all of them, in (0, 1]; equal values have equal ones."""
    pooled = np.sort(np.concatenate(rows))
    return [np.searchsorted(pooled, row, side="right") / len(pooled) for row in rows]
