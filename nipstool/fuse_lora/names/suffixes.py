"""The end of a key: which algorithm wrote the tensor and what it is to its module.

Sources: sd-scripts and LyCORIS (`lora_down`, `hada_`, `lokr_`, `oft_`), diffusers (`lora.down`,
`lora_linear_layer`, attention processors), PEFT (`lora_A`, with the adapter's name left in by some writers),
xlabs (`qkv_lora1.down`).
"""

import re
from collections.abc import Mapping
from typing import NamedTuple


class Ending(NamedTuple):
    """A key taken apart. `style` tells apart two spellings of one factor ('' where all algorithms share it)."""

    stem: str
    algorithm: str
    role: str
    style: str


_SIDES = {"down": "down", "up": "up", "mid": "mid", "A": "down", "B": "up"}
_LORA = (
    ("kohya", re.compile(r"\.lora_(?P<side>down|up|mid)\.weight$")),
    ("peft", re.compile(r"\.lora_(?P<side>A|B)(?:\.(?P<name>[^.]+))?\.weight$")),
    ("bare", re.compile(r"\.lora_(?P<side>A|B)$")),
    ("embedding", re.compile(r"\.lora_embedding_(?P<side>A|B)(?:\.(?P<name>[^.]+))?$")),
    ("linear-layer", re.compile(r"\.lora_linear_layer\.(?P<side>down|up)\.weight$")),
    ("dotted", re.compile(r"\.lora\.(?P<side>down|up|mid)\.weight$")),
    # before the attention processors: the `_lora` of xlabs belongs to the module's name
    ("xlabs", re.compile(r"(?P<kept>\.processor\.(?:qkv|proj)_lora[12]?)\.(?P<side>down|up)\.weight$")),
    ("processor", re.compile(r"_lora\.(?P<side>down|up)\.weight$")),
)
_HADAMARD = re.compile(r"\.hada_(?P<role>w[12]_[ab]|t[12])(?:\.(?P<name>[^.]+))?$")
_KRONECKER = re.compile(r"\.lokr_(?P<role>w[12](?:_[ab])?|t2)(?:\.(?P<name>[^.]+))?$")
_SHARED = (
    ("alpha", re.compile(r"\.alpha$")),
    ("dora_scale", re.compile(r"\.dora_scale$|\.lora_magnitude_vector(?:\.[^.]+)?(?:\.weight)?$")),
    ("bias", re.compile(r"\.lora_B(?:\.[^.]+)?\.bias$|\.diff_b$")),
)

_REFUSED = (
    ("AdaLoRA", re.compile(r"\.lora_E(?:\.\w+)?$|\.ranknum(?:\.\w+)?$")),
    ("BOFT", re.compile(r"\.boft_[RPs](?:\.\w+)?$")),
    ("OFT", re.compile(r"\.oft_(?:blocks|diag|[Rrs])(?:\.\w+)*$")),
    ("GLoRA", re.compile(r"\.(?:[ab][12]|bm)\.weight$")),
    ("IA3", re.compile(r"\.ia3_l(?:\.\w+)?$|\.on_input$")),
    ("VeRA", re.compile(r"\.vera_lambda_[bd](?:\.\w+)?$|(?:^|\.)vera_[AB](?:\.\w+)?$")),
    ("LoHa or LoKr with another parametrisation", re.compile(r"\.(?:hada|lokr)_\w+$")),
    ("control LoRA", re.compile(r"\.reshape_weight$|^lora_controlnet$")),
    ("ControlNet-LLLite", re.compile(r"^lllite_")),
    ("IP-Adapter", re.compile(r"^(?:image_proj|ip_adapter)\.")),
    ("prompt tuning", re.compile(r"^(?:base_model\.)?prompt_embeddings$")),
    ("FourierFT, Bone, HRA, VB-LoRA or RandLoRA", re.compile(r"\.(?:fourierft|bone|hra|vblora|randlora)_\w+")),
    ("cloneofsimo positional LoRA", re.compile(r"^(?:unet|text_encoder):\d+:(?:up|down)(?::\d+)?$")),
    ("textual inversion", re.compile(r"^(?:emb_params|clip_[lg]|t5xxl|string_to_param(?:\..*)?|<.*>)$")),
)
_AUTOENCODER = r"(?:conv_in|conv_out|conv1|head|mid|middle|down|up|(?:down|up|mid)_block|downsamples|upsamples)"
_WHOLE_FILE = (
    (
        "VAE",
        re.compile(rf"^(?:first_stage_model|(?:vae\.)?(?:(?:post_)?quant_conv|(?:en|de)coder\.{_AUTOENCODER}))"),
    ),
    ("full checkpoint", re.compile(r"\.(?:weight|bias|scale|qweight)$")),
)
_ADDITIVE = re.compile(r"\.(?:diff|diff_b|w_norm|b_norm)$")
_REPLACING = re.compile(r"\.set_weight$|\.norm\.(?:query|key)_norm\.scale$|\.attn\.norm_(?:added_)?[qk]\.weight$")


def split_key(key: str) -> Ending | None:
    """Take a key apart; None if it belongs to no factor of an algorithm that can be fused."""
    for style, pattern in _LORA:
        if match := pattern.search(key):
            name = match.groupdict().get("name")
            stem = key[: match.start()] + match.groupdict().get("kept", "")
            return Ending(stem, "lora", _SIDES[match["side"]], f"{style}:{name}" if name else style)
    for algorithm, pattern in (("loha", _HADAMARD), ("lokr", _KRONECKER)):
        if match := pattern.search(key):
            return Ending(key[: match.start()], algorithm, match["role"], match["name"] or "")
    for role, pattern in _SHARED:
        if match := pattern.search(key):
            return Ending(key[: match.start()], "", role, "")
    return None


def refusal(key: str, axes: int) -> tuple[str, str] | None:
    """(what, stem) of a kind of tensor that nothing here can fuse; `axes` is the length of its shape."""
    for what, pattern in _REFUSED:
        if match := pattern.search(key):
            # LyCORIS' BOFT and OFT share a name; BOFT has one axis more, for the butterfly stages
            boft = what == "OFT" and key.endswith(".oft_blocks") and axes == 4
            return ("BOFT" if boft else what), key[: match.start()]
    return None


def refusal_of_file(key: str) -> str | None:
    """What a file is that holds no LoRA, from one of its keys; None for a factor that lacks its counterpart."""
    if split_key(key) is not None:
        return None
    return next((what for what, pattern in _WHOLE_FILE if pattern.search(key)), None)


def is_additive(key: str) -> bool:
    """A full delta that is summed and never projected (LyCORIS `.diff`, norm layers)."""
    return _ADDITIVE.search(key) is not None


def is_replacing(key: str) -> bool:
    """A full weight that replaces the model's (`.set_weight`, the norms of FLUX control LoRAs)."""
    return _REPLACING.search(key) is not None


_KOHYA = {
    "down": ".lora_down.weight",
    "up": ".lora_up.weight",
    "mid": ".lora_mid.weight",
    "alpha": ".alpha",
    "dora_scale": ".dora_scale",
    "bias": ".diff_b",
}
_AB = {"down": ".lora_A.weight", "up": ".lora_B.weight", "bias": ".lora_B.bias"}
# bfl: ComfyUI reads either pair of suffixes, diffusers converts BFL's names of FLUX with lora_down/up alone
_BFL = {"down": ".lora_down.weight", "up": ".lora_up.weight", "bias": ".diff_b"}
_WRITTEN = {"kohya": _KOHYA, "diffusers": _AB, "peft": _AB, "bfl": _BFL}


def suffixes(format: str, *, embedding: bool = False) -> Mapping[str, str]:
    """Role -> suffix that a format writes for plain LoRA: kohya, diffusers, peft, bfl.

    embedding: the module is an embedding, whose factors PEFT keeps under names of their own.
    """
    if embedding and format == "peft":
        return {"down": ".lora_embedding_A", "up": ".lora_embedding_B"}
    return _WRITTEN[format]
