"""From a strip of a picture to its text: PP-OCR's recogniser and greedy CTC decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext import models
from nipstool.detect_navtext.lines import Image, Polygon
from nipstool.kit.errors import DataError

HEIGHT = 48  # of a strip, in pixels
MIN_WIDTH = 320  # what the recogniser was trained on: shorter strips are padded
BATCH = 6
MAX_WIDTH = 3200
UPRIGHT = 1.5  # a strip so much higher than wide holds text that runs down


class Recogniser:
    """Reads strips of text. Its characters: blank, those of the model or of the file, space."""

    def __init__(self, path: Path, characters: Path | None = None, *, threads: int = 1, device: str = "cpu"):
        self._session = models.session(path, threads=threads, device=device)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1 or len(outputs[0].shape) != 3:
            names = ", ".join(f"{i.name} {i.shape}" for i in [*inputs, *outputs])
            raise DataError(
                f"{path}: has {names}; expected a recogniser with (n, 3, 48, w) in and (n, t, classes) out"
            )
        self._input = inputs[0].name
        self.characters = self._characters(path, characters, outputs[0].shape[2])

    def _characters(self, path: Path, file: Path | None, classes: int | str) -> list[str]:
        held = self._session.get_modelmeta().custom_metadata_map.get("character")
        if file is not None:
            held = file.read_text(encoding="utf-8").rstrip("\n")
        if held is None:
            raise DataError(f"{path}: holds no list of characters; expected a *keys*.txt or *dict*.txt beside it")
        lines = held.split("\n")
        # a list may hold blank and space already (PP-OCRv5's does)
        for known in ([*lines], ["", *lines, " "], ["", *lines]):
            if len(known) == classes:
                return ["", *known[1:]]
        raise DataError(f"{file or path}: {len(lines)} characters; the recogniser has {classes} classes")

    def read(self, strips: Sequence[Image]) -> list[tuple[str, float]]:
        """Text and confidence (mean probability of the characters kept, 0 where none is) of each strip."""
        order = sorted(range(len(strips)), key=lambda i: strips[i].shape[1] / strips[i].shape[0])
        results: list[tuple[str, float]] = [("", 0.0)] * len(strips)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            scores = self._session.run(None, {self._input: _batch([strips[i] for i in batch])})[0]
            for i, row in zip(batch, np.asarray(scores), strict=True):
                results[i] = self._decode(row)
        return results

    def _decode(self, scores: NDArray[np.float32]) -> tuple[str, float]:
        """Greedy CTC: the best class of each step, repeats once, blanks out."""
        best = scores.argmax(axis=1)
        kept = best != 0
        kept[1:] &= best[1:] != best[:-1]
        if not kept.any():
            return "", 0.0
        text = "".join(self.characters[i] for i in best[kept])
        return text, float(scores[np.flatnonzero(kept), best[kept]].mean())


def _batch(strips: Sequence[Image]) -> NDArray[np.float32]:
    """Strips at one height, side by side in (n, 3, HEIGHT, w), padded on the right with mid-grey."""
    widths = [min(MAX_WIDTH, max(1, math.ceil(HEIGHT * s.shape[1] / s.shape[0]))) for s in strips]
    # the widest strip decides; its width is cut, not rounded up, as PP-OCR does
    ratio = max(MIN_WIDTH / HEIGHT, *(s.shape[1] / s.shape[0] for s in strips))
    width = min(MAX_WIDTH, int(HEIGHT * ratio))
    batch = np.zeros((len(strips), 3, HEIGHT, width), np.float32)
    for row, strip, wide in zip(batch, strips, widths, strict=True):
        small = cv2.resize(strip, (min(wide, width), HEIGHT))
        np.multiply(small.transpose(2, 0, 1), np.float32(2 / 255), out=row[:, :, : small.shape[1]])
        row[:, :, : small.shape[1]] -= 1
    return batch


def strip_of(image: Image, polygon: Polygon) -> Image:
    """What lies in a box, upright: (h, w, 3). A box much higher than wide is turned by 90 degrees."""
    top_left, top_right, bottom_right, bottom_left = polygon
    width = int(max(np.linalg.norm(top_left - top_right), np.linalg.norm(bottom_right - bottom_left), 1))
    height = int(max(np.linalg.norm(top_left - bottom_left), np.linalg.norm(top_right - bottom_right), 1))
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    part, shift = _around(image, polygon)
    matrix = cv2.getPerspectiveTransform((polygon - shift).astype(np.float32), corners)
    strip = cv2.warpPerspective(
        part, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE, flags=cv2.INTER_CUBIC
    )
    if height >= UPRIGHT * width:
        strip = np.ascontiguousarray(np.rot90(strip))
    return strip.astype(np.uint8, copy=False)


def _around(image: Image, polygon: Polygon) -> tuple[Image, NDArray[np.float32]]:
    """The part of a picture around a box, and where it begins: cv2 warps no picture with a side above 32767."""
    if max(image.shape[:2]) < 32767:
        return image, np.zeros(2, np.float32)
    low = np.maximum(np.floor(polygon.min(axis=0)) - 8, 0).astype(int)
    high = np.ceil(polygon.max(axis=0)).astype(int) + 9
    return image[low[1] : high[1], low[0] : high[0]], low.astype(np.float32)
