"""A tiny language model, and architectures beside it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "tie_word_embeddings": True,
}


def some_model(folder: Path) -> None:
    """A language model of two small layers, and a space of architectures around it."""
    random = np.random.default_rng(0)
    d, f, kv = LLAMA["hidden_size"], LLAMA["intermediate_size"], 8
    shapes = {"model.embed_tokens.weight": (LLAMA["vocab_size"], d), "model.norm.weight": (d,)}
    parts = {"q": (d, d), "k": (kv, d), "v": (kv, d), "o": (d, d), "gate": (f, d), "up": (f, d), "down": (d, f)}
    for layer in range(2):
        for name, shape in parts.items():
            place = "self_attn" if len(name) == 1 else "mlp"
            shapes[f"model.layers.{layer}.{place}.{name}_proj.weight"] = shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{name}.weight"] = (d,)
    weights = {name: random.standard_normal(shape, dtype=np.float32) / 4 for name, shape in shapes.items()}
    (folder / "model").mkdir()
    save_file(weights, folder / "model" / "model.safetensors", {"format": "pt"})
    for place in (folder, folder / "model"):
        (place / "config.json").write_text(json.dumps(LLAMA))
    space = '[base]\nconfig = "config.json"\n[per_layer]\nintermediate_size = [8, 16, 24]\n'
    (folder / "space.toml").write_text(space)
