"""Prompts and responses in the layouts that people have, read one at a time.

A file is JSON lines, one JSON array or plain text, gzipped or not. A record is {"prompt", "response"},
{"prompt_ids", "response_ids"}, {"messages"}, ShareGPT {"conversations"}, Alpaca {"instruction", "input", "output"}
or {"question", "answer"}. Other keys that are read: id, group, dataset, finish_reason, cap, n_response, weight,
arrival.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.files import is_stdio, spooled_input
from nipstool.kit.parts import reason
from nipstool.kit.records import field_of, parse_json

Turns = list[dict[str, str]]
Fault = Callable[[str], None]

FORMATS = ("auto", "text", "ids", "messages", "sharegpt", "alpaca", "qa", "plain")
CUT = {"length", "max_tokens", "max_length", "max_new_tokens", "model_length"}  # finish reasons of a cut answer
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "bot": "assistant"}
_LAYOUTS = {  # in the order in which they are looked for: the key of the prompt, those of the response
    "ids": ("prompt_ids", ("response_ids", "response")),
    "text": ("prompt", ("response", "response_ids")),
    "plain": ("prompt", ("response", "response_ids")),
    "messages": ("messages", ("chosen",)),
    "sharegpt": ("conversations", ("chosen",)),
    "alpaca": ("instruction", ("output", "response")),
    "qa": ("question", ("answer", "response")),
}
_ANSWER_WORDS = ("completion", "output", "answer", "response", "generation", "text")  # likely keys of a response
_GZIP = b"\x1f\x8b"
_DOCUMENT_MARK = "<|endoftext|>"


@dataclass(frozen=True)
class Layout:
    """How files are read: the format (see FORMATS), the key to group by, dotted names for prompt and response.

    For plain text: where a document splits into prompt and response, a mark or else a number of characters.
    """

    format: str = "auto"
    group: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    split_at: str | None = None
    prompt_chars: int = 64


@dataclass(frozen=True)
class Example:
    """One record. `prompt` is text, token ids or chat turns; `response` text, ids, or None where there is none."""

    where: str  # file:line, for messages
    dataset: str
    prompt: str | list[int] | Turns
    response: str | list[int] | None
    id: str | int | None = None
    group: str | None = None
    finish_reason: str | None = None
    cap: int | None = None
    n_response: int | None = None
    weight: float = 1.0
    arrival: Any = None  # passed on as it is


def read_examples(path: str | Path, layout: Layout, *, responses: bool, fault: Fault) -> Iterator[Example]:
    """The examples of a file; '-' is standard input.

    Args:
        responses: whether a record without a response is at fault.
        fault: told of each record that cannot be used, one line with its place; it raises or counts.

    Raises InputMissingError, or DataError where the file as a whole cannot be read.
    """
    dataset = "stdin" if is_stdio(path) else Path(path).name.partition(".")[0]
    for where, record in read_records(path, layout, fault):
        try:
            found = to_example(record, where, layout, dataset)
            if responses and not found.response:
                raise DataError(f"{found.where}: {_no_response(found, record, layout)}")
        except DataError as error:
            fault(str(error))
            continue
        yield found


def read_records(path: str | Path, layout: Layout, fault: Fault) -> Iterator[tuple[str, Any]]:
    """(where it stands, record) of everything in a file; see read_examples."""
    told = "stdin" if is_stdio(path) else os.fspath(path)
    if not is_stdio(path) and Path(path).is_dir():
        raise InputMissingError(f"{told}: is a folder; expected a file of records")
    with spooled_input(path) as file:
        for place, record in _records(file, told, layout, fault):
            yield f"{told}:{place}", record


def _records(path: Path, told: str, layout: Layout, fault: Fault) -> Iterator[tuple[int, Any]]:
    """(line or place in the array, record); a plain text gives (prompt, response) pairs."""
    try:
        with _opened(path) as file:
            start = file.read(4096).lstrip()
            file.seek(0)
            if not start:
                raise DataError(f"{told}: is empty; expected prompts and responses")
            if layout.format == "plain" or (layout.format == "auto" and start[0] not in "[{"):
                yield from _documents(file.read(), told, layout)
            elif start[0] == "[":
                yield from _array(file.read(), told)
            else:
                yield from _lines(file, told, fault)
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{told}: cannot be read: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{told}: is no UTF-8 text, and no gzip of one") from error


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    return gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8")


def _lines(file: IO[str], told: str, fault: Fault) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            yield number, parse_json(line)
        except ValueError as error:
            fault(f"{told}:{number}: is no JSON: {' '.join(str(error).split())}")


def _array(text: str, told: str) -> Iterator[tuple[int, Any]]:
    try:
        records = parse_json(text)
    except ValueError as error:
        raise DataError(f"{told}: is no JSON array: {' '.join(str(error).split())}") from error
    if not records:
        raise DataError(f"{told}: the array is empty; expected prompts and responses")
    yield from enumerate(records, 1)


def _documents(text: str, told: str, layout: Layout) -> Iterator[tuple[int, Any]]:
    """Documents of a plain text, apart at <|endoftext|> or else at empty lines, each split in two."""
    if "\0" in text:
        raise DataError(f"{told}: is neither JSON nor text")
    mark = _DOCUMENT_MARK if _DOCUMENT_MARK in text else "\n\n"
    documents = [part.strip() for part in text.split(mark) if part.strip()]
    for number, document in enumerate(documents, 1):
        prompt, response = _split(document, layout)
        yield number, {"prompt": prompt, "response": response}


def _split(document: str, layout: Layout) -> tuple[str, str]:
    if layout.split_at is not None:
        prompt, mark, response = document.partition(layout.split_at)
        return prompt + mark, response
    end = document.find(" ", layout.prompt_chars)
    return (document, "") if end < 0 else (document[:end], document[end:])


def to_example(record: Any, where: str, layout: Layout, dataset: str) -> Example:
    """The example of a record, whatever its layout. Raises DataError saying what is missing or odd."""
    if isinstance(record, str):
        record = {"prompt": record}
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(record).__name__}")
    named = {**record, **{key: field_of(record, name, where) for key, name in layout.fields.items()}}
    prompt, response = _pair(named, where, layout.format)
    if "response" in layout.fields:
        response = _checked(named["response"], "response", where, optional=True)
    if prompt == "" or prompt == []:
        raise DataError(f"{where}: the prompt is empty")
    group = field_of(record, layout.group, where) if layout.group else record.get("group")
    weight = record.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e12:
        raise DataError(f"{where}: weight {weight!r}; expected a number above 0")
    return Example(
        where=where,
        dataset=str(record.get("dataset", dataset)),
        prompt=prompt,
        response=response,
        id=record.get("id"),
        group=None if group is None else str(group),
        finish_reason=record.get("finish_reason"),
        cap=_count(record, "cap", where),
        n_response=_count(record, "n_response", where),
        weight=float(weight),
        arrival=record.get("arrival"),
    )


def _no_response(found: Example, record: Any, layout: Layout) -> str:
    """What to say of a record without a response: it is empty, or no key that is read holds one."""
    if found.response is not None or not isinstance(record, dict) or "response" in layout.fields:
        return "the response is empty"
    named = {**record, **dict.fromkeys(layout.fields)}
    _, keys = _LAYOUTS[_layout_of(named, layout.format) or "text"]
    if any(key in record for key in keys):
        return "the response is empty"
    wanted = " or ".join(dict.fromkeys(("response", *keys))).replace(
        "chosen", "a turn of the assistant after the prompt"
    )
    free = [key for key in _ANSWER_WORDS if key not in layout.fields.values()]
    likely = [key for key in free if record.get(key) and isinstance(record[key], str | list)]
    told = f"expected a {wanted}; found the keys {', '.join(map(str, record))}"
    return f"{told}; --field response={likely[0] if likely else 'KEY'}"


def _pair(record: Mapping[str, Any], where: str, format: str) -> tuple[Any, Any]:
    """(prompt, response) of the first layout whose keys are there, or of the one that was named."""
    readers: dict[str, Callable[[Mapping[str, Any], str], tuple[Any, Any]]] = {
        "ids": _ids,
        "text": _text,
        "plain": _text,
        "messages": _messages,
        "sharegpt": _messages,
        "alpaca": _alpaca,
        "qa": _qa,
    }
    found = _layout_of(record, format)
    if found is not None:
        return readers[found](record, where)
    wanted = "a prompt, prompt_ids, messages, conversations, instruction or question"
    wanted = wanted if format == "auto" else f"{_LAYOUTS[format][0]!r}"
    raise DataError(f"{where}: expected {wanted}; found the keys {', '.join(map(str, record)) or 'none'}")


def _layout_of(record: Mapping[str, Any], format: str) -> str | None:
    """The name of the first layout whose prompt is there, or of the one that was named."""
    names = (name for name, (key, _) in _LAYOUTS.items() if key in record and format in ("auto", name))
    return next(names, None)


def _ids(record: Mapping[str, Any], where: str) -> tuple[list[int], Any]:
    found = []
    for key in ("prompt_ids", "response_ids"):
        ids = record.get(key)
        if ids is not None and not (
            isinstance(ids, list) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids)
        ):
            raise DataError(f"{where}: {key} is no list of token ids")
        found.append(ids)
    response = found[1] if found[1] is not None else record.get("response")
    return found[0], _checked(response, "response", where, optional=True)


def _text(record: Mapping[str, Any], where: str) -> tuple[Any, Any]:
    prompt = record["prompt"]
    if isinstance(prompt, list):
        prompt = _turns(prompt, where)
    _, response = _ids({**record, "prompt_ids": None}, where)
    return _checked(prompt, "prompt", where), response


def _alpaca(record: Mapping[str, Any], where: str) -> tuple[str, Any]:
    parts = [_checked(record.get(key) or "", key, where) for key in ("instruction", "input")]
    output = _checked(record.get("output", record.get("response")), "output", where, optional=True)
    return "\n".join(part for part in parts if part), output


def _qa(record: Mapping[str, Any], where: str) -> tuple[str, Any]:
    answer = record.get("answer", record.get("response"))
    return _checked(record["question"], "question", where), _checked(answer, "answer", where, optional=True)


def _messages(record: Mapping[str, Any], where: str) -> tuple[Turns, str | None]:
    """The turns before the last answer, and that answer; the chosen one where two are ranked."""
    turns = _turns(record.get("messages", record.get("conversations")), where)
    if isinstance(record.get("system"), str) and record["system"] and turns[0]["role"] != "system":
        turns = [{"role": "system", "content": record["system"]}, *turns]
    if "chosen" in record:
        return turns, _turn(record["chosen"], where)["content"]
    answers = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
    if not answers or answers[-1] == 0:
        return turns, None
    return turns[: answers[-1]], turns[answers[-1]]["content"]


def _turns(turns: Any, where: str) -> Turns:
    if not isinstance(turns, list) or not turns:
        raise DataError(f"{where}: the messages are no list of turns")
    return [_turn(turn, where) for turn in turns]


def _turn(turn: Any, where: str) -> dict[str, str]:
    """A turn as {"role", "content"}; content may be text or a list of parts with text."""
    if not isinstance(turn, dict):
        raise DataError(f"{where}: a turn is no JSON object")
    role = turn.get("role", turn.get("from"))
    content = turn.get("content", turn.get("value"))
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else {"text": part} for part in content]
        content = "".join(str(part.get("text", part.get("value", ""))) for part in parts)
    if not isinstance(role, str) or not isinstance(content, str):
        raise DataError(f"{where}: a turn needs a role and text")
    return {"role": _ROLES.get(role, role), "content": content}


def _checked(value: Any, key: str, where: str, *, optional: bool = False) -> Any:
    if value is None and optional:
        return None
    if not isinstance(value, str | list):
        raise DataError(f"{where}: {key} is no text")
    return value


def _count(record: Mapping[str, Any], key: str, where: str) -> int | None:
    value = record.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise DataError(f"{where}: {key} {value!r}; expected a number of tokens")
    return value
