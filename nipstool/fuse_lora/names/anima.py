"""Anima (Cosmos-Predict2's transformer). The correspondence is that of diffusers' Anima LoRA converter."""

from .tables import Table

_ATTENTION = (("q_proj", "to_q"), ("k_proj", "to_k"), ("v_proj", "to_v"), ("output_proj", "to_out.0"))
_BLOCK = (
    *((f"self_attn.{old}", f"attn1.{new}") for old, new in _ATTENTION),
    *((f"cross_attn.{old}", f"attn2.{new}") for old, new in _ATTENTION),
    ("mlp.layer1", "ff.net.0.proj"),
    ("mlp.layer2", "ff.net.2"),
    *(
        (f"adaln_modulation_{part}.{layer}", f"norm{number}.linear_{layer}")
        for number, part in enumerate(("self_attn", "cross_attn", "mlp"), start=1)
        for layer in (1, 2)
    ),
)

ANIMA = Table(
    component="transformer",
    rows=(
        *((f"blocks.{{}}.{old}", f"transformer_blocks.{{}}.{new}") for old, new in _BLOCK),
        ("x_embedder.proj.1", "patch_embed.proj"),
        ("t_embedder.1.linear_1", "time_embed.t_embedder.linear_1"),
        ("t_embedder.1.linear_2", "time_embed.t_embedder.linear_2"),
        ("final_layer.linear", "proj_out"),
        ("final_layer.adaln_modulation.1", "norm_out.linear_1"),
        ("final_layer.adaln_modulation.2", "norm_out.linear_2"),
    ),
)
