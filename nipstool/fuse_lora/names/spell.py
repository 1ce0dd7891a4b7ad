"""Write canonical names in the spelling of a format, and say which modules a format keeps fused."""

from ...kit.errors import DataError
from .encoders import CLIP, T5
from .families import SD_FAMILIES, table_of
from .layout import Module
from .tables import Table

_ENCODERS = ("text_encoder_3", "text_encoder_2", "text_encoder")
_COMFY_ENCODERS = {
    "text_encoder": "text_encoders.clip_l.transformer.",
    "text_encoder_2": "text_encoders.clip_g.transformer.",
    "text_encoder_3": "text_encoders.t5xxl.transformer.",
}
_WRITABLE = ("kohya", "diffusers", "peft", "bfl")


def writable_formats(family: str) -> tuple[str, ...]:
    """The formats a family can be written in; of an unknown one, those whose syntax its names may have."""
    return tuple(format for format in _WRITABLE if format != "bfl" or family not in SD_FAMILIES)


def native_fused(format: str, family: str) -> bool:
    """Whether a format keeps q, k and v (and FLUX's linear1) in one matrix."""
    table = table_of(family)
    return format in ("kohya", "bfl") and table is not None and bool(table.fused)


def fusion_of(name: str, family: str) -> tuple[str, tuple[str, ...]] | None:
    """(fused canonical name, all its parts in row order) of a split part; None if it is in no fused block."""
    table = table_of(family)
    if table is None or not name.startswith(f"{table.component}."):
        return None
    fusion = table.fusion(name.removeprefix(f"{table.component}."))
    if fusion is None:
        return None
    fused, parts = fusion
    return f"{table.component}.{fused}", tuple(f"{table.component}.{part}" for part in parts)


def part_rows(module: Module, out: int, inp: int) -> tuple[int, ...]:
    """Output rows of each part of a module of `out` rows and `inp` columns.

    q, k and v are equally tall. FLUX's linear1 holds three square ones and the feed-forward below them.
    """
    count = len(module.parts)
    if count == 1:
        return (out,)
    if count == 4 and out > 3 * inp:
        return (inp, inp, inp, out - 3 * inp)
    if count == 3 and out % 3 == 0 and out > 0:
        return (out // 3,) * 3
    raise DataError(
        f"{module.stem}: {out} rows and {inp} columns cannot be cut into {count} parts "
        f"({', '.join(part.rpartition('.')[2] for part in module.parts)})"
    )


def swaps_halves(name: str, family: str, format: str, out: int, inp: int) -> bool:
    """Whether a format keeps the output halves of a canonical module (out x inp) in the other order."""
    table = table_of(family)
    if table is None or format not in ("kohya", "bfl") or out != 2 * inp:
        return False
    reading = table.read(name.removeprefix(f"{table.component}."), flat=False)
    return reading is not None and reading.pattern in table.swapped


def spell(name: str, family: str, format: str) -> str:
    """The stem of a canonical name in a format, wrapper included; DataError where the format cannot say it.

    Fused names exist in kohya and bfl only, split ones of a fused block in diffusers and peft only. PEFT holds one
    model, the denoiser. Names of an unknown family, and of an encoder in no table, are their own spelling in any
    format of the same syntax (flat or dotted), under 'base_model.model.' in peft and 'diffusion_model.' in bfl.
    """
    if format not in _WRITABLE:
        raise DataError(f"no names are written in the format {format}; expected one of {', '.join(_WRITABLE)}")
    table = table_of(family)
    component, _, rest = name.partition(".")
    if table is not None and component == table.component:
        stem = _spell_denoiser(rest, family, table, format)
    elif table is not None and component in _ENCODERS:
        stem = _spell_encoder(component, rest, family, format)
    else:
        stem = _spell_own(name, format, wrapped=table is None)
    if stem is None:
        raise DataError(f"{name}: the {format} format has no name for this module of {family}")
    return stem


def _spell_denoiser(rest: str, family: str, table: Table, format: str) -> str | None:
    reading = table.read(rest, flat=False)
    if reading is None or reading.native:
        return None
    if format in ("diffusers", "peft"):
        if len(table.parts(reading)) > 1:
            return None
        return f"{table.component}.{rest}" if format == "diffusers" else f"base_model.model.{rest}"
    if format == "kohya" and family in ("sd15", "sd2"):
        return f"lora_unet_{_flat(rest)}"
    native = table.write(rest)
    if native is None or (format == "bfl" and family in SD_FAMILIES):
        return None
    return f"lora_unet_{_flat(native)}" if format == "kohya" else f"diffusion_model.{native}"


def _spell_encoder(component: str, rest: str, family: str, format: str) -> str | None:
    if format == "diffusers":
        return f"{component}.{rest}"
    t5 = T5.read(rest, flat=False) is not None
    if not t5 and CLIP.read(rest, flat=False) is None:
        return None
    if format == "kohya":
        return f"{_kohya_encoder(component, family, t5)}{_flat(rest)}"
    if format == "bfl" and family not in SD_FAMILIES:
        return f"{_COMFY_ENCODERS['text_encoder_3' if t5 else component]}{rest}"
    return None


def _kohya_encoder(component: str, family: str, t5: bool) -> str:
    if component == "text_encoder":
        return "lora_te_" if family in ("sd15", "sd2") else "lora_te1_"
    return "lora_te3_" if t5 or component == "text_encoder_3" else "lora_te2_"


def _spell_own(name: str, format: str, *, wrapped: bool) -> str | None:
    flat = name.startswith(("lora_", "lycoris_")) and "." not in name
    if flat != (format == "kohya"):
        return None
    wrapper = {"peft": "base_model.model.", "bfl": "diffusion_model."}.get(format, "") if wrapped else ""
    return wrapper + name


def _flat(name: str) -> str:
    return name.replace(".", "_")
