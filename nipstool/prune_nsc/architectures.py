"""Architectures to score: configurations, checkpoint folders and FlexiBERT records, whatever a file holds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError
from nipstool.kit.files import is_stdio, spooled_input
from nipstool.kit.language_models import read_config_json, skeleton, to_config
from nipstool.kit.records import is_number, parse_json
from nipstool.prune_nsc.flexibert import is_record, read_record
from nipstool.prune_nsc.inventory import Architecture, Layer, Matrix, bytes_a_value

if TYPE_CHECKING:
    from torch import nn

MOST_TOLD = 8  # fields, in a message
_LAYER = re.compile(r"^(.*?\.\d+)\.")
_QKV = re.compile(r"(qkv|c_attn|query_key_value|in_proj)", re.IGNORECASE)
_HALVES = re.compile(r"(gate_up|w12|fc1_gate)", re.IGNORECASE)


@dataclass(frozen=True)
class Candidate:
    """An architecture, what was read to know it and where, and its checkpoint folder where there is one.

    `entry` is the place in the array that a file holds, None where it holds none.
    """

    architecture: Architecture
    record: Mapping[str, Any]
    told: str
    entry: int | None = None
    folder: str | None = None


def read_architectures(word: str) -> Iterator[Candidate]:
    """What an argument of the command holds; '-' is standard input. Raises DataError, InputMissingError."""
    if not is_stdio(word) and Path(word).is_dir():
        raw = read_config_json(word)
        yield Candidate(_of_config(raw, word), raw, word, folder=word)
        return
    with spooled_input(word) as path:
        told = "standard input" if is_stdio(word) else word
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{told}: is no UTF-8 text: {error}") from error
    for place, entry, value in _values(text, told):
        yield _candidate(value, place, entry)


def _values(text: str, told: str) -> Iterator[tuple[str, int | None, Any]]:
    """Each JSON value with the file or line it was found at, and its place in an array."""
    if not text.strip():
        raise DataError(f"{told}: is empty; expected JSON")
    try:
        document = parse_json(text)
    except ValueError:
        yield from _lines(text, told)
        return
    if not isinstance(document, list):
        yield told, None, document
    elif not document:
        raise DataError(f"{told}: an empty array; expected architectures")
    else:
        yield from ((told, i, item) for i, item in enumerate(document))


def _lines(text: str, told: str) -> Iterator[tuple[str, None, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield f"{told}:{number}", None, parse_json(line)
        except ValueError as error:
            raise DataError(f"{told}:{number}: is no JSON: {error}") from error


def _candidate(value: Any, told: str, entry: int | None) -> Candidate:
    place = told if entry is None else f"{told}#{entry}"
    if is_record(value):
        name = str(value["id"]) if "id" in value else place
        return Candidate(read_record(value, name), value, told, entry)
    if isinstance(value, dict) and isinstance(value.get("model_type"), str):
        return Candidate(_of_config(value, place), value, told, entry)
    raise DataError(f"{place}: expected a config.json with a model_type, or a FlexiBERT record")


def _of_config(raw: Mapping[str, Any], told: str) -> Architecture:
    return architecture_of(skeleton(to_config(raw, told), told), told)


def truth_of(candidate: Candidate, field: str) -> float:
    """The number at a dotted path of what was read. Raises DataError naming the file, the entry and the fields."""
    value: Any = candidate.record
    inside = "" if candidate.entry is None else f" in entry {candidate.entry}"
    for word in field.split("."):
        if not isinstance(value, Mapping) or word not in value:
            raise DataError(f"{candidate.told}: no field {field}{inside}; {_fields_told(candidate.record, field)}")
        value = value[word]
    if not is_number(value):
        found = f"an object of {', '.join(map(str, value))}" if isinstance(value, Mapping) else repr(value)
        raise DataError(f"{candidate.told}: {field}{inside} is {found[:200]}; expected a number")
    return float(value)


def _numbers_of(record: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The dotted path of every number in a record."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _numbers_of(value, f"{before}{key}.")
        elif is_number(value):
            yield f"{before}{key}"


def _fields_told(record: Mapping[str, Any], field: str) -> str:
    """The numbers that a record has, those that are most like the wanted one first."""
    there = list(_numbers_of(record))
    near = get_close_matches(field, there, n=MOST_TOLD, cutoff=0.5)
    told = [*near, *(name for name in there if name not in near)]
    more = ", ..." if len(told) > MOST_TOLD else ""
    return f"there are {', '.join(told[:MOST_TOLD])}{more}" if told else "there are no numbers in it"


def architecture_of(model: nn.Module, told: str) -> Architecture:
    """The inventory of any transformers model, from its modules on the meta device.

    Matrices of a repeated block make a layer; fused projections are split; tables that are looked up and the LM
    head do not count for NSC. Raises DataError for experts, of which a token uses some only, and for models of
    several parts.
    """
    config: Any = model.config
    if config.sub_configs and not getattr(config, "num_attention_heads", 0):  # MPT's sub-configuration is no part
        parts = ", ".join(sorted(config.sub_configs))
        raise DataError(f"{told}: a {config.model_type} model of several parts ({parts}); expected one of them")
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    head_size = head.weight.numel() if head is not None and hasattr(head, "weight") else 0
    layers: dict[str, list[Matrix]] = {}
    vectors: dict[str, int] = {}
    outside: list[Matrix] = []
    other = 0
    owners = {f"{name}.{own}": module for name, module in model.named_modules() for own in module._parameters}
    for name, parameter in model.named_parameters():
        found = _LAYER.match(name)
        if not parameter.numel():
            raise DataError(f"{told}: {name} is {list(parameter.shape)}; expected weights")
        shape, kind = tuple(parameter.shape), type(owners.get(name)).__name__
        if "expert" in name.lower():
            raise DataError(f"{told}: is a mixture of experts ({name}); expected one MLP a layer")
        table = "Embedding" in kind or (head is not None and parameter is getattr(head, "weight", None))
        matrices = [] if table or len(shape) < 2 else _matrices(name, shape, kind, config)
        if found is None:
            outside += matrices
            other += 0 if matrices else parameter.numel()
            continue
        layers.setdefault(found[1], []).extend(matrices)
        vectors[found[1]] = vectors.get(found[1], 0) + (0 if matrices else parameter.numel())
    if not any(layers.values()):
        raise DataError(f"{told}: a {config.model_type} model with no layers of matrices")
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    width = heads * _head_dim(config, heads)
    kv = 2 * _kv_heads(config, heads) * _head_dim(config, heads)
    built = tuple(Layer(tuple(m), vectors[key], kv_values=kv) for key, m in layers.items())
    return Architecture(told, tuple(outside), built, other, width, head_size, bytes_a_value(config.to_dict()))


def _kv_heads(config: Any, heads: int) -> int:
    """Key and value heads; Falcon and GPT-BigCode have words of their own for them."""
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
        return 1
    named = getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None)
    return int(named or heads)


def _head_dim(config: Any, heads: int) -> int:
    hidden = int(getattr(config, "hidden_size", 0) or 0)
    return int(getattr(config, "head_dim", None) or (hidden // heads if heads else 0))


def _matrices(name: str, shape: tuple[int, ...], kind: str, config: Any) -> list[Matrix]:
    """A weight as matrices [outputs, inputs]: convolutions unrolled, depthwise ones apart, fused ones split."""
    if kind == "Conv1D":  # GPT-2 stores the transpose
        shape = shape[::-1]
    rows, columns = shape[0], math.prod(shape[1:])
    if len(shape) > 2 and shape[1] == 1:
        return [Matrix(name, 1, columns, rows)]
    return [Matrix(name, part, columns) for part in _parts(name, rows, config)]


def _parts(name: str, rows: int, config: Any) -> list[int]:
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    q = heads * _head_dim(config, heads)
    kv, odd = divmod(rows - q, 2)  # what is left is keys and values: fewer heads, or one, in many families
    if _QKV.search(name) and q and kv > 0 and not odd:
        return [q, kv, kv]
    if _QKV.search(name) and rows % 3 == 0:
        return [rows // 3] * 3
    if _HALVES.search(name) and rows % 2 == 0:
        return [rows // 2] * 2
    return [rows]
