"""What is written about each sign, and the pictures they were seen in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nipstool.detect_navtext.find import Sign

Row = dict[str, Any]
FIELDS = (
    "image",
    "frame",
    "time",
    "polygon",
    "bbox",
    "text",
    "text_score",
    "det_score",
    "nav_score",
    "kind",
    "arrow",
    "evidence",
    "reason",
    "board",
    "track",
)


@dataclass(frozen=True)
class Seen:
    """What was found in one picture, or of one sign of a video when it has left.

    Attributes:
        image: its name. frame, time: of a video.
        width, height: in pixels.
        rows: a mapping of FIELDS for each sign.
    """

    image: str
    frame: int | None
    time: float | None
    width: int
    height: int
    rows: Sequence[Row]


def row_of(
    sign: Sign,
    image: str,
    *,
    frame: int | None = None,
    time: float | None = None,
    track: dict[str, Any] | None = None,
) -> Row:
    """A sign as a row: polygon [[x, y] x 4], bbox [left, top, width, height], in pixels of the upright picture."""
    line = sign.line
    return {
        "image": image,
        "frame": frame,
        "time": time,
        "polygon": [[round(float(x), 2), round(float(y), 2)] for x, y in line.polygon],
        "bbox": [round(value, 2) for value in line.bbox],
        "text": line.text,
        "text_score": line.text_score,
        "det_score": line.det_score,
        "nav_score": sign.nav_score,
        "kind": sign.kind,
        "arrow": sign.arrow,
        "evidence": dict(sign.evidence),
        "reason": line.reason,
        "board": sign.board,
        "track": track,
    }
