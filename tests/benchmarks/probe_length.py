"""probe-length beside what people do by hand: numbers and ratios, measured in one run on one thread.

Needs the real inputs (NIPSTOOL_TEST_DATA, or ../shared/data beside the repository) for most parts.
A part alone: python tests/benchmarks/probe_length.py solve memory pass predict restart censored
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("NIPSTOOL_TEST_DATA", ROOT.parent / "shared" / "data"))


def cpu(work: Callable[[], Any], times: int = 1) -> float:
    """CPU seconds, the least of several runs."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def solve(rows: int = 50_000, width: int = 512, layers: int = 6) -> None:
    """All layers, 15 penalties, 5 folds from rows, against GridSearchCV a layer (one layer is timed)."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV, PredefinedSplit
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from nipstool.probe_length.ridge import cross_validate
    from nipstool.probe_length.statistics import empty

    random = np.random.default_rng(0)
    fold = np.sort(random.integers(0, 5, rows))
    x = random.standard_normal((rows, width), dtype=np.float32) * np.arange(1, width + 1) ** -0.5
    y = x[:, :9].sum(1) + random.standard_normal(rows)
    alphas = tuple(np.logspace(-2, 5, 15))
    found = []

    def ours() -> None:
        for _ in range(layers):
            sums = empty(width, 5, torch.tensor(x[:100].mean(0)))
            for k in range(5):
                for start in range(0, int((fold == k).sum()), 4096):
                    chosen = np.flatnonzero(fold == k)[start : start + 4096]
                    sums.add(k, torch.from_numpy(x[chosen]), torch.from_numpy(y[chosen]))
            found.append(cross_validate(sums, alphas))

    def theirs() -> None:
        pipeline = make_pipeline(StandardScaler(), Ridge())
        search = GridSearchCV(
            pipeline,
            {"ridge__alpha": alphas},
            cv=PredefinedSplit(fold),
            scoring="neg_mean_squared_error",
        )
        found.append(search.fit(x.astype(np.float64), y))

    mine, one_layer = cpu(ours), cpu(theirs)
    same = found[0].alpha == found[-1].best_params_["ridge__alpha"]
    print(f"fit of {layers} layers x {width}, {rows} rows: {mine:.1f} s; GridSearchCV {one_layer:.1f} s a layer")
    print(f"  ratio {one_layer * layers / mine:.1f} (wanted 20), the same penalty: {same}")


def memory() -> None:
    """Peak memory of a pass over 50,000 and over 500,000 tokens of a random model."""
    peaks = [int(subprocess.check_output([sys.executable, __file__, "_pass", str(n)])) for n in (50_000, 500_000)]
    print(f"peak memory: 50k tokens {peaks[0] / 1e6:.0f} MB, 500k tokens {peaks[1] / 1e6:.0f} MB")
    print(f"  grows by {peaks[1] / peaks[0] - 1:.1%} (wanted less than 5 %)")


def _pass(tokens: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from nipstool.probe_length.collect import Collector, collect
    from nipstool.probe_length.collected import Origin
    from nipstool.probe_length.encoding import Encoder, Sequence, hash64
    from nipstool.probe_length.hidden import Language

    shape: dict[str, Any] = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    config = LlamaConfig(vocab_size=512, max_position_embeddings=512, **shape)
    model = LlamaForCausalLM(config).eval()
    language = Language("none", model, Encoder(None, config), tuple(f"model.layers.{i}" for i in range(4)))
    random = np.random.default_rng(0)

    def source():
        for i in range(tokens // 250):
            length = 150 + int(random.integers(200))
            ids = random.integers(0, 512, length).tolist()
            yield Sequence(str(i), "d", i, hash64(i), hash64("s", i), ids[:10], ids[10:], length - 10, False)

    collector = Collector(language, Origin("m", "h", 128, (0, 1, 2, 3, 4), 5, 100, "float32", 512, None))
    collect(source(), collector, batch_tokens=4096)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def stories() -> list[dict[str, Any]]:
    with gzip.open(DATA / "probe-length" / "stories260K_samples.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def opened() -> Any:
    from nipstool.probe_length.hidden import open_language

    return open_language(DATA / "models" / "stories260K", dtype=None, device="cpu")


def sequences(rows: list[dict[str, Any]], language: Any) -> list[Any]:
    from nipstool.probe_length import encoding
    from nipstool.probe_length.formats import Layout, to_example

    examples = (to_example(row, f"row {i}", Layout(), "stories") for i, row in enumerate(rows))
    return list(encoding.sequences(examples, language.encoder, print))


def collected(found: list[Any], language: Any, layers: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> Any:
    from nipstool.probe_length.collect import Collector, collect
    from nipstool.probe_length.collected import Origin

    collector = Collector(language, Origin("m", "h", language.width, layers, 5, 5000, "float32", 512, None))
    collect(found, collector)
    return collector.part()


def pass_() -> None:
    """Collection against the bare forward pass, and against generate(output_hidden_states=True)."""
    from nipstool.probe_length.collect import batches
    from nipstool.probe_length.hidden import padded, run

    language = opened()
    found = sequences(stories()[::10], language)
    tokens = sum(len(s.prompt) + len(s.response) for s in found)

    def bare() -> None:
        for start in range(0, len(found), 128):
            for batch in batches(found[start : start + 128], 8192):
                run(language, padded([s.prompt + s.response for s in batch]))

    def generated() -> None:
        with torch.inference_mode():
            language.model.generate(
                input_ids=torch.tensor([found[0].prompt]),
                max_new_tokens=60,
                min_new_tokens=60,
                do_sample=False,
                output_hidden_states=True,
                return_dict_in_generate=True,
            )

    bare()
    forward, ours, steps = cpu(bare, 3), cpu(lambda: collected(found, language), 3), cpu(generated, 2) / 60
    print(f"collection of {tokens} tokens: {ours:.2f} s, bare forward {forward:.2f} s")
    print(f"  ratio {ours / forward:.2f} (wanted at most 1.25)")
    print(f"  {steps / (ours / tokens):.1f} x faster a token than generate with hidden states (wanted 15)")


def predict() -> None:
    """The forward pass that stops at layer L/2 against a whole prefill with logits; a random model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from nipstool.probe_length.encoding import Encoder
    from nipstool.probe_length.hidden import Language, padded, reading, run

    shape: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 24,
        "num_attention_heads": 4,
    }
    config = LlamaConfig(vocab_size=4096, max_position_embeddings=512, **shape)
    model = LlamaForCausalLM(config).eval()
    language = Language("none", model, Encoder(None, config), tuple(f"model.layers.{i}" for i in range(24)))
    batch = padded([list(range(5, 205))] * 8)

    def half() -> None:
        with reading(language, [12], lambda layer, h: None, stop=True):
            run(language, batch)

    half()
    ratio = cpu(half, 3) / cpu(lambda: run(language, batch, logits=True), 3)
    print(f"predict at layer L/2: {ratio:.2f} of a full prefill (wanted at most 0.65)")


def restart() -> None:
    """150 held-out stories cut at 85 %, then an insert, window 15; probes of 600 others."""
    from nipstool.probe_length.comparison import BOTH, PROBE, SMOOTH
    from nipstool.probe_length.fit import fit
    from nipstool.probe_length.trace import marked, trace

    language = opened()
    rows = stories()
    probe, _ = fit(collected(sequences(rows[::3][:600], language), language))
    held = [row for row in rows[1::3] if row["finish_reason"] == "stop"][:150]
    print(f"restart: probe at layer {probe.lines[PROBE].layer}, position-and-probe at {probe.lines[BOTH].layer}")
    for text in (
        " Once upon a time, there was a little",
        " She was happy and they all went",
        " One day, she saw a big tree and",
    ):
        insert = language.encoder.tokenizer(text, add_special_tokens=False).input_ids
        cut = {row["id"]: int(0.85 * len(row["response_ids"])) for row in held}
        made = [{**row, "response_ids": row["response_ids"][: cut[row["id"]]] + insert} for row in held]
        places = {name: [t] for name, t in cut.items()}
        found = marked(trace(probe, language, sequences(made, language), places), 15)
        told = []
        for kind in (PROBE, BOTH, SMOOTH):
            ratio = np.mean([m.ratio[kind] for m in found])
            told.append(f"{kind} x{ratio:.2f}, risen {np.mean([m.shift[kind] > 0 for m in found]):.0%}")
        print(f"  {text.strip()!r}: {'; '.join(told)}")


def censored() -> None:
    """Stories whose answers are cut at the 70th percentile of lengths: bias of the mean at t = 0; coverage."""
    from dataclasses import replace

    from nipstool.probe_length.fit import fit
    from nipstool.probe_length.intervals import bounds

    language = opened()
    full = [s for s in sequences(stories(), language) if not s.censored]
    short = [replace(s, response=s.response[:2]) for s in full]  # at t = 0 nothing else is read
    cap = int(np.quantile([s.length for s in full], 0.7))
    cut = [replace(s, length=cap, censored=True) if s.length > cap else s for s in short]
    true = np.mean([s.length for s in full])
    found = collected(cut, language, (0, 4, 5))
    for how in ("tobit", "drop"):
        probe, _ = fit(found, censored=how)
        place = found.origin.layers.index(probe.first.layer)
        predicted = probe.first(found.sample.first[:, place].astype(float))
        sigma = fit_sigma(probe)
        normal = np.mean(np.exp(predicted + sigma**2 / 2) - 1)
        print(f"{how}: cut at {cap} tokens, mean {normal / true - 1:+.1%} off the true mean")
    whole, _ = fit(collected(short, language, (0, 4, 5)))
    residuals, random, held = whole.residuals, np.random.default_rng(0), []
    groups = np.unique(residuals.group)
    for _ in range(100):
        mine = np.isin(residuals.group, random.permutation(groups)[: len(groups) // 2])
        low, high = bounds(residuals.take(mine), 0.9)
        test = residuals.value[~mine]
        held.append(((test >= low) & (test <= high)).mean())
    print(f"coverage at nominal 90 %: {np.mean(held):.1%} over 100 splits of groups (wanted 88 to 92 %)")


def fit_sigma(probe: Any) -> float:
    """The spread of residuals by their distribution."""
    spread = probe.spread
    mean = float(spread.points @ spread.mass)
    return float(np.sqrt((spread.points - mean) ** 2 @ spread.mass))


PARTS = {
    "solve": solve,
    "memory": memory,
    "pass": pass_,
    "predict": predict,
    "restart": restart,
    "censored": censored,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["_pass"]:
        _pass(int(sys.argv[2]))
    else:
        for name in sys.argv[1:] or PARTS:
            if name in ("solve", "memory", "predict") or DATA.is_dir():
                PARTS[name]()
            else:
                print(f"{name}: skipped, no real inputs at {DATA}")
