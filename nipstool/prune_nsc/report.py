"""Results as rows and words: what a command shows of a plan, a pruned checkpoint and a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nipstool.prune_nsc.decoder import Width
from nipstool.prune_nsc.plan import Plan
from nipstool.prune_nsc.prune import Pruned
from nipstool.prune_nsc.score import Ranked
from nipstool.prune_nsc.search import SearchResult

Row = tuple[str | float | int | None, ...]

PLAN_COLUMNS = ("plan", "params", "FLOPs/token", "KV bytes/token", "NSC", "slack", "gap to LP", "layers")
CHANGE_COLUMNS = ("what", "before", "after", "ratio")
TAU_COLUMNS = ("score", "tau, all", "pairs", "tau, near", "near pairs")
SEARCH_COLUMNS = ("architecture", "global", "NSC", "params", "FLOPs/token", "KV bytes/token", "layers")


def layers_in_words(layers: Sequence[Width | None]) -> str:
    """30 x (ffn 8256, 32/32 heads) + 2 x (...): what all layers keep, in short."""

    def word(width: Width | None) -> str:
        return "dropped" if width is None else f"ffn {width.ffn}, {width.heads}/{width.kv} heads"

    return " + ".join(f"{count} x ({what})" for what, count in Counter(map(word, layers)).items())


def plan_rows(plan: Plan) -> list[Row]:
    """The dense model, one width for all layers, and NSC-DP: costs, score, and what the budgets leave over."""
    answers = {"dense": plan.dense, "one width": plan.uniform, "NSC-DP": plan.dp}
    rows: list[Row] = []
    for name, answer in answers.items():
        if answer is None:
            continue
        slack = ", ".join(f"{key} {left}" for key, left in answer.slack.items())
        gap = None if answer.gap is None else f"{answer.gap:.2f}"
        costs = (answer.params, answer.flops, answer.kv_bytes)
        rows.append((name, *costs, f"{answer.nsc:.1f}", slack or None, gap, layers_in_words(answer.layers)))
    return rows


def plan_title(plan: Plan) -> str:
    """The model and how it was scored."""
    return f"{plan.model} (init {plan.init}, snr {plan.snr:g}, spectra {plan.spectra}, seq {plan.seq})"


def change_rows(pruned: Pruned) -> list[Row]:
    """Before, after and their ratio, of everything that became smaller, and of the perplexity."""
    before, after, evidence = pruned.plan.dense, pruned.plan.answer, pruned.evidence
    sizes = {
        "layers": (len(before.layers), len(pruned.kept)),
        "parameters": (before.params, after.params),
        "FLOPs a token": (before.flops, after.flops),
        "KV bytes a token": (before.kv_bytes, after.kv_bytes),
        "bytes of weights": (pruned.bytes_before, pruned.bytes_after),
    }
    rows: list[Row] = [(what, old, new, new / old) for what, (old, new) in sizes.items()]
    rows.append(("NSC", f"{before.nsc:.1f}", f"{after.nsc:.1f}", after.nsc / before.nsc))
    old, new = evidence.perplexity_before, evidence.perplexity_after
    if old is not None and new is not None:
        rows.append(("perplexity", f"{old:.3f}", f"{new:.3f}", new / old))
    return rows


def outcome(pruned: Pruned) -> str:
    """One line: where it is, what its layers keep, how that was chosen and checked."""
    evidence = pruned.evidence
    chosen = {"random": "chosen at random", "none": "nothing cut"}.get(
        pruned.channels, f"chosen on {pruned.tokens} tokens ({pruned.channels})"
    )
    logits = "" if evidence.logit_difference is None else f", logits {evidence.logit_difference:.1g}"
    return (
        f"wrote {pruned.output}: {layers_in_words([layer.width for layer in pruned.kept])}; {chosen}"
        + (", down projections repaired" if pruned.repaired else "")
        + f"; self-check: blocks {evidence.block_difference:.1g}{logits} of the masked original's maximum"
    )


def summary(pruned: Pruned) -> dict[str, Any]:
    """Everything about a pruned checkpoint, as JSON; of what was kept the numbers, not every index."""
    kept = [{"layer": layer.source, **asdict(layer.width)} for layer in pruned.kept]
    return {
        "output": pruned.output,
        "plan": pruned.plan,
        "channels": pruned.channels,
        "tokens": pruned.tokens,
        "repaired": pruned.repaired,
        "kept": kept,
        "bytes_before": pruned.bytes_before,
        "bytes_after": pruned.bytes_after,
        "evidence": pruned.evidence,
    }


def kept_shares(pruned: Pruned) -> Mapping[str, Sequence[float]]:
    """Series for a picture: the share of FFN channels and of query heads that each original layer keeps."""
    dense = pruned.plan.dense.layers[0]
    assert dense is not None
    ffn, heads = [0.0] * len(pruned.plan.dense.layers), [0.0] * len(pruned.plan.dense.layers)
    for layer in pruned.kept:
        ffn[layer.source] = len(layer.channels) / dense.ffn
        heads[layer.source] = len(layer.heads) / dense.heads
    return {f"FFN channels of {dense.ffn}": ffn, f"query heads of {dense.heads}": heads}


def picture_title(pruned: Pruned) -> str:
    """The model's name and what is left of it."""
    before, after = pruned.plan.dense.params, pruned.plan.answer.params
    return f"{Path(pruned.plan.model).resolve().name}: {after:,} of {before:,} parameters"


def tau_rows(ranking: Sequence[Ranked]) -> list[Row]:
    """Kendall's tau of each score, to three digits, with the pairs it is over."""

    def digits(tau: float | None) -> str:
        return "-" if tau is None else f"{tau:.3f}"

    return [(r.score, digits(r.all.tau), r.all.pairs, digits(r.near.tau), r.near.pairs) for r in ranking]


def search_rows(found: SearchResult) -> list[Row]:
    """The best architecture and the next best, with the values that their combinations have of the global keys."""
    rows: list[Row] = []
    for name, one in (("best", found.best), ("runner-up", found.runner_up)):
        if one is not None:
            costs = (one.params, one.flops, one.kv_bytes)
            chosen = ", ".join(f"{key} {value}" for key, value in one.chosen.items())
            rows.append((name, chosen or None, f"{one.nsc:.2f}", *costs, layers_in_words(one.layers)))
    return rows


def proof(found: SearchResult) -> str:
    """The certificate in one line."""
    c = found.certificate
    slack = ", ".join(f"{name} {left}" for name, left in c.slack.items())
    return (
        f"LP bound {c.lp_bound:.2f}, gap {c.gap:.2g}; slack {slack}; {c.combinations} combinations,"
        f" {c.infeasible} infeasible, {c.solved} solved, {c.labels} labels explored"
    )
