"""Rows as NDJSON, JSON, CSV, COCO, YOLO and ROS 2 messages."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nipstool.detect_navtext.lines import KINDS
from nipstool.detect_navtext.rows import FIELDS, Row, Seen
from nipstool.kit.records import to_json

_SPREAD = ("polygon", "bbox", "evidence", "track")  # columns of CSV that hold JSON


def ndjson(seen: Iterable[Seen]) -> Iterator[str]:
    """One line of JSON a row."""
    for one in seen:
        for row in one.rows:
            yield to_json(row) + "\n"


def json_document(seen: Iterable[Seen]) -> Iterator[str]:
    """One document: the pictures looked at, and all rows."""
    images: list[dict[str, Any]] = []
    rows: list[Row] = []
    for one in seen:
        images.append(_about(one))
        rows.extend(one.rows)
    yield to_json({"images": _once(images), "detections": rows}, indent=2) + "\n"


def _about(one: Seen) -> dict[str, Any]:
    return {"image": one.image, "frame": one.frame, "time": one.time, "width": one.width, "height": one.height}


def _once(images: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({(image["image"], image["frame"]): image for image in images}.values())


def comma_separated(seen: Iterable[Seen]) -> Iterator[str]:
    """CSV with a header; polygon, bbox, evidence and track are JSON in their cells."""
    yield _csv_line(FIELDS)
    for one in seen:
        for row in one.rows:
            yield _csv_line(
                [
                    json.dumps(row[f], ensure_ascii=False) if f in _SPREAD and row[f] is not None else row[f]
                    for f in FIELDS
                ]
            )


def _csv_line(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(["" if cell is None else cell for cell in cells])
    return text.getvalue()


def coco(seen: Iterable[Seen]) -> Iterator[str]:
    """One COCO document: polygons as segmentation, kinds as categories, the rest as attributes."""
    images: dict[tuple[str, int | None], dict[str, Any]] = {}
    annotations: list[dict[str, Any]] = []
    for one in seen:
        key = (one.image, one.frame)
        if key not in images:
            about = {"frame": one.frame, "time": one.time} if one.frame is not None else {}
            images[key] = {
                "id": len(images) + 1,
                "file_name": one.image,
                "width": one.width,
                "height": one.height,
                **about,
            }
        for row in one.rows:
            annotations.append(_annotation(row, len(annotations) + 1, images[key]["id"]))
    categories = [{"id": number, "name": kind, "supercategory": "text"} for number, kind in enumerate(KINDS, 1)]
    yield to_json({"images": list(images.values()), "annotations": annotations, "categories": categories}) + "\n"


def _annotation(row: Row, number: int, image: int) -> dict[str, Any]:
    return {
        "id": number,
        "image_id": image,
        "category_id": KINDS.index(row["kind"]) + 1,
        "bbox": row["bbox"],
        "area": round(area(row["polygon"]), 2),
        "segmentation": [[value for point in row["polygon"] for value in point]],
        "iscrowd": 0,
        "score": row["nav_score"],
        "attributes": {
            name: row[name] for name in FIELDS if name not in ("image", "frame", "time", "polygon", "bbox", "kind")
        },
    }


def area(polygon: Sequence[Sequence[float]]) -> float:
    """The area of a polygon, by the shoelace formula."""
    shifted = [*polygon[1:], polygon[0]]
    return abs(sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in zip(polygon, shifted, strict=True))) / 2


def ros2(seen: Iterable[Seen]) -> Iterator[str]:
    """One vision_msgs/Detection2DArray a picture, as JSON that `ros2 topic pub` takes; class_id is the text."""
    for one in seen:
        seconds = one.time or 0.0
        stamp = {"sec": int(seconds), "nanosec": round((seconds - int(seconds)) * 1e9)}
        header = {"stamp": stamp, "frame_id": one.image}
        yield to_json({"header": header, "detections": [_detection(row, header) for row in one.rows]}) + "\n"


def _detection(row: Row, header: dict[str, Any]) -> dict[str, Any]:
    left, top, width, height = row["bbox"]
    return {
        "header": header,
        "results": [{"hypothesis": {"class_id": row["text"] or "", "score": row["nav_score"]}}],
        "bbox": {
            "center": {"position": {"x": left + width / 2, "y": top + height / 2}, "theta": 0.0},
            "size_x": width,
            "size_y": height,
        },
        "id": "" if row["track"] is None else str(row["track"]["id"]),
    }


STREAMS: dict[str, Callable[[Iterable[Seen]], Iterator[str]]] = {
    "ndjson": ndjson,
    "json": json_document,
    "csv": comma_separated,
    "coco": coco,
    "ros2": ros2,
}
FORMATS = (*STREAMS, "yolo")


def yolo(seen: Iterable[Seen], folder: Path) -> int:
    """Write labels/NAME.txt a picture (`class cx cy w h score`, in shares) and data.yaml; their number."""
    labels = folder / "labels"
    labels.mkdir(parents=True)
    taken: dict[tuple[str, int | None], str] = {}
    for one in seen:
        key = (one.image, one.frame)
        name = taken.setdefault(key, _label_name(one, set(taken.values())))
        with open(labels / f"{name}.txt", "a", encoding="utf-8") as file:
            file.writelines(yolo_line(row, one.width, one.height) for row in one.rows)
    names = "".join(f"  {number}: {kind}\n" for number, kind in enumerate(KINDS))
    (folder / "data.yaml").write_text(f"path: .\nnames:\n{names}", encoding="utf-8")
    return len(taken)


def yolo_line(row: Row, width: int, height: int) -> str:
    """A row as a line of YOLO's label files."""
    left, top, wide, high = row["bbox"]
    centre = (left + wide / 2) / width, (top + high / 2) / height
    numbers = (*centre, wide / width, high / height, row["nav_score"])
    return " ".join([str(KINDS.index(row["kind"])), *(f"{value:.6f}" for value in numbers)]) + "\n"


def _label_name(one: Seen, taken: set[str]) -> str:
    stem = Path(one.image).stem if one.image != "-" else "stdin"
    name = stem if one.frame is None else f"{stem}_{one.frame:06d}"
    return (
        name
        if name not in taken
        else next(f"{name}_{n}" for n in range(2, len(taken) + 3) if f"{name}_{n}" not in taken)
    )
