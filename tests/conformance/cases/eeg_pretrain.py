"""The verbs of eeg-pretrain."""

from pathlib import Path

import numpy as np

from tests.conformance.cases.case import Case


def a_recording(folder: Path) -> None:
    """Twelve seconds of two channels of noise."""
    from nipstool.eeg_pretrain.edf_writer import write_edf

    noise = 20.0 * np.random.default_rng(0).standard_normal((2, 12 * 128))
    write_edf(folder / "r.edf", ["EEG Fp1", "EEG O2"], noise, 128.0)


def a_run(folder: Path) -> None:
    """A recording with a labelled seizure, and an untrained model in a run of eeg-pretrain."""
    import torch

    from nipstool.eeg_pretrain.config import Config
    from nipstool.eeg_pretrain.model import Model
    from nipstool.eeg_pretrain.run_folder import save_run

    a_recording(folder)
    (folder / "r.seizures.tsv").write_text("onset\tduration\teventType\n4.0\t5.0\tsz\n")
    torch.manual_seed(0)
    thresholds = {name: {"value": 0.5, "chosen": False} for name in ("model", "line length", "power")}
    (folder / "run").mkdir()
    model = Model(Config(d=16, layers=1, heads=2, bilinear=8))
    save_run(folder / "run", model, {"labelled": True, "thresholds": thresholds, "shift": 0.0})


def some_events(folder: Path) -> None:
    """Two seizures of a recording, and what a detector says of them."""
    columns = "onset\tduration\teventType\tconfidence\tchannels\tdateTime\trecordingDuration\n"
    rest = "n/a\tn/a\t3600.00\n"
    for name, rows in (("ref", ((600, 60, 1), (1800, 30, 1))), ("hyp", ((590, 40, 0.9), (3000, 20, 0.4)))):
        (folder / name).mkdir()
        lines = "".join(f"{onset}\t{duration}\tsz\t{p}\t{rest}" for onset, duration, p in rows)
        (folder / name / "r_events.tsv").write_text(columns + lines)


def embeddings(path: Path) -> bytes:
    """What an .npz holds besides the names of files."""
    with np.load(path) as arrays:
        return arrays["embeddings"].tobytes()


def weights(path: Path) -> bytes:
    """The model in a run."""
    return (path / "model.safetensors").read_bytes()


RUN = ("run/run.json", "run/model.safetensors")


CASES = [
    Case(
        "eeg-pretrain",
        None,
        ("r.edf", "--steps", "2", "--batch-tokens", "16", "--split", "time", "--threads", "1"),
        a_recording,
        inputs=("r.edf",),
        output="run",
        folder=True,
        reads_stdin=True,
        setting=("--seed", "1", "2", "3"),
        halves_are_bad=False,
        essence=weights,
    ),
    Case(
        "eeg-pretrain",
        "inspect",
        ("r.edf",),
        a_recording,
        inputs=("r.edf",),
        reads_stdin=True,
        setting=("--json", "", "1", "true"),
        halves_are_bad=False,
    ),
    Case(
        "eeg-pretrain",
        "embed",
        ("run", "r.edf", "--window", "2", "--hop", "2"),
        a_run,
        inputs=("r.edf", *RUN),
        output="windows.npz",
        reads_stdin=True,
        writes_stdout=True,
        setting=("--threads", "1", "2", "3"),
        halves_are_bad=False,
        essence=embeddings,
    ),
    Case(
        "eeg-pretrain",
        "detect",
        ("run", "r.edf"),
        a_run,
        inputs=("r.edf", *RUN),
        output="events",
        folder=True,
        setting=("--threshold", "0.25", "0.75", "0.875"),
        halves_are_bad=False,
    ),
    Case(
        "eeg-pretrain",
        "detect",
        ("run", "r.edf"),
        a_run,
        inputs=("r.edf", *RUN),
        reads_stdin=True,
        setting=("--threshold", "0.25", "0.75", "0.875"),
        halves_are_bad=False,
    ),
    Case(
        "eeg-pretrain",
        "evaluate",
        ("run", "r.edf"),
        a_run,
        inputs=("run/model.safetensors", "r.edf"),
        setting=("--folds", "2", "3", "4"),
        halves_are_bad=False,
    ),
    Case(
        "eeg-pretrain",
        "evaluate",
        ("hyp/r_events.tsv", "ref/r_events.tsv"),
        some_events,
        inputs=("hyp/r_events.tsv", "ref/r_events.tsv"),
        setting=("--folds", "2", "3", "4"),
        halves_are_bad=False,
    ),
]
