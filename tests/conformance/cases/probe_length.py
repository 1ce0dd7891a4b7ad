"""The verbs of probe-length."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.conformance.cases.case import Case, tensors
from tests.conformance.cases.language_model import some_model


def some_answers(folder: Path) -> None:
    """The language model, and answers of known lengths in token ids, some of them cut off."""
    some_model(folder)
    random = np.random.default_rng(0)
    rows = []
    for i in range(30):
        prompt, length = random.integers(3, 32, 2 + i % 3).tolist(), 3 + int(random.integers(18))
        reason = "length" if i % 10 == 9 else "stop"
        answer = random.integers(3, 32, length).tolist()
        rows.append({"id": i, "prompt_ids": prompt, "response_ids": answer, "finish_reason": reason})
    _write(folder / "data.jsonl", rows)
    _write(folder / "prompts.jsonl", [{"prompt_ids": row["prompt_ids"]} for row in rows[:7]])
    _write(folder / "lengths.jsonl", [{"n_response": 3 + i % 17, "predicted": 3 + i % 7} for i in range(101)])


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def some_probe(folder: Path) -> None:
    """The same with a probe and statistics."""
    some_answers(folder)
    for name, content in fitted().items():
        (folder / name).write_bytes(content)


@cache
def fitted() -> dict[str, bytes]:
    """A probe and statistics of those answers."""
    from nipstool.kit.progress import progress_on
    from nipstool.probe_length.job import fit_files
    from nipstool.probe_length.passes import Pass, Reading

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        some_answers(folder)
        for name, censored in (("probe.safetensors", "tobit"), ("a.stats", "")):
            fit_files(
                [str(folder / "model"), str(folder / "data.jsonl")],
                str(folder / name),
                Reading(),
                Pass(folds=2),
                censored=censored,
                coverage=0.9,
                seed=0,
                force=False,
                stage=lambda label: progress_on(None, label),
                named="model",
            )
        return {name: (folder / name).read_bytes() for name in ("probe.safetensors", "a.stats")}


CASES = [
    Case(
        "probe-length",
        None,
        ("model", "data.jsonl", "--folds", "2"),
        some_answers,
        inputs=("data.jsonl", "model/config.json", "model/model.safetensors"),
        output="probe.safetensors",
        reads_stdin=True,
        writes_stdout=True,
        setting=("--coverage", "0.5", "0.6", "0.7"),
        essence=tensors,
    ),
    Case(
        "probe-length",
        "predict",
        ("probe.safetensors", "prompts.jsonl"),
        some_probe,
        inputs=("prompts.jsonl", "probe.safetensors"),
        json=False,
        reads_stdin=True,
        setting=("--budget", "1", "2", "3"),
    ),
    Case(
        "probe-length",
        "evaluate",
        ("probe.safetensors", "data.jsonl"),
        some_probe,
        inputs=("data.jsonl", "probe.safetensors"),
        reads_stdin=True,
        setting=("--coverage", "0.5", "0.6", "0.7"),
    ),
    Case(
        "probe-length",
        "trace",
        ("probe.safetensors", "data.jsonl"),
        some_probe,
        inputs=("data.jsonl", "probe.safetensors"),
        reads_stdin=True,
        setting=("--window", "2", "3", "4"),
    ),
    Case(
        "probe-length",
        "trace",
        ("probe.safetensors", "data.jsonl"),
        some_probe,
        inputs=("data.jsonl", "probe.safetensors"),
        output="rows.jsonl",
        writes_stdout=True,
        setting=("--window", "2", "3", "4"),
    ),
    Case(
        "probe-length",
        "generate",
        ("model", "prompts.jsonl", "-n", "2", "--max-new", "4"),
        some_answers,
        inputs=("prompts.jsonl", "model/config.json", "model/model.safetensors"),
        output="answers.jsonl",
        json=False,
        reads_stdin=True,
        writes_stdout=True,
        setting=("--seed", "1", "2", "3"),
    ),
    Case(
        "probe-length",
        "schedule",
        ("lengths.jsonl", "--jobs", "200"),
        some_answers,
        inputs=("lengths.jsonl",),
        reads_stdin=True,
        setting=("--ageing", "1", "2", "3"),
    ),
]
