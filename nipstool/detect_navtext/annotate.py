"""Pictures with the signs drawn into them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from nipstool.detect_navtext.find import Sign
from nipstool.detect_navtext.lines import KINDS, Image
from nipstool.kit.errors import DataError, OutputError

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

Box = tuple[float, float, float, float]  # left, top, right, bottom

_FOLDERS = (
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "/System/Library/Fonts",
    "/Library/Fonts",
    "C:/Windows/Fonts",
)
_PREFERRED = (
    "notosanscjk",
    "notosans-regular",
    "notosans",
    "sourcehansans",
    "dejavusans.",
    "arialuni",
    "arial.",
    "wqy",
)
_COLOURS = (
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (230, 159, 0),
    (120, 94, 240),
)


class Fonts:
    """Fonts in the order in which they are tried: the user's, the system's, matplotlib's DejaVu.

    Raises:
        DataError: the user's is no font.
    """

    def __init__(self, given: Path | None = None):
        self._given = given
        self.uncovered = False
        if given is not None and not _covers(given):
            raise DataError(f"{given}: is no TrueType or OpenType font")

    def of(self, text: str) -> Path | None:
        """The first font that has every character of a text; None, remembered in `uncovered`, where none has."""
        wanted = {ord(sign) for sign in text if not sign.isspace()}
        tried = [self._given] if self._given is not None else []
        for path in (*tried, *system_fonts(), dejavu()):
            if wanted <= _covers(path):
                return path
        self.uncovered = True
        return None


@cache
def system_fonts() -> tuple[Path, ...]:
    """The fonts of the usual folders, those that cover most scripts first."""
    found = [
        path
        for folder in _FOLDERS
        for path in Path(folder).rglob("*")
        if path.suffix.lower() in (".ttf", ".otf", ".ttc")
    ]
    return tuple(sorted(found, key=lambda path: (_rank(path.name.lower()), str(path))))


def _rank(name: str) -> int:
    return next((rank for rank, part in enumerate(_PREFERRED) if name.startswith(part)), len(_PREFERRED))


def dejavu() -> Path:
    """The font that comes with matplotlib."""
    import matplotlib

    return Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")


@cache
def _covers(path: Path) -> frozenset[int]:
    """The characters that a font has; none where it cannot be read."""
    from matplotlib.ft2font import FT2Font

    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    try:
        return frozenset(FT2Font(str(path)).get_charmap())
    except (OSError, RuntimeError, ValueError):
        return frozenset()


def drawn(image: Image, signs: Sequence[Sign], fonts: Fonts, *, scale: float = 1.0) -> Image:
    """A copy of a picture with each sign's outline, text, score and kind; signs without text show their number.

    Args:
        scale: of the letters; 1 makes them a fortieth of the picture's shorter side.
    """
    from PIL import Image as pictures
    from PIL import ImageDraw

    canvas = pictures.fromarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
    pen = ImageDraw.Draw(canvas, "RGBA")
    most = max(10, round(min(canvas.size) / 40 * scale))
    taken = [_corners(sign) for sign in signs]
    for sign in signs:
        outline = [(float(x), float(y)) for x, y in sign.line.polygon]
        pen.line([*outline, outline[0]], fill=_colour(sign), width=max(2, most // 8), joint="curve")
    for number, sign in enumerate(signs):
        size = round(min(most, max(10 * scale, sign.line.height * scale)))
        taken.append(_label(pen, sign, number, fonts, size, taken, canvas.size))
    return cv2.cvtColor(np.asarray(canvas), cv2.COLOR_RGB2BGR).astype(np.uint8)


def _colour(sign: Sign) -> tuple[int, int, int]:
    return _COLOURS[KINDS.index(sign.kind) % len(_COLOURS)]


def _corners(sign: Sign) -> Box:
    left, top, width, height = sign.line.bbox
    return left, top, left + width, top + height


def _label(
    pen: ImageDraw, sign: Sign, number: int, fonts: Fonts, size: int, taken: Sequence[Box], limits: tuple[int, int]
) -> Box:
    """Write text, kind and score on a strip beside the sign, where it covers least; returns the strip."""
    from PIL import ImageFont

    text = sign.line.text or ""
    path = fonts.of(text) if text else None
    shown = text if path is not None else f"#{number}"
    words = f"{shown}{f' ({sign.arrow})' if sign.arrow else ''}  {sign.kind} {sign.nav_score:.2f}"
    font = ImageFont.truetype(str(path or dejavu()), size)
    box = pen.textbbox((0, 0), words, font=font)
    strip = _place(_corners(sign), (box[2] + 6, box[3] + 4), taken, limits)
    pen.rectangle(strip, fill=(*_colour(sign), 215))
    pen.text((strip[0] + 3, strip[1] + 1), words, font=font, fill=(255, 255, 255))
    return strip


def _place(sign: Box, size: tuple[float, float], taken: Sequence[Box], limits: tuple[int, int]) -> Box:
    """Above, below, right or left of a sign: the first place in the picture that covers least of what is taken."""
    left, top, right, bottom = sign
    wide, high = size
    spots = [(left, top - high - 2), (left, bottom + 2), (right + 3, top), (left - wide - 3, top)]
    inside = [
        (min(max(0, x), max(0, limits[0] - wide)), min(max(0, y), max(0, limits[1] - high))) for x, y in spots
    ]
    strips = [(x, y, x + wide, y + high) for x, y in inside]
    return min(strips, key=lambda strip: sum(_shared(strip, other) for other in taken))


def _shared(one: Box, other: Box) -> float:
    across, down = min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1])
    return across * down if across > 0 and down > 0 else 0.0


def save_drawn(path: Path, image: Image) -> None:
    """Write a picture as PNG or JPEG. Raises OutputError where it cannot be written."""
    done, data = cv2.imencode(path.suffix, image)
    if not done:
        raise OutputError(f"{path}: cannot be encoded")
    try:
        path.write_bytes(data.tobytes())
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error
