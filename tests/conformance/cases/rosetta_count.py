"""The verbs of rosetta-count."""

import json
import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.conformance.cases.case import Case
from tests.conformance.cases.language_model import some_model


def some_dumps(folder: Path) -> None:
    """The activations of two models on the same 120 samples."""
    random = np.random.default_rng(0)
    hidden = random.standard_normal((120, 6))
    for name, width in (("a", 12), ("b", 10)):
        values = np.maximum(hidden @ random.standard_normal((6, width)), 0).astype(np.float32)
        save_file({"layer": values}, folder / f"{name}.safetensors")


def some_counts(folder: Path) -> None:
    """Counts of three pairs of models of four sizes, and of a control."""
    lines = ["size,count,pair,control"]
    for size in (16, 32, 64, 128):
        for pair, more in (("a-b", 0), ("a-c", 1), ("b-c", 2)):
            lines += [f"{size},{size // 2 + more},{pair},", f"{size},{size // 4 + more},{pair},untrained"]
    (folder / "counts.csv").write_text("\n".join(lines) + "\n")


WORDS = {
    "code": ("def", "return", "self", "import", "class", "none"),
    "docs": ("the", "value", "of", "an", "object", "is"),
}


def some_documents(folder: Path) -> None:
    """A language model with a tokenizer of words, and documents of two domains."""
    some_model(folder)
    vocabulary = {"<unk>": 0, "<s>": 1, **{word: 2 + at for at, word in enumerate(sum(WORDS.values(), ()))}}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    tokenizer = {"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []}
    (folder / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    random = np.random.default_rng(0)
    with (folder / "docs.jsonl").open("w") as file:
        for number in range(24):
            domain = ("code", "docs")[number % 2]
            text = " ".join(random.choice(WORDS[domain], 8).tolist())
            file.write(json.dumps({"id": number, "text": text, "domain": domain}) + "\n")


def a_count(folder: Path) -> None:
    """The same with the folder of a count."""
    some_documents(folder)
    (folder / "shared").mkdir()
    for name, content in counted().items():
        (folder / "shared" / name).write_bytes(content)


@cache
def counted() -> dict[str, bytes]:
    """What a count of that model and itself leaves."""
    from nipstool.rosetta_count.job import Request, run
    from nipstool.rosetta_count.sources import Reading

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        some_documents(Path(place))
        os.chdir(place)  # the folder remembers its models and data as they were named
        try:
            run(Request(("model", "model"), "shared", reading=Reading("docs.jsonl", domain_field="domain")))
        finally:
            os.chdir(before)
        return {file.name: file.read_bytes() for file in Path(place, "shared").iterdir()}


DUMPS = ("a.safetensors", "b.safetensors")


CASES = [
    Case(
        "rosetta-count",
        None,
        ("--acts", *DUMPS),
        some_dumps,
        inputs=DUMPS,
        output="shared",
        folder=True,
        setting=("--k", "2", "3", "4"),
    ),
    Case(
        "rosetta-count",
        "fit",
        ("counts.csv",),
        some_counts,
        inputs=("counts.csv",),
        reads_stdin=True,
        halves_are_bad=False,
        setting=("--seed", "1", "2", "3"),
    ),
    Case(
        "rosetta-count",
        "fit",
        ("counts.csv",),
        some_counts,
        inputs=("counts.csv",),
        output="laws.json",
        reads_stdin=True,
        writes_stdout=True,
        halves_are_bad=False,
        setting=("--seed", "1", "2", "3"),
    ),
    Case(
        "rosetta-count",
        "inspect",
        ("shared", "--pairs", "3"),
        a_count,
        inputs=("shared/summary.json", "shared/pairs.csv"),
        output="shared.html",
        writes_stdout=True,
        halves_are_bad=False,
        setting=("--contexts", "2", "3", "4"),
    ),
    Case(
        "rosetta-count",
        "filter-data",
        ("shared", "docs.jsonl", "--domain", "code"),
        a_count,
        inputs=("docs.jsonl", "shared/summary.json", "shared/neurons.csv"),
        json=False,
        halves_are_bad=False,
        setting=("--keep", "0.5", "0.25", "0.75"),
    ),
]
