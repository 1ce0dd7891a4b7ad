"""What a fused file says about itself: training metadata as loaders expect it, hashes, and how it was made."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nipstool import __version__
from nipstool.fuse_lora.adapter import Adapter
from nipstool.fuse_lora.engine import Merge
from nipstool.fuse_lora.extras import Extra
from nipstool.fuse_lora.targets import Block, Style, Target
from nipstool.kit.records import parse_json

HASHES = {"sshs_model_hash": 64, "sshs_legacy_hash": 8}  # key -> width in characters
_MODULES = {"flux": "networks.lora_flux", "sd3": "networks.lora_sd3"}
_BASES = {"sd15": "sd_v1", "sd2": "sd_v2", "sdxl": "sdxl_base_v1-0", "flux": "flux1", "sd3": "sd3"}
_ARCHITECTURES = {
    "sd15": "stable-diffusion-v1/lora",
    "sd2": "stable-diffusion-v2-768-v/lora",
    "sdxl": "stable-diffusion-xl-v1-base/lora",
    "sd3": "stable-diffusion-3-medium/lora",
    "flux": "flux-1-dev/lora",
}
_TRIGGERS = ("ss_tag_frequency", "modelspec.trigger_phrase", "ss_trigger_words", "trained_words")


def describe(
    adapters: Sequence[Adapter],
    hashes: Sequence[str],
    blocks: Sequence[Block],
    style: Style,
    how: Merge,
) -> dict[str, str]:
    """The metadata of the output: no dates, all strings, the trigger words of every file.

    Args:
        hashes: sha256 of each input file.
    """
    metadata = {"format": "pt", **trigger_words(adapters), **_own(adapters, hashes, how)}
    targets = [t for b in blocks for t in b.targets]
    if style.format == "kohya":
        metadata |= _kohya(targets, adapters, style)
    if style.format == "diffusers" and style.family != "unknown":
        metadata |= diffusers_config(targets)
    if style.family in _ARCHITECTURES:
        metadata |= {
            "modelspec.sai_model_spec": "1.0.1",
            "modelspec.architecture": adapters[0].metadata.get("modelspec.architecture")
            or _ARCHITECTURES[style.family],
            "modelspec.merged_from": ", ".join(_title(a) for a in adapters),
            "modelspec.title": " + ".join(_title(a) for a in adapters),
        }
    return metadata


def _title(adapter: Adapter) -> str:
    path = Path(adapter.label)
    return path.name.removesuffix(".safetensors") if adapter.label != "-" else "stdin"


def _own(adapters: Sequence[Adapter], hashes: Sequence[str], how: Merge) -> dict[str, str]:
    own: dict[str, Any] = {
        "method": "NP-LoRA (arXiv 2511.11051)" if len(adapters) > 1 else "convert",
        "version": __version__,
        "inputs": json.dumps([{"name": _title(a), "sha256": h} for a, h in zip(adapters, hashes, strict=True)]),
        "weights": json.dumps(list(how.weights)),
    }
    if len(adapters) > 1:
        own["mu"] = "auto" if how.mu is None else str(how.mu)
        own |= {"leak": str(how.leak)} if how.mu is None else {}
        own |= {"k": str(how.k)} if how.k is not None else {}
        own |= {"energy": str(how.energy)} if how.energy is not None else {}
    return {f"nipstool.{key}": value for key, value in own.items()}


def _kohya(targets: Sequence[Target], adapters: Sequence[Adapter], style: Style) -> dict[str, str]:
    conv = [t for t in targets if max(t.kernel, default=1) > 1]
    linear = [t for t in targets if max(t.kernel, default=1) == 1]
    args = {"conv_dim": _one(t.rank for t in conv), "conv_alpha": _one(map(_alpha, conv))} if conv else {}
    base = next(
        (a.metadata["ss_base_model_version"] for a in adapters if a.metadata.get("ss_base_model_version")), ""
    )
    return {
        "ss_network_module": _MODULES.get(style.family, "networks.lora"),
        "ss_network_dim": _one(t.rank for t in linear),
        "ss_network_alpha": _one(map(_alpha, linear)),
        **({"ss_network_args": json.dumps(args)} if args else {}),
        "ss_base_model_version": base or _BASES.get(style.family, style.family),
        "ss_v2": str(style.family == "sd2"),
    }


def _alpha(target: Target) -> float:
    return target.rank if target.alpha is None else target.alpha


def _one(values: Iterable[float]) -> str:
    """The one value that all share, as kohya writes it."""
    different = set(values)
    return f"{different.pop():g}" if len(different) == 1 else "Dynamic"


def trigger_words(adapters: Sequence[Adapter]) -> dict[str, str]:
    """The trigger words of all files: tag counts added up, phrases joined, in file order."""
    kept: dict[str, str] = {}
    for key in _TRIGGERS:
        values = list(dict.fromkeys(a.metadata[key] for a in adapters if a.metadata.get(key)))
        if len(values) > 1 and key == "ss_tag_frequency":
            kept[key] = _added_tags(values)
        elif values:
            kept[key] = ", ".join(values) if len(values) > 1 else values[0]
    return kept


def _added_tags(texts: Sequence[str]) -> str:
    """{folder: {tag: count}} of several files; a folder of the same name in two files is added up."""
    folders: dict[str, Counter[str]] = {}
    for text in texts:
        for folder, tags in parse_tags(text).items():
            folders.setdefault(folder, Counter()).update(tags)
    return json.dumps({folder: dict(tags) for folder, tags in folders.items()}, ensure_ascii=False)


def parse_tags(text: str) -> dict[str, dict[str, int]]:
    """kohya's ss_tag_frequency; what is not of its form is dropped."""
    try:
        value = parse_json(text)
    except ValueError:
        return {}
    folders = value.items() if isinstance(value, dict) else ()
    return {
        str(folder): {
            str(tag): int(n) for tag, n in tags.items() if isinstance(n, int | float) and math.isfinite(n)
        }
        for folder, tags in folders
        if isinstance(tags, dict)
    }


def legacy_hash(read: Any, header_bytes: int) -> str:
    """kohya's old hash: 8 hex digits over bytes 0x100000 to 0x110000 of the file with only its ss_* metadata.

    Args:
        read: read(start, length) of the tensor bytes.
        header_bytes: length of that file's header, its 8 length bytes included.
    """
    start = 0x100000 - header_bytes
    data = read(max(start, 0), max(0x10000 + min(start, 0), 0))
    return hashlib.sha256(data).hexdigest()[:8]


def peft_config(adapters: Sequence[Adapter], targets: Sequence[Target], extras: Sequence[Extra]) -> dict[str, Any]:
    """adapter_config.json of the fused adapter: exact ranks, alpha = rank, all modules by their full names.

    The other settings are those of the file whose full weights are kept (the task belongs to its head), else of
    the first file that has any.
    """
    kept = [adapters[e.sources[0][0]] for e in extras if e.weights is None]
    configs = [dict(a.config) for a in [*kept, *adapters] if a.config_path is not None]
    base = configs[0] if configs else {"base_model_name_or_path": None, "bias": "none"}
    saved = list(dict.fromkeys(m for c in configs for m in c.get("modules_to_save") or ()))
    ranks = {t.stem.removeprefix("base_model.model."): t.rank for t in targets}
    return base | {
        **_lora_config(ranks),
        "peft_type": "LORA",
        "use_rslora": False,
        "use_dora": False,
        "lora_bias": any(t.bias for t in targets),
        "inference_mode": True,
        "modules_to_save": saved or None,
        "init_lora_weights": True,
        # the names above are complete: what else chose modules has done its work
        **dict.fromkeys(("layers_to_transform", "layers_pattern", "exclude_modules", "target_parameters")),
    }


def _lora_config(ranks: Mapping[str, int]) -> dict[str, Any]:
    """The part of PEFT's LoraConfig that says which modules have which rank, at scale 1."""
    common = Counter(ranks.values()).most_common(1)[0][0] if ranks else 1
    # PEFT takes a name for the end of a longer one: 'proj_out' alone would mean every block's proj_out too
    pattern = {n if "." in n else f"^{n}": r for n, r in ranks.items() if r != common}
    names: list[str] | str = sorted(ranks)
    if not all("." in n for n in ranks):
        names = "|".join(re.escape(n) for n in sorted(ranks))
    return {
        "r": common,
        "lora_alpha": common,
        "rank_pattern": pattern,
        "alpha_pattern": dict(pattern),
        "target_modules": names,
    }


def diffusers_config(targets: Sequence[Target]) -> dict[str, str]:
    """The LoraConfig of each component as diffusers keeps it in a file's metadata, where ranks differ.

    Without it several versions of diffusers take the first module's rank for everybody's alpha.
    """
    components: dict[str, dict[str, int]] = {}
    for target in targets:
        component, _, name = target.stem.partition(".")
        # transformers has dropped this level from its CLIP; PEFT matches the end of a name
        name = name.removeprefix("text_model.") if component.startswith("text_encoder") else name
        components.setdefault(component, {})[name] = target.rank
    if all(len(set(ranks.values())) == 1 for ranks in components.values()):
        return {}
    flat = {
        f"{component}.{key}": value
        for component, ranks in components.items()
        for key, value in _lora_config(ranks).items()
    }
    return {"lora_adapter_metadata": json.dumps(flat, sort_keys=True)}


def config_text(config: Mapping[str, Any]) -> str:
    """The JSON text of an adapter_config.json."""
    return json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
