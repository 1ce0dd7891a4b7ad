"""Vision models from a file and a factory, on images and arrays."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from nipstool.kit.errors import DataError, InputMissingError, UsageError
from nipstool.rosetta_count.contexts import look
from nipstool.rosetta_count.job import Request, run
from nipstool.rosetta_count.page import page
from nipstool.rosetta_count.sources import Reading
from nipstool.rosetta_count.vision import build, load_factory

NET = """
import torch
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.Tanh())

class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3)

    def forward(self, x):
        return torch.relu(self.two(torch.relu(self.one(x))))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A factory with weights, and thirty images of two classes."""
    (tmp_path / "net.py").write_text(NET)
    model = build(load_factory(f"{tmp_path / 'net.py'}:small"), "cpu", seed=5)
    torch.save(model.state_dict(), tmp_path / "net.pth")
    random = np.random.default_rng(0)
    for number in range(30):
        kind = ("flat", "noisy")[number % 2]
        (tmp_path / "images" / kind).mkdir(parents=True, exist_ok=True)
        image = np.full((24, 20, 3), number * 8, np.uint8)
        if number % 2:
            image = random.integers(0, 255, image.shape).astype(np.uint8)
        cv2.imwrite(str(tmp_path / "images" / kind / f"{number:02d}.png"), image)
    return tmp_path


def test_two_of_a_kind_share_every_live_neuron(folder: Path):
    spec = f"{folder / 'net.py'}:small+{folder / 'net.pth'}"
    reading = Reading(str(folder / "images"), image_size=20)
    finished = run(Request((spec, spec), str(folder / "out"), reading=reading))
    count = finished.outcome.count
    (pair,) = count.pairs
    assert [(layer.name, layer.columns.stop - layer.columns.start) for layer in count.subjects[0].layers] == [
        ("1", 6),
        ("4", 8),
        ("8", 5),
    ]
    assert count.samples == 30 * 7 * 7  # the coarser of the two grids, 18 x 18 and 7 x 7
    assert len(pair.pairs) == int(count.neurons[0].live.sum())
    assert torch.equal(pair.pairs.a, pair.pairs.b)
    assert pair.untrained is not None
    assert finished.outcome.labels[0] is not None
    assert finished.outcome.labels[0].labels == ("flat", "noisy")
    html = page(look(str(folder / "out"), most=3, contexts=4), "images")
    assert html.count("data:image/jpeg") == 2 * 3 * 4


def test_functional_activations_are_named_by_a_pattern(folder: Path):
    spec = f"{folder / 'net.py'}:Functional"
    reading = Reading(str(folder / "images"), image_size=20)
    with pytest.raises(UsageError, match="no activation modules found in it; --sites chooses among one, two"):
        run(Request((spec, spec), str(folder / "out"), reading=reading))
    chosen = Reading(str(folder / "images"), image_size=20, sites="^two$")
    finished = run(Request((spec, spec), str(folder / "out"), reading=chosen))
    assert [layer.name for layer in finished.outcome.count.subjects[0].layers] == ["two"]


def test_arrays_are_inputs_too(folder: Path):
    images = np.random.default_rng(0).random((40, 3, 16, 16)).astype(np.float32)
    np.save(folder / "x.npy", images)
    spec = f"{folder / 'net.py'}:small"
    finished = run(Request((spec, spec), str(folder / "out"), reading=Reading(str(folder / "x.npy"))))
    assert finished.outcome.count.documents == 40


def test_models_that_cannot_be_used(folder: Path):
    (folder / "broken.py").write_text("def f(:\n")
    (folder / "other.py").write_text("def f():\n    return 3\n")
    (folder / "bad.pth").write_bytes(b"no weights")
    cases = [
        (f"{folder}/none.py:f", InputMissingError, "none.py"),
        (f"{folder}/broken.py:f", DataError, "cannot be run: SyntaxError"),
        (f"{folder}/net.py:large", DataError, "has no function 'large'"),
        (f"{folder}/other.py:f", DataError, "gives int; expected a torch module"),
        (f"{folder}/net.py:small+{folder}/bad.pth", DataError, "bad.pth"),
        (f"{folder}/net.py:small+{folder}/none.pth", InputMissingError, "none.pth"),
    ]
    for spec, kind, told in cases:
        with pytest.raises(kind, match=told):
            run(Request((spec, spec), str(folder / "out"), reading=Reading(str(folder / "images"))))
        assert not (folder / "out").exists()
