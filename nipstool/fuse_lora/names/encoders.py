"""The text encoders: CLIP (both of SDXL's) and T5 in the names of transformers, the only ones in use."""

from .tables import Table

_CLIP_LAYER = (
    *(f"self_attn.{part}_proj" for part in ("q", "k", "v", "out")),
    "mlp.fc1",
    "mlp.fc2",
)
_CLIP = (
    *(f"text_model.encoder.layers.{{}}.{name}" for name in _CLIP_LAYER),
    "text_model.embeddings.token_embedding",
    "text_model.embeddings.position_embedding",
    "text_projection",
)
_T5 = (
    *(f"encoder.block.{{}}.layer.0.SelfAttention.{part}" for part in "qkvo"),
    *(f"encoder.block.{{}}.layer.1.DenseReluDense.{part}" for part in ("wi_0", "wi_1", "wi", "wo")),
    "shared",
)

CLIP = Table(component="text_encoder", rows=tuple((name, name) for name in _CLIP))
T5 = Table(component="text_encoder", rows=tuple((name, name) for name in _T5))
