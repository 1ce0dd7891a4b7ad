"""What a LoRA file is: format, family, ranks, scales, spectra, trigger words, and what is wrong with it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from nipstool.fuse_lora.adapter import Adapter, open_adapter
from nipstool.fuse_lora.algorithms import delta_shape, exact_rank
from nipstool.fuse_lora.metadata import parse_tags, trigger_words
from nipstool.fuse_lora.names import Module
from nipstool.fuse_lora.projection import singular_values
from nipstool.kit.errors import DataError, UsageError
from nipstool.kit.files import sha256, spooled_input
from nipstool.kit.progress import Progress, silent
from nipstool.kit.runtime import torch_threads


@dataclass(frozen=True)
class ModuleFacts:
    """One module. scale: alpha / r; None where it is not one number. spectrum: the singular values of the update.

    bad_values: NaN or infinite entries in its tensors; the spectrum is then empty.
    """

    name: str
    stem: str
    algorithm: str
    shape: tuple[int, int]
    kernel: tuple[int, ...]
    rank: int
    alpha: float | None
    norm: float | None
    top1: float | None
    stable_rank: float | None
    spectrum: tuple[float, ...]
    bad_values: int


@dataclass(frozen=True)
class FileFacts:
    """One file. refused: what keeps it from being fused, with an example key; unknown: keys nobody can place."""

    path: str
    sha256: str
    family: str
    format: str
    base_model: str | None
    dtype: str
    bytes: int
    tensors: int
    algorithms: dict[str, int]
    ranks: dict[str, int]
    modules: tuple[ModuleFacts, ...]
    norm: float
    bad_values: int
    trigger_words: tuple[str, ...]
    saved: tuple[str, ...]
    additive: tuple[str, ...]
    unknown: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


def inspect(path: str | Path, *, spectra: bool = True, progress: Progress = silent) -> FileFacts:
    """Read one LoRA and say what it is; nothing in it is refused, what could not be fused is named.

    Args:
        spectra: compute norms and singular values too (reads every tensor).
    """
    with spooled_input(path) as local, ExitStack() as stack, torch.inference_mode(), torch_threads(1):
        adapter = open_adapter(local, str(path))
        stack.enter_context(adapter.reader)
        modules = []
        for done, module in enumerate(adapter.layout.modules, start=1):
            modules.append(_module(adapter, module, spectra=spectra))
            progress(done, len(adapter.layout.modules))
        layout = adapter.layout
        return FileFacts(
            path=str(path),
            sha256=sha256(adapter.path),
            family=layout.family,
            format=layout.format,
            base_model=adapter.base_model,
            dtype=adapter.dtype,
            bytes=sum(info.nbytes for info in adapter.reader.infos.values()),
            tensors=len(adapter.reader.infos),
            algorithms=dict(Counter(m.algorithm for m in layout.modules)),
            ranks={str(r): n for r, n in sorted(Counter(m.rank for m in modules).items())},
            modules=tuple(modules),
            norm=math.sqrt(sum((m.norm or 0.0) ** 2 for m in modules)),
            bad_values=sum(m.bad_values for m in modules),
            trigger_words=tuple(top_words(adapter)),
            saved=layout.saved,
            additive=layout.additive,
            unknown=layout.unknown,
            refused=layout.refused,
        )


def _module(adapter: Adapter, module: Module, *, spectra: bool) -> ModuleFacts:
    shapes = adapter.shapes(module)
    try:
        m, n, kernel = delta_shape(module.algorithm, shapes)
    except DataError as error:
        raise DataError(f"{adapter.label}: {module.stem}: {error}") from error
    bad = _bad_values(adapter, module) if spectra else 0
    sigma = _spectrum(adapter, module) if spectra and not bad else ()
    energy, top = sum(s * s for s in sigma), max(sigma, default=0.0)
    return ModuleFacts(
        name=module.name,
        stem=module.stem,
        algorithm=module.algorithm,
        shape=(m, n),
        kernel=kernel,
        rank=exact_rank(module.algorithm, shapes),
        alpha=adapter.alpha(module) if not bad else None,
        norm=math.sqrt(energy) if sigma else None,
        top1=top**2 / energy if energy else None,
        stable_rank=energy / top**2 if energy else None,
        spectrum=sigma,
        bad_values=bad,
    )


def _bad_values(adapter: Adapter, module: Module) -> int:
    tensors = (adapter.reader.read(key) for key in module.keys.values())
    return sum(int((~torch.isfinite(t.float())).sum()) for t in tensors)


def _spectrum(adapter: Adapter, module: Module) -> tuple[float, ...]:
    try:
        return tuple(singular_values(*adapter.factors(module)).tolist())
    except UsageError:  # a LoHa or LoKr too large to be folded exactly
        return ()
    except DataError as error:
        raise DataError(f"{module.name}: {error}") from error


def top_words(adapter: Adapter, most: int = 10) -> Sequence[str]:
    """The words that trigger the LoRA, as far as its metadata tells: phrases first, then its commonest tags."""
    kept = trigger_words([adapter])
    tags: Counter[str] = Counter()
    for folder in parse_tags(kept.pop("ss_tag_frequency", "{}")).values():
        tags.update(folder)
    phrases = [value for value in kept.values() if value]
    return phrases + [tag for tag, _ in tags.most_common(most)]
