"""Architectures to score: configurations, checkpoint folders and FlexiBERT records, whatever a file holds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError
from nipstool.kit.files import is_stdio, spooled_input
from nipstool.kit.language_models import read_config_json, skeleton, to_config
from nipstool.prune_nsc.flexibert import is_record, read_record
from nipstool.prune_nsc.inventory import Architecture, Layer, Matrix, bytes_a_value

if TYPE_CHECKING:
    from torch import nn

_LAYER = re.compile(r"^(.*?\.\d+)\.")
_QKV = re.compile(r"(qkv|c_attn|query_key_value|in_proj)", re.IGNORECASE)
_HALVES = re.compile(r"(gate_up|w12|fc1_gate)", re.IGNORECASE)


@dataclass(frozen=True)
class Candidate:
    """An architecture, what was read to know it, and its checkpoint folder where there is one."""

    architecture: Architecture
    record: Mapping[str, Any]
    folder: str | None = None


def read_architectures(word: str) -> Iterator[Candidate]:
    """What an argument of the command holds; '-' is standard input. Raises DataError, InputMissingError."""
    if not is_stdio(word) and Path(word).is_dir():
        yield _from_config(read_config_json(word), word, word)
        return
    with spooled_input(word) as path:
        told = "standard input" if is_stdio(word) else word
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{told}: is no UTF-8 text: {error}") from error
    for place, value in _values(text, told):
        yield _candidate(value, place)


def _values(text: str, told: str) -> Iterator[tuple[str, Any]]:
    """Each JSON value with the place it was found at: one document, an array's items, or lines."""
    if not text.strip():
        raise DataError(f"{told}: is empty; expected JSON")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        yield from _lines(text, told)
        return
    if not isinstance(document, list):
        yield told, document
    elif not document:
        raise DataError(f"{told}: an empty array; expected architectures")
    else:
        yield from ((f"{told}#{i}", item) for i, item in enumerate(document))


def _lines(text: str, told: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield f"{told}:{number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{told}:{number}: is no JSON: {error}") from error


def _candidate(value: Any, place: str) -> Candidate:
    if is_record(value):
        name = str(value["id"]) if "id" in value else place
        return Candidate(read_record(value, name), value)
    if isinstance(value, dict) and isinstance(value.get("model_type"), str):
        return _from_config(value, place, None)
    raise DataError(f"{place}: expected a config.json with a model_type, or a FlexiBERT record")


def _from_config(raw: Mapping[str, Any], told: str, folder: str | None) -> Candidate:
    config = to_config(raw, told)
    return Candidate(architecture_of(skeleton(config, told), told), raw, folder)


def truth_of(candidate: Candidate, field: str) -> float:
    """The number at a dotted path of what was read. Raises DataError naming the architecture."""
    value: Any = candidate.record
    for word in field.split("."):
        value = value.get(word) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{candidate.architecture.id}: {field} is {value!r}; expected a number")
    return float(value)


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
