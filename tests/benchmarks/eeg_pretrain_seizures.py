"""Planted seizures: train on 18-channel bipolar recordings, detect in unseen people's 19-channel unipolar ones.

Five simulated people for training (one of them held out for the threshold), three for the test. Beside the model
stand line length and power, with thresholds chosen on the same held-out person, and the model with the electrodes'
positions shuffled. Simulated recordings: no claim about people.
"""

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nipstool.eeg_pretrain.choices import Wishes, settings_of
from nipstool.eeg_pretrain.discover import find
from nipstool.eeg_pretrain.evaluate_run import judge_run
from nipstool.eeg_pretrain.evaluation import szcore
from nipstool.eeg_pretrain.job import run_training
from nipstool.eeg_pretrain.recording import Recording
from nipstool.eeg_pretrain.run_folder import load_run
from nipstool.eeg_pretrain.scoring import total
from nipstool.eeg_pretrain.simulate import write_set

STEPS, TOKENS = 80, 3000
SUBJECTS = ["01", "02", "03", "04", "05", "06", "07", "08"]


def shuffled(recording: Recording, seed: int = 0) -> Recording:
    """The same signals, with each channel's positions taken from another one."""
    order = np.random.default_rng(seed).permutation(len(recording.channels))
    channels = tuple(
        replace(c, anode=recording.channels[n].anode, cathode=recording.channels[n].cathode)
        for c, n in zip(recording.channels, order, strict=True)
    )
    return replace(recording, channels=channels)


def main(steps: int = STEPS, minutes: float = 20.0, seizures: int = 2) -> None:
    """Print event sensitivity, precision, F1 and false alarms a day of each detector."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data, run_path = Path(folder, "data"), Path(folder, "run")
        write_set(data, SUBJECTS, ["bipolar"] * 5 + ["unipolar"] * 3, minutes=minutes, seizures=seizures, seed=0)
        recordings = find([data]).recordings
        train, test = recordings[:5], recordings[5:]
        clock = time.process_time()
        settings = settings_of(Wishes(steps=steps, batch_tokens=TOKENS), seed=0, device="cpu", text_model=None)
        about = run_training(train, run_path, settings, note=print)
        chosen = about["thresholds"]["model"]
        print(f"{steps} steps, {time.process_time() - clock:.0f} CPU s; threshold {chosen}", flush=True)
        run = load_run(run_path)
        judged = judge_run(run, test)
        judged["model, positions shuffled"] = judge_run(run, [shuffled(one) for one in test])["model"]
        print("detector\tsensitivity\tprecision\tF1\tFP/24 h")
        for name, found in judged.items():
            counts = total(szcore(found).events.values())
            row = (counts.sensitivity, counts.precision, counts.f1, counts.fp_per_day)
            print("\t".join([name, *(f"{value:.3f}" for value in row)]))


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
