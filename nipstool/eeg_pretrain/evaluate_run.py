"""A run judged on labelled recordings: its stored head, a linear probe if asked, always the plain detectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nipstool.eeg_pretrain import probe as linear
from nipstool.eeg_pretrain.apply import texts_for
from nipstool.eeg_pretrain.baselines import PLAIN, window_scores
from nipstool.eeg_pretrain.detect import Track, choose_threshold, events_of, track_of, trailing_mean
from nipstool.eeg_pretrain.embed import Embedded, embed
from nipstool.eeg_pretrain.evaluation import WINDOW_S, Judged, folds_of, window_count
from nipstool.eeg_pretrain.recording import Recording
from nipstool.eeg_pretrain.run_folder import Run
from nipstool.eeg_pretrain.stream import readings
from nipstool.kit.errors import DataError
from nipstool.kit.progress import Progress, silent


@dataclass(frozen=True)
class Looked:
    """What a run says about one recording."""

    recording: Recording
    track: Track
    embedded: Embedded | None


def judge_run(
    run: Run,
    recordings: Sequence[Recording],
    *,
    with_probe: bool = False,
    with_text: bool = False,
    folds: int = 5,
    progress: Progress = silent,
) -> dict[str, list[Judged]]:
    """Every detector's events and window scores: "model" (where it learned from labels), "probe", and PLAIN.

    Thresholds of the model and of PLAIN are the run's; the probe's is chosen on the folds it was fitted to.
    Raises DataError where nothing is labelled, or where there is neither a detector nor a probe.
    """
    known = [recording for recording in recordings if recording.labelled]
    if not known:
        raise DataError("no recording has seizure labels; expected labels beside the recordings")
    if not (run.labelled or with_probe):
        raise DataError(
            f"{run.path}: was trained without seizure labels, so it cannot detect; --probe fits a probe"
        )
    looked, texts = [], texts_for(run, known, with_text)
    for number, (recording, text) in enumerate(zip(known, texts, strict=True)):
        looked.append(_look(run, recording, text, with_probe))
        progress(number + 1, len(known))
    found = {}
    if run.labelled:
        found["model"] = [_judged(one, "model", run) for one in looked]
    if with_probe:
        found["probe"] = _probed(looked, folds)
    return {**found, **{name: [_judged(one, name, run) for one in looked] for name in PLAIN}}


def _look(run: Run, recording: Recording, text: Any, with_probe: bool) -> Looked:
    found = readings(run.model, recording, shift=run.about["shift"], text=text)
    if not with_probe:  # nothing is kept but seconds
        return Looked(recording, track_of(found, recording.duration_s, run.config), None)
    kept = list(found)
    track = track_of(kept, recording.duration_s, run.config)
    return Looked(recording, track, embed(kept, run.config, WINDOW_S, WINDOW_S))


def _judged(one: Looked, detector: str, run: Run) -> Judged:
    scores = trailing_mean(one.track.scores(detector))
    chosen = run.about["thresholds"][detector]
    plain_and_unknown = detector != "model" and not chosen["chosen"]
    threshold = float("inf") if plain_and_unknown else chosen["value"]
    events = tuple((e.onset_s, e.offset_s) for e in events_of(scores, threshold))
    count = window_count(one.recording.duration_s)
    by_window = window_scores(one.track.scores(detector), WINDOW_S, count)
    if detector != "model":  # monotone, into [0, 1], the threshold at one half
        by_window = by_window / (by_window + (1.0 if plain_and_unknown else threshold))
    return _as_judged(one.recording, events, by_window)


def _as_judged(recording: Recording, events: tuple[tuple[float, float], ...], scores: np.ndarray) -> Judged:
    return Judged(recording.path.name, recording.subject, recording.duration_s, recording.seizures, events, scores)


def _probed(looked: Sequence[Looked], folds: int) -> list[Judged]:
    place = folds_of([one.recording.subject for one in looked], folds)
    fold = [place[one.recording.subject] for one in looked]
    if len(set(fold)) < 2:
        raise DataError("--probe needs labelled recordings of at least two subjects")
    X, y, at = zip(*(_windows(one) for one in looked), strict=True)
    p = linear.cross_fitted(X, y, fold)
    seconds = [_by_second(one.recording, rows, starts) for one, rows, starts in zip(looked, p, at, strict=True)]
    judged = []
    for n, one in enumerate(looked):
        others = [k for k in range(len(looked)) if fold[k] != fold[n]]
        chosen = choose_threshold([seconds[k] for k in others], [looked[k].recording for k in others])
        events = tuple((e.onset_s, e.offset_s) for e in events_of(seconds[n], chosen.value)) if chosen else ()
        count = window_count(one.recording.duration_s)
        judged.append(_as_judged(one.recording, events, window_scores(seconds[n], WINDOW_S, count)))
    return judged


def _windows(one: Looked) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings of whole windows, their labels, and where they begin."""
    assert one.embedded is not None
    starts = one.embedded.start_s
    labels = np.zeros(len(starts), bool)
    for number, start in enumerate(starts):
        shifted = [s for s in one.recording.seizures if s.offset_s > start and s.onset_s < start + WINDOW_S]
        covered = sum(min(s.offset_s, start + WINDOW_S) - max(s.onset_s, start) for s in shifted)
        labels[number] = covered >= 0.5 * WINDOW_S
    return one.embedded.embeddings, labels, starts


def _by_second(recording: Recording, p: np.ndarray, starts: np.ndarray) -> np.ndarray:
    found = np.zeros(max(1, int(np.ceil(recording.duration_s))))
    for start, value in zip(starts, p, strict=True):
        found[int(start) : int(start + WINDOW_S)] = value
    return found
