"""Wan 2.1 and 2.2 (VACE too). The correspondence is that of diffusers' `convert_wan_transformer_to_diffusers`."""

from .tables import Table

_BLOCK = (
    *((f"self_attn.{old}", f"attn1.to_{new}") for old, new in zip("qkvo", ("q", "k", "v", "out.0"), strict=True)),
    *((f"cross_attn.{old}", f"attn2.to_{new}") for old, new in zip("qkvo", ("q", "k", "v", "out.0"), strict=True)),
    ("cross_attn.k_img", "attn2.add_k_proj"),
    ("cross_attn.v_img", "attn2.add_v_proj"),
    ("ffn.0", "ffn.net.0.proj"),
    ("ffn.2", "ffn.net.2"),
)

WAN = Table(
    component="transformer",
    rows=(
        *(
            (f"{blocks}.{{}}.{old}", f"{blocks}.{{}}.{new}")
            for blocks in ("blocks", "vace_blocks")
            for old, new in _BLOCK
        ),
        ("vace_blocks.{}.before_proj", "vace_blocks.{}.proj_in"),
        ("vace_blocks.{}.after_proj", "vace_blocks.{}.proj_out"),
        ("patch_embedding", "patch_embedding"),
        ("vace_patch_embedding", "vace_patch_embedding"),
        ("time_embedding.0", "condition_embedder.time_embedder.linear_1"),
        ("time_embedding.2", "condition_embedder.time_embedder.linear_2"),
        ("time_projection.1", "condition_embedder.time_proj"),
        ("text_embedding.0", "condition_embedder.text_embedder.linear_1"),
        ("text_embedding.2", "condition_embedder.text_embedder.linear_2"),
        ("img_emb.proj.1", "condition_embedder.image_embedder.ff.net.0.proj"),
        ("img_emb.proj.3", "condition_embedder.image_embedder.ff.net.2"),
        ("head.head", "proj_out"),
    ),
)
