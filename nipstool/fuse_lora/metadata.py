"""What a fused file says about itself: training metadata as loaders expect it, hashes, and how it was made."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nipstool import __version__
from nipstool.fuse_lora.adapter import Adapter
from nipstool.fuse_lora.engine import Merge
from nipstool.fuse_lora.targets import Block, Style, Target

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
    if style.format == "kohya":
        metadata |= _kohya([t for b in blocks for t in b.targets], adapters, style)
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
    linear = {t.rank for t in targets if not t.kernel or max(t.kernel) == 1}
    conv = {t.rank for t in targets if t.kernel and max(t.kernel) > 1}
    dim = str(next(iter(linear))) if len(linear) == 1 else "Dynamic"
    args = {}
    if conv:
        size = str(next(iter(conv))) if len(conv) == 1 else "Dynamic"
        args = {"conv_dim": size, "conv_alpha": size}
    base = next(
        (a.metadata["ss_base_model_version"] for a in adapters if a.metadata.get("ss_base_model_version")), ""
    )
    return {
        "ss_network_module": _MODULES.get(style.family, "networks.lora"),
        "ss_network_dim": dim,
        "ss_network_alpha": dim,
        **({"ss_network_args": json.dumps(args)} if args else {}),
        "ss_base_model_version": base or _BASES.get(style.family, style.family),
        "ss_v2": str(style.family == "sd2"),
    }


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
        value = json.loads(text)
    except ValueError:
        return {}
    folders = value.items() if isinstance(value, dict) else ()
    return {
        str(folder): {str(tag): int(n) for tag, n in tags.items() if isinstance(n, int | float)}
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
    data = read(max(start, 0), 0x10000 + min(start, 0))
    return hashlib.sha256(data).hexdigest()[:8]


def peft_config(adapters: Sequence[Adapter], targets: Sequence[Target], names: Sequence[str]) -> dict[str, Any]:
    """adapter_config.json of the fused adapter: the style's settings, exact ranks, alpha = rank.

    Args:
        names: module names as the model calls them, one a target.
    """
    configs = [dict(a.config) for a in adapters if "peft_type" in a.config]
    base = dict(configs[-1]) if configs else {"peft_type": "LORA", "base_model_name_or_path": None, "bias": "none"}
    ranks = Counter(t.rank for t in targets)
    common = ranks.most_common(1)[0][0] if ranks else 1
    pattern = {n: t.rank for n, t in zip(names, targets, strict=True) if t.rank != common}
    saved = list(dict.fromkeys(m for c in configs for m in c.get("modules_to_save") or ()))
    return base | {
        "r": common,
        "lora_alpha": common,
        "rank_pattern": pattern,
        "alpha_pattern": dict(pattern),
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
        "target_modules": sorted(names),
        "modules_to_save": saved or None,
        "init_lora_weights": True,
    }


def config_text(config: Mapping[str, Any]) -> str:
    """The JSON text of an adapter_config.json."""
    return json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
