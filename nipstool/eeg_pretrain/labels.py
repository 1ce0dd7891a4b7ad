"""Where the seizures of a recording are labelled, in whatever form: found beside the file or within it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nipstool.eeg_pretrain.edf_annotations import Annotation
from nipstool.eeg_pretrain.label_lists import read_chb_summary, read_siena_list
from nipstool.eeg_pretrain.label_tables import read_events, read_seizeit, read_tusz
from nipstool.eeg_pretrain.label_wfdb import read_seizures_file
from nipstool.eeg_pretrain.label_words import Event, pair_up
from nipstool.eeg_pretrain.recording import Recording, Seizure


@dataclass(frozen=True)
class Labels:
    """Seizures as they are written, not clipped; and the name of the file that says so.

    `known` is false where all that is written are seizures without an onset or an end: there are some, but nobody
    knows when, which is not a recording without seizures.
    """

    seizures: tuple[Seizure, ...]
    source: str
    warnings: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    known: bool = True


Reader = Callable[[Path, Path, float], "tuple[Sequence[Seizure], list[str]] | None"]
"""(label file, recording, sampling rate) -> seizures and warnings; None where it does not list the recording."""


def find_labels(path: Path, fs: float, annotations: Sequence[Annotation] = ()) -> Labels | None:
    """The labels of a recording; None where nobody says whether there are seizures.

    Files beside the recording come before annotations within it. Raises DataError, with the line, for a label
    file that contradicts itself.
    """
    for candidate, reader in _candidates(path):
        if candidate.is_file() and candidate.stat().st_size:
            found = reader(candidate, path, fs)
            if found is not None:
                known = bool(found[0]) or not found[1]
                return Labels(merged(found[0]), candidate.name, tuple(found[1]), known=known)
    events = [Event(a.onset_s, a.duration_s, a.text) for a in annotations]
    seizures, odd = pair_up(events, str(path))
    return Labels(merged(seizures), "annotations of the file", notices=tuple(odd)) if seizures else None


def empty_files(path: Path) -> tuple[str, ...]:
    """A remark for each label file of a recording that holds nothing, and so does not tell of no seizures."""
    return tuple(
        f"{candidate.name}: is empty; expected seizures"
        for candidate, _ in _candidates(path)
        if candidate.is_file() and not candidate.stat().st_size
    )


def _candidates(path: Path) -> Iterable[tuple[Path, Reader]]:
    folder, stem = path.parent, path.name.removesuffix("".join(path.suffixes[-1:]))
    bids = re.sub(r"_(eeg|ieeg)$", "", stem)
    yield folder / f"{bids}_events.tsv", read_events
    yield folder / f"{stem}.seizures.tsv", read_events
    yield folder / f"{stem}.tsv", read_events
    yield folder / f"{stem}_a1.tsv", read_seizeit
    yield folder / f"{stem}.csv_bi", read_tusz
    yield folder / f"{stem}.csv", read_tusz
    case = re.match(r"(chb\d\d)", stem)
    if case:
        yield folder / f"{case[1]}-summary.txt", read_chb_summary
    yield folder / f"{path.name}.seizures", read_seizures_file
    patient = re.match(r"([A-Za-z]+\d+)", stem)
    if patient:
        yield folder / f"Seizures-list-{patient[1]}.txt", read_siena_list


def merged(seizures: Iterable[Seizure]) -> tuple[Seizure, ...]:
    """Sorted, with those that overlap as one: labels are given per channel, and by several people."""
    found: list[Seizure] = []
    for seizure in sorted(seizures, key=lambda s: (s.onset_s, s.offset_s)):
        if found and seizure.onset_s <= found[-1].offset_s:
            found[-1] = replace(found[-1], offset_s=max(found[-1].offset_s, seizure.offset_s))
        else:
            found.append(seizure)
    return tuple(found)


def with_labels(recording: Recording, labels: Labels | None) -> Recording:
    """The recording with its labels, cut to where it has data; what was cut is told in its warnings."""
    if labels is None:
        return recording
    end = recording.duration_s
    kept, told = [], []
    for seizure in labels.seizures:
        onset, offset = max(seizure.onset_s, 0.0), min(seizure.offset_s, end)
        if onset >= offset:
            told.append(f"{labels.source}: the seizure at {seizure.onset_s:g} s lies outside of the {end:g} s")
            continue
        if (onset, offset) != (seizure.onset_s, seizure.offset_s):
            was = f"{seizure.onset_s:g} to {seizure.offset_s:g} s"
            told.append(f"{labels.source}: the seizure from {was} is cut to {onset:g} to {offset:g} s")
        kept.append(replace(seizure, onset_s=onset, offset_s=offset))
    return replace(
        recording,
        seizures=tuple(kept),
        labelled=labels.known,
        labels_from=labels.source,
        warnings=(*recording.warnings, *labels.warnings, *told),
        notices=(*recording.notices, *labels.notices),
    )
