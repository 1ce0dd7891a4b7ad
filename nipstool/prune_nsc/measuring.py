"""Measures on tokens which parts of a decoder matter, layer by layer, so that an interrupted run can go on.

What is measured lies in a work folder beside the output until that is complete: the sampled batches, then one file
a layer with its scores and its repaired down projection. `key.json` says what they belong to.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError, UsageError
from nipstool.kit.language_models import load_model, load_tokenizer
from nipstool.kit.progress import Stages
from nipstool.prune_nsc.decoder import Decoder, open_checkpoint
from nipstool.prune_nsc.plan import Plan
from nipstool.prune_nsc.sampling import noise, of_text, sampled
from nipstool.prune_nsc.selection import Kept, Scores, top
from nipstool.prune_nsc.statistics import Moments, moments, repaired, scores_of, turns

if TYPE_CHECKING:
    from torch import Tensor

LAYER_TOKENS = 2048  # enough for a mean cosine; channels need max(12288, 4 x width)
CHANNEL_TOKENS = 12288


@dataclass(frozen=True)
class Source:
    """Where tokens come from ("self", "noise", "text", "random"), how many, the text, and the seed."""

    kind: str
    tokens: int | None
    text: str | None
    seed: int


@dataclass(frozen=True)
class Measured:
    """Scores by layer, or of whole layers; `repairs` says that down projections were fitted anew."""

    scores: Mapping[int, Scores] = field(default_factory=dict)
    turns: Sequence[float] | None = None
    tokens: int = 0
    repairs: bool = False
    work: Path | None = None

    def repaired(self, kept: Sequence[Kept]) -> Callable[[int], Tensor | None]:
        """Source layer -> its repaired down projection, read from the work folder."""
        from safetensors.torch import load_file

        channels = {layer.source: layer.channels for layer in kept}

        def read(layer: int) -> Tensor | None:
            if not self.repairs or self.work is None:
                return None
            found = load_file(_layer_file(self.work, layer))
            assert tuple(found["kept"].tolist()) == channels[layer]
            return found["down"]

        return read


def random_scores(decoder: Decoder, units: str, seed: int) -> Measured:
    """Scores that choose at random: nothing is measured."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    layers = len(decoder.blocks)
    if units == "layers":
        return Measured(turns=torch.rand(layers, generator=generator).tolist())
    groups = decoder.dense.heads if decoder.dense.kv == 1 else decoder.dense.kv
    ffn = torch.rand(layers, decoder.dense.ffn, generator=generator)
    heads = torch.rand(layers, groups, generator=generator)
    return Measured({i: Scores(ffn[i], heads[i]) for i in range(layers)})


def measure(
    decoder: Decoder, plan: Plan, source: Source, device: Any, work: Path, resume: bool, stages: Stages
) -> Measured:
    """Scores of layers, groups and channels, and repaired down projections where there are tokens enough."""
    import torch

    tokens = _token_count(decoder, plan, source)
    _prepare(work, _key(decoder, plan, source, tokens), resume)
    with stages.progress("load"):
        model = load_model(decoder.source, dtype=torch.float32, device=device)
        _check_finite(model, decoder)
    batches = _batches(model, decoder, source, tokens, work, stages)
    held = sum(batch.numel() for batch in batches)
    if plan.units == "layers":
        with stages.progress("measure") as show:
            return Measured(turns=protected(turns(model, decoder, batches, show), plan), tokens=held)
    repair = held >= 4 * decoder.dense.ffn and any(
        width is not None and width.ffn != decoder.dense.ffn for width in plan.answer.layers
    )
    scores = _of_layers(model, decoder, plan, batches, repair, work, stages)
    return Measured(scores, None, held, repair, work)


def _token_count(decoder: Decoder, plan: Plan, source: Source) -> int:
    default = LAYER_TOKENS if plan.units == "layers" else max(CHANNEL_TOKENS, 4 * decoder.dense.ffn)
    return source.tokens or default


def protected(measured: Sequence[float], plan: Plan) -> list[float]:
    """Layers that the plan's choices protect are put last in the order of dropping."""
    first, last = plan.keep
    size = len(measured)
    return [turn if first <= i < size - last else float("inf") for i, turn in enumerate(measured)]


def _check_finite(model: Any, decoder: Decoder) -> None:
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise DataError(f"{decoder.source}: {name!r} holds NaN or infinity")


def _key(decoder: Decoder, plan: Plan, source: Source, tokens: int) -> dict[str, Any]:
    with open_checkpoint(decoder.source) as reader:
        files = sorted({info.path for info in reader.infos.values()})
    stamps = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    text = None if source.text is None else hashlib.sha256(source.text.encode()).hexdigest()
    widths = [None if w is None else [w.ffn, w.heads, w.kv] for w in plan.answer.layers]
    return {
        "files": stamps,
        "kind": source.kind,
        "tokens": tokens,
        "text": text,
        "seed": source.seed,
        "units": plan.units,
        "widths": widths,
    }


def _prepare(work: Path, key: dict[str, Any], resume: bool) -> None:
    """An empty work folder, or with `resume` that of the same work."""
    file = work / "key.json"
    if resume and file.exists():
        if json.loads(file.read_text()) == key:
            return
        raise UsageError(f"{work}: was measured with other options or another model; run without --resume")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    file.write_text(json.dumps(key))


def _batches(
    model: Any, decoder: Decoder, source: Source, tokens: int, work: Path, stages: Stages
) -> list[Tensor]:
    if source.kind == "noise":
        return noise(model.config, tokens, source.seed)
    if source.text is not None:
        ids = load_tokenizer(decoder.source)(source.text, add_special_tokens=False).input_ids
        if len(ids) < 2:
            raise DataError("the calibration text gives no tokens")
        return of_text(ids if source.tokens is None else ids[: source.tokens], model.config)
    return _sampled(model, source, tokens, work, stages)


def _sampled(model: Any, source: Source, tokens: int, work: Path, stages: Stages) -> list[Tensor]:
    from safetensors.torch import load_file, save_file

    done: list[Tensor] = []
    while (file := work / f"sampled-{len(done)}.safetensors").exists():
        done.append(load_file(file)["ids"])
    batches = []
    with stages.progress("sample") as show:
        for index, ids in enumerate(sampled(model, tokens, source.seed, stages.note, done, show)):
            batches.append(ids)
            if index >= len(done):
                part = work / "part"
                save_file({"ids": ids}, part)
                part.rename(work / f"sampled-{index}.safetensors")
    return batches


def _layer_file(work: Path, layer: int) -> Path:
    return work / f"layer-{layer}.safetensors"


def _of_layers(
    model: Any, decoder: Decoder, plan: Plan, batches: Sequence[Tensor], repair: bool, work: Path, stages: Stages
) -> dict[int, Scores]:
    """Scores of every layer; each layer's are stored with its repaired projection before the next is worked on."""
    from safetensors.torch import load_file

    heads = plan.units == "ffn,groups"
    files = [_layer_file(work, layer) for layer in range(len(decoder.blocks))]
    if not all(file.exists() for file in files):
        with stages.progress("measure") as show:
            for layer, sums in moments(model, decoder, batches, full=repair, heads=heads, progress=show):
                _store(model, decoder, plan, layer, sums, repair, files[layer])
    found = [load_file(file) for file in files]
    return {layer: Scores(f["channels"], f.get("heads")) for layer, f in enumerate(found)}


def _store(model: Any, decoder: Decoder, plan: Plan, layer: int, sums: Moments, repair: bool, file: Path) -> None:
    import torch
    from safetensors.torch import save_file

    block, width = decoder.blocks[layer], plan.answer.layers[layer]
    assert block.mlp is not None
    assert block.attention is not None
    down = model.get_submodule(block.mlp.down).weight.detach()
    scores = scores_of(sums, down, model.get_submodule(block.attention.o).weight.detach())
    assert scores.channels is not None
    tensors = {"channels": scores.channels}
    if scores.heads is not None:
        tensors["heads"] = scores.heads
    if repair and width is not None:
        kept = top(scores.channels, width.ffn, decoder.dense.ffn)
        tensors["kept"] = torch.tensor(kept)
        tensors["down"] = repaired(down, sums, kept).float().contiguous().cpu()
    part = file.with_suffix(".part")
    save_file(tensors, part)
    part.rename(file)
