"""Vision transformers from Hugging Face folders, made here; special tokens as samples of language models."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nipstool.kit.errors import DataError, UsageError
from nipstool.rosetta_count.contexts import look
from nipstool.rosetta_count.job import Request, run
from nipstool.rosetta_count.page import page
from nipstool.rosetta_count.sources import Reading, open_models
from nipstool.rosetta_count.vision_folders import Preparation, preparation, prepared
from nipstool.rosetta_count.work import Options, Silent

NET = """
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.ReLU(), nn.Conv2d(6, 8, 1), nn.Tanh())

def preprocess(image):
    return image.transpose(2, 0, 1)[:, :32, :32] / 255
"""


def vit(folder: Path, seed: int, kind: str = "ViT", **words: object) -> str:
    """A random transformer of 2 blocks on images of 32 x 32, in patches of 8 x 8."""
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = getattr(transformers, f"{kind}Config")(**sizes, image_size=32, patch_size=8, **words)
    torch.manual_seed(seed)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    steps = {"do_resize": True, "size": {"height": 32, "width": 32}, "image_mean": [0.4, 0.5, 0.6]}
    steps |= {"image_std": [0.2, 0.25, 0.3], "rescale_factor": 1 / 255, "do_rescale": True, "do_normalize": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(steps))
    return str(folder)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for number in range(30):
        small = random.integers(0, 255, (8, 8, 3)).astype(np.uint8)
        cv2.imwrite(str(folder / f"{number:02d}.png"), cv2.resize(small, (48, 40)))
    return folder


def test_neurons_are_the_inputs_of_the_down_projections_at_patches(tmp_path: Path, images: Path):
    name = vit(tmp_path / "vit", 0)
    inputs, hashes, told = open_models([name, name], Reading(str(images)), Options(), Silent())
    assert told["grid"] == [4, 4]
    assert [layer.columns for layer in inputs.subjects[0].layers] == [slice(0, 24), slice(24, 48)]
    assert f"{name}/preprocessor_config.json" in hashes
    from transformers import ViTModel

    model = ViTModel.from_pretrained(name).eval()
    kept = []
    down = model.get_submodule("layers.1.mlp.fc2")
    down.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    image = cv2.imread(str(images / "00.png"))
    assert image is not None
    image = image[:, :, ::-1]  # RGB
    shrunk = cv2.resize(image, (32, 32), interpolation=cv2.INTER_AREA).astype(np.float64) / 255
    shrunk = (shrunk - [0.4, 0.5, 0.6]) / [0.2, 0.25, 0.3]
    with torch.inference_mode():
        model(pixel_values=torch.from_numpy(shrunk.transpose(2, 0, 1)).float()[None])
    ours = inputs.models[0].unit(0)[:16, 24:]
    assert kept[0].shape == (1, 17, 24)
    assert torch.allclose(ours, kept[0][0, 1:], atol=1e-5)  # without CLS, patches in rows
    assert inputs.document_of is not None
    assert inputs.document_of(0)[:17].tolist() == [0] * 16 + [1]


def test_a_transformer_finds_itself_and_its_untrained_self_less(tmp_path: Path, images: Path):
    name = vit(tmp_path / "vit", 0)
    finished = run(Request((name, name), str(tmp_path / "out"), reading=Reading(str(images))))
    (pair,) = finished.outcome.count.pairs
    assert torch.equal(pair.pairs.a, pair.pairs.b)
    assert len(pair.pairs) == 48
    assert pair.untrained is not None
    assert pair.untrained.raw is not None
    assert pair.untrained.raw < 48
    html = page(look(str(tmp_path / "out"), most=2, contexts=3), "patches")
    assert html.count("data:image/jpeg") == 2 * 2 * 3


def test_registers_are_no_samples_and_another_grid_is_resampled(tmp_path: Path, images: Path):
    (tmp_path / "net.py").write_text(NET)
    plain = vit(tmp_path / "vit", 0)
    registers = vit(tmp_path / "dino", 1, "Dinov2WithRegisters")
    models = (plain, registers, f"{tmp_path}/net.py:small")  # a factory's grid is 8 x 8
    inputs, *_ = open_models(models, Reading(str(images)), Options(), Silent())
    assert [len(model.unit(0)) % 16 for model in inputs.models] == [0, 0, 0]
    assert len({len(model.unit(0)) for model in inputs.models}) == 1
    finished = run(Request(models, str(tmp_path / "out"), reading=Reading(str(images))))
    assert finished.outcome.count.samples == 30 * 16
    fine = run(Request(models, str(tmp_path / "fine"), reading=Reading(str(images), grid="8x8")))
    assert fine.outcome.count.samples == 30 * 64


def test_images_are_prepared_as_the_folder_says(tmp_path: Path):
    name = vit(tmp_path / "vit", 0)
    assert preparation(name).size == (32, 32)
    assert preparation(name, 64).size == (64, 64)
    file = tmp_path / "vit" / "preprocessor_config.json"
    steps = {"size": {"shortest_edge": 20}, "do_center_crop": True, "crop_size": {"height": 16, "width": 12}}
    file.write_text(json.dumps({**steps, "resample": 3, "do_normalize": False}))
    how = preparation(name)
    assert how == Preparation(20, None, (16, 12), 1 / 255, (0.0,) * 3, (1.0,) * 3, True)
    image = np.zeros((40, 80, 3), np.uint8)
    image[:, 40:] = 255  # black on the left, white on the right
    values = prepared(how, image)
    assert values.shape == (3, 16, 12)
    assert values[:, :, :6].max() == 0
    assert values[:, :, 6:].min() == pytest.approx(1)
    file.unlink()
    assert preparation(name) == Preparation(size=(32, 32))
    file.write_text("[1")
    with pytest.raises(DataError, match=r"preprocessor_config\.json"):
        preparation(name)


def test_transformers_that_cannot_be_used(tmp_path: Path, images: Path, data_dir: Path):
    name, text = vit(tmp_path / "vit", 0), str(data_dir / "models" / "stories260K")
    output = str(tmp_path / "out")
    with pytest.raises(UsageError, match="no common data"):
        run(Request((name, text), output, reading=Reading(str(images))))
    with pytest.raises(DataError, match="does not take inputs"):
        run(Request((name, name), output, reading=Reading(str(images), image_size=40)))
    (tmp_path / "mixed").mkdir()
    for number in range(30):
        image = np.full((40, 60 if number == 2 else 40, 3), 8 * number, np.uint8)
        cv2.imwrite(str(tmp_path / "mixed" / f"{number:02d}.png"), image)
    steps = tmp_path / "vit" / "preprocessor_config.json"
    kept = steps.read_text()
    steps.write_text('{"size": {"shortest_edge": 32}}')
    with pytest.raises(DataError, match=r"02\.png: prepared it is 3x32x48, others 3x32x32"):
        run(Request((name, name), output, reading=Reading(str(tmp_path / "mixed"))))
    steps.write_text(kept)
    file = tmp_path / "vit" / "model.safetensors"
    from safetensors.torch import save_file

    weights = {k: v for k, v in load_file(file).items() if "layers.1.mlp" not in k and "layer.1.output" not in k}
    assert len(weights) < len(load_file(file))
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(DataError, match="no weights for"):
        run(Request((name, name), output, reading=Reading(str(images))))


def test_special_tokens_are_samples_where_they_are_wanted(tmp_path: Path, data_dir: Path):
    name = str(data_dir / "models" / "stories260K")
    texts = [f"Tom saw {n} birds. " + "He was very happy and sang. " * (n % 4) for n in range(30)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    opened = {}
    for kept in (False, True):
        reading = Reading(str(tmp_path / "docs.jsonl"), context=16, keep_special=kept)
        opened[kept], *_ = open_models([name, name], reading, Options(), Silent())
    plain, special = (opened[kept].models[0] for kept in (False, True))
    without, values = plain.unit(0), special.unit(0)
    reader, documents = special.reader, special.tokens[0]
    assert reader.prefix
    assert not reader.suffix
    assert len(values) == len(without) + len(documents)
    assert torch.allclose(values[: len(without)], without)
    assert opened[True].samples == opened[False].samples + 30
    of = opened[True].document_of(0)
    assert of[-len(documents) :].tolist() == list(range(len(documents)))
    # the first token's activations do not depend on what follows: all windows of all documents have the same
    body, site = special.model, special.sites[2]
    found = []
    hook = body.get_submodule(site.name).register_forward_pre_hook(lambda module, args: found.append(args[0]))
    with torch.inference_mode():
        body(input_ids=torch.tensor([[*reader.prefix, *documents[0].ids[:3].tolist()]]), use_cache=False)
    hook.remove()
    columns = special.layers[2].columns
    assert torch.allclose(values[-len(documents) :, columns], found[0][0, 0].expand(len(documents), -1), atol=1e-5)
