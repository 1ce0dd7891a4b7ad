"""From a checkpoint and a budget to a smaller checkpoint: plan, measure, cut, check, publish."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import InputMissingError, NipsError, UsageError
from nipstool.kit.files import AtomicFolder, check_output, sha256
from nipstool.kit.language_models import load_model, load_tokenizer, to_config
from nipstool.kit.progress import Silent, Stages
from nipstool.kit.records import to_json
from nipstool.prune_nsc.check import check_blocks, check_counts, check_logits, load_pruned, two_fit
from nipstool.prune_nsc.decoder import Decoder, has_weights
from nipstool.prune_nsc.measuring import Measured, Source, measure, protected, random_scores
from nipstool.prune_nsc.perplexity import perplexity, pieces, read_text
from nipstool.prune_nsc.plan import Budgets, Plan, Settings, plan
from nipstool.prune_nsc.selection import Kept, select
from nipstool.prune_nsc.slicing import copy_others, write_config, write_slices

if TYPE_CHECKING:
    import torch

CHANNELS = ("self", "noise", "random")
PLAN_FILE = "nsc_plan.json"


@dataclass(frozen=True)
class Evidence:
    """What the self-check and the evaluation found. Differences are relative to the largest output."""

    block_difference: float
    logit_difference: float | None
    perplexity_before: float | None = None
    perplexity_after: float | None = None


@dataclass(frozen=True)
class Pruned:
    """The result: the plan, what was kept of each layer, bytes of weights before and after, the evidence."""

    output: str
    plan: Plan
    channels: str
    tokens: int
    repaired: bool
    kept: tuple[Kept, ...]
    bytes_before: int
    bytes_after: int
    evidence: Evidence
    inputs: Mapping[str, str]  # file -> its sha256


def prune(
    model: str,
    output: str,
    budgets: Budgets,
    settings: Settings | None = None,
    *,
    channels: str = "self",
    tokens: int | None = None,
    calibration: str | None = None,
    evaluate: str | None = None,
    device: torch.device | str = "cpu",
    resume: bool = False,
    force: bool = False,
    stages: Stages | None = None,
) -> Pruned:
    """Prune the checkpoint folder `model` into the folder `output`.

    Args:
        channels: what the choice of channels, groups and layers is measured on: "self" (text sampled from the
            model), "noise" (random token ids), or "random" (nothing is measured).
        tokens: how many; default max(12288, 4 x FFN width), for whole layers 2048.
        calibration: a text to measure on instead.
        evaluate: a text whose perplexity is taken before and after.
        resume: take up what an interrupted run of the same work had measured.

    Raises what `plan` raises; DataError for weights that cannot be used, OutputError, CheckError.
    """
    stages = stages or Silent()
    if channels not in CHANNELS:
        raise UsageError(f"--channels {channels}: expected {', '.join(CHANNELS)}")
    if tokens is not None and tokens < 2:
        raise UsageError(f"--tokens {tokens}: expected 2 or more")
    check_output(output, inputs=[model], force=force, folder=True)
    texts = [read_text(path) for path in (calibration, evaluate) if path is not None]
    with stages.progress("plan") as show:
        decoder, found = plan(model, budgets, settings, progress=show)
    if not has_weights(model):
        raise InputMissingError(f"{Path(model) / 'model.safetensors'}: no weights there, nor an index of shards")
    for line in found.warnings:
        stages.note(f"warning: {line}")
    seed = (settings or Settings()).seed
    text = texts[0] if calibration is not None else None
    source = Source("text" if text is not None else channels, tokens, text, seed)
    work = _work_folder(output)
    with AtomicFolder(output, force=force) as part, _removed_after_failure(work):
        measured = _measured(decoder, found, source, device, work, resume, stages)
        kept = select(decoder, found.answer.layers, measured.scores, measured.turns)
        with stages.progress("write") as show:
            write_slices(decoder, kept, part, repaired=measured.repaired(kept), progress=show)
        write_config(decoder, kept, part, found.format)
        copy_others(Path(model), part)
        (part / PLAN_FILE).write_text(_plan_text(found, kept), encoding="utf-8")
        evidence = _checked(decoder, found, kept, part, measured, seed, stages)
        sizes = _weight_bytes(Path(model)), _weight_bytes(part)
        if evaluate is not None:
            evidence = _evaluated(decoder, part, texts[-1], evidence, device, stages)
    shutil.rmtree(work, ignore_errors=True)
    return Pruned(
        output=output,
        plan=found,
        channels=source.kind if measured.tokens or measured.scores or measured.turns else "none",
        tokens=measured.tokens,
        repaired=measured.repairs,
        kept=tuple(kept),
        bytes_before=sizes[0],
        bytes_after=sizes[1],
        evidence=evidence,
        inputs=_hashes(Path(model)),
    )


def _work_folder(output: str) -> Path:
    """Where measurements lie until the output is complete."""
    target = Path(os.path.realpath(output))
    return target.with_name(f".{target.name}.measured")


@contextmanager
def _removed_after_failure(work: Path) -> Iterator[None]:
    """An interrupted run leaves what it has measured for --resume; a failed one leaves nothing."""
    try:
        yield
    except NipsError:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _hashes(model: Path) -> dict[str, str]:
    return {str(file): sha256(file) for file in (model / "config.json", *sorted(model.glob("*.safetensors")))}


def _measured(
    decoder: Decoder, found: Plan, source: Source, device: Any, work: Path, resume: bool, stages: Stages
) -> Measured:
    """What the cut parts contribute; nothing is measured where nothing is cut, or for a random choice."""
    cut = any(width != decoder.dense for width in found.answer.layers)
    if not cut:
        return Measured()
    if source.kind == "random":
        chosen = random_scores(decoder, found.units, source.seed)
        return chosen if chosen.turns is None else Measured(turns=protected(chosen.turns, found))
    return measure(decoder, found, source, device, work, resume, stages)


def _plan_text(found: Plan, kept: Sequence[Kept]) -> str:
    return to_json({"plan": found, "kept_layers": [layer.source for layer in kept]}, indent=2) + "\n"


def _checked(
    decoder: Decoder, found: Plan, kept: Sequence[Kept], part: Path, measured: Measured, seed: int, stages: Stages
) -> Evidence:
    def repaired(layer: int) -> bool:
        return measured.repairs

    check_counts(decoder, part, found.answer.params)
    with stages.progress("self-check") as show:
        blocks = check_blocks(decoder, kept, part, repaired=repaired, seed=seed, progress=show)
    logits = check_logits(decoder, kept, part, repaired=repaired) if two_fit(decoder) else None
    return Evidence(blocks, logits)


def _weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _evaluated(
    decoder: Decoder, part: Path, text: str, evidence: Evidence, device: Any, stages: Stages
) -> Evidence:
    """The evidence with perplexities of both models, one of them in memory at a time."""
    import torch

    config = to_config(decoder.raw, decoder.source)
    sequences = pieces(text, load_tokenizer(decoder.source), config)
    found = []
    for label in ("before", "after"):
        with stages.progress(f"perplexity {label}") as show:
            if label == "before":
                model = load_model(decoder.source, dtype=torch.float32, device=device)
            else:
                model = load_pruned(decoder, part, torch.float32).to(device)
            found.append(perplexity(model, sequences, show))
            del model
    return Evidence(evidence.block_difference, evidence.logit_difference, *found)
