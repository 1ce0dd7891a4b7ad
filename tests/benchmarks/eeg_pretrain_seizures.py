"""Planted seizures: train on 18-channel bipolar recordings, detect in unseen people's 19-channel unipolar ones.

    eeg_pretrain_seizures.py [SEED [STEPS]]

Eight simulated people, an hour and six seizures each: five for training (one of them held out for the threshold),
three for the test. Beside the model stand line length and power, with thresholds chosen on the same people, and
the model with the electrodes' positions shuffled. Simulated recordings: no claim about people.
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
from nipstool.eeg_pretrain.report import threshold_line
from nipstool.eeg_pretrain.run_folder import load_run
from nipstool.eeg_pretrain.simulate import write_set

STEPS, TOKENS = 800, 3000
MINUTES, SEIZURES = 60.0, 6
SUBJECTS = ["01", "02", "03", "04", "05", "06", "07", "08"]


def shuffled(recording: Recording, seed: int = 0) -> Recording:
    """The same signals, with each channel's positions taken from another one."""
    order = np.random.default_rng(seed).permutation(len(recording.channels))
    channels = tuple(
        replace(c, anode=recording.channels[n].anode, cathode=recording.channels[n].cathode)
        for c, n in zip(recording.channels, order, strict=True)
    )
    return replace(recording, channels=channels)


def main(seed: int = 0, steps: int = STEPS) -> None:
    """Print event sensitivity, precision, F1 and false alarms a day of each detector, over all test events."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data, run_path = Path(folder, "data"), Path(folder, "run")
        montages = ["bipolar"] * 5 + ["unipolar"] * 3
        write_set(data, SUBJECTS, montages, minutes=MINUTES, seizures=SEIZURES, seed=seed)
        recordings = find([data]).recordings
        train, test = recordings[:5], recordings[5:]
        clock = time.process_time()
        settings = settings_of(Wishes(steps=steps, batch_tokens=TOKENS), seed=0, device="cpu", text_model=None)
        about = run_training(train, run_path, settings, note=print)
        spent, chosen = time.process_time() - clock, about["thresholds"]["model"]
        print(f"seed {seed}: {steps} steps, {spent:.0f} CPU s with thresholds", flush=True)
        print(threshold_line(chosen))
        run = load_run(run_path)
        judged = judge_run(run, test)
        judged["model, positions shuffled"] = judge_run(run, [shuffled(one) for one in test])["model"]
        print("detector\tsensitivity\tprecision\tF1\tFP/24 h\tF1, mean of people")
        for name, found in judged.items():
            events = szcore(found).summary()["events"]
            row = [events["pooled"][key] for key in ("sensitivity", "precision", "f1", "fp_per_day")]
            print("\t".join([name, *(f"{value:.3f}" for value in (*row, events["mean"]["f1"]))]))


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:3]))
