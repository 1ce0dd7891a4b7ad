"""The small real model: its published text, its hidden states however they are batched, and what probes find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nipstool.probe_length.collected import Collected
from nipstool.probe_length.comparison import BOTH, POSITION, POSITION_ENDED, PROBE, PROMPT, SMOOTH
from nipstool.probe_length.fit import fit
from nipstool.probe_length.formats import Example, Layout, to_example
from nipstool.probe_length.generate import Sampling, generate
from nipstool.probe_length.hidden import Language, padded, reading, run
from nipstool.probe_length.predict import Predictor
from nipstool.probe_length.probe import Probe
from nipstool.probe_length.trace import marked, trace
from nipstool.probe_length.transfer import KINDS, transfer
from tests.probe_length.conftest import collected_alone, collected_of, refuse, sequences_of

pytestmark = pytest.mark.realdata
RESTART = " Once upon a time, there was a little"
ENDING = " She was happy and they all went"
NEUTRAL = " One day, she saw a big tree and"


def golden(data_dir: Path) -> str:
    text = (data_dir / "models" / "stories260K-llama2c" / "golden_doc_stories260K.md").read_text()
    return text.split("-t 0.0\n")[1].split("\n```")[0]


def test_greedy_text_is_the_published_text(language: Language, data_dir: Path) -> None:
    published = golden(data_dir)
    begin = Example("here", "stories", [1], None)
    (record,) = generate(language, [begin], Sampling(n=3, max_new=256, temperature=0), refuse)
    assert len(published) > 500
    assert record["response"] == published
    assert record["finish_reason"] == "length"


def states(language: Language, rows: list[list[int]], side: str, layers: tuple[int, ...]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    batch = padded(rows, side=side)
    with reading(language, layers, lambda layer, h: found.__setitem__(layer, h), stop=False):
        run(language, batch)
    starts = batch.starts
    return {
        layer: [h[i, starts[i] : starts[i] + len(row)] for i, row in enumerate(rows)] for layer, h in found.items()
    }


def test_hidden_states_do_not_depend_on_padding_and_batch(
    language: Language, stories: list[dict[str, Any]]
) -> None:
    rows = [r["prompt_ids"] + r["response_ids"][: 20 + 15 * i] for i, r in enumerate(stories[:5])]
    layers = (0, 1, 3, 5)
    single = [states(language, [row], "right", layers) for row in rows]
    for side in ("left", "right"):
        both = states(language, rows, side, layers)
        for layer in layers:
            for i in range(len(rows)):
                torch.testing.assert_close(both[layer][i], single[i][layer][0], rtol=0, atol=1e-4)


def test_layers_are_those_that_transformers_returns(language: Language, stories: list[dict[str, Any]]) -> None:
    row = stories[0]["prompt_ids"] + stories[0]["response_ids"][:40]
    with torch.inference_mode():
        theirs = language.model(input_ids=torch.tensor([row]), output_hidden_states=True).hidden_states
    ours = states(language, [row], "right", (0, 1, 2, 3, 4, 5))
    for layer in range(5):
        torch.testing.assert_close(ours[layer][0], theirs[layer][0], rtol=0, atol=1e-5)
    last = language.model.model.norm(ours[5][0])  # transformers gives the last one after the norm
    torch.testing.assert_close(last, theirs[5][0], rtol=0, atol=1e-5)


def test_sums_are_those_of_the_hidden_states(
    language: Language, stories: list[dict[str, Any]], found: Collected
) -> None:
    """At layer 4: n, sum of h, of h h^T, of h log1p(T - t), over t = 0..T of the answers that ended."""
    x, y = [], []
    for r in stories:
        if r["finish_reason"] == "stop":
            ids, last = r["prompt_ids"] + r["response_ids"], len(r["prompt_ids"]) - 1
            h = states(language, [ids], "right", (4,))[4][0][last:].double()
            t = torch.arange(len(h), dtype=torch.float64)
            x.append(torch.cat([h, t[:, None], t.log1p()[:, None], t.sqrt()[:, None]], 1))
            y.append((len(r["response_ids"]) - t).log1p())
    rows, target = torch.cat(x), torch.cat(y)
    total = found.along[4].about(torch.zeros(67)).total()
    assert float(total.n) == len(rows)
    torch.testing.assert_close(total.S[0], rows.mT @ rows, rtol=1e-5, atol=1e-2)
    torch.testing.assert_close(total.b[0], rows.mT @ target, rtol=1e-5, atol=1e-2)
    first = found.first[4].total()
    assert float(first.n) == sum(r["finish_reason"] == "stop" for r in stories)


def test_the_sample_holds_the_rows_it_says(
    language: Language, stories: list[dict[str, Any]], found: Collected
) -> None:
    by_key = {s.key: s for s in sequences_of(stories, language)}
    for i in (0, 7, 50):
        s = by_key[int(found.sample.key[i])]
        h = states(language, [s.prompt + s.response], "right", (2,))[2][0]
        last, t = len(s.prompt) - 1, int(found.sample.t[i])
        np.testing.assert_allclose(found.sample.first[i, 1], h[last], atol=1e-4)
        np.testing.assert_allclose(found.sample.drawn[i, 1], h[last + t], atol=1e-4)
        assert (found.sample.length[i], found.sample.censored[i]) == (s.length, s.censored)


def test_parts_merge_into_what_one_pass_collects(
    language: Language, stories: list[dict[str, Any]], found: Collected
) -> None:
    parts = [collected_of(stories[:70], language, (0, 2, 4)), collected_of(stories[70:], language, (0, 2, 4))]
    merged = parts[0].plus(parts[1], "second")
    whole, other = fit(found)[1], fit(merged)[1]
    assert merged.sample.key.tolist() == found.sample.key.tolist()
    for a, b in zip(whole.along + whole.first, other.along + other.first, strict=True):
        assert a.r2 == pytest.approx(b.r2, abs=1e-6)  # batches differ in the last bits of float32


@pytest.fixture(scope="module")
def probe(found: Collected) -> Probe:
    return fit(found)[0]


def test_the_report_says_what_adds_and_what_does_not(found: Collected) -> None:
    _, report = fit(found)
    along = {line.name: line for line in report.along}
    position = max(along[POSITION].r2, along[POSITION_ENDED].r2)
    assert along[PROBE].r2 < position < along[BOTH].r2
    assert "does not beat position alone" in report.verdict[0]
    assert report.layers[0].probe < 0.06  # token identity
    assert {line.name for line in report.first} >= {PROBE, PROMPT}


def test_predictions_do_not_depend_on_the_batch(
    language: Language, stories: list[dict[str, Any]], probe: Probe
) -> None:
    prompts = [r["prompt_ids"] for r in stories[:24]]
    one = [Predictor(probe, language, 0.9, 300, 1).answers([p])[0] for p in prompts]
    all_at_once = Predictor(probe, language, 0.9, 300, 100_000).answers(prompts)
    for a, b in zip(one, all_at_once, strict=True):
        for key in ("p10", "p50", "p90", "mean", "lo", "hi", "risk"):
            assert b[key] == pytest.approx(a[key], rel=1e-3, abs=0.11)  # rounded to one decimal
        assert a["p10"] <= a["p50"] <= a["p90"]
        assert 0 <= a["lo"] <= a["hi"] <= 512 - a["prompt_tokens"]


def restarts(language: Language, stories: list[dict[str, Any]], text: str, probe: Probe) -> dict[str, np.ndarray]:
    """Shift [stories] and ratio of the mean estimates where `text` follows 85 % of each story."""
    insert = language.encoder.tokenizer(text, add_special_tokens=False).input_ids
    assert len(insert) <= 15
    rows, places = [], {}
    for r in stories:
        t = int(0.85 * len(r["response_ids"]))
        rows.append({**r, "response_ids": r["response_ids"][:t] + insert})
        places[r["id"]] = [t]
    found = marked(trace(probe, language, sequences_of(rows, language), places), 15)
    assert len(found) == len(stories)
    names = (PROBE, BOTH, SMOOTH)
    shifts = {name: np.array([m.shift[name] for m in found]) for name in names}
    ratios = {f"{name} ratio": np.array([m.ratio[name] for m in found]) for name in names}
    return shifts | ratios


def test_a_restart_raises_the_estimate_and_an_ending_does_not(
    language: Language, all_stories: list[dict[str, Any]], probe: Probe
) -> None:
    held = [r for r in all_stories[7::13] if len(r["response_ids"]) < 290][:40]
    restart = restarts(language, held, RESTART, probe)
    assert restart["probe ratio"].mean() > 1.5
    assert (restart[PROBE] > 0).mean() >= 0.95
    assert not (restart[SMOOTH] > 0).any()
    ending = restarts(language, held, ENDING, probe)
    assert (ending[PROBE] > 0).mean() <= 0.20


def test_lengths_of_other_prompts_are_told_as_nothing(
    language: Language, all_stories: list[dict[str, Any]]
) -> None:
    """Each prompt gets the length of another one's answer: before it begins, nothing can be known of it."""
    rows = [r for r in all_stories[::9] if r["finish_reason"] == "stop"][:150]
    order = np.random.default_rng(0).permutation(len(rows))
    lengths = np.array([len(rows[j]["response_ids"]) for j in order])
    short = [{**r, "response_ids": r["response_ids"][:3]} for r in rows]
    _, report = fit(_with_lengths(short, lengths, language))
    line = next(x for x in report.first if x.name == PROBE)
    assert line.skill <= 0.02
    assert "adds nothing" in report.verdict[2]


def _with_lengths(rows: list[dict[str, Any]], lengths: np.ndarray, language: Language) -> Collected:
    """Statistics of sequences whose answers are known to be longer than what of them is read."""
    from nipstool.probe_length.collect import Collector, collect
    from nipstool.probe_length.collected import Origin

    origin = Origin("model", "hash", language.width, (0, 4), 5, 5000, "float32", 512, None)
    collector = Collector(language, origin)
    longer = [replace(s, length=int(n)) for s, n in zip(sequences_of(rows, language), lengths, strict=True)]
    collect(longer, collector)
    return collector.part()


def test_transfer_from_statistics_is_transfer_from_rows(language: Language, stories: list[dict[str, Any]]) -> None:
    """With all rows at hand, R2 of A's coefficients over B's rows is the same to 1e-9.

    Sequences are read one by one: in a batch the last bits of their float32 states would be others.
    """
    halves = [stories[:60], stories[60:110]]
    parts = [(name, collected_alone(rows, language, (0, 4))) for name, rows in zip("ab", halves, strict=True)]
    matrix = {one.kind: one for one in transfer(parts)}
    from nipstool.probe_length.ridge import cross_validate

    fitted = cross_validate(parts[0][1].along[4].columns(slice(0, 64)))
    x, y = [], []
    for r in halves[1]:
        if r["finish_reason"] == "stop":
            h = states(language, [r["prompt_ids"] + r["response_ids"]], "right", (4,))[4][0]
            x.append(h[len(r["prompt_ids"]) - 1 :].double())
            y.append(torch.arange(len(r["response_ids"]), -1, -1, dtype=torch.float64).log1p())
    rows, target = torch.cat(x), torch.cat(y)
    error = ((target - rows @ fitted.w - fitted.b0) ** 2).sum()
    r2 = float(1 - error / ((target - target.mean()) ** 2).sum())
    assert matrix[PROBE].cells[0][1].r2 == pytest.approx(r2, abs=1e-9)
    assert set(matrix) == set(KINDS)
    assert matrix[PROBE].asymmetry[0][1] == -matrix[PROBE].asymmetry[1][0]


@pytest.mark.slow
def test_all_stories_give_the_reference_numbers(language: Language, all_stories: list[dict[str, Any]]) -> None:
    """Reference: position .455 and position-and-probe .515; the probe by layer, by an independent prototype."""
    found = collected_of(all_stories, language, (0, 1, 2, 3, 4, 5))
    _, report = fit(found)
    prototype = (0.0272, 0.0526, 0.1072, 0.1970, 0.3213, 0.2689)
    for line, expected in zip(report.layers, prototype, strict=True):
        assert line.probe == pytest.approx(expected, abs=0.001)
    along = {line.name: line.r2 for line in report.along}
    assert along[POSITION_ENDED] == pytest.approx(0.455, abs=0.002)
    assert along[BOTH] == pytest.approx(0.515, abs=0.002)
    assert along[BOTH] - max(along[POSITION], along[POSITION_ENDED]) >= 0.04
    assert "does not beat position alone" in report.verdict[0]
    assert report.ceiling == pytest.approx(0.101, abs=0.005)


def test_layouts_of_real_files_are_read(data_dir: Path) -> None:
    from nipstool.probe_length.formats import read_examples

    folder = data_dir / "probe-length"
    counts = {
        "alpaca_en_demo.json": 999,
        "dpo_en_demo_sharegpt.json": 300,
        "v1_sft_demo_messages.jsonl": 500,
        "gsm8k_test.jsonl": 1319,
    }
    for name, count in counts.items():
        bad: list[str] = []
        found = list(read_examples(folder / name, Layout(), responses=True, fault=bad.append))
        assert len(found) + len(bad) == count
        assert len(bad) <= 1, bad
        assert all(isinstance(e.response, str) and e.response for e in found)
    fields = Layout(fields={"prompt": "question", "response": "6b_finetuning.solution"})
    path = folder / "gsm8k_example_model_solutions.jsonl"
    solutions = list(read_examples(path, fields, responses=True, fault=refuse))
    assert len(solutions) == 1319
    assert solutions[
        0
    ].response == "Janet eats 3 ducks eggs for breakfast every morning and she sells the rest" + (
        " so she has 16 - 3 = <<16-3=13>>13 ducks eggs left\nShe has 13 ducks eggs and she sells 2 each day so she"
        " makes 13 * 2 = $<<13*2=26>>26\nA: 26"
    )


def test_turns_with_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "value": "b"}]
    record = {"messages": [{"role": "user", "content": parts}, {"from": "gpt", "value": "c"}]}
    found = to_example(record, "here", Layout(), "d")
    assert (found.prompt, found.response) == ([{"role": "user", "content": "ab"}], "c")
