"""Stable Diffusion 3 and 3.5.

The correspondence is that of diffusers' `convert_sd3_transformer_checkpoint_to_diffusers`.
"""

from .tables import Table

_BLOCK = (
    ("x_block.attn.qkv", "attn.to_qkv"),
    ("context_block.attn.qkv", "attn.add_qkv_proj"),
    ("x_block.attn2.qkv", "attn2.to_qkv"),
    ("x_block.attn.proj", "attn.to_out.0"),
    ("context_block.attn.proj", "attn.to_add_out"),
    ("x_block.attn2.proj", "attn2.to_out.0"),
    ("x_block.mlp.fc1", "ff.net.0.proj"),
    ("x_block.mlp.fc2", "ff.net.2"),
    ("context_block.mlp.fc1", "ff_context.net.0.proj"),
    ("context_block.mlp.fc2", "ff_context.net.2"),
    ("x_block.adaLN_modulation.1", "norm1.linear"),
    ("context_block.adaLN_modulation.1", "norm1_context.linear"),
)
_SPLIT = (
    *(f"transformer_blocks.{{}}.attn.{part}" for part in ("to_q", "to_k", "to_v")),
    *(f"transformer_blocks.{{}}.attn.add_{part}_proj" for part in "qkv"),
    *(f"transformer_blocks.{{}}.attn2.{part}" for part in ("to_q", "to_k", "to_v")),
)

SD3 = Table(
    component="transformer",
    rows=(
        *((f"joint_blocks.{{}}.{native}", f"transformer_blocks.{{}}.{name}") for native, name in _BLOCK),
        ("x_embedder.proj", "pos_embed.proj"),
        ("context_embedder", "context_embedder"),
        ("t_embedder.mlp.0", "time_text_embed.timestep_embedder.linear_1"),
        ("t_embedder.mlp.2", "time_text_embed.timestep_embedder.linear_2"),
        ("y_embedder.mlp.0", "time_text_embed.text_embedder.linear_1"),
        ("y_embedder.mlp.2", "time_text_embed.text_embedder.linear_2"),
        ("final_layer.linear", "proj_out"),
        ("final_layer.adaLN_modulation.1", "norm_out.linear"),
    ),
    own=_SPLIT,
    fused={
        "transformer_blocks.{}.attn.to_qkv": _SPLIT[0:3],
        "transformer_blocks.{}.attn.add_qkv_proj": _SPLIT[3:6],
        "transformer_blocks.{}.attn2.to_qkv": _SPLIT[6:9],
    },
    # the last block's context modulation has two halves as well, the others have six sixths in one order
    swapped=frozenset({"norm_out.linear", "transformer_blocks.{}.norm1_context.linear"}),
)
