"""Pictures with the signs drawn into them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import cv2
import numpy as np

from nipstool.detect_navtext.find import Sign
from nipstool.detect_navtext.lines import KINDS, Image
from nipstool.kit.errors import DataError, OutputError

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
    size = max(10, round(min(canvas.size) / 40 * scale))
    for number, sign in enumerate(signs):
        colour = _COLOURS[KINDS.index(sign.kind) % len(_COLOURS)]
        outline = [(float(x), float(y)) for x, y in sign.line.polygon]
        pen.line([*outline, outline[0]], fill=colour, width=max(2, size // 8), joint="curve")
        _label(pen, sign, number, fonts, size, colour, canvas.size)
    return cv2.cvtColor(np.asarray(canvas), cv2.COLOR_RGB2BGR).astype(np.uint8)


def _label(
    pen: object,
    sign: Sign,
    number: int,
    fonts: Fonts,
    size: int,
    colour: tuple[int, int, int],
    limits: tuple[int, int],
) -> None:
    """Text, kind and score on a strip above the sign, or below where there is no room."""
    from PIL import ImageDraw, ImageFont

    assert isinstance(pen, ImageDraw.ImageDraw)
    text = sign.line.text or ""
    path = fonts.of(text) if text else None
    shown = text if path is not None else f"#{number}"
    if sign.arrow:
        shown += f" ({sign.arrow})"
    font = ImageFont.truetype(str(path or dejavu()), size)
    left, top, _, height = sign.line.bbox
    words = f"{shown}  {sign.kind} {sign.nav_score:.2f}"
    box = pen.textbbox((0, 0), words, font=font)
    wide, high = box[2] - box[0] + 6, box[3] + 4
    x = min(max(0.0, left), max(0.0, limits[0] - wide))
    y = top - high - 2 if top - high - 2 >= 0 else min(top + height + 2, limits[1] - high)
    pen.rectangle([x, y, x + wide, y + high], fill=(*colour, 215))
    pen.text((x + 3, y + 1), words, font=font, fill=(255, 255, 255))


def save_drawn(path: Path, image: Image) -> None:
    """Write a picture as PNG or JPEG. Raises OutputError where it cannot be written."""
    done, data = cv2.imencode(path.suffix, image)
    if not done:
        raise OutputError(f"{path}: cannot be encoded")
    try:
        path.write_bytes(data.tobytes())
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error
