"""Letters for rendered signs, from fonts that come with matplotlib and OpenCV: the same on every machine.

Typefaces are dealt out to folds, so that places of different folds share none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

EVERYTHING = "uni"  # OpenCV's built-in font that also has Greek, Chinese and Japanese


@dataclass(frozen=True)
class Typeface:
    """A font file of matplotlib or a built-in font of OpenCV; its weight (OpenCV's only); how narrow it is set."""

    font: str
    weight: int = 400
    squeeze: float = 1.0


FOLDS: tuple[tuple[Typeface, ...], ...] = (
    (Typeface("sans", 400), Typeface("sans", 700), Typeface("DejaVuSans-Bold.ttf", squeeze=0.8)),
    (Typeface("DejaVuSans.ttf"), Typeface("STIXGeneralBol.ttf"), Typeface("cmss10.ttf")),
    (Typeface("DejaVuSansMono-Bold.ttf"), Typeface("DejaVuSerif-Bold.ttf"), Typeface("sans", 550, 0.85)),
    (Typeface("uni", 400), Typeface("uni", 750), Typeface("STIXGeneral.ttf"), Typeface("DejaVuSans-Bold.ttf")),
    (
        Typeface("DejaVuSans-Oblique.ttf"),
        Typeface("DejaVuSerif.ttf"),
        Typeface("italic", 600),
        Typeface("sans", 850),
    ),
)


@lru_cache(512)
def letters(text: str, face: Typeface, size: int) -> NDArray[np.uint8]:
    """`text` as coverage 0 to 255, (height, width), trimmed to the ink; `size` is the em in pixels."""
    if face.font.endswith(".ttf") and covers(face.font, text):
        mask = _by_pillow(text, face.font, size)
    else:
        mask = _by_opencv(text, EVERYTHING if face.font.endswith(".ttf") else face.font, face.weight, size)
    mask = _trimmed(mask)
    if face.squeeze != 1.0:
        width = max(1, round(mask.shape[1] * face.squeeze))
        mask = cv2.resize(mask, (width, mask.shape[0]), interpolation=cv2.INTER_AREA)
    return np.asarray(mask, np.uint8)


@lru_cache(4096)
def covers(font: str, text: str) -> bool:
    """Whether a font file of matplotlib has a glyph for every character."""
    characters = _character_map(font)
    return all(ord(c) in characters for c in text if c != " ")


@cache
def _character_map(font: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(str(_folder() / font)).get_charmap())


@cache
def _folder() -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


@cache
def _pillow_font(font: str, size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.truetype(str(_folder() / font), size, layout_engine=ImageFont.Layout.BASIC)


def _by_pillow(text: str, font: str, size: int) -> NDArray[np.uint8]:
    from PIL import Image, ImageDraw

    loaded = _pillow_font(font, size)
    left, top, right, bottom = loaded.getbbox(text)
    canvas = Image.new("L", (int(right - left) + 8, int(bottom - top) + 8))
    ImageDraw.Draw(canvas).text((4 - left, 4 - top), text, fill=255, font=loaded)
    return np.asarray(canvas, np.uint8)


@cache
def _opencv_font(name: str) -> Any:
    return cv2.FontFace(name)


def _by_opencv(text: str, name: str, weight: int, size: int) -> NDArray[np.uint8]:
    canvas = np.zeros((2 * size, (len(text) + 2) * size + 8, 3), np.uint8)
    cv2.putText(canvas, text, (size // 2, size + size // 3), (255, 255, 255), _opencv_font(name), size, weight)
    return canvas[..., 0]


def _trimmed(mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    rows, columns = np.flatnonzero(mask.max(axis=1)), np.flatnonzero(mask.max(axis=0))
    if len(rows) == 0:
        return np.zeros((1, 1), np.uint8)
    return mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
