"""Qwen-Image, whose original names are diffusers' own."""

from .tables import Table

_BLOCK = (
    *(f"attn.to_{part}" for part in ("q", "k", "v", "out.0", "add_out")),
    *(f"attn.add_{part}_proj" for part in "qkv"),
    *(f"{stream}_mlp.net.{layer}" for stream in ("img", "txt") for layer in ("0.proj", "2")),
    "img_mod.1",
    "txt_mod.1",
)
_NAMES = (
    *(f"transformer_blocks.{{}}.{name}" for name in _BLOCK),
    "img_in",
    "txt_in",
    "time_text_embed.timestep_embedder.linear_1",
    "time_text_embed.timestep_embedder.linear_2",
    "norm_out.linear",
    "proj_out",
)

QWEN = Table(component="transformer", rows=tuple((name, name) for name in _NAMES))
