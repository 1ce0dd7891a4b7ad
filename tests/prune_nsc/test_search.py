"""Searches of small spaces against building and scoring every architecture in them."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from nipstool.kit.errors import DataError, UsageError
from nipstool.kit.language_models import skeleton, to_config
from nipstool.prune_nsc.architectures import architecture_of
from nipstool.prune_nsc.capacity import Scale
from nipstool.prune_nsc.report import SEARCH_COLUMNS, search_rows
from nipstool.prune_nsc.search import read_space, search
from nipstool.prune_nsc.solver import InfeasibleError

BASE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 100,
    "tie_word_embeddings": True,
}


def space(folder: Path, text: str, **base: Any) -> str:
    (folder / "config.json").write_text(json.dumps(BASE | base))
    file = folder / "space.toml"
    file.write_text(f'[base]\nconfig = "config.json"\n{text}')
    return str(file)


def test_global_keys_are_all_tried(tmp_path: Path) -> None:
    values = {"hidden_size": [32, 64, 96], "num_hidden_layers": [1, 2, 3, 5], "intermediate_size": [64, 160, 300]}
    text = "[global]\n" + "\n".join(f"{key} = {value}" for key, value in values.items())
    every = []
    for combination in itertools.product(*values.values()):
        raw: dict[str, Any] = {**BASE, **dict(zip(values, combination, strict=True))}
        built = architecture_of(skeleton(to_config(raw, ""), ""), "")
        every.append((built.nsc(Scale()), built.params, built.flops(2048), raw))
    for most in (40_000, 90_000, 200_000):
        feasible = sorted((e for e in every if e[1] <= most), key=lambda e: (-e[0], e[1]))
        found = search(read_space(space(tmp_path, text)), {"params": most}, Scale(), seq=2048)
        assert found.best.nsc == pytest.approx(feasible[0][0], rel=1e-12)
        assert (found.best.params, found.best.flops) == feasible[0][1:3]
        assert found.best.config == feasible[0][3]
        assert found.runner_up is not None
        assert found.runner_up.nsc == pytest.approx(feasible[1][0], rel=1e-12)
        assert found.certificate.lp_bound >= found.best.nsc * (1 - 1e-12)
        assert found.certificate.combinations == 36
        assert found.certificate.infeasible == 36 - len(feasible)


def test_layers_are_solved_inside_each_combination(tmp_path: Path) -> None:
    text = """[global]
num_hidden_layers = [2, 3]
[per_layer]
intermediate_size = [128, 100, 37]
num_key_value_heads = [1, 2, 4]
drop = true
"""
    found = search(read_space(space(tmp_path, text)), {"params": 60_000, "flops": 2_000_000}, Scale(), seq=64)
    d, scale, best = 64, Scale(), (0.0, 0)
    options: list[Any] = [None, *itertools.product([128, 100, 37], [1, 2, 4])]
    for layers in itertools.combinations_with_replacement(options, 3):
        kept = [x for x in layers if x is not None]
        params = 100 * d + d + sum(3 * f * d + 2 * d * d + 2 * kv * 16 * d + 2 * d for f, kv in kept)
        flops = 2 * (params - d - 2 * d * len(kept)) + 4 * 64 * d * len(kept)
        nsc = sum(
            2 * scale.nsc(f, d) + scale.nsc(d, f) + 2 * scale.nsc(d, d) + 2 * scale.nsc(kv * 16, d)
            for f, kv in kept
        )
        if kept and params <= 60_000 and flops <= 2_000_000:
            best = max(best, (nsc, -params))
    assert found.best.nsc == pytest.approx(best[0], rel=1e-12)
    assert found.best.params == -best[1]
    assert found.certificate.slack == {"params": 60_000 - found.best.params, "flops": 2_000_000 - found.best.flops}


def test_a_space_that_no_budget_reaches(tmp_path: Path) -> None:
    file = space(tmp_path, "[global]\nnum_hidden_layers = [2, 3]\n")
    with pytest.raises(InfeasibleError, match=r"reachable \d+ to \d+"):
        search(read_space(file), {"params": 10}, Scale(), seq=2048)
    with pytest.raises(UsageError, match="--max-params"):
        search(read_space(file), {}, Scale(), seq=2048)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[globals]\nx = [1]", "globals"),
        ("[global]\nhidden_size = 64", "list of values"),
        ("[global]\nhidden_size = []", "list of values"),
        ("[per_layer]\nwidth = [1]", "width"),
        ("[per_layer]\nintermediate_size = [0]", "from 1 to"),
        ("[per_layer]\ndrop = 1", "true or false"),
        ("[global]\na = [1, 2", "no TOML"),
        ("[global]\n" + "\n".join(f"k{i} = {list(range(10))}" for i in range(6)), "1000000 combinations"),
        ("[per_layer]\nnum_key_value_heads = [3]", "do not divide"),
        ('[global]\nmodel_type = ["gpt2"]', "gpt2"),
        ("[global]\nhiden_size = [96, 192]", r"hiden_size: no key of a llama .*; did you mean hidden_size\?"),
        ("[global]\nquark = [1]", "quark: no key of a llama configuration; expected one such as hidden_size"),
    ],
)
def test_spaces_that_say_nothing(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        search(read_space(space(tmp_path, text)), {"params": 10**9}, Scale(), seq=2048)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_keys_that_a_configuration_lacks_and_its_family_reads_are_tried(tmp_path: Path, kind: str) -> None:
    text = "[global]\nnum_key_value_heads = [4, 2]\nhead_dim = [8, 32]\n"
    file = space(tmp_path, text, model_type=kind)
    lacking = {key: value for key, value in (BASE | {"model_type": kind}).items() if key != "num_key_value_heads"}
    (tmp_path / "config.json").write_text(json.dumps(lacking))
    found = search(read_space(file), {"params": 10**6}, Scale(), seq=2048)
    assert found.best.chosen == {"num_key_value_heads": 4, "head_dim": 32}
    assert found.runner_up is not None
    assert found.runner_up.chosen == {"num_key_value_heads": 2, "head_dim": 32}
    assert found.runner_up.params == found.best.params - 3 * 2 * (2 * 32) * 64 - (kind == "qwen2") * 3 * 2 * 2 * 32


def test_the_table_shows_the_global_values_of_each_architecture(tmp_path: Path) -> None:
    text = "[global]\nhidden_size = [32, 64]\nnum_hidden_layers = [3]\n[per_layer]\ndrop = true\n"
    found = search(read_space(space(tmp_path, text)), {"params": 120_000}, Scale(), seq=2048)
    best = dict(zip(SEARCH_COLUMNS, search_rows(found)[0], strict=True))
    assert best["global"] == "hidden_size 64, num_hidden_layers 3"
    assert best["layers"] == "2 x (ffn 128, 4/4 heads) + 1 x (dropped)"
    none = search(read_space(space(tmp_path, "")), {"params": 10**6}, Scale(), seq=2048)
    assert search_rows(none)[0][1] is None
