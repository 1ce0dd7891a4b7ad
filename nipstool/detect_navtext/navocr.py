"""The public NavOCR chain (kc-ml2/NavOCR): its detector, then PP-OCR's recogniser on upright crops.

Letterbox to 640 with grey 114, RGB, 0 to 1; outputs labels, boxes and scores; boxes above 0.5; text above 0.6.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext import models
from nipstool.detect_navtext.lines import Image, Line
from nipstool.detect_navtext.recognise import Recogniser
from nipstool.kit.errors import DataError

SIDE = 640
GREY = 114
SCORE = 0.5
TEXT_SCORE = 0.6
_OUTPUTS = ("labels", "boxes", "scores")


class NavOcr:
    """Finds and reads signs with a detector of NavOCR's. Its boxes are upright; its order is that of the scores.

    Raises:
        InputMissingError, DataError: no such file; no ONNX model; one with other inputs or outputs.
    """

    def __init__(self, path: Path, recogniser: Recogniser | None, *, threads: int = 1, device: str = "cpu"):
        self._session = models.session(path, threads=threads, device=device)
        inputs = [one.name for one in self._session.get_inputs()]
        outputs = [one.name for one in self._session.get_outputs()]
        if set(inputs) != {"images", "orig_target_sizes"} or not set(_OUTPUTS) <= set(outputs):
            raise DataError(
                f"{path}: takes {', '.join(inputs)} and gives {', '.join(outputs)};"
                f" expected images, orig_target_sizes and {', '.join(_OUTPUTS)}"
            )
        self._recogniser = recogniser

    def read(self, image: Image) -> list[Line]:
        """The signs of an upright picture, the surest first; those read with at most 0.6 have no text."""
        shown, ratio, pad = letterbox(image)
        planes = cv2.cvtColor(shown, cv2.COLOR_BGR2RGB).transpose(2, 0, 1)[None].astype(np.float32) / 255
        size = np.array([[SIDE, SIDE]], np.int64)
        _, boxes, scores = self._session.run(_OUTPUTS, {"images": planes, "orig_target_sizes": size})
        boxes, scores = np.asarray(boxes).reshape(-1, 4), np.asarray(scores).reshape(-1)
        kept = np.flatnonzero(scores > SCORE)
        kept = kept[np.argsort(-scores[kept], kind="stable")]
        found = unletterboxed(boxes[kept], ratio, pad, image)
        whole = [(box, score) for box, score in zip(found, scores[kept], strict=True) if _area(box) >= 1]
        return self._read_text(image, [box for box, _ in whole], [float(score) for _, score in whole])

    def _read_text(self, image: Image, boxes: list[NDArray[np.float32]], scores: list[float]) -> list[Line]:
        polygons = [np.array([[a, b], [c, b], [c, d], [a, d]], np.float32) for a, b, c, d in boxes]
        if self._recogniser is None:
            return [Line(p, None, None, s, "not-asked") for p, s in zip(polygons, scores, strict=True)]
        crops = [image[int(b) : max(int(b) + 1, int(d)), int(a) : max(int(a) + 1, int(c))] for a, b, c, d in boxes]
        answers = self._recogniser.read(crops)
        return [_line(p, s, *a) for p, s, a in zip(polygons, scores, answers, strict=True)]


def _line(polygon: NDArray[np.float32], score: float, text: str, text_score: float) -> Line:
    text = " ".join(text.split())
    if not text or text_score <= TEXT_SCORE:
        return Line(polygon, None, round(text_score, 5), round(score, 5), "no-text")
    return Line(polygon, text, round(text_score, 5), round(score, 5))


def _area(box: NDArray[np.float32]) -> float:
    return float((box[2] - box[0]) * (box[3] - box[1]))


def letterbox(image: Image) -> tuple[Image, float, tuple[int, int]]:
    """The picture in the middle of a grey square of SIDE; the ratio of sizes, and the border left and above."""
    height, width = image.shape[:2]
    ratio = min(SIDE / width, SIDE / height)
    wide, high = max(1, int(width * ratio)), max(1, int(height * ratio))
    left, top = (SIDE - wide) // 2, (SIDE - high) // 2
    square = np.full((SIDE, SIDE, 3), GREY, np.uint8)
    square[top : top + high, left : left + wide] = cv2.resize(image, (wide, high))
    return square, ratio, (left, top)


def unletterboxed(
    boxes: NDArray[np.float32], ratio: float, pad: tuple[int, int], image: Image
) -> NDArray[np.float32]:
    """Boxes (n, 4) of corners in the square, as corners in the picture, none outside it."""
    height, width = image.shape[:2]
    moved = (boxes - np.array([*pad, *pad])) / ratio
    return np.clip(moved, 0, [width, height, width, height]).astype(np.float32)
