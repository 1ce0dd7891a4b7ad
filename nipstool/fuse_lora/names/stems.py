"""The beginning of a stem: the wrapper and the component, and what is left to look up in a family's table."""

import re
from dataclasses import dataclass

# (prefix, kind, component): '' is the denoiser, which the family names
_FLAT = (
    ("lora_unet__", "kohya", ""),
    ("lora_unet_", "kohya", ""),
    ("lora_transformer_", "onetrainer", ""),
    ("lycoris_", "lycoris", ""),
    ("lora_te1_", "kohya", "text_encoder"),
    ("lora_te2_", "kohya", "text_encoder_2"),
    ("lora_te3_", "kohya", "text_encoder_3"),
    ("lora_te_", "kohya", "text_encoder"),
    ("lora_", "kohya", ""),
)
_DOTTED = (
    ("base_model.model.", "peft", ""),
    ("model.diffusion_model.", "bfl", ""),
    ("diffusion_model.", "bfl", ""),
    ("text_encoders.clip_l.transformer.", "bfl", "text_encoder"),
    ("text_encoders.clip_g.transformer.", "bfl", "text_encoder_2"),
    ("text_encoders.t5xxl.transformer.", "bfl", "text_encoder_3"),
    ("unet.base_model.model.", "component", ""),
    ("unet.", "component", ""),
    ("transformer.", "component", ""),
    ("text_encoder_3.", "component", "text_encoder_3"),
    ("text_encoder_2.", "component", "text_encoder_2"),
    ("text_encoder.", "component", "text_encoder"),
    ("clip_l.", "onetrainer", "text_encoder"),
    ("clip_g.", "onetrainer", "text_encoder_2"),
    ("t5.", "onetrainer", "text_encoder_3"),
)
_PEFT_COMPONENT = re.compile(r"^(?:unet|transformer)\.(?=(?:down_|mid_|up_|single_|transformer_|double_)\w*block)")
_PROCESSOR = re.compile(r"(?<=\.)processor\.(?=(?:to|add)_\w+$)")
# diffusers wrote the text encoder's projections under the names of its own attention
_ENCODER_ATTENTION = re.compile(r"(?<=\.self_attn\.)to_(q|k|v|out)$")


@dataclass(frozen=True)
class Stem:
    """A stem without its prefix. kind: 'kohya', 'onetrainer', 'lycoris', 'peft', 'bfl', 'component', 'bare'."""

    kind: str
    component: str
    rest: str
    flat: bool


def split_stem(stem: str, style: str) -> Stem:
    """Take the prefix off a stem; `style` is that of its ending, on which the old attention names depend."""
    for table, flat in ((_FLAT, True), (_DOTTED, False)):
        for prefix, kind, component in table:
            if stem.startswith(prefix) and (not flat or "." not in stem):
                rest = stem.removeprefix(prefix)
                if kind == "peft":
                    rest = _PEFT_COMPONENT.sub("", rest)
                return Stem(kind, component, _modern(rest, component, style), flat)
    return Stem("bare", "", _modern(stem, "", style), False)


def _modern(rest: str, component: str, style: str) -> str:
    rest = _PROCESSOR.sub("", rest)
    if component:
        return _ENCODER_ATTENTION.sub(r"\1_proj", rest)
    return f"{rest}.0" if style == "processor" and rest.endswith(".to_out") else rest
