"""A run applied to recordings: embeddings and detections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nipstool.eeg_pretrain.detect import events_of, track_of, trailing_mean
from nipstool.eeg_pretrain.embed import Embedded, embed
from nipstool.eeg_pretrain.outputs import Detected
from nipstool.eeg_pretrain.recording import Recording
from nipstool.eeg_pretrain.run_folder import Run
from nipstool.eeg_pretrain.stream import PIECE_S, WHOLE_S, readings
from nipstool.eeg_pretrain.text_model import text_reader
from nipstool.kit.errors import DataError
from nipstool.kit.progress import Progress, silent

LONGEST_WHOLE_S = 1800.0  # a longer segment goes through piece by piece, asked or not


def texts_for(run: Run, recordings: Sequence[Recording], asked: bool) -> list[Any]:
    """What is told of each recording: nothing unless asked; vectors where the run has a text model."""
    if not asked:
        return [None for _ in recordings]
    if run.about.get("text_model"):
        read, _ = text_reader(run.about["text_model"])
        return [read([recording.text]) if recording.text else None for recording in recordings]
    return [recording.text or None for recording in recordings]


def embed_recording(
    run: Run,
    recording: Recording,
    *,
    window_s: float,
    hop_s: float,
    stream: bool,
    text: Any = None,
    progress: Progress = silent,
) -> Embedded:
    """Embeddings of one recording; with `stream` in pieces through the recurrent state, at flat memory."""
    piece_s = PIECE_S if stream or recording.duration_s > LONGEST_WHOLE_S else WHOLE_S
    found = readings(run.model, recording, piece_s=piece_s, text=text, progress=progress)
    return embed(found, run.config, window_s, hop_s)


def detect_recording(
    run: Run, recording: Recording, threshold: float, *, text: Tensor | Any = None, progress: Progress = silent
) -> Detected:
    """Events and risk of one recording, at flat memory. Raises DataError where the run cannot detect."""
    require_detector(run)
    found = readings(run.model, recording, text=text, shift=run.about["shift"], progress=progress)
    track = track_of(found, recording.duration_s, run.config)
    smoothed = trailing_mean(track.model)
    return Detected(recording, track, smoothed, events_of(smoothed, threshold))


def require_detector(run: Run) -> None:
    """Raises DataError where the run has never seen a seizure label."""
    if not run.labelled:
        raise DataError(f"{run.path}: was trained without seizure labels, so it cannot detect; embed works")
