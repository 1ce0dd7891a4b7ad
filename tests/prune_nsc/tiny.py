"""Tiny random decoders of every family, written as real checkpoints are: shards, index, tied or not."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from nipstool.prune_nsc import Budgets, Pruned, Settings, prune

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")
HIDDEN, FFN, LAYERS, HEADS, HEAD_DIM, VOCABULARY = 32, 24, 4, 4, 12, 64


def make(
    folder: Path, family: str, *, kv: int = 2, tied: bool = False, bias: bool = False, shards: int = 3, **more: Any
) -> Path:
    """A checkpoint folder; head_dim is not hidden / heads, biases are random, not the zeros of a new model."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"attention_bias": True} if bias and family != "qwen2" else {}
    if bias and family == "llama":
        options["mlp_bias"] = True
    if family.startswith(("gemma2", "gemma3")):
        options |= {"sliding_window": 8, "query_pre_attn_scalar": HEAD_DIM}
    settings = {
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": kv,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 128,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "dtype": "float32",
    }
    config = CONFIG_MAPPING[family](**(settings | options | more))
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if name.endswith(("bias", "norm.weight")) else parameter.shape[-1] ** -0.5
            parameter.copy_(
                torch.randn_like(parameter) * scale + ("norm" in name and not family.startswith("gemma"))
            )
    folder.mkdir(parents=True, exist_ok=True)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    tensors = {name: value.detach().clone() for name, value in model.named_parameters()}
    save(folder, tensors, shards)
    (folder / "generation_config.json").write_text('{"bos_token_id": 1}')
    return folder


def save(folder: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    """The tensors in so many shards with an index, or in one file."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return
    names, weight_map = list(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        save_file(part, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def run(model: Path, out: Path, budget: dict[str, Any], **settings: Any) -> Pruned:
    """Pruning without sampling, and with too few tokens for a repair."""
    options: dict[str, Any] = {"multiple_of": 4} | settings
    return prune(str(model), str(out), Budgets(**budget), Settings(**options), channels="noise", tokens=64)
