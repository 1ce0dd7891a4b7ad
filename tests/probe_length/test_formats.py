"""Records whose response stands under a key that no layout has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nipstool.kit.errors import DataError
from nipstool.probe_length.formats import Layout, read_examples, to_example


def told(folder: Path, record: Any, layout: Layout | None = None) -> str:
    """What a reader that needs responses says of a record."""
    file, faults = folder / "k.jsonl", []
    file.write_text(f"{json.dumps(record)}\n")
    assert list(read_examples(file, layout or Layout(), responses=True, fault=faults.append)) == []
    (fault,) = faults
    return fault.removeprefix(f"{file}:1: ")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            {"question": "q", "completion": "c"},
            "response or answer; found the keys question, completion; --field response=completion",
        ),
        (
            {"prompt": "p", "output": "o"},
            "response or response_ids; found the keys prompt, output; --field response=output",
        ),
        (
            {"instruction": "i", "x": "o"},
            "response or output; found the keys instruction, x; --field response=KEY",
        ),
        (
            {"messages": [{"role": "user", "content": "u"}], "completion": "c"},
            "response or a turn of the assistant after the prompt; found the keys messages, completion;"
            " --field response=completion",
        ),
        ({"prompt_ids": [1]}, "response or response_ids; found the keys prompt_ids; --field response=KEY"),
    ],
)
def test_an_unknown_response_key_is_told_with_the_option_that_names_it(
    tmp_path: Path, record: dict[str, Any], words: str
) -> None:
    assert told(tmp_path, record) == f"expected a {words}"
    if "=KEY" not in words:
        key = words.rpartition("=")[2]
        assert to_example(record, "here", Layout(fields={"response": key}), "k").response == record[key]


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "p", "response": ""},
        {"prompt": "p", "response": None, "completion": "c"},
        {"prompt_ids": [1], "response_ids": []},
        {"question": "q", "answer": ""},
        {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": ""}], "output": "o"},
        "a prompt alone",
    ],
)
def test_an_empty_response_is_told_as_such(tmp_path: Path, record: Any) -> None:
    assert told(tmp_path, record) == "the response is empty"
    if isinstance(record, dict):
        named = {**record, "mine": ""}
        assert told(tmp_path, named, Layout(fields={"response": "mine"})) == "the response is empty"


def test_the_prompts_own_key_is_not_proposed(tmp_path: Path) -> None:
    said = told(tmp_path, {"text": "p", "generation": "g"}, Layout(fields={"prompt": "text"}))
    assert said.endswith("; --field response=generation")
    assert told(tmp_path, {"text": "p"}, Layout(fields={"prompt": "text"})).endswith("; --field response=KEY")


def test_a_named_response_that_is_no_text_is_refused() -> None:
    with pytest.raises(DataError, match="here: response is no text"):
        to_example({"prompt": "p", "mine": 3}, "here", Layout(fields={"response": "mine"}), "k")
