"""FlexiBERT records: a BERT of mixed layers, one JSON object each, and the matrices that it consists of.

The inventory is the nominal architecture (hidden_size and feed_forward_dimension as the record says). With
hidden 256 and feed-forward 1024 in every layer its parameter count is the benchmark's own column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nipstool.kit.errors import DataError
from nipstool.prune_nsc.inventory import Architecture, Layer, Matrix

VOCABULARY, POSITIONS, EMBEDDING = 30522, 512, 128


def is_record(value: Any) -> bool:
    """Whether a JSON value is a FlexiBERT record, with or without the benchmark's wrapping."""
    return isinstance(value, Mapping) and _overrides(value) is not None


def _overrides(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for path in (("hparams", "model_hparam_overrides"), ("model_hparam_overrides",), ()):
        place: Any = record
        for word in path:
            place = place.get(word) if isinstance(place, Mapping) else None
        if isinstance(place, Mapping) and "nas_config" in place and "hidden_size" in place:
            return place
    return None


def read_record(
    record: Mapping[str, Any], name: str, hidden: int | None = None, ffn: int | None = None
) -> Architecture:
    """The architecture of a record; `hidden` and `ffn` replace what it says.

    Raises DataError naming the record and the field that is missing or odd.
    """
    overrides = _overrides(record)
    if overrides is None:
        raise DataError(f"{name}: no FlexiBERT record; expected hidden_size and nas_config")
    try:
        h = hidden or _positive(overrides["hidden_size"], "hidden_size")
        layers = tuple(_layer(entry, h, ffn) for entry in overrides["nas_config"]["encoder_layers"])
    except (KeyError, TypeError, ValueError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{name}: the record {what}; expected a FlexiBERT record") from error
    e = EMBEDDING
    embedding = (VOCABULARY + POSITIONS + 2 + 2) * e  # two token types, and a norm's weight and bias
    project = (Matrix("embeddings_project", h, e),) if h != e else ()
    other = embedding + (h if h != e else 0)
    return Architecture(name, project, layers, other, heads_width=h)


def _positive(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"has {what} {value!r}")
    return value


def _layer(entry: Mapping[str, Any], h: int, ffn: int | None) -> Layer:
    """One encoder layer: its operation, the output projection, the feed-forward stack, its norms."""
    f = ffn or _positive(entry["feed_forward_dimension"], "feed_forward_dimension")
    deep = _positive(entry["num_feed_forward"], "num_feed_forward")
    kind = entry["operation_type"]
    operation, vectors = _operation(kind, entry, h)
    stack = [Matrix("ffn", f, h), Matrix("ffn", h, f)] + [Matrix("ffn", f, f)] * (deep - 1)
    vectors += f + h + (deep - 1) * f  # biases
    vectors += 2 * h if kind == "LT" else 4 * h  # norms
    output = Matrix("output", h, h)
    return Layer((*operation, output, *stack), vectors + h, attends=kind == "SA")


def _operation(kind: str, entry: Mapping[str, Any], h: int) -> tuple[list[Matrix], int]:
    if kind == "SA":
        weighted = entry["operation_parameter"] == "WMA"
        matrices = [Matrix(name, h, h) for name in ("query", "key", "value")]
        return matrices + [Matrix("wma", h, h)] * weighted, 3 * h
    if kind == "LT":
        return [], 0
    if kind != "DSC":
        raise ValueError(f"has operation_type {kind!r}")
    k = _positive(entry["operation_parameter"], "operation_parameter")
    heads = _positive(entry["num_operation_heads"], "num_operation_heads") // 2
    a = h // 2
    matrices = [Matrix(name, a, h) for name in ("query", "key", "value", "conv_out")]
    matrices += [Matrix("depthwise", 1, k, h), Matrix("pointwise", a, h), Matrix("kernel", heads * k, a)]
    return matrices, 5 * a + heads * k
