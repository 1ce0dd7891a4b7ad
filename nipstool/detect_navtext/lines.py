"""A line of text in a picture: what the reader returns and everything else works on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
"""An upright picture: (height, width, 3), blue, green, red."""

Polygon = NDArray[np.float32]
"""Four corners (x, y) in pixels of the upright picture: (4, 2), clockwise from the top of the text's beginning."""

KINDS = (
    "store",
    "room",
    "floor",
    "exit",
    "gate",
    "platform",
    "station",
    "street",
    "direction",
    "directory",
    "facility",
    "section",
    "aisle",
    "other",
)
"""What a line of text can name; `other` is text that tells nobody where they are."""


@dataclass(frozen=True, eq=False)
class Line:
    """One line of text, found and perhaps read.

    Attributes:
        polygon: its four corners, (4, 2).
        text: what it says; None where it was found but not read.
        text_score: the recogniser's confidence, 0 to 1; None where it was not read.
        det_score: the detector's confidence, 0 to 1.
        reason: why there is no text (`too-small`, `unsure`, `unlikely`, `no-text`, `not-asked`);
            None where there is.
        nav_map: by a detector with a second map, the probability that it navigates if it is text; None of others.
    """

    polygon: Polygon
    text: str | None
    text_score: float | None
    det_score: float
    reason: str | None = None
    nav_map: float | None = None

    @property
    def bbox(self) -> tuple[float, float, float, float]:
        """Left, top, width and height of the smallest upright box around the line, in pixels."""
        low, high = self.polygon.min(axis=0), self.polygon.max(axis=0)
        return float(low[0]), float(low[1]), float(high[0] - low[0]), float(high[1] - low[1])

    @property
    def height(self) -> float:
        """The height of the text in pixels: the mean length of the sides across the reading direction."""
        top_left, top_right, bottom_right, bottom_left = self.polygon
        return float(np.linalg.norm(bottom_left - top_left) + np.linalg.norm(bottom_right - top_right)) / 2

    @property
    def width(self) -> float:
        """The length of the text in pixels, along the reading direction."""
        top_left, top_right, bottom_right, bottom_left = self.polygon
        return float(np.linalg.norm(top_right - top_left) + np.linalg.norm(bottom_right - bottom_left)) / 2


def gaps(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, 4) upright boxes (left, top, width, height) -> (n, n) how far apart they are; 0 where they touch."""
    low, high = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
    gap = np.maximum(np.maximum(low[:, None], low[None]) - np.minimum(high[:, None], high[None]), 0)
    return np.linalg.norm(gap, axis=2)
