"""FLUX.1: 19 double and 38 single blocks. The names of BFL's code (kohya, ai-toolkit), diffusers' and xlabs'.

The correspondence is that of diffusers' `convert_flux_transformer_checkpoint_to_diffusers`.
"""

from .tables import Table

_DOUBLE = (
    ("img_attn.qkv", "attn.to_qkv"),
    ("txt_attn.qkv", "attn.add_qkv_proj"),
    ("img_attn.proj", "attn.to_out.0"),
    ("txt_attn.proj", "attn.to_add_out"),
    ("img_mlp.0", "ff.net.0.proj"),
    ("img_mlp.2", "ff.net.2"),
    ("txt_mlp.0", "ff_context.net.0.proj"),
    ("txt_mlp.2", "ff_context.net.2"),
    ("img_mod.lin", "norm1.linear"),
    ("txt_mod.lin", "norm1_context.linear"),
)
_SINGLE = (
    ("linear1", "linear1"),
    ("linear2", "proj_out"),
    ("modulation.lin", "norm.linear"),
)
_EMBEDDERS = (
    ("time_in", "timestep_embedder"),
    ("guidance_in", "guidance_embedder"),
    ("vector_in", "text_embedder"),
)
# diffusers keeps these apart and BFL fuses them: there is no BFL row of their own
_SPLIT = (
    *(f"transformer_blocks.{{}}.attn.{part}" for part in ("to_q", "to_k", "to_v")),
    *(f"transformer_blocks.{{}}.attn.add_{part}_proj" for part in "qkv"),
    *(f"single_transformer_blocks.{{}}.attn.{part}" for part in ("to_q", "to_k", "to_v")),
    "single_transformer_blocks.{}.proj_mlp",
)

FLUX = Table(
    component="transformer",
    rows=(
        *((f"double_blocks.{{}}.{bfl}", f"transformer_blocks.{{}}.{name}") for bfl, name in _DOUBLE),
        *((f"single_blocks.{{}}.{bfl}", f"single_transformer_blocks.{{}}.{name}") for bfl, name in _SINGLE),
        *(
            (f"{bfl}.{side}_layer", f"time_text_embed.{name}.linear_{number}")
            for bfl, name in _EMBEDDERS
            for side, number in (("in", 1), ("out", 2))
        ),
        ("img_in", "x_embedder"),
        ("txt_in", "context_embedder"),
        ("final_layer.linear", "proj_out"),
        ("final_layer.adaLN_modulation.1", "norm_out.linear"),
    ),
    aliases=(
        ("double_blocks.{}.processor.qkv_lora1", "transformer_blocks.{}.attn.to_qkv"),
        ("double_blocks.{}.processor.qkv_lora2", "transformer_blocks.{}.attn.add_qkv_proj"),
        ("double_blocks.{}.processor.proj_lora1", "transformer_blocks.{}.attn.to_out.0"),
        ("double_blocks.{}.processor.proj_lora2", "transformer_blocks.{}.attn.to_add_out"),
        ("single_blocks.{}.processor.qkv_lora", "single_transformer_blocks.{}.attn.to_qkv"),
        ("single_blocks.{}.processor.proj_lora", "single_transformer_blocks.{}.proj_out"),
    ),
    own=_SPLIT,
    fused={
        "transformer_blocks.{}.attn.to_qkv": _SPLIT[0:3],
        "transformer_blocks.{}.attn.add_qkv_proj": _SPLIT[3:6],
        "single_transformer_blocks.{}.linear1": _SPLIT[6:10],
    },
    fused_aliases={"single_transformer_blocks.{}.attn.to_qkv": _SPLIT[6:9]},
    swapped=frozenset({"norm_out.linear"}),
)
