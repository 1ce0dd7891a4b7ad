"""What an output says about itself: trigger words, no dates, kohya's hashes; equal bytes for equal requests."""

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from nipstool.fuse_lora import convert, fuse, inspect
from tests.fuse_lora.lora_files import (
    Lora,
    Shapes,
    dotted,
    kohya,
    kohya_sd15,
    kohya_sdxl,
    metadata,
    random_lora,
    save,
)

TO_K = "unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_k"  # by its width SD1.5 is told from SDXL
CONV = "unet.down_blocks.0.resnets.0.conv1"
PEFT_FILES = ["adapter_config.json", "adapter_model.safetensors"]

SDXL: dict[int, Shapes] = {  # rank -> name -> (out, in, *kernel)
    3: {
        "unet.down_blocks.1.attentions.0.transformer_blocks.1.attn2.to_k": (40, 2048),
        "unet.down_blocks.2.attentions.1.proj_in": (24, 20),
        "unet.down_blocks.0.resnets.1.conv1": (12, 10, 3, 3),
        "unet.up_blocks.0.attentions.1.transformer_blocks.9.attn1.to_out.0": (24, 28),
        "text_encoder.text_model.encoder.layers.3.self_attn.q_proj": (20, 22),
    },
    5: {
        "unet.mid_block.attentions.0.transformer_blocks.1.ff.net.0.proj": (64, 24),
        "unet.down_blocks.0.downsamplers.0.conv": (9, 8, 3, 3),
        "text_encoder_2.text_model.encoder.layers.30.mlp.fc1": (20, 22),
    },
}


def sdxl_pair(folder: Path) -> tuple[Path, Path]:
    """A kohya file of two ranks, and a diffusers file that lacks some of its modules."""
    lora: Lora = {}
    for rank, shapes in SDXL.items():
        lora |= random_lora(shapes, rank, rank)
    a = save(folder / "a.safetensors", kohya(lora, kohya_sdxl, alpha=2.0))
    return a, save(folder / "b.safetensors", dotted(random_lora(SDXL[3], 2, 9)))


def tagged_pair(folder: Path, rank: int = 4) -> tuple[Path, Path]:
    """Two kohya files with what trainers write into them, dates too."""
    about = {
        "ss_training_started_at": "1700000000.5",
        "ss_training_finished_at": "1700009999.5",
        "modelspec.date": "2024-05-06T07:08:09",
        "ss_base_model_version": "sd_v1",
    }
    tags = ({"10_cat": {"cat": 5, "sofa": 2}}, {"10_cat": {"cat": 1}, "5_oil": {"oil painting": 7}})
    phrases = ("sks cat", "oil style")
    paths = []
    for seed, (tag, phrase, name) in enumerate(zip(tags, phrases, ("cat", "oil"), strict=True)):
        lora = random_lora({TO_K: (600, 768)}, rank, seed)
        own = about | {"ss_tag_frequency": json.dumps(tag), "modelspec.trigger_phrase": phrase}
        paths.append(save(folder / f"{name}.safetensors", kohya(lora, kohya_sd15, alpha=2.0), own))
    return paths[0], paths[1]


@pytest.mark.parametrize("format", ["kohya", "diffusers"])
def test_trigger_words_of_all_files_are_kept_and_no_dates(tmp_path: Path, format: str) -> None:
    cat, oil = tagged_pair(tmp_path)
    fuse(cat, [oil], tmp_path / "out.safetensors", weights=[1.0, 0.5], format=format)
    found = metadata(tmp_path / "out.safetensors")
    assert json.loads(found["ss_tag_frequency"]) == {
        "10_cat": {"cat": 6, "sofa": 2},
        "5_oil": {"oil painting": 7},
    }
    assert found["modelspec.trigger_phrase"] == "sks cat, oil style"
    assert not [key for key in found if "date" in key or "_at" in key]
    assert not [value for value in found.values() if "2024" in value or "17000" in value]
    assert found["modelspec.architecture"] == "stable-diffusion-v1/lora"
    assert found["modelspec.merged_from"] == "cat, oil"
    assert json.loads(found["nipstool.weights"]) == [1.0, 0.5]
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (cat, oil)]
    assert [entry["sha256"] for entry in json.loads(found["nipstool.inputs"])] == sums
    words = inspect(tmp_path / "out.safetensors").trigger_words
    assert words == ("sks cat, oil style", "oil painting", "cat", "sofa")


def test_a_conversion_keeps_trigger_words_and_no_dates(tmp_path: Path) -> None:
    cat, _ = tagged_pair(tmp_path)
    convert(cat, tmp_path / "out.safetensors", rank=2)
    found, given = metadata(tmp_path / "out.safetensors"), metadata(cat)
    for key in ("ss_tag_frequency", "modelspec.trigger_phrase", "ss_base_model_version"):
        assert found[key] == given[key]
    assert not [value for value in found.values() if "2024" in value or "17000" in value]
    assert not [key for key in found if key in ("nipstool.mu", "nipstool.leak")]


@pytest.mark.parametrize("tags", ["[1]", "{", '{"a": 1}', '{"a": {"b": "x", "c": NaN, "d": 1e999, "cat": 3}}'])
def test_tag_counts_of_another_form_are_passed_over(tmp_path: Path, tags: str) -> None:
    lora = random_lora({TO_K: (20, 768)}, 2, 1)
    paths = [
        save(tmp_path / f"{i}.safetensors", kohya(lora, kohya_sd15), {"ss_tag_frequency": text})
        for i, text in enumerate((tags, '{"b": {"oil": 1}}'))
    ]
    fuse(paths[0], [paths[1]], tmp_path / "out.safetensors", mu=0.0)
    found = json.loads(metadata(tmp_path / "out.safetensors")["ss_tag_frequency"])
    assert found == ({"a": {"cat": 3}, "b": {"oil": 1}} if "cat" in tags else {"b": {"oil": 1}})
    assert inspect(tmp_path / "0.safetensors").trigger_words == (("cat",) if "cat" in tags else ())


def test_what_loaders_of_kohya_files_look_for(tmp_path: Path) -> None:
    """One rank in all is a number; several are 'Dynamic'. Convolutions have their own entry."""
    cat, oil = tagged_pair(tmp_path)
    fuse(cat, [oil], tmp_path / "one.safetensors")
    one = metadata(tmp_path / "one.safetensors")
    assert (one["ss_network_module"], one["ss_network_dim"], one["ss_v2"]) == ("networks.lora", "8", "False")
    assert one["ss_base_model_version"] == "sd_v1"
    several: Lora = {**random_lora({TO_K: (20, 768)}, 2, 1), **random_lora({TO_K[:-1] + "v": (20, 768)}, 3, 1)}
    several |= random_lora({CONV: (8, 6, 3, 3)}, 4, 1)
    source = save(tmp_path / "in.safetensors", dotted(several))
    convert(source, tmp_path / "two.safetensors", format="kohya")
    two = metadata(tmp_path / "two.safetensors")
    assert two["ss_network_dim"] == "Dynamic"
    assert json.loads(two["ss_network_args"])["conv_dim"] == "4"
    assert two["ss_base_model_version"] == "sd_v1"


@pytest.mark.parametrize("rank", [4, 256])
def test_hashes_are_those_of_the_file_with_only_training_metadata(tmp_path: Path, rank: int) -> None:
    """Over the same tensors written by safetensors itself; the old hash is of 64 KiB behind the first MiB."""
    cat, oil = tagged_pair(tmp_path, rank)
    fuse(cat, [oil], tmp_path / "out.safetensors")
    found = metadata(tmp_path / "out.safetensors")
    training = {key: value for key, value in found.items() if key.startswith("ss_")}
    plain = to_bytes(load_file(tmp_path / "out.safetensors"), training)
    assert (len(plain) > 0x110000) == (rank == 256)
    stream = io.BytesIO(plain)
    header = int.from_bytes(stream.read(8), "little")
    stream.seek(8 + header)
    assert found["sshs_model_hash"] == hashlib.sha256(stream.read()).hexdigest()
    stream.seek(0x100000)
    assert found["sshs_legacy_hash"] == hashlib.sha256(stream.read(0x10000)).hexdigest()[:8]


@pytest.mark.parametrize("format", ["kohya", "diffusers", "peft"])
def test_equal_bytes_from_equal_requests(tmp_path: Path, format: str) -> None:
    a, b = sdxl_pair(tmp_path)
    outputs = [tmp_path / "outputs" / str(i) for i in range(3)]
    outputs[0].parent.mkdir()
    for out, threads in zip(outputs, (1, 1, 2), strict=True):
        fuse(a, [b], out, format=format, threads=threads, mu=None, rank=4, include=r"^unet\.")
    first, *others = (
        [(out / name).read_bytes() for name in PEFT_FILES] if out.is_dir() else out.read_bytes() for out in outputs
    )
    assert all(other == first for other in others)
    assert len(first) > 1000 or len(first) == len(PEFT_FILES)


def test_equal_bytes_from_processes_that_hash_differently(tmp_path: Path) -> None:
    """Sets of strings come in another order in every process."""
    a, b = sdxl_pair(tmp_path)
    out = tmp_path / "out.safetensors"
    written = []
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "nipstool", "fuse-lora", str(a), str(b), "-o", str(out), "--force"]
        env = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([*command, "--threads", seed], env=env, check=True, capture_output=True)
        written.append(out.read_bytes())
    assert written[0] == written[1]


def test_nothing_but_strings_in_the_metadata_and_floats_in_the_file(tmp_path: Path) -> None:
    cat, oil = tagged_pair(tmp_path)
    fuse(cat, [oil], tmp_path / "out.safetensors", mu=None, k=2, dtype="bfloat16")
    found = metadata(tmp_path / "out.safetensors")
    assert (found["nipstool.mu"], found["nipstool.k"], found["format"]) == ("auto", "2", "pt")
    dtypes = {key.rpartition(".")[2]: t.dtype for key, t in load_file(tmp_path / "out.safetensors").items()}
    assert dtypes == {"weight": torch.bfloat16, "alpha": torch.float32}  # bf16 would round 257 to 256
