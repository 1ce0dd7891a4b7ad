"""Training: killed and resumed it is the same to the last bit, two ranks are one, and it learns."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nipstool.eeg_pretrain import objectives
from nipstool.eeg_pretrain.choices import Wishes, settings_of
from nipstool.eeg_pretrain.config import DETECTORS, Config, Recipe
from nipstool.eeg_pretrain.corpus import Corpus
from nipstool.eeg_pretrain.discover import find
from nipstool.eeg_pretrain.job import Settings, run_training
from nipstool.eeg_pretrain.recording import Recording
from nipstool.eeg_pretrain.run_folder import load_run
from nipstool.eeg_pretrain.simulate import write_set
from nipstool.eeg_pretrain.tokenizer import Placement
from nipstool.eeg_pretrain.train import MOST_SKIPPED, Trainer
from nipstool.kit.errors import DataError, NipsError, UsageError

SMALL = Config(d=16, layers=1, heads=2, latents=2, bilinear=8, context=32)
QUICK = Recipe(steps=6, batch_tokens=512, validate_every=2, split="subject")
STEPS = ("--steps", "12", "--batch-tokens", "256", "--validate-every", "3", "--context", "8", "--threads", "1")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set")
    write_set(folder, ["01", "02", "03"], ["bipolar", "unipolar", "bipolar"], minutes=1.5, seizures=1, seed=0)
    return folder


@pytest.fixture(scope="module")
def recordings(data: Path) -> list[Recording]:
    return find([data]).recordings


def trainer_of(recordings: list[Recording], recipe: Recipe = QUICK, seed: int = 0) -> Trainer:
    return Trainer(Corpus(recordings, SMALL, recipe, 32), SMALL, recipe, seed, torch.device("cpu"), False)


def test_a_killed_run_resumes_to_the_same_bits(data: Path, recordings: list[Recording], tmp_path: Path) -> None:
    wishes = Wishes(steps=12, batch_tokens=256, validate_every=3, context_s=8.0)
    settings = settings_of(wishes, seed=3, device="cpu", text_model=None)
    run_training(recordings, tmp_path / "whole", settings)
    words = [
        sys.executable,
        "-m",
        "nipstool",
        "eeg-pretrain",
        str(data),
        "-o",
        str(tmp_path / "run"),
        "--seed",
        "3",
    ]
    process = subprocess.Popen([*words, *STEPS, "-q"], cwd=tmp_path)
    part = tmp_path / ".run.part"
    while not (part / "checkpoint.safetensors").exists():
        assert process.poll() is None, "it ended before there was a checkpoint"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "run").exists()
    done = len((part / "log.ndjson").read_text().splitlines())
    assert 3 <= done < 12 + 4
    run_training(recordings, tmp_path / "run", settings, resume=True)
    for name in ("log.ndjson", "model.safetensors", "run.json", "loss.png"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert sorted(os.listdir(tmp_path)) == ["run", "whole"]


def test_resume_refuses_other_settings(recordings: list[Recording], tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise Stop

    settings = Settings(SMALL, QUICK)
    with pytest.raises(Stop):
        run_training(recordings, tmp_path / "run", settings, progress=stop)
    assert (tmp_path / ".run.part" / "checkpoint.safetensors").is_file()
    with pytest.raises(UsageError, match="other recipe"):
        run_training(
            recordings, tmp_path / "run", replace(settings, recipe=replace(QUICK, rate=1e-4)), resume=True
        )
    run_training(recordings, tmp_path / "run", settings)  # without --resume it starts anew
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize("size", [0, 10, None])
def test_resume_refuses_a_log_that_is_shorter_than_its_checkpoint_says(
    recordings: list[Recording], tmp_path: Path, size: int | None
) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    settings = Settings(SMALL, QUICK)
    with pytest.raises(KeyboardInterrupt):
        run_training(recordings, tmp_path / "run", settings, progress=stop)
    log = tmp_path / ".run.part" / "log.ndjson"
    if size is None:
        log.unlink()
    else:
        os.truncate(log, size)
    with pytest.raises(
        DataError, match=rf"log\.ndjson: holds {size or 0} bytes; expected the \d+ of the checkpoint"
    ):
        run_training(recordings, tmp_path / "run", settings, resume=True)
    assert (log.stat().st_size if log.exists() else None) == size


def rank(number: int, port: int, recordings: list[Recording], out: Path) -> None:
    os.environ.update(
        RANK=str(number), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="t"
    )
    run_training(recordings, out, Settings(SMALL, replace(QUICK, steps=4)))


def test_two_ranks_are_one(recordings: list[Recording], tmp_path: Path) -> None:
    run_training(recordings, tmp_path / "one", Settings(SMALL, replace(QUICK, steps=4)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank, args=(n, port, recordings, tmp_path / "two")) for n in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0, 0]
    one, two = (load_run(tmp_path / name).model.state_dict() for name in ("one", "two"))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) <= 1e-6
    losses = []
    for name in ("one", "two"):
        lines = [json.loads(line) for line in (tmp_path / name / "log.ndjson").read_text().splitlines()]
        losses.append([line["loss"] for line in lines if "loss" in line])
    assert len(losses[0]) == 4
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_loss_falls(recordings: list[Recording]) -> None:
    trainer = trainer_of(recordings, replace(QUICK, steps=30))
    first = trainer.validate()["validation"]
    for _ in range(30):
        trainer.advance()
    last = trainer.validate()["validation"]
    assert last["loss"] < first["loss"]
    assert last["descriptors"] < first["descriptors"]
    assert last["r2"] > first["r2"]


def test_steps_without_a_finite_gradient_are_skipped_and_counted(
    recordings: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(recordings)
    usual = objectives.terms

    def broken(*args: object) -> dict[str, objectives.Term]:
        found = usual(*args)  # type: ignore[arg-type]
        return {**found, "ntp": objectives.Term(found["ntp"].total * torch.nan, found["ntp"].count)}

    trainer.advance()
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    monkeypatch.setattr(objectives, "terms", broken)
    assert trainer.advance()["skipped"] == 1
    assert all(torch.equal(before[name], value) for name, value in trainer.model.state_dict().items())
    trainer.in_a_row = MOST_SKIPPED - 1
    with pytest.raises(NipsError, match="no finite gradient"):
        trainer.advance()
    monkeypatch.undo()
    assert trainer.advance()["skipped"] == 2


def test_training_stops_when_nothing_gets_better(recordings: list[Recording]) -> None:
    trainer = trainer_of(recordings, replace(QUICK, patience=2))
    for loss, stopped in ((1.0, False), (2.0, False), (0.5, False), (0.6, False), (0.7, True)):
        trainer._judge(loss)
        assert trainer.stopped == stopped


def test_windows_are_a_function_of_seed_and_step(recordings: list[Recording]) -> None:
    corpus = trainer_of(recordings).corpus
    again = trainer_of(list(recordings)).corpus

    def drawn(c: Corpus, step: int, seed: int) -> list[tuple[int, int, list[int]]]:
        return [(w.item.number, w.first, w.channels.tolist()) for g in c.draw(step, seed, QUICK) for w in g]

    assert drawn(corpus, 5, 0) == drawn(again, 5, 0)
    assert drawn(corpus, 5, 0) != drawn(corpus, 6, 0) != drawn(corpus, 5, 1)


def test_a_mirrored_window_is_the_same_signal_on_the_other_side(recordings: list[Recording]) -> None:
    corpus = trainer_of(recordings).corpus
    (window, *_), *_ = corpus.draw(1, 0, replace(QUICK, mirror=0.0, rereference=0.0))
    plain, mirrored = corpus.read(window), corpus.read(replace(window, mirrored=True))
    assert (plain.tokens.x == mirrored.tokens.x).all()

    def pairs(placement: Placement) -> np.ndarray:
        """(C, 2, 3) anode and cathode as the recording has them."""
        found = placement.geometry[:, :6].reshape(-1, 2, 3)
        bipolar = placement.geometry[:, 8] > 0
        return np.where(((placement.sign < 0) & bipolar)[:, None, None], found[:, ::-1], found)

    assert np.array_equal(pairs(plain.placement) * [-1, 1, 1], pairs(mirrored.placement))
    assert not np.array_equal(plain.placement.geometry, mirrored.placement.geometry)


def test_the_split_keeps_subjects_apart(recordings: list[Recording]) -> None:
    corpus = trainer_of(recordings).corpus
    sides = [{corpus.recordings[i.number].subject for i in items} for items in (corpus.train, corpus.validation)]
    assert not sides[0] & sides[1]
    assert len(sides[1]) == 1
    by_time = trainer_of(recordings, replace(QUICK, split="time")).corpus
    for item in by_time.validation:
        assert item.first == round(0.8 * 360)


def test_a_run_without_labels_says_so_and_one_of_another_version_is_named(
    recordings: list[Recording], tmp_path: Path
) -> None:
    from nipstool.eeg_pretrain.apply import detect_recording

    bare = [replace(r, seizures=(), labelled=False) for r in recordings[:1]]
    run_training(bare, tmp_path / "run", Settings(SMALL, replace(QUICK, steps=1, split="time")))
    run = load_run(tmp_path / "run")
    with pytest.raises(DataError, match="trained without seizure labels"):
        detect_recording(run, recordings[0], 0.5)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**about, "format": 7}))
    with pytest.raises(DataError, match="format 7; this version reads format 1"):
        load_run(tmp_path / "run")
    for name, value, told in (
        ("shift", None, "says nothing about shift"),
        ("shift", "0", "shift is '0'; expected a number"),
        ("shift", 10**20, "expected a number, of logits"),
        ("labelled", 1, "labelled is 1; expected true or false"),
        ("thresholds", {}, "expected a threshold for each of model, line length, power"),
        ("thresholds", {one: {"chosen": True} for one in DETECTORS}, "expected a threshold for each of"),
        ("text_model", 3, "text_model is 3; expected a name or null"),
        ("config", [], "config is \\[\\]; expected the model's settings"),
    ):
        changed = {k: v for k, v in {**about, name: value}.items() if v is not None}
        (tmp_path / "run" / "run.json").write_text(json.dumps(changed))
        with pytest.raises(DataError, match=told):
            load_run(tmp_path / "run")
