"""How a fused LoRA is laid out on disk: keys, shapes and dtypes of every target, known before any is computed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nipstool.fuse_lora.adapter import Adapter, swapped
from nipstool.fuse_lora.names import suffixes
from nipstool.fuse_lora.names.families import SD_FAMILIES
from nipstool.fuse_lora.plan import Source
from nipstool.fuse_lora.targets import Block, Style, Target
from nipstool.kit.errors import DataError
from nipstool.kit.tensors import torch_dtype

Spec = tuple[str, tuple[int, ...]]
"""(dtype as safetensors calls it, shape)."""

FACTOR_DTYPES = ("F16", "BF16", "F32", "F64")


def output_dtype(asked: str | None, content: str) -> str:
    """The dtype of the output: the one asked for, else the content's; what is no plain float becomes BF16."""
    names = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}
    if asked is not None:
        return names[asked]
    return content if content in FACTOR_DTYPES else "BF16"


def keys_of(target: Target, style: Style) -> dict[str, str]:
    """role (down, up, alpha where the format has one, bias) -> key."""
    ends = dict(suffixes(style.format))
    if target.embedding:
        ends = {"down": ".lora_embedding_A", "up": ".lora_embedding_B"}
    roles = ["down", "up"] + (["alpha"] if "alpha" in ends else []) + (["bias"] if target.bias else [])
    ends.setdefault("bias", ".lora_B.bias")
    return {role: target.stem + ends[role] for role in roles}


def specs_of(target: Target, style: Style, dtype: str) -> dict[str, Spec]:
    """key -> dtype and shape of a target's tensors."""
    keys = keys_of(target, style)
    m, r, kernel = target.shape[0], target.rank, target.kernel
    down = (r, target.shape[1])
    if kernel:
        down = (r, target.shape[1] // _area(kernel), *kernel)
    up = (m, r, *(1 for _ in kernel))
    specs = {keys["down"]: (dtype, down), keys["up"]: (dtype, up)}
    if "alpha" in keys:
        specs[keys["alpha"]] = ("F32", ())  # bf16 would round 257 to 256
    if "bias" in keys:
        specs[keys["bias"]] = (dtype, (m,))
    return specs


def _area(kernel: Sequence[int]) -> int:
    area = 1
    for side in kernel:
        area *= side
    return area


def tensors_of(target: Target, B: Tensor, A: Tensor, style: Style, dtype: str) -> Iterator[tuple[str, Tensor]]:
    """key, tensor of a target's factors B [m, r] and A [r, n], in the shapes and dtype of the output."""
    keys = keys_of(target, style)
    if target.swap_halves:
        B = swapped(B)
    alpha = float(target.rank) if target.alpha is None else target.alpha
    if alpha != target.rank:
        even = math.sqrt(target.rank / alpha)
        B, A = B * even, A * even
    specs = specs_of(target, style, dtype)
    for role, tensor in (("down", A), ("up", B)):
        shape = specs[keys[role]][1]
        cast = tensor.to(torch_dtype(dtype)).reshape(shape)
        if not bool(torch.isfinite(cast).all()):
            raise DataError(f"{target.name}: values do not fit {dtype}; choose --dtype float32")
        yield keys[role], cast
    if "alpha" in keys:
        yield keys["alpha"], torch.tensor(alpha, dtype=torch.float32)


def biases_of(
    block: Block, adapters: Sequence[Adapter], weights: Sequence[float], style: Style
) -> dict[str, Tensor]:
    """key -> the weighted sum of the bias deltas, of each target of a block that has one."""
    if not any(target.bias for target in block.targets):
        return {}
    total = torch.zeros(sum(t.shape[0] for t in block.targets), dtype=torch.float64)
    for index, unit in enumerate(block.units):
        start = sum(block.rows[: block.members[index]]) if block.joined else 0
        for adapter, weight, source in zip(adapters, weights, unit.sources, strict=True):
            delta = None if source is None else _bias_rows(adapter, source)
            if delta is not None:
                total[start : start + len(delta)] += weight * delta
    parts = total.split([t.shape[0] for t in block.targets])
    return {
        keys_of(target, style)["bias"]: swapped(part) if target.swap_halves else part
        for target, part in zip(block.targets, parts, strict=True)
    }


def _bias_rows(adapter: Adapter, source: Source) -> Tensor | None:
    delta = adapter.bias(source.module, source.shape[0])
    return delta if delta is None or source.rows is None else delta[slice(*source.rows)]


def copied(target: Target, block: Block, style: Style) -> dict[str, str]:
    """key of the output -> key of the file, of a target whose tensors are copied as they are."""
    assert target.verbatim is not None
    source = block.units[0].sources[target.verbatim]
    assert source is not None
    keys = keys_of(target, style)
    return {keys[role]: key for role, key in source.module.keys.items() if role in keys}


def may_copy(target: Target, block: Block, adapters: Sequence[Adapter], style: Style, dtype: str) -> bool:
    """Whether a target's only source can be copied byte for byte at weight 1: nothing about it changes."""
    held = [(i, s) for i, s in enumerate(block.units[0].sources) if s is not None]
    if len(held) != 1 or block.joined or len(block.targets) > 1 or target.rank < held[0][1].rank:
        return False
    file, source = held[0]
    adapter = adapters[file]
    module = source.module
    plain = module.algorithm == "lora" and not set(module.keys) - {"down", "up", "alpha", "bias"}
    if not plain or source.rows is not None or module.swap_halves != target.swap_halves:
        return False
    if target.bias != ("bias" in module.keys):
        return False
    if adapter.shapes(module)["down"][0] != target.rank:  # more rows than the matrix has rank
        return False
    if any(adapter.reader.infos[module.keys[role]].dtype != dtype for role in ("down", "up")):
        return False
    has_alpha = "alpha" in suffixes(style.format)
    alpha = adapter.alpha(module)
    return "alpha" in module.keys if has_alpha else alpha is None or alpha == source.rank


_ONE_ALPHA = re.compile(r"\.attn[12]\.|^text_encoder")


def with_common_alphas(blocks: Sequence[Block], style: Style) -> list[Block]:
    """The targets of a kohya file for SD with one alpha a component, the rest of their scales in the factors.

    Where alphas differ, diffusers gives the commonest one to every attention layer and encoder module, whatever
    theirs is. Such a target is computed where it would be copied with another; the rest may keep their own.
    """
    if style.format != "kohya" or style.family not in SD_FAMILIES:
        return list(blocks)
    copied: dict[str, Counter[float]] = {}
    ranks: dict[str, Counter[float]] = {}
    for target in (t for block in blocks for t in block.targets):
        ranks.setdefault(_component(target), Counter())[float(target.rank)] += 1
        if target.verbatim is not None and target.alpha is not None and target.alpha > 0:
            copied.setdefault(_component(target), Counter())[target.alpha] += 1
    alphas = {name: counter.most_common(1)[0][0] for name, counter in {**ranks, **copied}.items()}
    return [
        replace(block, targets=tuple(_with_alpha(t, alphas[_component(t)]) for t in block.targets))
        for block in blocks
    ]


def _component(target: Target) -> str:
    return target.name.partition(".")[0]


def _with_alpha(target: Target, alpha: float) -> Target:
    keeps = target.verbatim is not None and (target.alpha == alpha or not _ONE_ALPHA.search(target.name))
    return target if keeps else replace(target, alpha=alpha, verbatim=None)
