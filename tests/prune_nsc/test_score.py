"""Scores and rankings: FlexiBERT's known numbers, and inventories against models that are built."""

import csv
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau
from transformers import CONFIG_MAPPING

from nipstool.kit.errors import DataError
from nipstool.prune_nsc.architectures import architecture_of, read_architectures
from nipstool.prune_nsc.capacity import Scale
from nipstool.prune_nsc.flexibert import read_record
from nipstool.prune_nsc.ranking import kendall
from nipstool.prune_nsc.score import rank, score


@pytest.fixture(scope="module")
def benchmark(data_dir: Path) -> Path:
    return data_dir / "prune-nsc" / "BERT_benchmark.json"


def test_the_inventory_counts_what_the_benchmark_counts(benchmark: Path) -> None:
    table = benchmark.with_name("BERT_results_activation.csv")
    counts = {row["ID"]: int(row["Number of Parameters"]) for row in csv.DictReader(table.open())}
    records = json.loads(benchmark.read_text())
    # the published column is of models whose widths are always 256 and 1024
    equal = sum(read_record(r, "x", hidden=256, ffn=1024).params == counts[str(r["id"])] for r in records)
    assert (equal, len(records)) == (500, 500)


def test_flexibert_is_ranked_as_known(benchmark: Path) -> None:
    scores = list(score([str(benchmark)], Scale(), seq=128, spectra="init", truth="scores.glue"))
    ranking = {r.score: r for r in rank(scores)}
    assert ranking["#Params"].near.pairs == 26_769
    assert f"{ranking['#Params'].near.tau:.3f}" == "0.082"
    nsc = ranking["NSC"]
    assert nsc.all.pairs == 500 * 499 // 2
    assert nsc.near.tau is not None
    assert nsc.all.tau is not None
    assert nsc.near.tau >= 0.48
    assert nsc.all.tau >= 0.63


def test_the_whole_command_is_quick_and_prints_a_line_each(benchmark: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ["prune-nsc", "score", str(benchmark), "--truth", "scores.glue"]
    done = subprocess.run([sys.executable, "-m", "nipstool", *words], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 500
    assert {"id", "nsc", "params", "flops", "per_layer", "init", "snr"} <= lines[0].keys()
    row = next(line.split("\t") for line in done.stderr.splitlines() if line.startswith("#Params"))
    assert row[3:] == ["0.082", "26769"]


def test_tau_is_that_of_scipy_where_nothing_ties() -> None:
    rng = np.random.default_rng(0)
    scores, truth = rng.random(40), rng.random(40)
    assert kendall(scores.tolist(), truth.tolist()).tau == pytest.approx(kendalltau(scores, truth)[0])


def test_near_pairs_and_ties_by_hand() -> None:
    # of the three pairs only (100, 95) is near; scores tie there
    assert kendall([1, 1, 0], [1, 2, 3], [100, 95, 50]).pairs == 1
    assert kendall([1, 1, 0], [1, 2, 3], [100, 95, 50]).tau == 0
    assert kendall([1, 2, 0], [1, 2, 3], [100, 95, 50]).tau == 1
    assert kendall([1, 2], [1, 2], [100, 90]).tau is None  # exactly 10 % is not near


def built(kind: str, **settings: Any) -> tuple[Any, Any]:
    import torch
    import transformers

    config = CONFIG_MAPPING[kind](**settings)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return config, model


SMALL = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 50}
FUSED = [
    ("gpt2", {"n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 50, "n_positions": 32}, [48, 48, 48]),
    ("phi3", {**SMALL, "num_key_value_heads": 2, "intermediate_size": 64, "pad_token_id": 0}, [48, 24, 24]),
    ("gpt_neox", {**SMALL, "intermediate_size": 64}, [48, 48, 48]),
    ("falcon", SMALL, [48, 12, 12]),  # one head of keys and values for all queries
    ("falcon", {**SMALL, "new_decoder_architecture": True, "num_kv_heads": 2}, [48, 24, 24]),
]


@pytest.mark.parametrize(("kind", "settings", "parts"), FUSED)
def test_fused_projections_are_split(kind: str, settings: dict[str, Any], parts: list[int]) -> None:
    _, model = built(kind, **settings)
    found = architecture_of(model, kind)
    count = sum(p.numel() for p in model.parameters())
    assert found.params == count
    assert len(found.layers) == 3
    fused = [
        m.m for m in found.layers[0].matrices if "qkv" in m.name or "c_attn" in m.name or "query_key" in m.name
    ]
    assert fused == parts
    assert found.kv_bytes == 3 * 2 * parts[1] * 2
    assert all(
        m.n == 48 for m in found.layers[0].matrices if m.m in parts and "attn" in m.name and "c_" not in m.name
    )


def test_models_of_several_parts_are_refused(tmp_path: Path) -> None:
    """Their heads stand in the parts' configurations: counted as none, they would score, wrongly."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "clip"}))
    with pytest.raises(DataError, match=r"several parts \(text_config, vision_config\)"):
        list(read_architectures(str(path)))


def test_experts_are_refused() -> None:
    sizes = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 32, "num_local_experts": 4}
    _, model = built("mixtral", **sizes)
    with pytest.raises(DataError, match="mixture of experts"):
        architecture_of(model, "m")


def test_records_as_lines_and_as_an_array(tmp_path: Path, benchmark: Path) -> None:
    records = json.loads(benchmark.read_text())[:5]
    (tmp_path / "a.json").write_text(json.dumps(records))
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, records)))
    a, b = (list(read_architectures(str(tmp_path / name))) for name in ("a.json", "b.jsonl"))
    assert [x.architecture for x in a] == [x.architecture for x in b]
    assert [x.architecture.id for x in a] == [str(r["id"]) for r in records]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("[]", "empty array"),
        ('{"a": 1}', "expected a config.json"),
        ('{"model_type": "llama", "num_hidden_layers": "many"}', "llama"),
        ('{"model_type": "no-such"}', "no-such"),
        ('{"x": 1\n', ":1: is no JSON"),
        (
            '{"hidden_size": 64, "nas_config": {"encoder_layers": [{"operation_type": "SA"}]}}',
            "feed_forward_dimension",
        ),
        ('{"hidden_size": 64, "nas_config": {"encoder_layers": 7}}', "expected a FlexiBERT record"),
        ("\udcff", "UTF-8"),
    ],
)
def test_bad_architectures(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=words):
        list(read_architectures(str(file)))


def test_a_truth_that_is_missing_names_the_file_and_the_fields(tmp_path: Path) -> None:
    layer = {"operation_type": "LT", "feed_forward_dimension": 8, "num_feed_forward": 1}
    good = {"id": 7, "hidden_size": 8, "nas_config": {"encoder_layers": [layer]}, "scores": {"cola": 1, "glue": 2}}
    scores = {"cola": "n/a", "glue": None}
    array, lines = tmp_path / "a.json", tmp_path / "b.jsonl"
    array.write_text(json.dumps([good, {**good, "scores": scores}]))
    lines.write_text(f"{json.dumps(good)}\n{json.dumps({**good, 'scores': {}})}\n")

    def told(file: Path, truth: str) -> str:
        with pytest.raises(DataError) as caught:
            list(score([str(file)], Scale(), seq=1, spectra="init", truth=truth))
        return str(caught.value)

    wrong = f"{array}: no field scores.gleu in entry 0; there are scores.glue, scores.cola"
    assert told(array, "scores.gleu").startswith(wrong)
    assert told(array, "scores.glue") == f"{array}: scores.glue in entry 1 is None; expected a number"
    assert told(array, "scores") == f"{array}: scores in entry 0 is an object of cola, glue; expected a number"
    assert told(lines, "scores.glue") == f"{lines}:2: no field scores.glue; there are id, hidden_size"


def test_real_weights_of_a_checkpoint(data_dir: Path) -> None:
    folder = str(data_dir / "models" / "stories260K")
    (init,) = score([folder], Scale(), seq=2048, spectra="init", truth=None)
    (real,) = score([folder], Scale(), seq=2048, spectra="weights", truth=None)
    assert init.params == real.params == 260_032
    assert 0.5 * init.nsc < real.nsc < init.nsc  # trained spectra are less even


def test_of_several_inputs_each_failure_is_told_and_bad_data_outranks_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    command = [sys.executable, "-m", "nipstool", "prune-nsc", "score", "missing.json", "bad.json", "gone.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (65, "")
    assert [line.split(":")[1].strip() for line in lines[:3]] == ["missing.json", "bad.json", "gone.json"]
    assert lines[3:] == ["nipstool: 3 of 3 inputs cannot be scored"]
