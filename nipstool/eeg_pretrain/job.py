"""From recordings to a RUN: train, choose thresholds on validation recordings, leave everything in one folder."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nipstool import __version__
from nipstool.eeg_pretrain import pictures
from nipstool.eeg_pretrain.config import DETECTORS, Config, Recipe, as_plain
from nipstool.eeg_pretrain.corpus import Corpus, Item
from nipstool.eeg_pretrain.detect import Threshold, Track, thresholds_of, track_of
from nipstool.eeg_pretrain.model import Model
from nipstool.eeg_pretrain.recording import Recording, Seizure
from nipstool.eeg_pretrain.run_folder import RunFolder, save_run
from nipstool.eeg_pretrain.stream import readings
from nipstool.eeg_pretrain.text_model import text_reader
from nipstool.eeg_pretrain.train import LOG, Trained, Trainer, prior_shift, train
from nipstool.kit.distributed import Group, joined
from nipstool.kit.files import StrPath, sha256
from nipstool.kit.parts import part_of
from nipstool.kit.progress import Progress, silent

RECORDINGS = "recordings.tsv"
NOT_CHOSEN = 0.5
SHOWN = 6  # channels of the example
HASHED_BYTES = 4 << 30
MOST_SEEN_H = 12.0  # of the training recordings, for the thresholds


@dataclass(frozen=True)
class Settings:
    """What a training is told."""

    config: Config
    recipe: Recipe
    seed: int = 0
    device: torch.device | str = "cpu"
    half: bool = False
    text_model: str | None = None


@dataclass(frozen=True)
class Stretch:
    """What thresholds are chosen on: the held-out part of a recording, its seizures in its own seconds."""

    track: Track
    seizures: tuple[Seizure, ...]
    duration_s: float


def run_training(
    recordings: Sequence[Recording],
    output: StrPath,
    settings: Settings,
    *,
    force: bool = False,
    resume: bool = False,
    progress: Progress = silent,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Train on recordings and leave a RUN at `output`; returns what its run.json says.

    Raises DataError where nothing can be trained on, NipsError where the loss stops being a number, and the errors
    of an output that cannot be made.
    """
    with joined(str(settings.device)) as group:
        first = group.rank == 0
        folder = RunFolder(output, force=force, resume=resume) if first else nullcontext(_part(output))
        with folder as part:
            group.meet()
            about = _train_in(part, recordings, output, settings, group, resume, progress, note)
        group.meet()
    return about


def _part(output: StrPath) -> Path:
    return part_of(Path(output).resolve())


def _train_in(
    part: Path,
    recordings: Sequence[Recording],
    output: StrPath,
    settings: Settings,
    group: Group,
    resume: bool,
    progress: Progress,
    note: Callable[[str], None],
) -> dict[str, Any]:
    config, recipe = settings.config, settings.recipe
    reader = None
    if settings.text_model is not None:
        reader, width = text_reader(settings.text_model)
        config = replace(config, text_width=width)
    corpus = Corpus(recordings, config, recipe, recipe.context or config.context)
    device = torch.device(settings.device)
    trainer = Trainer(corpus, config, recipe, settings.seed, device, settings.half, group)
    if reader is not None:
        trainer.read_texts = reader
    same = {"config": as_plain(config), "recipe": as_plain(recipe), "seed": settings.seed}
    same["recordings"] = [recording.path.name for recording in recordings]
    done = train(trainer, part, _as_json(same), resume=resume, told=str(output), progress=progress)
    if group.rank > 0:
        return {}
    return _finish(part, corpus, trainer, done, settings, note)


def _as_json(value: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from JSON: tuples are lists there."""
    return json.loads(json.dumps(value))


def _finish(
    part: Path,
    corpus: Corpus,
    trainer: Trainer,
    done: Trained,
    settings: Settings,
    note: Callable[[str], None],
) -> dict[str, Any]:
    shift = prior_shift(corpus, trainer.recipe, trainer.seed) if corpus.has_seizures else 0.0
    model = done.model.eval()
    chosen = _thresholds(model, corpus, shift)
    if corpus.has_seizures and chosen["model"] is None:
        note(f"no held-out recording has a seizure: the threshold stays {NOT_CHOSEN}, chosen on nothing")
    about = {
        "nipstool": __version__,
        "labelled": corpus.has_seizures,
        "shift": shift,
        "thresholds": {name: _plain(threshold) for name, threshold in chosen.items()},
        "split": corpus.split,
        "held_out": sorted(corpus.held_out),
        "steps": done.steps,
        "skipped": done.skipped,
        "stopped_early": done.stopped_early,
        "validation": {name: value for name, value in done.validation.items() if np.isfinite(value)},
        "parameters": sum(p.numel() for p in model.parameters()),
        "recordings": len(corpus.recordings),
        "hours": round(sum(r.duration_s for r in corpus.recordings) / 3600.0, 3),
        "recipe": as_plain(trainer.recipe),
        "seed": trainer.seed,
        "text_model": settings.text_model,
        "text_fields": sorted({field for text in trainer.texts for field in text}),
    }
    (part / RECORDINGS).write_text(_table(corpus), encoding="utf-8", errors="backslashreplace")
    pictures.draw_losses(part / LOG, part / "loss.png")
    pictures.draw_example(example_of(trainer), part / "example.png")
    save_run(part, model, about)
    return about


def _thresholds(model: Model, corpus: Corpus, shift: float) -> Mapping[str, Threshold | None]:
    """The model's and the plain detectors' thresholds; none where no held-out seizure could choose them."""
    with_seizures = any(item.seizures for item in corpus.validation)
    if not (corpus.has_seizures and with_seizures):
        return dict.fromkeys(DETECTORS)
    items = [item for item in corpus.train if corpus.recordings[item.number].labelled]
    hours = sum(map(len, items)) * corpus.config.token_s / 3600.0
    held = stretches(model, corpus, corpus.validation, shift)
    seen = stretches(model, corpus, items[:: max(1, math.ceil(hours / MOST_SEEN_H))], shift)
    return thresholds_of(([s.track for s in held], held), ([s.track for s in seen], seen))


def stretches(model: Model, corpus: Corpus, items: Sequence[Item], shift: float) -> list[Stretch]:
    """The model's and the plain detectors' scores on the labelled ones of some items."""
    token_s, found = corpus.config.token_s, []
    for number in sorted({item.number for item in items if corpus.recordings[item.number].labelled}):
        recording = corpus.recordings[number]
        track = track_of(readings(model, recording, shift=shift), recording.duration_s, corpus.config)
        for item in (item for item in items if item.number == number):
            start = item.segment.start_s
            first, last = math.ceil(start + item.first * token_s), math.floor(start + item.last * token_s)
            found.append(_stretch(recording, track, first, last))
    return found


def _stretch(recording: Recording, track: Track, first: int, last: int) -> Stretch:
    """Seconds first to last of a recording."""
    seizures = tuple(
        Seizure(max(s.onset_s, first) - first, min(s.offset_s, last) - first)
        for s in recording.seizures
        if s.offset_s > first and s.onset_s < last
    )
    parts = (getattr(track, name)[first:last] for name in ("model", "line_length", "power", "onset", "risk"))
    return Stretch(Track(*parts), seizures, float(last - first))


def _plain(threshold: Threshold | None) -> Mapping[str, Any]:
    """NaN has no place in JSON: what is not defined is null."""
    if threshold is None:
        return {"value": NOT_CHOSEN, "chosen": False}
    counts = threshold.counts
    numbers = {"f1": counts.f1, "sensitivity": counts.sensitivity, "fp_per_day": counts.fp_per_day}
    plain = {name: value if value == value else None for name, value in numbers.items()}
    return {"value": threshold.value, "chosen": True, "events": counts.ref, **plain}


def _table(corpus: Corpus) -> str:
    rows = ["file\tsubject\tsplit\tseconds\teeg\tother\tseizures\tlabelled"]
    for recording, choice in zip(corpus.recordings, corpus.choices, strict=True):
        side = "validation" if recording.subject in corpus.held_out else "train"
        eeg = int((choice.placement.kind == 0).sum())
        other = len(choice.numbers) - eeg
        cells = (recording.path.name, recording.subject, side if corpus.split == "subject" else "both")
        numbers = (f"{recording.duration_s:.2f}", eeg, other, len(recording.seizures), int(recording.labelled))
        rows.append("\t".join(map(str, (*cells, *numbers))))
    return "\n".join(rows) + "\n"


def fingerprints(recordings: Sequence[Recording]) -> dict[str, str]:
    """The SHA-256 of each file; of its first MiB where all of them together are large."""
    files = [recording.path for recording in recordings if recording.path.is_file()]
    if sum(file.stat().st_size for file in files) <= HASHED_BYTES:
        return {str(file): sha256(file) for file in files}
    found = {}
    for file in files:
        with open(file, "rb") as opened:
            found[str(file)] = "first MiB: " + hashlib.sha256(opened.read(1 << 20)).hexdigest()
    return found


@torch.no_grad()
def example_of(trainer: Trainer) -> pictures.Example:
    """A held-out window with the most seizure in it, and what the averaged model predicted."""
    corpus = trainer.corpus
    groups = corpus.fixed(corpus.validation or corpus.train, 48)
    windows = [window for group in groups for window in group]
    best = max(windows, key=lambda w: float(w.item.targets.seizure[w.first : w.last].sum()))
    outputs, signals, _ = trainer.outputs(trainer.average, [best])
    rows = [n for n in range(signals.x.shape[1]) if int(signals.kind[0, n]) == 0][:SHOWN]
    guess = (outputs.next_patch * signals.scale[..., None])[0, rows, :-1].flatten(1)
    names = [
        corpus.recordings[best.item.number].channels[n].label for n in corpus.choices[best.item.number].numbers
    ]
    shown = [names[n] for n in rows]
    return pictures.Example(
        shown, signals.x[0, rows, 1:].flatten(1).cpu().numpy(), guess.cpu().numpy(), corpus.config.fs
    )
