"""The user's places: OpenStreetMap as GeoJSON or Overpass JSON, CSV, or one name a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nipstool.detect_navtext.lines import KINDS
from nipstool.detect_navtext.poi import Name, kind_of
from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.parts import reason
from nipstool.kit.records import parse_json, read_csv

_NAMES = ("name", "brand", "operator", "ref", "short_name", "official_name", "alt_name", "old_name", "addr:street")
_COLUMNS = ("name", "text", "label", "title")


def read_places(path: str | Path) -> list[Name]:
    """The names in a file, by what it is: JSON with `features` or `elements`, CSV with a column `name`, or lines.

    Raises:
        InputMissingError: it cannot be read.
        DataError: it is none of these, or a row of it is bad; with the line's or object's number.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputMissingError(f"{path}: {reason(error)}; expected a file of places") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte {error.start} is no UTF-8; expected GeoJSON, CSV, Overpass JSON or names"
        ) from error
    suffix = Path(path).suffix.lower()
    if text.lstrip().startswith("{") or suffix in (".json", ".geojson"):
        names = list(_of_json(text, str(path)))
    elif suffix in (".csv", ".tsv"):
        names = list(_of_csv(text, str(path)))
    else:
        names = [Name(line.strip()) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not names:
        raise DataError(f"{path}: holds no name of a place")
    return names


def _of_json(text: str, path: str) -> Iterator[Name]:
    try:
        document = parse_json(text)
    except ValueError as error:
        line, said = getattr(error, "lineno", 1), getattr(error, "msg", error)
        raise DataError(f"{path}:{line}: is no JSON: {said}") from error
    objects = document.get("features", document.get("elements")) if isinstance(document, dict) else None
    if not isinstance(objects, list):
        raise DataError(f"{path}: has neither `features` (GeoJSON) nor `elements` (Overpass JSON)")
    for number, one in enumerate(objects, 1):
        key = "properties" if "features" in document else "tags"
        if not isinstance(one, dict) or not isinstance(one.get(key) or {}, dict):
            raise DataError(f"{path}: object {number} has no {key}; expected a mapping of tags")
        yield from _of_tags(one.get(key) or {}, _id_of(one))


def _id_of(one: Mapping[str, Any]) -> str:
    properties = one.get("properties") or {}
    given = one.get("id") or properties.get("@id") or properties.get("osm_id") or ""
    return f"{one['type']}/{given}" if given and one.get("type") in ("node", "way", "relation") else str(given)


def _of_tags(tags: Mapping[str, Any], identity: str) -> Iterator[Name]:
    """Every name that an object has, in any language."""
    inner = tags.get("tags")
    tags = {**tags, **inner} if isinstance(inner, dict) else tags
    kind = kind_of(tags)
    for key, value in tags.items():
        if (key in _NAMES or key.startswith("name:")) and isinstance(value, str | int) and str(value).strip():
            for name in str(value).split(";"):
                yield Name(name.strip(), "street" if key == "addr:street" else kind, "map", identity)


def _of_csv(text: str, path: str) -> Iterator[Name]:
    lines = text.splitlines()
    delimiter = max(",;\t|", key=lines[0].count) if lines else ","
    rows = read_csv(lines, path, delimiter)
    header = [cell.strip().lower() for cell in next(rows, (1, []))[1]]
    column = next((header.index(name) for name in _COLUMNS if name in header), None)
    if column is None:
        raise DataError(f"{path}:1: has no column `name`; found {', '.join(header) or 'nothing'}")
    for number, cells in rows:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise DataError(f"{path}:{number}: has {len(cells)} cells; the header has {len(header)}")
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        if not row[header[column]]:
            raise DataError(f"{path}:{number}: the name is empty")
        kind = row.get("kind", "")
        if kind and kind not in KINDS:
            raise DataError(f"{path}:{number}: kind {kind} is none of {', '.join(KINDS)}")
        yield Name(row[header[column]], kind or kind_of(row), "map", row.get("id", ""))
