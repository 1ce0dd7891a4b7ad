"""Model folders whose configuration would cost minutes or all memory are refused before transformers tries."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nipstool.kit.errors import DataError
from nipstool.kit.language_models import MOST_BYTES, load_model, read_config_json, to_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def changed(folder: Path, **change: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    return folder


def test_a_whole_model_is_loaded(folder: Path) -> None:
    assert sum(p.numel() for p in load_model(folder, dtype=torch.float32).parameters()) > 0


@pytest.mark.parametrize("key", ["vocab_size", "intermediate_size"])
def test_more_weights_than_the_files_hold(folder: Path, key: str) -> None:
    with pytest.raises(DataError, match=f"{key} 1000000000 x hidden_size 16, but the files hold"):
        load_model(changed(folder, **{key: 10**9}), dtype=torch.float32)


@pytest.mark.parametrize("key", ["num_hidden_layers", "n_layer"])
def test_more_layers_than_anyone_builds(key: str) -> None:
    with pytest.raises(DataError, match=f"{key} is 2147483648; expected at most 2000"):
        to_config({"model_type": "llama", key: 2**31}, "config.json")


def test_a_configuration_without_end(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b" " * (MOST_BYTES + 1))
    with pytest.raises(DataError, match="expected a configuration"):
        read_config_json(tmp_path)
