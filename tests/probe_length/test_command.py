"""The command line: what a user types, reads and gets wrong."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from nipstool.kit.errors import DataError
from nipstool.probe_length import collected, probe
from tests.conformance.cases.language_model import some_model
from tests.conformance.cases.probe_length import some_answers, some_probe
from tests.conformance.shell import Server, Shell

NIPSTOOL = [sys.executable, "-m", "nipstool", "probe-length"]


@dataclass
class Ended:
    """How a run ended, as subprocess says it."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module", autouse=True)
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Runs are forks of a process that has imported torch."""
    server = Server()
    SHELLS.append(Shell(tmp_path_factory.mktemp("shell"), server))
    yield SHELLS[0]
    server.close()
    SHELLS.clear()


SHELLS: list[Shell] = []


def run(folder: Path, *args: object, stdin: str = "") -> Ended:
    typed = folder / "typed"
    typed.write_text(stdin)
    done = SHELLS[0].run("probe-length", *map(str, args), cwd=folder, stdin=str(typed))
    return Ended(done.status, done.text, done.err)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("probe")
    some_probe(path)
    return path


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def fails(folder: Path, tmp_path: Path, records: Sequence[object], *args: str) -> str:
    """The one line that a fit of these records ends with, and its exit status 65."""
    data = tmp_path / "bad.jsonl"
    data.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in records))
    done = run(folder, folder / "model", data, "-o", tmp_path / "out.safetensors", *args)
    assert done.returncode == 65, done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out.safetensors").exists()
    return done.stderr


def test_bad_records_are_named_by_line(folder: Path, tmp_path: Path) -> None:
    good = rows(folder / "data.jsonl")
    assert "bad.jsonl:3: is no JSON" in fails(folder, tmp_path, [*good[:2], "{broken"])
    empty = {"prompt_ids": [3, 4], "response_ids": []}
    assert "bad.jsonl:2: the response is empty" in fails(folder, tmp_path, [good[0], empty])
    long = {"prompt_ids": [3] * 32, "response_ids": [4]}
    assert "bad.jsonl:1: the prompt has 32 tokens and the model's context holds 32" in fails(
        folder, tmp_path, [long]
    )
    odd = {"prompt_ids": [99], "response_ids": [4]}
    assert "bad.jsonl:1: token id 99 is beyond" in fails(folder, tmp_path, [odd])
    cut = [{**row, "finish_reason": "length"} for row in good]
    assert "all 30 answers were cut off" in fails(folder, tmp_path, cut)
    one = [{**row, "group": "same"} for row in good]
    assert "one fold of groups" in fails(folder, tmp_path, one)
    same = [{**row, "response_ids": [5, 6, 7], "finish_reason": "stop"} for row in good]
    assert "every answer that ended has 3 tokens" in fails(folder, tmp_path, same)
    assert "no tokenizer" in fails(folder, tmp_path, [{"prompt": "text", "response": "more"}])


def test_bad_records_are_counted_when_told(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "some.jsonl"
    data.write_text((folder / "data.jsonl").read_text() + '{broken\n{"prompt_ids": [3], "response_ids": []}\n')
    done = run(folder, "model", data, "-o", tmp_path / "p.safetensors", "--folds", "2", "--skip-bad", "--json")
    assert done.returncode == 0, done.stderr
    assert "2 records were skipped" in done.stderr
    assert (json.loads(done.stdout)["sequences"], json.loads(done.stdout)["skipped"]) == (30, 2)


def test_a_hidden_state_that_is_no_number_is_named(folder: Path, tmp_path: Path) -> None:
    some_answers(tmp_path)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][:] = np.nan
    save_file(weights, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    done = run(tmp_path, "model", "data.jsonl", "-o", "p.safetensors")
    assert done.returncode == 65
    assert "layer 2, row t = 0: the hidden state is NaN or beyond 1e+30" in done.stderr


def test_models_that_are_none_are_refused(folder: Path, tmp_path: Path) -> None:
    done = run(folder, "Qwen/Qwen3-0.6B", "data.jsonl", "-o", tmp_path / "p.safetensors")
    assert (done.returncode, done.stderr.count("\n")) == (66, 1)
    assert "a hub name is not fetched" in done.stderr
    (tmp_path / "t5").mkdir()
    config = {"model_type": "t5", "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    (tmp_path / "t5" / "config.json").write_text(json.dumps(config))
    done = run(folder, tmp_path / "t5", "data.jsonl", "-o", tmp_path / "p.safetensors")
    assert done.returncode == 65
    assert "has an encoder; expected a decoder-only model" in done.stderr
    done = run(folder, "model", "-o", tmp_path / "p.safetensors")
    assert done.returncode == 2
    assert "expected prompts and responses after it" in done.stderr


def contents(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors and metadata of a file."""
    with safe_open(path, "np") as kept:
        return {key: kept.get_tensor(key) for key in kept.keys()}, kept.metadata()  # noqa: SIM118


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("first.w", lambda a: a * np.nan, "holds NaN or numbers beyond"),
        ("first.w", lambda a: a + 1e300, "holds NaN or numbers beyond"),
        ("first.w", lambda a: a[1:], r"first.w is float64 \[15\]; expected f \[16\]"),
        ("first.w", lambda a: a.astype(np.int64), "expected f"),
        ("residuals.weight", lambda a: a * 0, "does not count"),
        ("residuals.group", lambda a: a[:-1], r"expected i \["),
        ("table", lambda a: a[:0], "table of positions is empty"),
    ],
)
def test_a_damaged_probe_is_told(
    folder: Path, tmp_path: Path, name: str, change: Callable[[np.ndarray], np.ndarray], told: str
) -> None:
    tensors, about = contents(folder / "probe.safetensors")
    probe.load(folder / "probe.safetensors")
    damaged = {**tensors, name: np.ascontiguousarray(change(tensors[name]))}
    save_file(damaged, tmp_path / "p.safetensors", about)
    with pytest.raises(DataError, match=told):
        probe.load(tmp_path / "p.safetensors")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("coverage", 2), ("mean", "1"), ("mean", 1e300), ("censored", None), ("card", 1)),
        *(("origin", {}), ("lines", {}), ("lines", []), ("lines", {"first": [99, 0.0]})),
    ],
)
def test_a_damaged_description_of_a_probe_is_told(folder: Path, tmp_path: Path, name: str, value: object) -> None:
    tensors, about = contents(folder / "probe.safetensors")
    changed = json.dumps({**json.loads(about["nipstool"]), name: value})
    save_file(tensors, tmp_path / "p.safetensors", {"nipstool": changed})
    with pytest.raises(DataError, match="its description is not that of a probe"):
        probe.load(tmp_path / "p.safetensors")


@pytest.mark.parametrize("name", ["position.S", "lengths.ended", "sample.first", "sample.group"])
def test_damaged_statistics_are_told(folder: Path, tmp_path: Path, name: str) -> None:
    tensors, about = contents(folder / "a.stats")
    collected.load(folder / "a.stats")
    save_file({**tensors, name: np.ascontiguousarray(tensors[name][:-1])}, tmp_path / "b.stats", about)
    with pytest.raises(DataError, match=r"; expected [fi] "):
        collected.load(tmp_path / "b.stats")


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_a_model_that_says_nothing_finite_draws_no_answers(folder: Path, tmp_path: Path, temperature: str) -> None:
    shutil.copytree(folder / "model", tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights["model.norm.weight"] *= np.nan
    save_file(weights, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    words = (
        "generate",
        tmp_path / "model",
        folder / "prompts.jsonl",
        "--max-new",
        4,
        "--temperature",
        temperature,
    )
    done = run(folder, *words, "-o", tmp_path / "answers.jsonl")
    assert done.returncode == 65
    assert done.stderr.endswith("its logits are NaN or infinite; are its weights damaged?\n")
    assert not (tmp_path / "answers.jsonl").exists()


def test_another_model_is_refused_by_its_hash(folder: Path, tmp_path: Path) -> None:
    some_model(tmp_path)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    done = run(folder, "predict", "probe.safetensors", "prompts.jsonl", "--model", tmp_path / "model")
    assert done.returncode == 65
    assert "was made with another model" in done.stderr


def test_a_line_is_answered_before_the_next_is_written(folder: Path) -> None:
    words = [*NIPSTOOL, "predict", "probe.safetensors", "--budget", "5"]
    with subprocess.Popen(words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for i, prompt in enumerate(([3], [4, 5, 6], [7])):
            process.stdin.write(json.dumps({"prompt_ids": prompt, "id": i}) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert (answer["id"], answer["prompt_tokens"]) == (i, len(prompt))
            assert 0 <= answer["risk"] <= 1
        process.stdin.close()
    assert process.returncode == 0


def test_a_bad_line_ends_the_stream_or_is_answered_with_its_error(folder: Path) -> None:
    text = '{"prompt_ids": [3]}\nnot json {\n{"prompt_ids": [4]}\n'
    done = run(folder, "predict", "probe.safetensors", stdin=text)
    assert (done.returncode, len(done.stdout.splitlines())) == (65, 1)
    assert "stdin:2: " in done.stderr
    done = run(folder, "predict", "probe.safetensors", "--skip-bad", stdin=text)
    assert done.returncode == 0
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert ["error" in answer for answer in answers] == [False, True, False]


def test_files_of_prompts_and_their_arrays_are_answered_alike(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "array.json").write_text(json.dumps(rows(folder / "prompts.jsonl")))
    lines, array = (
        run(folder, "predict", "probe.safetensors", f) for f in ("prompts.jsonl", tmp_path / "array.json")
    )
    assert lines.returncode == array.returncode == 0
    assert lines.stdout == array.stdout


def test_answers_to_prompts_of_known_length_can_be_scheduled(folder: Path, tmp_path: Path) -> None:
    known = [{"n_response": 4, "arrival": 0.5}, {"n_response": 2, "arrival": 0.25}]
    prompts, lengths = tmp_path / "prompts.jsonl", tmp_path / "pr.jsonl"
    prompts.write_text("".join(f"{json.dumps({'prompt_ids': [3], 'id': 'a', **more})}\n" for more in known))
    done = run(folder, "predict", "probe.safetensors", prompts)
    lengths.write_text(done.stdout)
    assert [{k: row[k] for k in ("n_response", "arrival")} for row in rows(lengths)] == known
    assert run(folder, "schedule", lengths, "--slots", "1").returncode == 0
    prompts.write_text('{"prompt_ids": [3]}\n{"prompt_ids": [4]}\n')
    lengths.write_text(run(folder, "predict", "probe.safetensors", prompts).stdout)
    assert not {"n_response", "arrival"} & rows(lengths)[0].keys()
    done = run(folder, "schedule", lengths)
    assert (done.returncode, "pr.jsonl:1: no n_response; expected" in done.stderr) == (65, True)


def test_statistics_of_two_nights_fit_as_one(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "data.jsonl").read_text().splitlines(keepends=True)
    for name, part in (("mon", lines[:14]), ("tue", lines[14:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part))
        stats = tmp_path / f"{name}.stats"
        done = run(folder, "model", tmp_path / f"{name}.jsonl", "--stats-only", "-o", stats, "--folds", "2")
        assert done.returncode == 0, done.stderr
    merged = run(
        folder, tmp_path / "mon.stats", tmp_path / "tue.stats", "-o", tmp_path / "p.safetensors", "--json"
    )
    whole = run(folder, "model", "data.jsonl", "-o", tmp_path / "q.safetensors", "--folds", "2", "--json")
    a, b = json.loads(merged.stdout), json.loads(whole.stdout)
    assert a["sequences"] == b["sequences"] == 30
    for mine, theirs in zip(a["along"] + a["first"], b["along"] + b["first"], strict=True):
        assert mine["r2"] == pytest.approx(theirs["r2"], abs=1e-6)
    answered = run(folder, "predict", tmp_path / "p.safetensors", "prompts.jsonl")
    assert answered.returncode == 0, answered.stderr  # the merged probe finds the model from where it lies
    table = run(tmp_path, "evaluate", "mon.stats", "tue.stats", "--json")
    assert table.returncode == 0, table.stderr
    assert [m["kind"] for m in json.loads(table.stdout)["matrices"]] == [
        "probe",
        "position-and-probe",
        "probe at t = 0",
    ]


@pytest.mark.slow  # three processes import torch
def test_two_processes_collect_what_one_does(folder: Path, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    words = ["-m", "nipstool", "probe-length", "model", "data.jsonl", "--folds", "2", "--device", "cpu", "--json"]
    line = [*torchrun, *words, "-o", tmp_path / "two.safetensors"]
    two = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300)
    assert two.returncode == 0, two.stderr
    one = run(folder, *words[3:], "-o", tmp_path / "one.safetensors")
    a, b = json.loads(two.stdout), json.loads(one.stdout)
    assert (
        (a["sequences"], a["sampled"], a["censored"])
        == (b["sequences"], b["sampled"], b["censored"])
        == (30, 30, 3)
    )
    for mine, theirs in zip(a["along"] + a["first"], b["along"] + b["first"], strict=True):
        assert mine["r2"] == pytest.approx(theirs["r2"], abs=1e-6)


def test_an_interrupted_pass_is_taken_up_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after some batches, resumed: the same bytes as without the stop."""
    from nipstool.kit.progress import progress_on
    from nipstool.probe_length import collect, passes
    from nipstool.probe_length.job import fit_files

    monkeypatch.chdir(folder)
    monkeypatch.setattr(collect, "WINDOW", 8)
    reading = passes.Reading(batch_tokens=64)

    def fit(output: Path, *, resume: bool) -> bytes:
        what = passes.Pass(folds=2, partial=passes.partial_of(str(output)), resume=resume)
        common = {"censored": "tobit", "coverage": 0.9, "seed": 0, "force": True, "named": "model"}
        stage = lambda label: progress_on(None, label)  # noqa: E731
        fit_files(["model", "data.jsonl"], str(output), reading, what, stage=stage, **common)
        return output.read_bytes()

    whole = fit(tmp_path / "whole.safetensors", resume=False)
    add, calls = collect.Collector.add, []

    def interrupted(self, batch) -> None:
        if len(calls) == 5:
            raise KeyboardInterrupt
        calls.append(len(batch))
        add(self, batch)

    monkeypatch.setattr(collect.Collector, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "again.safetensors", resume=False)
    partial = tmp_path / ".again.safetensors.collected"
    assert partial.exists()
    monkeypatch.setattr(collect.Collector, "add", add)
    assert fit(tmp_path / "again.safetensors", resume=True) == whole
    assert not partial.exists()


def test_markers_of_a_file_are_compared(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"id": 0, "t": 2}\n{"id": 3, "t": 2}\n')
    done = run(folder, "trace", "probe.safetensors", "data.jsonl", "--markers", tmp_path / "m.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(m["id"], m["t"]) for m in found["markers"]] == [(0, 2), (3, 2)]
    assert [s["kind"] for s in found["shifts"]] == ["probe", "position-and-probe", "position, smooth"]
    (tmp_path / "m.jsonl").write_text('{"t": 2}\n')
    done = run(folder, "trace", "probe.safetensors", "data.jsonl", "--markers", tmp_path / "m.jsonl")
    assert (done.returncode, "m.jsonl:1: expected a marker" in done.stderr) == (65, True)


def test_pictures_of_every_kind_are_drawn(folder: Path, tmp_path: Path) -> None:
    lines = {
        "fit": ("model", "data.jsonl", "--folds", "2", "-o", tmp_path / "p.safetensors"),
        "evaluate": ("evaluate", "probe.safetensors", "data.jsonl"),
        "transfer": ("evaluate", "a.stats", "a.stats"),
        "trace": ("trace", "probe.safetensors", "data.jsonl"),
        "schedule": ("schedule", "lengths.jsonl", "--jobs", "300"),
    }
    for name, words in lines.items():
        done = run(folder, *words, "--plot", tmp_path / f"{name}.png")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
