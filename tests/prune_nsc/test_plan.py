"""Plans from a configuration alone: LLaMA-7B's known numbers, and every cost against a model that is built."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import FAMILIES, make
from transformers import AutoConfig, AutoModelForCausalLM

from nipstool.kit.errors import InputMissingError, UsageError
from nipstool.kit.records import to_json
from nipstool.prune_nsc import Budgets, Settings, plan
from nipstool.prune_nsc.capacity import Scale
from nipstool.prune_nsc.decoder import Width

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "torch_dtype": "float16",
    "tie_word_embeddings": False,
}
LONAS = (11008, 9632, 8256, 6880, 5504)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("llama") / "config.json"
    file.write_text(json.dumps(LLAMA))
    return str(file)


def test_llama_7b_in_the_lonas_space(llama: str) -> None:
    _, found = plan(llama, Budgets(params=5_700_000_000), Settings(widths=LONAS, format="custom"))
    assert found.dense.params == 6_738_415_616
    assert found.uniform is not None
    assert found.dp is not None
    assert found.uniform.params == 5_656_285_184
    assert {width.ffn for width in found.uniform.layers if width} == {8256}
    assert Counter(width.ffn for width in found.dp.layers if width) == {8256: 30, 9632: 2}
    assert [width.ffn for width in found.dp.layers[:3] if width] == [9632, 9632, 8256]
    assert found.answer is found.dp
    assert found.dp.slack == {"params": 5_700_000_000 - found.dp.params}
    assert found.dp.lp_bound is not None
    assert found.uniform.nsc < found.dp.nsc <= found.dp.lp_bound


def test_flops_are_two_a_weight_and_four_a_score(llama: str) -> None:
    _, found = plan(llama, Budgets(ratio=1.0), Settings(seq=100))
    weights = 6_738_415_616 - 32000 * 4096 - (2 * 32 + 1) * 4096
    assert found.dense.flops == 2 * weights + 32 * 4 * 100 * 4096
    assert found.dense.kv_bytes == 32 * 2 * 4096 * 2


@pytest.mark.parametrize("budget", [{"ratio": 0.7}, {"flops": 9_000_000_000}, {"kv_bytes": 400_000}])
def test_every_budget_is_kept_and_both_answers_are_shown(llama: str, budget: dict[str, Any]) -> None:
    _, found = plan(llama, Budgets(**budget), Settings(units="ffn,groups", multiple_of=256))
    name = "params" if "ratio" in budget else next(iter(budget))
    for answer in (found.uniform, found.dp):
        assert answer is not None
        assert answer.slack == {name: found.budgets[name] - getattr(answer, name)}
        assert answer.slack[name] >= 0
    assert found.chosen == "uniform"


def test_whole_layers(llama: str) -> None:
    _, found = plan(llama, Budgets(ratio=0.85), Settings(units="layers"))
    assert found.chosen == "dp"
    a_layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    dropped = found.answer.layers.count(None)
    assert found.answer.params == found.dense.params - dropped * a_layer
    assert found.answer.slack["params"] < a_layer
    assert found.answer.layers[0] is not None
    assert found.answer.layers[-1] is not None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("tied", "bias"), [(True, True), (False, False)])
def test_costs_are_those_of_the_class(tmp_path: Path, family: str, tied: bool, bias: bool) -> None:
    folder = make(tmp_path / "in", family, tied=tied, bias=bias)
    decoder, found = plan(str(folder), Budgets(), Settings(ffn=0.5))
    assert found.uniform is not None
    config = AutoConfig.from_pretrained(folder)
    config.intermediate_size = 12
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    params = {id(p): p.numel() for p in model.parameters()}
    assert found.uniform.params == sum(params.values())
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    assert found.uniform.flops == 2 * linear + 4 * 2048 * 4 * 12 * 4
    assert decoder.dense == Width(24, 4, 2)


def test_real_spectra_are_near_the_closed_form_for_a_random_model(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", "llama", hidden_size=192, intermediate_size=256, head_dim=48, vocab_size=16)
    settings = Settings(widths=(256, 192, 128), units="ffn,groups")
    _, init = plan(str(folder), Budgets(ratio=0.9), settings)
    _, real = plan(
        str(folder), Budgets(ratio=0.9), Settings(widths=(256, 192, 128), units="ffn,groups", spectra="weights")
    )
    assert real.dense.nsc == pytest.approx(init.dense.nsc, rel=0.02)
    assert init.uniform is not None
    assert real.uniform is not None
    assert real.uniform.nsc == pytest.approx(init.uniform.nsc, rel=0.02)


def test_spectra_need_weights(llama: str) -> None:
    with pytest.raises(InputMissingError, match="holds no weights"):
        plan(llama, Budgets(ratio=0.9), Settings(spectra="weights"))


def test_a_score_that_degenerates_is_told(llama: str) -> None:
    _, found = plan(llama, Budgets(ratio=0.9), Settings(scale=Scale("lecun", 0.001)))
    assert any("parameter count" in line for line in found.warnings)


def test_groups_that_cannot_go_are_told_not_ignored(tmp_path: Path) -> None:
    # 36 is a multiple of 4 heads but not of 3, 2 heads of one group each would be fine
    folder = make(tmp_path / "in", "llama", hidden_size=28, kv=2, num_attention_heads=14, head_dim=2)
    _, found = plan(str(folder), Budgets(ratio=0.9), Settings(units="ffn,groups"))
    assert found.uniform is not None
    assert {w.heads for w in found.uniform.layers if w} <= {14, 7}


@pytest.mark.parametrize(("ffn", "width"), [(0.75, 8256), (0.5, 5504), (8256, 8256), (11008, 11008)])
def test_a_width_by_itself(llama: str, ffn: float, width: int) -> None:
    _, found = plan(llama, Budgets(), Settings(ffn=ffn))
    assert found.dp is None
    assert {w.ffn for w in found.answer.layers if w} == {width}


@pytest.mark.parametrize("ffn", [8250, 0, -5, 20000])
def test_an_illegal_width(llama: str, ffn: float) -> None:
    with pytest.raises(UsageError, match="multiple of 64"):
        plan(llama, Budgets(), Settings(ffn=ffn))


def test_the_same_plan_at_one_and_two_threads(data_dir: Path) -> None:
    settings = Settings(widths=(172, 150, 128, 100, 86), units="ffn,groups", format="custom", spectra="weights")
    plans = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            _, found = plan(
                str(data_dir / "models" / "stories260K"), Budgets(ratio=0.8, flops=2_900_000), settings
            )
        finally:
            torch.set_num_threads(1)
        plans.append(to_json(found, indent=2))
    assert plans[0] == plans[1]
    assert json.loads(plans[0])["spectra"] == "weights"


@pytest.mark.slow
def test_the_same_file_at_one_and_two_threads(tmp_path: Path, data_dir: Path) -> None:
    plans = []
    for threads in ("1", "2"):
        out = tmp_path / f"{threads}.json"
        words = ["prune-nsc", "plan", str(data_dir / "models" / "stories260K"), "--ratio", "0.8", "-q"]
        words += ["--spectra", "weights", "--widths", "172,150,128,100,86", "--format", "custom"]
        words += ["--threads", threads, "-o", str(out)]
        env = {**os.environ, "OMP_NUM_THREADS": threads}
        subprocess.run([sys.executable, "-m", "nipstool", *words], check=True, env=env, stdout=subprocess.DEVNULL)
        plans.append(out.read_bytes())
    assert plans[0] == plans[1]
