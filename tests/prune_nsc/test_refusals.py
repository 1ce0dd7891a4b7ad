"""What cannot be pruned is refused in one line, and leaves nothing behind."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import make, run

from nipstool.kit.errors import DataError, InputMissingError, NipsError, OutputError, UsageError
from nipstool.prune_nsc import Budgets, Settings, prune
from nipstool.prune_nsc.check import CheckError


def spoil(folder: Path, **config: Any) -> Path:
    file = folder / "config.json"
    raw = {**json.loads(file.read_text()), **config}
    file.write_text(json.dumps({k: v for k, v in raw.items() if v is not ...}))
    return folder


def expect(
    kind: type[NipsError], words: str, folder: Path, budget: dict[str, Any] | None = None, **how: Any
) -> None:
    out = folder.parent / "out"
    with pytest.raises(kind, match=words) as caught:
        run(folder, out, budget or {"ratio": 0.85}, **how)
    assert "\n" not in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize("channels", ["noise", "random"])
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_bad_weights(tmp_path: Path, bad: float, channels: str) -> None:
    folder, out = make(tmp_path / "in", "llama", shards=1), tmp_path / "out"
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = bad
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"layers\.1\.mlp\.up_proj.*NaN or infinity"):
        prune(str(folder), str(out), Budgets(ratio=0.9), Settings(multiple_of=4), channels=channels, tokens=64)
    assert not out.exists()


def test_configurations_that_cannot_be_pruned(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", "llama")
    good = json.loads((folder / "config.json").read_text())
    cases: list[tuple[dict[str, Any], str]] = [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "mixture of experts"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"intermediate_size": ...}, "intermediate_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 2**62}, "hidden_size 4611686018427387904; expected a number from 1 to"),
        ({"num_key_value_heads": 3}, "divide"),
        ({"intermediate_size": 28}, "configuration says"),
    ]
    for change, words in cases:
        expect(DataError, words, spoil(folder, **change))
        (folder / "config.json").write_text(json.dumps(good))


def test_weights_that_cannot_be_pruned(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", "llama", shards=1)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.layers.0.extra.weight": torch.zeros(2)}, folder / "model.safetensors")
    expect(DataError, "unsupported tensor 'model.layers.0.extra.weight'", folder)
    save_file({n: t for n, t in tensors.items() if "2.mlp.up" not in n}, folder / "model.safetensors")
    expect(DataError, "no tensor 'model.layers.2.mlp.up_proj.weight'", folder)
    (folder / "model.safetensors").unlink()
    expect(InputMissingError, "no weights there", folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    expect(DataError, "pickled", folder)
    (folder / "model.gguf").write_bytes(b"GGUF")
    expect(DataError, "GGUF", folder)


def test_broken_sharded_folders(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", "llama")
    index = folder / "model.safetensors.index.json"
    good = index.read_text()
    index.write_text(good.replace("model-00002-of-00003", "../model-00002-of-00003"))
    expect(DataError, "expected the name of a .safetensors file", folder)
    index.write_text(good)
    (folder / "model.safetensors").write_bytes(b"")
    expect(DataError, "which of them counts", folder)
    (folder / "model.safetensors").unlink()
    (folder / "model-00002-of-00003.safetensors").unlink()
    expect(InputMissingError, "model-00002-of-00003", folder)


def test_budgets_and_options_that_make_no_sense(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", "llama")
    expect(UsageError, "reachable are", folder, {"params": 1000})
    expect(UsageError, "above the dense", folder, {"params": 10**9})
    expect(UsageError, "nothing to aim at", folder, {"params": None})
    expect(UsageError, "multiple of 4", folder, {"params": None}, ffn=10)
    expect(UsageError, "1 to 24", folder, {"params": None}, ffn=1000)
    expect(UsageError, "share", folder, {"params": None}, ffn=2.5)
    expect(UsageError, "--ratio", folder, {"ratio": 1.5})
    expect(UsageError, "--units", folder, units="heads")
    expect(UsageError, "--format", folder, format="gguf")


def test_an_output_that_exists_is_kept(tmp_path: Path) -> None:
    folder, out = make(tmp_path / "in", "llama"), tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("x")
    with pytest.raises(OutputError, match="--force"):
        run(folder, out, {"ratio": 0.85})
    assert [file.name for file in out.iterdir()] == ["precious"]


def test_a_failed_self_check_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nipstool.prune_nsc import prune as module_function
    from nipstool.prune_nsc import selection

    right = selection.Kept.rows
    calls: list[str] = []

    def wrong(self: selection.Kept, unit: Any, head_dim: int) -> torch.Tensor:
        rows = right(self, unit, head_dim)
        calls.append(unit)
        return rows.flip(0) if len(calls) == 1 else rows  # the first tensor to be cut is cut in another order

    monkeypatch.setattr(selection.Kept, "rows", wrong)
    folder, out = make(tmp_path / "in", "llama"), tmp_path / "out"
    with pytest.raises(CheckError, match="self-check failed") as caught:
        module_function(str(folder), str(out), Budgets(ratio=0.85), Settings(multiple_of=4), channels="random")
    assert caught.value.status == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in"]
