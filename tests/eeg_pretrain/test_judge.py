"""A run judged: with a probe on its embeddings, and with what was told of a person through an encoder."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nipstool.eeg_pretrain.apply import embed_recording, texts_for
from nipstool.eeg_pretrain.config import Config, Recipe
from nipstool.eeg_pretrain.discover import find
from nipstool.eeg_pretrain.evaluate_run import judge_run
from nipstool.eeg_pretrain.evaluation import Judged
from nipstool.eeg_pretrain.job import Settings, run_training
from nipstool.eeg_pretrain.recording import Recording, Seizure
from nipstool.eeg_pretrain.run_folder import load_run
from nipstool.eeg_pretrain.simulate import write_set
from nipstool.kit.errors import DataError

SMALL = Config(d=16, layers=1, heads=2, latents=2, bilinear=8, context=32)
QUICK = Recipe(steps=2, batch_tokens=512, validate_every=2, split="subject")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Recording]:
    folder = tmp_path_factory.mktemp("set")
    write_set(folder, ["01", "02", "03"], ["bipolar", "unipolar", "bipolar"], minutes=1.5, seizures=1, seed=0)
    texts = ({"age": "11", "sex": "F"}, {"age": "60"}, {})
    return [replace(one, text=text) for one, text in zip(find([folder]).recordings, texts, strict=True)]


def test_the_probe_of_a_person_is_fitted_to_the_others(recordings: list[Recording], tmp_path: Path) -> None:
    run_training(recordings, tmp_path / "run", Settings(SMALL, QUICK))
    run = load_run(tmp_path / "run")
    found = judge_run(run, recordings, with_probe=True, folds=3)
    assert list(found) == ["model", "probe", "line length", "power"]
    other = [replace(recordings[0], seizures=(Seizure(0.0, 20.0),)), *recordings[1:]]
    changed = judge_run(run, other, with_probe=True, folds=3)
    before, after = (scores(each["probe"]) for each in (found, changed))
    assert [np.array_equal(a, b) for a, b in zip(before, after, strict=True)] == [True, False, False]
    assert [len(row) for row in before] == [9, 9, 9]
    for kept in ("model", "power"):
        pairs = zip(found[kept], changed[kept], strict=True)
        assert all(a.hypothesis == b.hypothesis for a, b in pairs)


def scores(judged: Sequence[Judged]) -> list[np.ndarray]:
    """Of the windows of each recording."""
    found = [one.scores for one in judged]
    assert all(row is not None for row in found)
    return [row for row in found if row is not None]


def encoder(folder: Path) -> Path:
    """A BERT of one layer with random weights, and a vocabulary of letters and digits."""
    transformers = pytest.importorskip("transformers")
    letters = list("abcdefghijklmnopqrstuvwxyz0123456789:.")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(vocabulary), **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("value", [np.nan, 1e38])
def test_weights_that_give_no_numbers_are_told(recordings: list[Recording], tmp_path: Path, value: float) -> None:
    run_training(recordings, tmp_path / "run", Settings(SMALL, replace(QUICK, steps=1)))
    run = load_run(tmp_path / "run")
    with torch.no_grad():
        for weights in run.model.parameters():
            weights.fill_(value)
    with pytest.raises(DataError, match=r"the model says NaN at 0 s; are its weights damaged\?$"):
        embed_recording(run, recordings[0], window_s=2.0, hop_s=2.0, stream=True)


def test_an_encoder_reads_what_is_told(recordings: list[Recording], tmp_path: Path) -> None:
    folder = encoder(tmp_path / "encoder")
    run_training(recordings, tmp_path / "run", Settings(SMALL, QUICK, text_model=str(folder)))
    run = load_run(tmp_path / "run")
    assert run.config.text_width == 12
    vectors = texts_for(run, recordings, asked=True)
    assert [vector is None for vector in vectors] == [False, False, True]
    assert float(vectors[0].square().mean()) == pytest.approx(1.0, rel=1e-5)
    assert not torch.equal(vectors[0], vectors[1])
    silent = scores(judge_run(run, recordings)["model"])
    told = scores(judge_run(run, recordings, with_text=True)["model"])
    same = [np.array_equal(a, b) for a, b in zip(silent, told, strict=True)]
    assert same == [False, False, True]
