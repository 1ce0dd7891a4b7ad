"""Rewriting a Hugging Face folder: what it keeps, what it leaves when it fails, the memory it takes."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nipstool.kit.errors import BusyError, OutputError, UsageError
from nipstool.kit.files import AtomicFolder
from nipstool.kit.tensors import (
    TensorReader,
    encode_header,
    read_header,
    rewrite,
)


def sharded(folder: Path, **shards: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A Hugging Face folder; returns all its tensors."""
    folder.mkdir()
    weight_map = {}
    for shard, some in shards.items():
        save_file(some, folder / f"{shard}.safetensors", metadata={"format": "pt"})
        weight_map |= dict.fromkeys(some, f"{shard}.safetensors")
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return {name: tensor for some in shards.values() for name, tensor in some.items()}


def negate_2(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return -tensor if "2" in name else tensor


def test_rewriting_keeps_what_it_should(tmp_path):
    some = {f"layer.{i}.weight": torch.randn(10, 10).bfloat16() for i in range(5)} | {"é": torch.tensor(3)}
    half = dict(list(some.items())[:3])
    rest = {name: tensor for name, tensor in some.items() if name not in half}
    source = tmp_path / "source"
    expected = sharded(source, s1=half, s2=rest)
    (source / "config.json").write_text("{}")
    (source / "pytorch_model.bin").write_bytes(b"stale")
    (source / "pytorch_model.bin.index.json").write_text("{}")
    (source / "extra").mkdir()
    (source / "extra" / "vocab.txt").write_text("a b")
    (source / ".cache").mkdir()
    (source / ".cache" / "junk").touch()

    reference = tmp_path / "reference"
    save_file(expected, reference, metadata={"format": "pt"})
    rewrite(source, tmp_path / "whole", None, max_shard_bytes=1 << 20, force=False)
    names = sorted(str(p.relative_to(tmp_path / "whole")) for p in (tmp_path / "whole").rglob("*") if p.is_file())
    assert names == ["config.json", "extra/vocab.txt", "model.safetensors"]
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == reference.read_bytes()

    rewrite(tmp_path / "whole", tmp_path / "split", negate_2, max_shard_bytes=450, force=False)
    shards = sorted(p.name for p in (tmp_path / "split").glob("*.safetensors"))
    assert shards == [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]
    index = json.loads((tmp_path / "split" / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 5 * 200 + 8}
    for name, shard in index["weight_map"].items():
        with safe_open(tmp_path / "split" / shard, "pt") as file:
            assert file.metadata() == {"format": "pt"}
            assert torch.equal(file.get_tensor(name), negate_2(name, expected[name]))
    assert index["weight_map"].keys() == expected.keys()


def test_a_tensor_larger_than_a_shard_has_one_for_itself(tmp_path):
    save_file({"a": torch.ones(9), "b": torch.ones(1), "c": torch.ones(1), "d": torch.ones(9)}, tmp_path / "f")
    rewrite(tmp_path / "f", tmp_path / "out", None, max_shard_bytes=8, force=False)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert {name: shard[6:11] for name, shard in index["weight_map"].items()} == {
        "a": "00001",
        "b": "00002",
        "c": "00002",
        "d": "00003",
    }


def test_a_model_of_transformers_survives(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path / "a", max_shard_size="20KB")
    rewrite(tmp_path / "a", tmp_path / "b", lambda _, x: x, max_shard_bytes=50_000, force=False)
    assert len(list((tmp_path / "b").glob("model-*.safetensors"))) > 1
    again, info = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info.values())
    tokens = torch.arange(10)[None]
    assert torch.equal(again.eval()(tokens).logits, model(tokens).logits)


def test_a_rewrite_that_fails_leaves_the_old_folder(tmp_path):
    sharded(tmp_path / "source", s1={"a": torch.ones(2)}, s2={"b": torch.ones(2)})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    for wrong in (lambda _, x: x[:1], lambda _, x: x.half()):
        with pytest.raises(ValueError, match="announced"):
            rewrite(tmp_path / "source", tmp_path / "out", wrong, max_shard_bytes=100, force=True)
    with pytest.raises(OutputError):
        rewrite(tmp_path / "source", tmp_path / "out", None, max_shard_bytes=100, force=False)
    with pytest.raises(UsageError):
        rewrite(tmp_path / "source", tmp_path / "source", None, max_shard_bytes=100, force=True)
    with AtomicFolder(tmp_path / "out", force=True) as part:
        with pytest.raises(BusyError):
            rewrite(tmp_path / "source", tmp_path / "out", None, max_shard_bytes=100, force=True)
        (part / "old").touch()
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]
    assert os.listdir(tmp_path / "out") == ["old"]


MEMORY = """
    import sys, torch
    from nipstool.kit.tensors import rewrite
    def peak():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
    torch.set_num_threads(1)
    before = peak()
    kinds = {"new": lambda _, x: x + 1, "view": lambda _, x: x.add_(1).T.contiguous().T}
    rewrite(sys.argv[1], sys.argv[2], kinds[sys.argv[3]], max_shard_bytes=100 << 20, force=False)
    print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs VmHWM of Linux's /proc")
@pytest.mark.parametrize("kind", ["new", "view"])
def test_the_peak_of_a_rewrite_is_two_tensors(tmp_path, kind):
    size = 64 << 20
    (tmp_path / "in").mkdir()
    weight_map = {}
    for shard, names in {"s1.safetensors": "ab", "s2.safetensors": "cd"}.items():
        head = encode_header(dict.fromkeys(names, ("F32", (4096, 4096))), {"format": "pt"})
        (tmp_path / "in" / shard).write_bytes(head)
        os.truncate(tmp_path / "in" / shard, len(head) + 2 * size)  # zeros that take no disk
        weight_map |= dict.fromkeys(names, shard)
    (tmp_path / "in" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEMORY), str(tmp_path / "in"), str(tmp_path / "out"), kind],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # one tensor at least, or the peak was not that of the rewrite
    assert 0.9 * size <= int(done.stdout) <= 2 * size + (64 << 20)
    header = read_header(tmp_path / "out" / "model-00004-of-00004.safetensors")
    with TensorReader(tmp_path / "out" / "model-00004-of-00004.safetensors") as reader:
        assert torch.all(reader.read(next(iter(header.infos))) == 1)
