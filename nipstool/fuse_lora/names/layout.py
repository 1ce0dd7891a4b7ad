"""Read the layout of a LoRA file from its keys and shapes: which module every tensor belongs to, and as what."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .families import find_family, read_encoder, table_of
from .grouping import Group, Shape, Widths, group_keys, widths
from .stems import Stem, split_stem
from .suffixes import is_additive, is_replacing, refusal_of_file
from .tables import Reading

NO_METADATA: Mapping[str, str] = MappingProxyType({})
_WRAPPERS = ("base_model.model.", "diffusion_model.")
_PLAIN_WEIGHT = re.compile(r"\.(?:weight|bias)$|\.trainable_tokens_\w+$")
# what FLUX.1-Depth and -Canny LoRAs have beside the factors; their x_embedder reads 128 channels, not 64
_CONTROL_NORM = re.compile(r"\.norm\.(?:query|key)_norm\.scale$|\.attn\.norm_(?:added_)?[qk]\.weight$")
_CONTROL_EMBEDDER = (3072, 128)


@dataclass(frozen=True)
class Module:
    """The factors of one module.

    name: canonical, that is diffusers' dotted name with its component ('unet.down_blocks.1.….attn1.to_q',
        'transformer.transformer_blocks.0.attn.to_qkv' for a fused one); of a family in no table the stem itself,
        without PEFT's or ComfyUI's wrapper.
    parts: canonical names of the modules it covers: itself, or those of a fused block in the order of its rows.
    stem: as spelled in the file, before the suffix.
    algorithm: 'lora', 'loha' or 'lokr'.
    keys: role -> key. lora: down, up, mid; loha: w1_a, w1_b, w2_a, w2_b, t1, t2; lokr: w1, w1_a, w1_b, w2, w2_a,
        w2_b, t2; any: alpha, dora_scale, bias (an additive delta of the bias).
    swap_halves: the two halves of its output rows stand in the other order than in the canonical module.
    embedding: an embedding's factors: their product is the transpose of the weight's delta.
    """

    name: str
    parts: tuple[str, ...]
    stem: str
    algorithm: str
    keys: Mapping[str, str]
    swap_halves: bool = False
    embedding: bool = False


@dataclass(frozen=True)
class Layout:
    """Where every key of a file belongs. Each is in exactly one of: the keys of `modules`, the keys of the second
    modules in `duplicates`, `additive`, `saved`, `unknown`, `refused_keys`.

    family: 'sd15', 'sd2', 'sdxl', 'sd3', 'flux', 'wan', 'qwen-image', 'anima' or 'unknown'.
    format: that of most modules: 'kohya', 'diffusers', 'diffusers-old', 'attn-procs', 'peft', 'bfl' (the original
        code's names, under 'diffusion_model.' or bare), 'xlabs', 'onetrainer', 'lycoris'; 'unknown' of no modules.
    modules: in the order of the file.
    additive: full deltas, summed and never projected. saved: full weights that replace the model's.
    unknown: keys that have no place. refused: (what cannot be fused, an example key).
    prefix: the wrapper in front of every name: 'base_model.model.', 'diffusion_model.' or ''.
    duplicates: (the module, another spelling of it or of a part of it, which is not in `modules`).
    refused_keys: keys of what is refused that belong to no module.
    """

    family: str
    format: str
    modules: tuple[Module, ...]
    additive: tuple[str, ...]
    saved: tuple[str, ...]
    unknown: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    prefix: str
    duplicates: tuple[tuple[Module, Module], ...] = ()
    refused_keys: tuple[str, ...] = ()


def read_layout(
    shapes: Mapping[str, Shape],
    metadata: Mapping[str, str] = NO_METADATA,
    *,
    modules_to_save: Collection[str] = (),
    is_peft: bool = False,
) -> Layout:
    """Place every key of a LoRA file.

    shapes: key -> shape, in the order of the file. metadata: the file's, for what names and shapes leave open.
    modules_to_save, is_peft: from PEFT's adapter_config.json, where there is one.
    """
    found = group_keys(shapes)
    stems = [split_stem(group.stem, group.style) for group in found.complete]
    sizes = [widths(group, shapes) for group in found.complete]
    family = find_family(list(zip(stems, sizes, strict=True)), metadata)
    prefix = _wrapper(group.stem for group in found.complete)
    modules: list[Module] = []
    formats: Counter[str] = Counter()
    for group, stem, size in zip(found.complete, stems, sizes, strict=True):
        placed = _place(group, stem, size, family, prefix)
        if placed is None:
            found.loose += group.keys.values()
            continue
        modules.append(placed[0])
        formats["peft" if is_peft else placed[1]] += 1
    format = formats.most_common(1)[0][0] if formats else "peft" if is_peft else "unknown"
    kept, duplicates = _without_duplicates(modules)
    additive, saved, unknown = _sort_loose(found.loose, shapes, modules_to_save, format == "peft")
    refused = dict(found.refused)
    for what, key in _refused_modules(modules, saved, family, shapes):
        refused.setdefault(what, key)
    if not modules and not refused:
        refused, unknown = _judge_file(unknown, found.refused_keys)
    return Layout(
        family,
        format,
        kept,
        additive,
        saved,
        unknown,
        tuple(refused.items()),
        prefix,
        duplicates,
        tuple(found.refused_keys),
    )


def _wrapper(stems: Iterable[str]) -> str:
    """The wrapper that stands in front of every stem, or ''."""
    found = {next((wrapper for wrapper in _WRAPPERS if stem.startswith(wrapper)), "") for stem in stems}
    return found.pop() if len(found) == 1 else ""


def _place(group: Group, stem: Stem, size: Widths, family: str, prefix: str) -> tuple[Module, str] | None:
    """The module of a set of factors, and the format it is spelled in; None if the family has no such module."""
    table = table_of(family)
    embedding = group.style.startswith("embedding")
    if table is None or stem.component:
        name = read_encoder(stem, family) if table else None
        # an encoder that no table knows is never dropped: it keeps its own name, as all of an unknown family do
        name = name or group.stem.removeprefix("" if table else prefix)
        module = Module(name, (name,), group.stem, group.algorithm, group.keys, embedding=embedding)
        return module, _format(stem, group.style, None)
    reading = table.read(stem.rest, flat=stem.flat)
    if reading is None:
        return None
    module = Module(
        f"{table.component}.{reading.canonical}",
        tuple(f"{table.component}.{part}" for part in table.parts(reading)),
        group.stem,
        group.algorithm,
        group.keys,
        swap_halves=_swapped(reading, table.swapped, size),
        embedding=embedding,
    )
    return module, _format(stem, group.style, reading)


def _swapped(reading: Reading, patterns: Collection[str], size: Widths) -> bool:
    """Only a modulation of exactly two halves, shift and scale, is kept in another order."""
    return reading.native and reading.pattern in patterns and size is not None and size[0] == 2 * size[1]


def _format(stem: Stem, style: str, reading: Reading | None) -> str:
    if stem.kind in ("kohya", "onetrainer", "lycoris"):
        return stem.kind
    if style == "xlabs":
        return "xlabs"
    if reading is not None and reading.native:
        return "onetrainer" if stem.kind == "component" else "bfl"
    if stem.kind in ("peft", "bfl"):
        return stem.kind
    if style == "processor" and stem.kind == "bare":
        return "attn-procs"
    return "diffusers-old" if style in ("processor", "dotted", "linear-layer") else "diffusers"


def _without_duplicates(modules: Iterable[Module]) -> tuple[tuple[Module, ...], tuple[tuple[Module, Module], ...]]:
    first: dict[str, Module] = {}
    kept: list[Module] = []
    duplicates: list[tuple[Module, Module]] = []
    for module in modules:
        earlier = next((first[part] for part in module.parts if part in first), None)
        if earlier is None:
            kept.append(module)
            first.update(dict.fromkeys(module.parts, module))
        else:
            duplicates.append((earlier, module))
    return tuple(kept), tuple(duplicates)


def _sort_loose(
    loose: Iterable[str], shapes: Mapping[str, Shape], modules_to_save: Collection[str], peft: bool
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(additive, saved, unknown) of the keys that are no factor, in file order."""
    left = set(loose)
    additive, saved, unknown = [], [], []
    for key in (key for key in shapes if key in left):
        if is_additive(key):
            additive.append(key)
        elif is_replacing(key) or _is_saved(key, modules_to_save, peft):
            saved.append(key)
        else:
            unknown.append(key)
    return tuple(additive), tuple(saved), tuple(unknown)


def _is_saved(key: str, modules_to_save: Collection[str], peft: bool) -> bool:
    """PEFT adds the head of a classifier by itself, so that every plain weight in its files is one to save."""
    path = _PLAIN_WEIGHT.sub("", key)
    if path == key:
        return False
    wrapped = peft and key.startswith("base_model.")
    return wrapped or any(path.endswith(name) or f".{name}." in f".{path}." for name in modules_to_save)


def _refused_modules(
    modules: Iterable[Module], saved: Iterable[str], family: str, shapes: Mapping[str, Shape]
) -> Iterable[tuple[str, str]]:
    """What the modules are refused for although they were read."""
    for module in modules:
        if "dora_scale" in module.keys:
            yield "DoRA", module.keys["dora_scale"]
        if module.name == "transformer.x_embedder" and family == "flux" and module.algorithm == "lora":
            up, down = shapes[module.keys["up"]], shapes[module.keys["down"]]
            if (*up[:1], *down[1:2]) == _CONTROL_EMBEDDER:
                yield "control LoRA", module.keys["down"]
    if family == "flux":
        yield from (("control LoRA", key) for key in saved if _CONTROL_NORM.search(key))


def _judge_file(unknown: Iterable[str], refused_keys: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Say what a file is that holds no LoRA at all: (what, example key), and the keys that do not say."""
    refused: dict[str, str] = {}
    left = []
    for key in unknown:
        what = refusal_of_file(key)
        if what is None:
            left.append(key)
        else:
            refused.setdefault(what, key)
            refused_keys.append(key)
    return refused, tuple(left)
