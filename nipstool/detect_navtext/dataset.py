"""A dataset of pictures with lines of text, as COCO and YOLO: nav, other, and ignore where nobody could say.

DIR/images/{train,val}/            the pictures
DIR/annotations/{train,val}.json   COCO: polygons, and in `attributes` kind, text, score and evidence
DIR/labels/{train,val}/            YOLO: class, centre and size, as shares of the picture; nav 0, other 1
DIR/polygons/{train,val}/          YOLO with the four corners instead
DIR/data.yaml                      names the YOLO parts; DIR/provenance.csv where every picture came from
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.lines import KINDS, Polygon
from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.records import parse_json

SPLITS = ("train", "val")
CATEGORIES = {"navtext": 1, "other": 2, "ignore": 3}
FARTHEST = 1e7  # px: what lies beyond is no corner of a picture
YOLO = ("nav", "other")  # what YOLO cannot say, `ignore`, is left out of its files


@dataclass(frozen=True, eq=False)
class Truth:
    """A line of text and whether it navigates.

    Attributes:
        polygon: its corners, (4, 2) in pixels, clockwise.
        label: nav, other or ignore.
        kind: one of `lines.KINDS`, or empty where it is not said.
        score, evidence: how and from what the label was made, where it was made by a program.
    """

    polygon: Polygon
    label: str
    kind: str = ""
    text: str | None = None
    score: float | None = None
    evidence: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture of a dataset, and all lines that were labelled in it."""

    name: str
    width: int
    height: int
    truths: tuple[Truth, ...]
    place: str = ""
    source: Mapping[str, Any] = field(default_factory=dict)


def coco(pictures: Sequence[Picture]) -> dict[str, Any]:
    """The COCO document of pictures; `ignore` has iscrowd 1, as pycocotools leaves it out of the count."""
    images, annotations = [], []
    for number, picture in enumerate(pictures, 1):
        entry = {"id": number, "file_name": picture.name, "width": picture.width, "height": picture.height}
        images.append({**entry, "place": picture.place, "source": dict(picture.source)})
        for truth in picture.truths:
            annotations.append({"id": len(annotations) + 1, "image_id": number, **_annotation(truth)})
    categories = [{"id": number, "name": name} for name, number in CATEGORIES.items()]
    return {"images": images, "annotations": annotations, "categories": categories}


def _annotation(truth: Truth) -> dict[str, Any]:
    low, high = truth.polygon.min(axis=0), truth.polygon.max(axis=0)
    attributes: dict[str, Any] = {"kind": truth.kind, "text": truth.text or ""}
    if truth.score is not None:
        attributes |= {"score": truth.score, "evidence": dict(truth.evidence or {})}
    return {
        "category_id": CATEGORIES["navtext" if truth.label == "nav" else truth.label],
        "bbox": [round(float(v), 2) for v in (*low, *(high - low))],
        "segmentation": [[round(float(v), 2) for v in truth.polygon.ravel()]],
        "area": round(area(truth.polygon), 2),
        "iscrowd": int(truth.label == "ignore"),
        "attributes": attributes,
    }


def area(polygon: NDArray[np.floating]) -> float:
    """The area of a polygon (n, 2), by the shoelace formula."""
    x, y = np.asarray(polygon, float).T
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


def yolo(picture: Picture, *, corners: bool = False) -> str:
    """A picture's YOLO file: `class cx cy w h` a line as shares of its size, or the four corners."""
    size = np.array([picture.width, picture.height], float)
    lines = []
    for truth in picture.truths:
        if truth.label not in YOLO:
            continue
        points = truth.polygon.astype(float) / size
        low, high = points.min(axis=0), points.max(axis=0)
        values = points.ravel() if corners else np.concatenate([(low + high) / 2, high - low])
        lines.append(" ".join([str(YOLO.index(truth.label)), *(f"{v:.6f}" for v in values)]))
    return "".join(f"{line}\n" for line in lines)


def read_coco(path: Path) -> list[Picture]:
    """The pictures of a COCO file whose categories are navtext, other and ignore.

    Raises:
        InputMissingError: no such file.
        DataError: it is no such COCO file.
    """
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputMissingError(f"{path}: no such file; expected COCO annotations") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: is no JSON: {error}") from error
    try:
        return _pictures(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__} {error}"
        raise DataError(f"{path}: is no COCO file of navtext, other and ignore: {said}") from error


def _pictures(document: Mapping[str, Any]) -> list[Picture]:
    names = {entry["id"]: entry["name"] for entry in document["categories"]}
    labels = {number: "nav" if name == "navtext" else name for number, name in names.items()}
    if unknown := set(labels.values()) - {"nav", "other", "ignore"}:
        raise ValueError(f"the category {min(unknown)}; expected navtext, other and ignore")
    truths: dict[int, list[Truth]] = {entry["id"]: [] for entry in document["images"]}
    for entry in document["annotations"]:
        truths[entry["image_id"]].append(_truth(entry, labels[entry["category_id"]]))
    return [
        Picture(
            str(entry["file_name"]),
            int(entry["width"]),
            int(entry["height"]),
            tuple(truths[entry["id"]]),
            str(entry.get("place") or place_of(entry["file_name"])),
            dict(entry.get("source") or {}),
        )
        for entry in document["images"]
    ]


def _truth(entry: Mapping[str, Any], label: str) -> Truth:
    attributes = entry.get("attributes") or {}
    if entry.get("segmentation"):
        corners = entry["segmentation"][0]
    else:
        corners = corners_of(entry["bbox"])
    polygon = polygon_of(corners, f"annotation {entry.get('id')}")
    kind = attributes.get("kind") or ""
    return Truth(
        polygon,
        label,
        kind if kind in KINDS else "",
        attributes.get("text") or None,
        attributes.get("score"),
        attributes.get("evidence"),
    )


def corners_of(box: Sequence[float]) -> list[tuple[float, float]]:
    """The four corners of x, y, width, height."""
    x, y, width, height = box
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]


def polygon_of(corners: Any, what: str) -> Polygon:
    """Corners (px), listed in pairs or in a row, as float32 [k, 2]; ValueError unless k >= 3 and they are near."""
    polygon = np.array(corners, np.float64).reshape(-1, 2)
    if len(polygon) < 3 or not (np.abs(polygon) <= FARTHEST).all():
        raise ValueError(f"{what} has {len(polygon)} corners; expected 3 or more, within {FARTHEST:.0e} px")
    return polygon.astype(np.float32)


def place_of(name: str) -> str:
    """The place that a file's name tells: what stands before its number, or else before its last word."""
    whole = Path(name).stem
    stem = whole.rstrip("0123456789").rstrip("_- ")
    return (stem if stem != whole else stem.rpartition("_")[0] or stem) or "place"


def splits(places: Mapping[str, int], share: float) -> dict[str, str]:
    """train or val for every place: about `share` of the pictures are val, no place is in both.

    Args:
        places: name -> number of pictures.
    """
    total, taken, found = sum(places.values()), 0, {}
    by_size = sorted(places, key=lambda name: (-places[name], name))
    for name in reversed(by_size):
        is_val = len(places) > 1 and taken + places[name] <= share * total + 1e-9
        found[name] = "val" if is_val else "train"
        taken += places[name] * is_val
    if len(places) > 1 and "val" not in found.values():
        found[by_size[-1]] = "val"
    return found


def file_in(folder: Path, split: str) -> Path:
    """The COCO file of a split.

    Raises:
        InputMissingError: the folder holds none.
    """
    path = folder / "annotations" / f"{split}.json"
    if not path.is_file():
        raise InputMissingError(f"{path}: no such file; expected a dataset as build-dataset writes it")
    return path


def data_yaml() -> str:
    """The YOLO description of a dataset."""
    parts = "".join(f"{split}: images/{split}\n" for split in SPLITS)
    return f"path: .\n{parts}names:\n" + "".join(f"  {i}: {name}\n" for i, name in enumerate(YOLO))
