"""Which model a file belongs to, judged from the names, then the widths, then what the trainer wrote about it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .anima import ANIMA
from .encoders import CLIP, T5
from .flux import FLUX
from .qwen import QWEN
from .sd import UNET
from .sd3 import SD3
from .stems import Stem
from .tables import Reading, Table
from .wan import WAN

# SD1.5, SD2 and SDXL share one table and are told apart later
_TABLES: Mapping[str, Table] = {
    "sd": UNET,
    "flux": FLUX,
    "sd3": SD3,
    "qwen-image": QWEN,
    "wan": WAN,
    "anima": ANIMA,
}
SD_FAMILIES = ("sd15", "sd2", "sdxl")
FAMILIES = (*SD_FAMILIES, *(family for family in _TABLES if family != "sd"))
_BY_CROSS_WIDTH = {768: "sd15", 1024: "sd2", 2048: "sdxl"}
_BY_METADATA = (
    (re.compile(r"sdxl|stable-diffusion-xl"), "sdxl"),
    (re.compile(r"sd_v2|sd_2|stable-diffusion-v2"), "sd2"),
    (re.compile(r"sd_v1|sd_1|stable-diffusion-v1"), "sd15"),
    (re.compile(r"flux[-_]?1"), "flux"),
    (re.compile(r"sd3|stable-diffusion-3"), "sd3"),
    (re.compile(r"qwen"), "qwen-image"),
    (re.compile(r"\bwan"), "wan"),
    (re.compile(r"anima"), "anima"),
)
# models that grew out of FLUX.1 and share most names, not the widths or the meaning
_NOT_FLUX = re.compile(r"distilled_guidance|stream_modulation|individual_token_refiner|to_qkv_mlp_proj|linear_in$")
_BLOCK_NUMBER = re.compile(r"blocks[._]([0-9]{1,4})[._]")
# a table that reads fewer of a file's names than this is not the file's
_COVERAGE = 0.9

Widths = tuple[int, int] | None


def table_of(family: str) -> Table | None:
    """The table of a family; None for 'unknown'."""
    return _TABLES.get("sd" if family in SD_FAMILIES else family)


def read_encoder(stem: Stem, family: str) -> str | None:
    """The canonical name of a text encoder's module, with its component; None if it is in no table."""
    if not stem.component:
        return None
    if reading := CLIP.read(stem.rest, flat=stem.flat):
        return f"{stem.component}.{reading.canonical}"
    if reading := T5.read(stem.rest, flat=stem.flat):
        # FLUX has two encoders: trainers number T5 as the second or the third, diffusers as the second
        component = "text_encoder_2" if family == "flux" and stem.component == "text_encoder_3" else stem.component
        return f"{component}.{reading.canonical}"
    return None


def find_family(stems: Sequence[tuple[Stem, Widths]], metadata: Mapping[str, str]) -> str:
    """The family of a file from the stems (with (out, in) of each, None where unclear) and its metadata."""
    denoiser = [(stem, widths) for stem, widths in stems if not stem.component]
    if not denoiser:
        return _family_of_encoders(stems, metadata)
    reads = {
        name: [table.read(stem.rest, flat=stem.flat) for stem, _ in denoiser] for name, table in _TABLES.items()
    }
    covered = {name: sum(reading is not None for reading in found) for name, found in reads.items()}
    most = max(covered.values())
    if most < _COVERAGE * len(denoiser):
        return "unknown"
    tied = [name for name, count in covered.items() if count == most]
    name = tied[0] if len(tied) == 1 else _break_tie(tied, denoiser, metadata)
    found = [(reading, widths) for reading, (_, widths) in zip(reads[name], denoiser, strict=True) if reading]
    if name == "sd":
        return _family_of_unet(found, stems, metadata)
    if name == "flux" and not _is_flux(found, (stem.rest for stem, _ in denoiser)):
        return "unknown"
    if name == "anima" and not _is_anima(found, metadata):
        return "unknown"
    return name


def _from_metadata(metadata: Mapping[str, str], allowed: Iterable[str]) -> str | None:
    texts = (metadata.get(key, "") for key in ("ss_base_model_version", "modelspec.architecture"))
    text = " ".join(text.lower() for text in texts)
    hits = [family for pattern, family in _BY_METADATA if pattern.search(text)]
    if not hits and metadata.get("ss_v2", "").lower() == "true":
        hits = ["sd2"]
    return next((family for family in hits if family in allowed), None)


def _break_tie(tied: list[str], denoiser: Sequence[tuple[Stem, Widths]], metadata: Mapping[str, str]) -> str:
    """Attention layers alone are called the same in FLUX, SD3 and Qwen-Image."""
    named = _from_metadata(metadata, tied)
    if named:
        return named
    blocks = [int(found[1]) for stem, _ in denoiser if (found := _BLOCK_NUMBER.search(stem.rest))]
    inner = Counter(widths[1] for _, widths in denoiser if widths).most_common(1)
    # SD3 is 64 wide per block: 24 blocks in the medium model, 38 in the large one
    if "sd3" in tied and inner and inner[0][0] in (24 * 64, 38 * 64):
        return "sd3"
    # FLUX has 19 blocks, and neither kohya nor BFL writes it in diffusers' names
    beyond = max(blocks, default=0) >= 19
    if "qwen-image" in tied and (beyond or any(stem.kind in ("kohya", "bfl") for stem, _ in denoiser)):
        return "qwen-image"
    return tied[0]


def _is_flux(found: Iterable[tuple[Reading, Widths]], texts: Iterable[str]) -> bool:
    if any(_NOT_FLUX.search(text) for text in texts):
        return False
    for reading, widths in found:
        if widths is None:
            continue
        out, inp = widths
        # FLUX.2's feed-forward is gated and three times the width: 3 + 2 * 3 and 1 + 3, not 3 + 4 and 1 + 4
        if reading.pattern == "single_transformer_blocks.{}.linear1" and out == 9 * inp:
            return False
        if reading.pattern == "single_transformer_blocks.{}.proj_out" and inp == 4 * out:
            return False
    return True


def _is_anima(found: Iterable[tuple[Reading, Widths]], metadata: Mapping[str, str]) -> bool:
    """LTX, CogVideoX and others have diffusers' names of Anima's attention, but not its own code's names."""
    own = any(reading.native or re.search(r"norm[123]\.linear_[12]$", reading.canonical) for reading, _ in found)
    return own or _from_metadata(metadata, ("anima",)) is not None


def _family_of_unet(
    found: Sequence[tuple[Reading, Widths]], stems: Sequence[tuple[Stem, Widths]], metadata: Mapping[str, str]
) -> str:
    cross = Counter(w[1] for reading, w in found if w and re.search(r"attn2\.to_[kv]$", reading.canonical))
    for width, _ in cross.most_common():
        if width in _BY_CROSS_WIDTH:
            return _BY_CROSS_WIDTH[width]
    names = [reading.canonical for reading, _ in found]
    # only SD1.5 and SD2 have attention in the first block, and a fourth block
    if any(re.match(r"down_blocks\.0\.attentions|(?:down|up)_blocks\.3\.", name) for name in names):
        return _narrow(stems, metadata)
    deep = any(re.search(r"transformer_blocks\.[1-9]|^add_embedding", name) for name in names)
    sgm = any(reading.native for reading, _ in found)
    if deep or sgm or any(stem.component == "text_encoder_2" for stem, _ in stems):
        return "sdxl"
    return _from_metadata(metadata, SD_FAMILIES) or _narrow(stems, metadata)


def _narrow(stems: Iterable[tuple[Stem, Widths]], metadata: Mapping[str, str]) -> str:
    """SD1.5 or SD2, by the width of the text encoder."""
    for stem, widths in stems:
        if stem.component == "text_encoder" and widths and re.search(r"[._]q_proj$", stem.rest):
            return "sd2" if widths[1] == 1024 else "sd15"
    return _from_metadata(metadata, ("sd15", "sd2")) or "sd15"


def _family_of_encoders(stems: Sequence[tuple[Stem, Widths]], metadata: Mapping[str, str]) -> str:
    """A file with text encoders alone."""
    read = [(stem, read_encoder(stem, "")) for stem, _ in stems]
    if not stems or any(name is None for _, name in read):
        return "unknown"
    if named := _from_metadata(metadata, FAMILIES):
        return named
    components = {stem.component for stem, _ in stems}
    if "text_encoder_3" in components:
        return "sd3" if "text_encoder_2" in components else "flux"
    if "text_encoder_2" in components:
        return "flux" if any(name and ".SelfAttention." in name for _, name in read) else "sdxl"
    return _narrow(stems, metadata)
