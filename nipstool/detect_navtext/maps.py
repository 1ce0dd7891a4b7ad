"""The detector's maps of a picture: at a scale chosen for it, in tiles where it is large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext import models
from nipstool.detect_navtext.boxes import PP_OCR, Rule
from nipstool.detect_navtext.lines import Image
from nipstool.detect_navtext.models import Models
from nipstool.kit.errors import DataError

RULE = "boxes"  # metadata of a compact detector: threshold, box threshold and unclip of its maps
STRIDE = 32  # sides of what a detector takes are multiples of it
SHORT = 736  # a picture's short side is enlarged to this
ENLARGE = 3.0  # but no more than so much
LONG = 2000  # a longer side is tiled, or shrunk where tiles are off
TILE = 1600
MARGIN = 128  # of a tile, seen by the detector and then cut away
FLAT = 8  # a picture so much wider than high is padded above and below
LOW = 30  # and one not higher than this


@dataclass(frozen=True)
class View:
    """How large a picture is shown to the detector.

    Attributes:
        scale: None chooses one per picture (short side at least 736, none shrunk); a number is the longest side.
        tile: pictures with a side above 2000 at that scale are read in tiles of this side; 0 shrinks them.
    """

    scale: int | None = None
    tile: int = TILE


def shown_size(width: int, height: int, view: View) -> tuple[int, int]:
    """Width and height at which a picture is shown to the detector, not yet rounded to its stride."""
    if view.scale is not None:
        ratio = view.scale / max(width, height)
    else:
        ratio = min(ENLARGE, max(1.0, SHORT / min(width, height)))
        if not view.tile:
            ratio *= min(1.0, LONG / (ratio * max(width, height)))
    return max(1, int(width * ratio)), max(1, int(height * ratio))


class Detector:
    """A network of the DB family. Its first map is text; a second one, if any, text that navigates."""

    def __init__(self, found: Models, *, threads: int = 1, device: str = "cpu"):
        self._session = models.session(found.detector, threads=threads, device=device)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or len(outputs[0].shape) != 4:
            names = ", ".join(f"{i.name} {i.shape}" for i in [*inputs, *outputs])
            raise DataError(
                f"{found.detector}: has {names}; expected a text detector with (n, 3, h, w) in and out"
            )
        self._input = inputs[0].name
        self.rule = _rule_in(self._session.get_modelmeta().custom_metadata_map)
        self._scale = (1 / (255 * np.array(found.std))).astype(np.float32)
        self._shift = (-np.array(found.mean) / found.std).astype(np.float32)

    def maps(self, image: Image, view: View) -> NDArray[np.float32] | NDArray[np.uint8]:
        """Probabilities (maps, h, w) at the scale shown, sides multiples of 32; bytes, 0 to 255, where tiled."""
        width, height = shown_size(image.shape[1], image.shape[0], view)
        if max(width, height) > LONG and view.tile:
            return self._tiled(image, _rounded(width), _rounded(height), view.tile)
        return self._run(cv2.resize(image, (_rounded(width), _rounded(height))).astype(np.uint8, copy=False))

    def _run(self, shown: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The maps of what is shown, (h, w, 3) with sides in multiples of 32."""
        height, width = shown.shape[:2]
        planes = np.empty((1, 3, height, width), np.float32)
        for channel in range(3):
            np.multiply(shown[:, :, channel], self._scale[channel], out=planes[0, channel])
            planes[0, channel] += self._shift[channel]
        maps = np.asarray(self._session.run(None, {self._input: planes})[0])[0]
        if maps.shape[1:] == (height, width):
            return maps
        return np.stack([cv2.resize(one, (width, height)) for one in maps])

    def _tiled(self, image: Image, width: int, height: int, side: int) -> NDArray[np.uint8]:
        """One map out of tiles that overlap: each gives its middle, so that no line is cut or found twice."""
        whole: NDArray[np.uint8] | None = None
        for y0, y1, top, bottom in cuts(height, side):
            for x0, x1, left, right in cuts(width, side):
                tile = _part(image, (x0, y0, x1, y1), width, height)
                maps = self._run(tile)[:, top - y0 : bottom - y0, left - x0 : right - x0]
                if whole is None:
                    whole = np.zeros((len(maps), height, width), np.uint8)
                np.rint(maps * 255, out=maps)
                whole[:, top:bottom, left:right] = maps
        assert whole is not None
        return whole


def _rule_in(about: Mapping[str, str]) -> Rule:
    """How a model's maps become boxes, by its metadata; as those of PP-OCR where they say nothing."""
    if RULE not in about:
        return PP_OCR
    return Rule(*(float(word) for word in about[RULE].split()), is_whole=False)


def _rounded(side: int) -> int:
    return max(STRIDE, round(side / STRIDE) * STRIDE)


def cuts(length: int, side: int) -> Iterator[tuple[int, int, int, int]]:
    """How a length is cut into tiles: start and end of each and of what counts of it; all multiples of 32."""
    side = max(_rounded(side), 4 * MARGIN)
    if length <= side:
        yield 0, length, 0, length
        return
    count = -(-(length - 2 * MARGIN) // (side - 2 * MARGIN))
    starts = [_rounded(i * (length - side) // (count - 1)) if i else 0 for i in range(count)]
    starts[-1] = length - side
    edges = [0, *(_rounded((a + side + b) // 2) for a, b in pairwise(starts)), length]
    for i, start in enumerate(starts):
        yield start, start + side, edges[i], edges[i + 1]


def _part(image: Image, box: tuple[int, int, int, int], width: int, height: int) -> NDArray[np.uint8]:
    """A part, in pixels of the picture at width x height, of a picture; only this part is resized."""
    x0, y0, x1, y1 = box
    if (width, height) == (image.shape[1], image.shape[0]):
        return image[y0:y1, x0:x1]
    scale_x, scale_y = image.shape[1] / width, image.shape[0] / height
    # pixel centres: where the pixel (0, 0) of the part lies in the picture
    matrix = np.array(
        [[scale_x, 0, (x0 + 0.5) * scale_x - 0.5], [0, scale_y, (y0 + 0.5) * scale_y - 0.5]], np.float64
    )
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    low_x, low_y = max(0, int(x0 * scale_x) - 2), max(0, int(y0 * scale_y) - 2)
    source = image[low_y : int(y1 * scale_y) + 3, low_x : int(x1 * scale_x) + 3]
    matrix[:, 2] -= (low_x, low_y)
    part = cv2.warpAffine(source, matrix, (x1 - x0, y1 - y0), flags=flags, borderMode=cv2.BORDER_REPLICATE)
    return part.astype(np.uint8, copy=False)


def padded(image: Image) -> tuple[Image, int]:
    """A strip (8 times as wide as high, or at most 30 px high) with black above and below; how much above."""
    height, width = image.shape[:2]
    if height > LOW and width / height <= FLAT:
        return image, 0
    pad = int(abs(2 * max(int(width / FLAT), LOW) - height) / 2)
    return cv2.copyMakeBorder(image, pad, pad, 0, 0, cv2.BORDER_CONSTANT).astype(np.uint8, copy=False), pad
