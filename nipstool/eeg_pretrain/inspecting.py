"""What would be read from a file, in one line: montage, units, gaps, labels, and what is odd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nipstool.eeg_pretrain.opening import has_place
from nipstool.eeg_pretrain.recording import Problem, Recording, as_plain

COLUMNS = ("file", "read", "EEG", "placed", "Hz", "montage", "beside", "length", "segments", "seizures", "remarks")
SHOWN = 160  # characters of remarks in the table; the JSON document has them all


def shown_names(paths: Sequence[Path], data: Sequence[str]) -> list[str]:
    """Base names; of equal ones the paths below the folder given, and where these are equal, whole ones."""
    folders = [Path(name) for name in data]

    def below(path: Path) -> str:
        return next((str(path.relative_to(folder)) for folder in folders if folder in path.parents), str(path))

    names = [path.name for path in paths]
    for longer in (below, str):
        count = Counter(names)
        names = [longer(path) if count[name] > 1 else name for path, name in zip(paths, names, strict=True)]
    return names


def row(recording: Recording, name: str) -> tuple[str, ...]:
    """One recording as a line of COLUMNS, under a name that tells it from the others."""
    eeg = [recording.channels[number] for number in recording.of_kind("eeg")]
    bipolar = sum(channel.bipolar for channel in eeg)
    kinds = Counter(channel.kind for channel in recording.channels if channel.kind != "eeg")
    remarks = "; ".join((*recording.warnings, *recording.notices))
    return (
        name,
        recording.format,
        str(len(eeg)),
        str(sum(has_place(channel) for channel in eeg)),
        "/".join(f"{fs:g}" for fs in sorted({channel.fs for channel in eeg})),
        "bipolar" if bipolar == len(eeg) else "unipolar" if not bipolar else f"{bipolar} bipolar",
        " ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "-",
        clock(recording.duration_s),
        str(len(recording.segments)),
        seizures(recording),
        remarks if len(remarks) <= SHOWN else remarks[: SHOWN - 3] + "...",
    )


def problem_row(problem: Problem, name: str) -> tuple[str, ...]:
    """A file that is left out, as a line of COLUMNS."""
    return (name, "no", *["-"] * (len(COLUMNS) - 3), problem.reason)


def seizures(recording: Recording) -> str:
    """How many are labelled and where; '-' where nobody looked."""
    if not recording.labelled:
        return "-"
    return f"{len(recording.seizures)} ({recording.labels_from})"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(3723.5)
    '1:02:03.5'
    """
    minutes, rest = divmod(round(seconds, 1), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{rest:04.1f}".removesuffix(".0")


def document(recording: Recording) -> dict[str, Any]:
    """Everything `inspect` knows, for JSON. A person's name is not part of a recording."""
    placed = sum(has_place(recording.channels[number]) for number in recording.of_kind("eeg"))
    return {"read": True, **as_plain(recording), "eeg": len(recording.of_kind("eeg")), "placed": placed}


def problem_document(problem: Problem) -> dict[str, Any]:
    """A file that is left out, for JSON."""
    return {"read": False, "path": problem.path, "reason": problem.reason}
