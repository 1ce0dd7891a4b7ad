"""A planted pre-ictal cue: whether the risk of a seizure within a minute beats the base rate (Brier skill).

Simulated people, one seizure each; a rhythm of 11 Hz begins 60 s before it. Skill = 1 - BS / BS of the base rate
of the training recordings, on unseen people, over the seconds before the seizure.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from nipstool.eeg_pretrain.choices import Wishes, settings_of
from nipstool.eeg_pretrain.detect import track_of
from nipstool.eeg_pretrain.discover import find
from nipstool.eeg_pretrain.job import run_training
from nipstool.eeg_pretrain.recording import Recording
from nipstool.eeg_pretrain.run_folder import load_run
from nipstool.eeg_pretrain.simulate import write_set
from nipstool.eeg_pretrain.stream import readings

HORIZON_S, CUE_S, KNOWN, UNSEEN = 60.0, 60.0, 8, 4


def outcomes(recording: Recording) -> np.ndarray:
    """For each second before the seizure, whether it begins within the horizon."""
    onset = recording.seizures[0].onset_s
    return onset - np.arange(1, int(onset) + 1) <= HORIZON_S


def main(steps: int = 300, minutes: float = 10.0) -> None:
    """Print the skill."""
    torch.set_num_threads(1)
    names = [f"{n:02d}" for n in range(1, KNOWN + UNSEEN + 1)]
    with tempfile.TemporaryDirectory() as folder:
        data, run_path = Path(folder, "data"), Path(folder, "run")
        write_set(data, names, ["bipolar"] * len(names), minutes=minutes, seizures=1, seed=1, cue_s=CUE_S)
        recordings = find([data]).recordings
        train, test = recordings[:KNOWN], recordings[KNOWN:]
        settings = settings_of(Wishes(steps=steps, batch_tokens=3000), seed=0, device="cpu", text_model=None)
        run_training(train, run_path, settings, note=print)
        run = load_run(run_path)
        base = np.concatenate([outcomes(r) for r in train]).mean()
        p, y = [], []
        for recording in test:
            truth = outcomes(recording)
            p.append(
                track_of(readings(run.model, recording), recording.duration_s, run.config).risk[: len(truth), 0]
            )
            y.append(truth)
        scores, truth = np.concatenate(p), np.concatenate(y)
        skill = 1.0 - np.square(scores - truth).mean() / np.square(base - truth).mean()
        print(f"{steps} steps: Brier skill {skill:.3f} over {len(truth)} s, base rate {base:.3f} (above 0)")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
