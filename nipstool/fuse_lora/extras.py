"""What a LoRA file holds besides low-rank factors: full weights saved with it, and full delta tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from nipstool.fuse_lora.adapter import Adapter
from nipstool.fuse_lora.targets import Style
from nipstool.kit.errors import DataError, UsageError
from nipstool.kit.tensors import torch_dtype


@dataclass(frozen=True)
class Extra:
    """A tensor that is not projected: copied from one file, or the weighted sum of deltas.

    sources: (file, key). weights: of each source; None copies the only one as it is.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    sources: tuple[tuple[int, str], ...]
    weights: tuple[float, ...] | None
    note: str = ""


def collect_extras(
    adapters: Sequence[Adapter],
    style: Style,
    weights: Sequence[float],
    saved_from: str | None,
    *,
    allow_unknown: bool,
) -> tuple[list[Extra], list[str]]:
    """The extras of the output: saved weights (the content's, or as `saved_from` says), deltas summed.

    Returns them, and the keys that are left out.

    Raises:
        DataError: two files bring different weights and nobody said which to keep, or the output's format has
            no place for them and `allow_unknown` is false.
    """
    if saved_from not in (None, "content", "style"):
        raise UsageError(f"--modules-to-save {saved_from}: expected content or style")
    saved = _by_key(adapters, "saved")
    additive = _by_key(adapters, "additive")
    dropped = []
    for key, holders in {**saved, **additive}.items():
        holder = adapters[holders[0]]
        if holder.layout.format != style.format:
            if not allow_unknown:
                raise DataError(
                    f"{holder.label}: {style.format} has no place for {key} (--allow-unknown leaves it out)"
                )
            saved.pop(key, None)
            additive.pop(key, None)
            dropped.append(key)
    kept = [_saved(key, holders, adapters, saved_from) for key, holders in saved.items()]
    return kept + [_delta(key, holders, adapters, weights) for key, holders in additive.items()], dropped


def _by_key(adapters: Sequence[Adapter], field: str) -> dict[str, list[int]]:
    """key -> the files that have it."""
    found: dict[str, list[int]] = {}
    for file, adapter in enumerate(adapters):
        for key in getattr(adapter.layout, field):
            found.setdefault(key, []).append(file)
    return found


def _saved(key: str, holders: list[int], adapters: Sequence[Adapter], saved_from: str | None) -> Extra:
    infos = [adapters[i].reader.infos[key] for i in holders]
    same = all(
        (info.dtype, info.shape) == (infos[0].dtype, infos[0].shape)
        and adapters[i].reader.read_bytes(key) == adapters[holders[0]].reader.read_bytes(key)
        for i, info in zip(holders[1:], infos[1:], strict=True)
    )
    if not same and saved_from is None:
        labels = " and ".join(adapters[i].label for i in holders)
        raise DataError(f"{labels} bring different full weights {key}: choose --modules-to-save content or style")
    chosen = holders[0] if saved_from != "style" else holders[-1]
    info = adapters[chosen].reader.infos[key]
    note = f"{key}: full weight of {adapters[chosen].label}, not projected"
    return Extra(key, info.dtype, tuple(info.shape), ((chosen, key),), None, note)


def _delta(key: str, holders: list[int], adapters: Sequence[Adapter], weights: Sequence[float]) -> Extra:
    infos = [adapters[i].reader.infos[key] for i in holders]
    if len({info.shape for info in infos}) > 1:
        shapes = " and ".join(
            f"{list(x.shape)} in {adapters[i].label}" for i, x in zip(holders, infos, strict=True)
        )
        raise DataError(f"{key}: shapes do not meet: {shapes}")
    note = f"{key}: full delta, summed without projection"
    sources = tuple((i, key) for i in holders)
    return Extra(key, infos[0].dtype, tuple(infos[0].shape), sources, tuple(weights[i] for i in holders), note)


def extra_tensor(extra: Extra, adapters: Sequence[Adapter]) -> Tensor:
    """The tensor of an extra."""
    if extra.weights is None:
        file, key = extra.sources[0]
        return adapters[file].reader.read(key)
    terms = [
        w * adapters[i].reader.read(k).double() for w, (i, k) in zip(extra.weights, extra.sources, strict=True)
    ]
    return sum(terms[1:], terms[0]).to(torch_dtype(extra.dtype))
