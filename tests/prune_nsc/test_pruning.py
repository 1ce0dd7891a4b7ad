"""Pruned checkpoints: stock classes load them and they compute what the masked original computes."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import FAMILIES, FFN, HEAD_DIM, HEADS, LAYERS, VOCABULARY, make, run
from transformers import AutoModelForCausalLM

from nipstool.kit.errors import DataError, UsageError
from nipstool.prune_nsc import Budgets, Pruned, Settings, prune
from nipstool.prune_nsc.check import CheckError, check_blocks, check_logits
from nipstool.prune_nsc.decoder import read_decoder
from nipstool.prune_nsc.measuring import protected, random_scores
from nipstool.prune_nsc.selection import select

IDS = torch.randint(VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(7))
CASES = [
    ("ffn", 2, False, False, {"ratio": 0.85}),
    ("ffn,groups", 4, True, True, {"kv_bytes": 4 * 2 * 2 * HEAD_DIM * LAYERS}),
    ("ffn,groups", 1, False, True, {"ratio": 0.8}),
    ("layers", 2, True, True, {"ratio": 0.7}),
]


def masked_logits(folder: Path, pruned: Pruned) -> torch.Tensor:
    """The original's logits when what was dropped is set to zero where it would be read."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    kept = {layer.source: layer for layer in pruned.kept}

    def only(columns: list[int]) -> Callable[..., Any]:
        def hook(_module: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
            mask = torch.zeros(inputs[0].shape[-1])
            mask[columns] = 1
            return (inputs[0] * mask,)

        return hook

    for index, layer in enumerate(model.model.layers):
        if index not in kept:
            layer.register_forward_hook(
                lambda _m, args, kwargs, out: args[0] if args else kwargs["hidden_states"], with_kwargs=True
            )
            continue
        heads = [h * HEAD_DIM + i for h in kept[index].heads for i in range(HEAD_DIM)]
        layer.mlp.down_proj.register_forward_pre_hook(only(list(kept[index].channels)))
        layer.self_attn.o_proj.register_forward_pre_hook(only(heads))
    with torch.inference_mode():
        return model(input_ids=IDS).logits


def logits(folder: Path, **how: Any) -> torch.Tensor:
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, **how
    )
    model, report = loaded
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    with torch.inference_mode():
        return model.eval()(input_ids=IDS).logits


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


Made = Callable[..., tuple[Path, Path, Pruned]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A model of a family and what a case makes of it; each pair is made once."""

    @cache
    def first(family: str, case: int) -> tuple[Path, Path, Pruned]:
        units, kv, tied, bias, budget = CASES[case]
        place = tmp_path_factory.mktemp(family)
        folder = make(place / "in", family, kv=kv, tied=tied, bias=bias)
        return folder, place / "out", run(folder, place / "out", budget, units=units)

    return lambda family, *case: first(family, CASES.index(case))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("units", "kv", "tied", "bias", "budget"), CASES)
def test_a_pruned_model_is_the_masked_original(
    made: Made, family: str, units: str, kv: int, tied: bool, bias: bool, budget: dict[str, Any]
) -> None:
    folder, out, pruned = made(family, units, kv, tied, bias, budget)
    assert pruned.plan.answer.params <= budget.get("ratio", 1) * pruned.plan.dense.params
    assert pruned.plan.answer.kv_bytes <= budget.get("kv_bytes", 10**6)
    stored = [t for file in out.glob("*.safetensors") for t in load_file(file).values()]
    assert sum(t.numel() for t in stored) == pruned.plan.answer.params < pruned.plan.dense.params
    assert difference(logits(out), masked_logits(folder, pruned)) < 1e-5
    assert (out / "generation_config.json").read_bytes() == (folder / "generation_config.json").read_bytes()
    config = json.loads((out / "config.json").read_text())
    assert config["head_dim"] == HEAD_DIM
    assert config["num_hidden_layers"] == len(pruned.kept)
    assert all(len(value) == len(pruned.kept) for key, value in config.items() if key == "layer_types")
    kept = pruned.kept[0].width
    assert (kept.ffn < FFN) == (units == "ffn")
    assert (kept.heads < HEADS) == (units == "ffn,groups")
    assert kept.kv == (kv if units != "ffn,groups" or kv == 1 else kept.heads)


@pytest.mark.parametrize("family", FAMILIES)
def test_swapping_two_gate_rows_is_found(made: Made, family: str) -> None:
    folder, out, pruned = made(family, *CASES[0])
    decoder = read_decoder(str(folder))
    assert check_blocks(decoder, pruned.kept, out, repaired=lambda layer: False) < 1e-6
    file, name = next(
        (f, n) for f in out.glob("*.safetensors") for n in load_file(f) if n.endswith("2.mlp.gate_proj.weight")
    )
    right = file.read_bytes()
    tensors = load_file(file)
    tensors[name][[0, 1]] = tensors[name][[1, 0]].clone()
    save_file(tensors, file, {"format": "pt"})
    try:
        assert difference(logits(out), masked_logits(folder, pruned)) > 1e-4
        for check in (check_blocks, check_logits):
            with pytest.raises(CheckError, match=r"layer 2|logits"):
                check(decoder, pruned.kept, out, repaired=lambda layer: False)
    finally:
        file.write_bytes(right)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_their_own_widths_load_with_their_class(tmp_path: Path, family: str) -> None:
    folder, out = make(tmp_path / "in", family, tied=True), tmp_path / "out"
    pruned = run(folder, out, {"ratio": 0.83}, units="ffn,groups", format="custom")
    assert len({layer.width for layer in pruned.kept}) > 1
    assert difference(logits(out, trust_remote_code=True), masked_logits(folder, pruned)) < 1e-5
    with pytest.raises((ValueError, OSError)):
        AutoModelForCausalLM.from_pretrained(out, trust_remote_code=False)


def test_the_dense_budget_copies_every_tensor(tmp_path: Path) -> None:
    folder, out = make(tmp_path / "in", "llama"), tmp_path / "out"
    run(folder, out, {"ratio": 1.0})
    for file in folder.glob("*.safetensors"):
        before, after = load_file(file), load_file(out / file.name)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(
        t.nbytes for f in out.glob("*.safetensors") for t in load_file(f).values()
    )


def test_a_tied_head_that_is_stored_too_is_written_once(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", "llama", tied=True, shards=1)
    tensors = load_file(folder / "model.safetensors")
    copy = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(copy, folder / "model.safetensors", {"format": "pt"})
    run(folder, tmp_path / "out", {"ratio": 0.85})
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    copy["lm_head.weight"][0, 0] += 1
    save_file(copy, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match="ties"):
        run(folder, tmp_path / "other", {"ratio": 0.85})


def test_bfloat16_stays_and_layers_left_out_take_their_shards_along(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", "qwen3", shards=1)
    tensors = {name: t.bfloat16() for name, t in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    parts = {f"layers.{i}." for i in range(LAYERS)}
    shards = {part: {n: t for n, t in tensors.items() if part in n} for part in sorted(parts)}
    shards["rest"] = {n: t for n, t in tensors.items() if not any(part in n for part in parts)}
    weight_map = {}
    for i, shard in enumerate(shards.values()):
        save_file(shard, folder / f"part{i}.safetensors", {"format": "pt"})
        weight_map |= dict.fromkeys(shard, f"part{i}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    pruned = run(folder, tmp_path / "out", {"ratio": 0.8}, units="layers")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 1 + len(pruned.kept) == LAYERS
    out = [t for f in (tmp_path / "out").glob("*.safetensors") for t in load_file(f).values()]
    assert {t.dtype for t in out} == {torch.bfloat16}


def test_the_last_and_first_layers_stay(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", "llama")
    pruned = run(folder, tmp_path / "out", {"ratio": 0.8}, units="layers", keep_first=1, keep_last=2)
    assert [layer.source for layer in pruned.kept] == [0, 2, 3]
    decoder, widths = read_decoder(str(folder)), pruned.plan.answer.layers
    for seed in range(20):
        turns = random_scores(decoder, "layers", seed).turns
        assert turns is not None
        kept = select(decoder, widths, {}, protected(turns, pruned.plan))
        assert [layer.source for layer in kept] == [0, 2, 3]
    settings = Settings(units="layers", keep_last=2, seed=1)
    random = prune(str(folder), str(tmp_path / "random"), Budgets(ratio=0.8), settings, channels="random")
    assert [layer.source for layer in random.kept] == [0, 2, 3]
    with pytest.raises(UsageError, match="reachable"):
        run(folder, tmp_path / "less", {"ratio": 0.3}, units="layers", keep_first=2, keep_last=2)


# --- real text and sampling ---


@pytest.fixture(scope="module")
def stories(data_dir: Path) -> tuple[str, str]:
    return str(data_dir / "models" / "stories260K"), str(data_dir / "prune-nsc" / "tinystories_sample.txt")


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_evaluation_does_not_touch_the_weights(tmp_path: Path, stories: tuple[str, str]) -> None:
    model, text = stories
    other = tmp_path / "other.txt"
    other.write_text("Once upon a time there was a cat. The cat was big.")

    def made(name: str, evaluate: str | None) -> Pruned:
        out = str(tmp_path / name)
        return prune(model, out, Budgets(), Settings(ffn=0.75), tokens=1024, evaluate=evaluate)

    plain, with_text = made("plain", None), made("text", text)
    made("other", str(other))
    assert plain.repaired
    assert weights(tmp_path / "plain") == weights(tmp_path / "text") == weights(tmp_path / "other")
    assert with_text.evidence.perplexity_before == pytest.approx(3.548, abs=5e-4)
    after = with_text.evidence.perplexity_after
    assert after is not None
    assert 3.6 < after < 9
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize(("share", "mean", "each"), [(0.75, 6.5, 7.0), (0.5, 20.0, 22.0)])
def test_self_generated_statistics_keep_the_stories(
    tmp_path: Path, stories: tuple[str, str], share: float, mean: float, each: float
) -> None:
    model, text = stories

    def value(channels: str, seed: int) -> float:
        out = str(tmp_path / f"{channels}{seed}")
        found = prune(model, out, Budgets(), Settings(ffn=share, seed=seed), channels=channels, evaluate=text)
        assert found.evidence.perplexity_after is not None
        return found.evidence.perplexity_after

    ours = [value("self", seed) for seed in range(5)]
    random = [value("random", seed) for seed in range(5)]
    assert sum(ours) / 5 <= mean
    assert max(ours) <= each
    assert min(random) > 1.5 * max(ours)


def test_an_interrupted_run_goes_on_to_the_same_weights(tmp_path: Path, stories: tuple[str, str]) -> None:
    model, _ = stories

    class Stop(Exception):
        pass

    class Stages:
        def __init__(self, stop_at: str):
            self.stop_at = stop_at
            self.seen: list[str] = []

        def note(self, text: str) -> None:
            self.seen.append(text)

        def progress(self, label: str) -> Any:
            from contextlib import nullcontext

            self.seen.append(label)
            if label == self.stop_at:
                raise Stop
            return nullcontext(lambda done, total: None)

    def go(out: str, stages: Stages, resume: bool = False) -> None:
        prune(model, str(tmp_path / out), Budgets(), Settings(ffn=0.5), tokens=1024, resume=resume, stages=stages)

    go("whole", Stages("never"))
    for stop_at in ("measure", "write"):
        with pytest.raises(Stop):
            go("broken", Stages(stop_at), resume=True)
        assert not (tmp_path / "broken").exists()
    again = Stages("never")
    go("broken", again, resume=True)
    assert "measure" not in again.seen
    assert not any("about" in line for line in again.seen)
    assert weights(tmp_path / "whole") == weights(tmp_path / "broken")


def test_resuming_with_other_options_is_refused(tmp_path: Path, stories: tuple[str, str]) -> None:
    work = tmp_path / ".out.measured"
    work.mkdir()
    (work / "key.json").write_text("{}")
    with pytest.raises(UsageError, match="other options"):
        prune(stories[0], str(tmp_path / "out"), Budgets(), Settings(ffn=0.5), tokens=64, resume=True)
