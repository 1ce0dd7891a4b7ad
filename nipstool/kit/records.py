"""Results as JSON, strict (NaN and infinity become null), ordered as they were made; fields of records read."""

import csv
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeGuard

from nipstool.kit.errors import DataError


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Dataclasses, paths, enums and mappings as one JSON text; what JSON cannot say (NaN, inf) is null."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """The same value in the types that JSON has. Raises TypeError for a type with no obvious form."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value.value if isinstance(value, Enum) else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"no JSON form for {type(value).__name__}")


def parse_json(text: str | bytes) -> Any:
    """As json.loads, but what is nested too deep is a ValueError too, as all else that is no JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_csv(lines: Iterable[str], told: str, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of a table. Raises DataError, about the line of `told`, where csv finds none."""
    reader = csv.reader(lines, delimiter=delimiter)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{told}:{reader.line_num}: is no CSV: {error}") from error
        yield reader.line_num, cells


def is_number(value: object, most: float = sys.float_info.max) -> TypeGuard[float]:
    """Whether a value read from JSON is a finite number of at most `most`, either way; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= most


def shown(value: Any, most: int = 80) -> str:
    """A value for a message: short, on one line, without control characters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def field_of(record: Mapping[str, Any], name: str, where: str) -> Any:
    """A field of a record, of an inner one with dots: record["meta"]["domain"] for meta.domain.

    Raises DataError, about `where`, listing the fields there are.
    """
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise DataError(
                f"{where}: has no field {name!r}; it has {', '.join(map(str, list(record)[:8])) or 'none'}"
            )
        value = value[part]
    return value
