"""Language models on text: what is recorded is what the model computes, on the tokens that count."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nipstool.kit.errors import DataError, InputMissingError, UsageError
from nipstool.rosetta_count.contexts import Neuron, look
from nipstool.rosetta_count.documents import read_texts
from nipstool.rosetta_count.filtering import best_share, open_filter, score
from nipstool.rosetta_count.job import Request, run
from nipstool.rosetta_count.page import page
from nipstool.rosetta_count.record import find_sites, record
from nipstool.rosetta_count.selectivity import auroc, labelled
from nipstool.rosetta_count.sources import Reading, load_text_model
from nipstool.rosetta_count.text_model import reader_of
from nipstool.rosetta_count.work import Options

STORIES = [
    "Once upon a time there was a little girl named Lily. She loved to play outside in the park.",
    "The dog <b>ran & jumped</b> over the big red ball, and then it slept.",
    'Tom said, "I can\'t find my toy!" His mom helped him to look for it.',
    "Ünïcode ☃ and 日本語 in a story about a bird.",
]


@pytest.fixture(scope="module")
def stories(data_dir: Path) -> str:
    return str(data_dir / "models" / "stories260K")


@pytest.fixture(scope="module")
def counted(stories: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A count of the model with itself on documents of two domains."""
    folder = tmp_path_factory.mktemp("text")
    with (folder / "docs.jsonl").open("w") as file:
        for number in range(40):
            text = STORIES[number % 4] if number % 2 else f"x = {number}; y[{number}] += x * 3; return (y, x)"
            file.write(json.dumps({"text": f"{text} {number}", "kind": ("code", "story")[number % 2]}) + "\n")
    reading = Reading(str(folder / "docs.jsonl"), domain_field="kind", context=64)
    run(Request((stories, stories), str(folder / "out"), reading=reading, options=Options(repeats=2)))
    return folder / "out"


def test_a_model_finds_itself_neuron_by_neuron(counted: Path):
    summary = json.loads((counted / "summary.json").read_text())
    (pair,) = summary["pairs"]
    assert pair["counts"]["raw"] == summary["models"][0]["live"]
    assert pair["r"]["min"] > 1 - 1e-6
    assert pair["controls"]["untrained"]["raw"] < pair["counts"]["raw"]
    assert summary["untrained"] == "re-initialised"


def test_recorded_values_are_the_inputs_of_the_down_projection(stories: str):
    model = load_text_model(stories, Reading("-"), "cpu")
    reader = reader_of(model.tokeniser, model.body.config, 64)
    (tokens,) = model.tokeniser([STORIES[0]])
    ids = torch.tensor([[*reader.prefix, *tokens.ids.tolist()]])
    with record(model.body) as acts, torch.inference_mode():
        model.body(input_ids=ids, use_cache=False)
        hidden = acts["layers.2.mlp.down_proj"]
        mlp = model.body.layers[2].mlp
        again = model.body.layers[2].mlp.down_proj(hidden)
    assert hidden.shape == (1, len(tokens.ids) + 1, model.body.config.intermediate_size)
    assert again.shape[-1] == model.body.config.hidden_size
    assert [site.number for site in find_sites(model.body)] == [0, 1, 2, 3, 4]
    assert mlp.down_proj.in_features == hidden.shape[-1]


def test_contexts_list_what_the_model_computes_and_are_escaped(counted: Path, stories: str):
    entries = look(str(counted), most=3, contexts=4)
    model = load_text_model(stories, Reading("-"), "cpu")
    reader = reader_of(model.tokeniser, model.body.config, 64)
    documents = read_texts(
        json.loads((counted / "summary.json").read_text())["data"], domain_field="kind"
    ).documents
    by_place = {document.where: document.text for document in documents}
    for entry in entries:
        shown = entry.neurons[0]
        name = f"layers.{shown.neuron.layer}.mlp.down_proj"
        for context in shown.contexts:
            (tokens,) = model.tokeniser([by_place[context.where]])
            ids = torch.tensor([[*reader.prefix, *tokens.ids.tolist()]])
            with record(model.body) as acts, torch.inference_mode():
                model.body(input_ids=ids, use_cache=False)
            values = acts[name][0, len(reader.prefix) :, shown.neuron.index]
            expected = values[context.first : context.first + len(context.values)]
            assert torch.allclose(torch.tensor(context.values), expected, atol=1e-4)
            assert "".join(context.pieces).strip() in by_place[context.where]
    html = page(entries, "a <title>")
    assert len(html) < 5_000_000
    assert "<b>ran" not in html
    assert "http" not in html
    assert "a &lt;title&gt;" in html


def test_documents_are_scored_by_the_mean_z_of_the_neuron(counted: Path):
    found = open_filter(str(counted), "code")
    assert found.choice.held_out is not None
    assert found.choice.held_out >= 0.9  # digits and brackets against a story
    texts = ["x = 3; y[4] += x * 3; return (y, x)", STORIES[0], ""]
    code, story, nothing = score(found, texts)
    assert code is not None
    assert story is not None
    assert code > story
    assert nothing is None
    one = open_filter(str(counted), None, [Neuron(1, 5)])
    assert one.choice.neurons == (Neuron(1, 5),)
    with pytest.raises(UsageError, match="knows code, story"):
        open_filter(str(counted), "poems")
    with pytest.raises(UsageError, match="no such neuron"):
        open_filter(str(counted), None, [Neuron(9, 5)])


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"models": []}, "lists models by name"),
        ({"models": [{"name": "a"}]}, "lists models by name"),
        ({"models": "ab"}, "lists models by name"),
        ({"reading": {"data": "docs.jsonl", "context": -1}}, "does not know: context -1"),
        ({"reading": {"data": "docs.jsonl", "tokens": True}}, "does not know: tokens True"),
        ({"reading": {"data": ["docs.jsonl"]}}, "does not know: data"),
        ({"reading": {"data": "docs.jsonl", "other": 1}}, "does not know: other 1"),
        ({"reading": {"context": 64}}, "does not say which data"),
        ({"options": {}}, "which seed"),
    ],
)
def test_a_damaged_summary_is_told(counted: Path, tmp_path: Path, changed: dict[str, Any], told: str):
    summary = json.loads((counted / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps({**summary, **changed}))
    (tmp_path / "pairs.csv").write_bytes((counted / "pairs.csv").read_bytes())
    with pytest.raises(DataError, match=told):
        look(str(tmp_path), most=1)


@pytest.mark.parametrize("data", ["/dev/zero", "gone.jsonl"])
def test_data_that_are_gone_or_never_end_are_missing(counted: Path, tmp_path: Path, data: str):
    summary = json.loads((counted / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(
        json.dumps({**summary, "reading": {**summary["reading"], "data": data}})
    )
    (tmp_path / "pairs.csv").write_bytes((counted / "pairs.csv").read_bytes())
    with pytest.raises(InputMissingError, match="is no file or folder"):
        look(str(tmp_path), most=1)


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("pairs.csv", ",0,", ",-1,", "a row is not that of a count"),
        ("neurons.csv", ",live,", ",gone,", "holds no live neuron"),
        ("neurons.csv", "selection_auroc_code", "selection_auroc_poems", "a row is not that of a count"),
    ],
)
def test_a_damaged_table_is_told(counted: Path, tmp_path: Path, name: str, old: str, new: str, told: str):
    for one in ("summary.json", "pairs.csv", "neurons.csv"):
        (tmp_path / one).write_bytes((counted / one).read_bytes())
    text = (counted / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new))
    domain = "poems" if "poems" in new else "code"
    with pytest.raises(DataError, match=told):
        look(str(tmp_path), most=1) if name == "pairs.csv" else open_filter(str(tmp_path), domain)


def test_the_best_share_keeps_the_order():
    records = [{"id": at, "score": value} for at, value in enumerate([0.1, 3.0, None, 2.0, -1.0])]
    assert [r["id"] for r in best_share(records, 0.4)] == [1, 3]
    assert [r["id"] for r in best_share(records, 0.0)] == [1]


def test_auroc_is_that_of_counting_pairs():
    scores = torch.tensor([[0.1], [0.4], [0.4], [0.8]])
    assert auroc(scores, torch.tensor([False, False, True, True])).tolist() == [0.875]


def test_shuffled_labels_give_held_out_aurocs_around_a_half():
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(200, 50, generator=generator)
    held = []
    for seed in range(10):
        order = torch.randperm(200, generator=generator)
        found = labelled(means, [("a", "b")[int(i) % 2] for i in order], seed)
        assert found is not None
        held.append(float(found.held_out[0, found.selection[0].argmax()]))
    assert abs(sum(held) / 10 - 0.5) < 0.1


def test_texts_that_cannot_be_read(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"fine\n\nna\xefve\n")
    with pytest.raises(DataError, match="line 3 is not UTF-8"):
        read_texts(str(tmp_path / "a.txt"))
    (tmp_path / "b.jsonl").write_text('{"text": "x"}\n{"body": "y"}\n')
    with pytest.raises(DataError, match="line 2: has no field 'text'; it has body"):
        read_texts(str(tmp_path / "b.jsonl"))
    (tmp_path / "c.txt").write_text("\n \n")
    with pytest.raises(DataError, match="no text in it"):
        read_texts(str(tmp_path / "c.txt"))
    (tmp_path / "d.txt").write_text("one\ntwo\n\n\nthree\n")
    assert [d.text for d in read_texts(str(tmp_path / "d.txt")).documents] == ["one\ntwo", "three"]


def test_no_site_that_matches_lists_candidates(stories: str):
    with pytest.raises(UsageError, match=r"matches none of the down projections .*layers\.0\.mlp\.down_proj"):
        load_text_model(stories, Reading("-", sites="nothing"), "cpu")
