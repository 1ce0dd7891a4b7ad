"""What several verbs do alike: open recordings, say what is left out, load a run, judge a detector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nipstool.eeg_pretrain.discover import failure, find
from nipstool.eeg_pretrain.recording import Found
from nipstool.kit.errors import DataError
from nipstool.kit.files import sha256, spooled_input
from nipstool.kit.progress import Progress

if TYPE_CHECKING:
    from nipstool.eeg_pretrain.evaluation import Judged
    from nipstool.eeg_pretrain.run_folder import Run

RUN_FILES = ("run.json", "model.safetensors")


class Voice(Protocol):
    """Where warnings and progress go."""

    def warn(self, text: str) -> None:
        """Say a line about something that may not be as the user thinks."""
        ...

    def progress(self, label: str) -> AbstractContextManager[Progress]:
        """Show the progress of a piece of work."""
        ...


@contextmanager
def opened(voice: Voice, data: Sequence[str], *, none_is_fine: bool = False) -> Iterator[Found]:
    """The recordings of DATA; what '-' was copied to lives as long as the block.

    Files that are left out are warned of. Raises DataError or InputMissingError where nothing is left, unless
    `none_is_fine`: then nothing is said of files either.
    """
    with ExitStack() as stack:
        names = [str(stack.enter_context(spooled_input(name))) if name == "-" else name for name in data]
        with voice.progress("read") as show:
            found = find(names, show)
        spooled = {Path(name) for name, given in zip(names, data, strict=True) if given == "-"}
        problems = [replace(p, path=Path("-")) if p.path in spooled else p for p in found.problems]
        recordings = [
            replace(r, path=Path("-"), subject="-") if r.path in spooled else r for r in found.recordings
        ]
        found = replace(found, recordings=recordings, problems=problems)
        warn_skipped(voice, found)
        if not none_is_fine:
            _refuse_nothing(found, data)
            warn_problems(voice, found)
        yield found


def _refuse_nothing(found: Found, data: Sequence[str]) -> None:
    failed = failure(found, data)
    if failed is not None and not found.recordings:
        raise failed


def warn_problems(voice: Voice, found: Found) -> None:
    """A line for each file that is left out."""
    for problem in found.problems:
        voice.warn(f"{problem.path}: {problem.reason}")


def warn_skipped(voice: Voice, found: Found) -> None:
    """A line for each folder that is not looked through."""
    for folder in found.skipped:
        voice.warn(f"{folder}: is not read, being no raw data; name it to read it")


def raise_failure(found: Found, data: Sequence[str], strict: bool) -> None:
    """Once the rest is done: DataError or InputMissingError for files that were named, or any with `strict`."""
    failed = failure(found, data, strict=strict)
    if failed is not None and found.problems:
        raise failed


def is_run(path: str) -> bool:
    """Whether a folder is one that training wrote."""
    return (Path(path) / RUN_FILES[0]).is_file()


def loaded_run(path: str, device: str) -> tuple[Run, str]:
    """The run in a folder, and the name of the device it is on."""
    from nipstool.eeg_pretrain.run_folder import load_run
    from nipstool.kit.runtime import choose_device

    where = choose_device(device)
    return load_run(path, where), str(where)


def inputs_of(run: Run, found: Found) -> dict[str, str]:
    """What a manifest says of the inputs: the run's files, and the recordings."""
    from nipstool.eeg_pretrain.job import fingerprints

    return {str(run.path / name): sha256(run.path / name) for name in RUN_FILES} | fingerprints(found.recordings)


def judge_run(
    voice: Voice, target: str, data: Sequence[str], device: str, *, with_probe: bool, with_text: bool, folds: int
) -> tuple[dict[str, list[Judged]], Found]:
    """Judge a run's detectors on the labelled ones of DATA."""
    from nipstool.eeg_pretrain import evaluate_run

    run, _ = loaded_run(target, device)
    how = {"with_probe": with_probe, "with_text": with_text, "folds": folds}
    with opened(voice, data) as found, voice.progress("evaluate") as show:
        unlabelled = [one.path.name for one in found.recordings if not one.labelled]
        _warn_left_out(voice, "recordings have no labels and are left out", unlabelled)
        return evaluate_run.judge_run(run, found.recordings, progress=show, **how), found


def judge_predictions(voice: Voice, target: str, data: Sequence[str]) -> tuple[dict[str, list[Judged]], Found]:
    """Judge the events of any detector, beside line length and power where there are signals."""
    from nipstool.eeg_pretrain.predictions import beside, match, read_predictions, references

    told = read_predictions(Path(target))
    with voice.progress("read") as show:
        known, found, unlabelled = references(list(data), show)
    warn_skipped(voice, found)
    failed = failure(found, data)
    if failed is not None and found.problems and not known:
        raise failed
    warn_problems(voice, found)
    matched = match(told, known)
    _warn_left_out(voice, "recordings have no labels and are left out", unlabelled)
    _warn_left_out(voice, "labelled recordings have no prediction and are left out", matched.missing)
    _warn_left_out(voice, "predictions have no labelled recording", [p.name for p in matched.unused])
    if not matched.judged:
        expected = f"one named like {known[0].stem}" if known else "labels beside the recordings"
        raise DataError(f"{target}: no prediction has a labelled recording; expected {expected}")
    with voice.progress("line length and power") as show:
        plain = beside(matched.references, show)
    if not plain:
        voice.warn("there are no signals beside the labels: line length and power are not scored")
    return {"predictions": matched.judged, **plain}, found


def _warn_left_out(voice: Voice, what: str, names: Sequence[str]) -> None:
    if names:
        voice.warn(f"{len(names)} {what}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}")
