"""Flat things with text on them: signs, posters, notices, packages. Each knows where its words are.

A board is a picture with transparency, and a mark for every line of text on it, in the board's own pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.scenes.typefaces import Typeface, letters

Random = np.random.Generator
Colour = tuple[int, int, int]
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Row:
    """One line of text to be set. `arrow` is the direction in eighths of a turn, clockwise from right."""

    text: str
    label: str = "nav"
    kind: str = "other"
    size: float = 1.0
    arrow: int | None = None


@dataclass(frozen=True, eq=False)
class Mark:
    """A line of text and its corners (4, 2), clockwise from the top left, in pixels of what it stands on."""

    text: str
    label: str
    kind: str
    polygon: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Board:
    """Pixels (height, width, 4), blue, green, red and opacity, and the lines of text on them."""

    pixels: Pixels
    marks: tuple[Mark, ...] = ()

    @property
    def aspect(self) -> float:
        """Width by height."""
        return self.pixels.shape[1] / self.pixels.shape[0]


@dataclass(frozen=True)
class Look:
    """How a board is made: colours, typeface, setting. `ground` None is letters alone, without a panel."""

    face: Typeface
    ink: Colour = (20, 20, 20)
    ground: Colour | None = (240, 240, 240)
    pattern: str = "flat"  # flat, gradient, picture
    align: float = 0.5  # 0 left, 1 right
    border: float = 0.0  # in ems
    margin: float = 0.6  # in ems
    leading: float = 0.55  # in ems
    icon: float = 0.0  # a square without text before the rows, in rows of height


EM = 40


def board(random: Random, rows: Sequence[Row], look: Look, *, faces: Sequence[Typeface] = ()) -> Board:
    """A board with its rows one below the other; with `faces`, each row takes one of them."""
    masks = [_set(row, faces[int(random.integers(len(faces)))] if faces else look.face) for row in rows]
    margin, leading = round(look.margin * EM), look.leading * EM
    heights = [mask.shape[0] for mask, _ in masks]
    width = max(mask.shape[1] for mask, _ in masks) + 2 * margin
    height = round(sum(heights) + leading * (len(rows) - 1)) + 2 * margin
    left = round(look.icon * height * 0.8)
    pixels = ground(random, height, width + left, look)
    if left:
        _draw_icon(random, pixels, (margin, margin, left - margin // 2, height - margin), look.ink)
    marks, top = [], float(margin)
    for row, (mask, span) in zip(rows, masks, strict=True):
        x = left + margin + round((width - 2 * margin - mask.shape[1]) * look.align)
        ink(pixels, mask, x, round(top), look.ink)
        marks.append(Mark(row.text, row.label, row.kind, _box(x + span[0], top, x + span[1], top + mask.shape[0])))
        top += mask.shape[0] + leading
    return Board(pixels, tuple(marks))


def _set(row: Row, face: Typeface) -> tuple[Pixels, tuple[int, int]]:
    """The row's ink, and from where to where the text goes in it (the arrow stands beside)."""
    size = max(8, round(EM * row.size))
    text = letters(row.text, face, size)
    if row.arrow is None:
        return text, (0, text.shape[1])
    sign, gap = arrow(round(size * 0.9), row.arrow), size // 2
    height = max(text.shape[0], sign.shape[0])
    parts = [_centred(sign, height), np.zeros((height, gap), np.uint8), _centred(text, height)]
    left = 2 < row.arrow < 6
    start = sign.shape[1] + gap if left else 0
    return np.hstack(parts if left else parts[::-1]), (start, start + text.shape[1])


def _centred(mask: Pixels, height: int) -> Pixels:
    above = (height - mask.shape[0]) // 2
    return np.pad(mask, ((above, height - mask.shape[0] - above), (0, 0)))


def arrow(size: int, eighths: int) -> Pixels:
    """An arrow's ink (size, size), pointing `eighths` of a turn clockwise from right."""
    shape = np.array([(-1, -0.22), (0.1, -0.22), (0.1, -0.75), (1, 0), (0.1, 0.75), (0.1, 0.22), (-1, 0.22)])
    turn = eighths * np.pi / 4
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    points = (shape @ rotation * 0.48 + 0.5) * size
    mask = np.zeros((size, size), np.uint8)
    cv2.fillPoly(mask, [np.round(points * 16).astype(np.int32)], 255, cv2.LINE_AA, 4)
    return mask


def ground(random: Random, height: int, width: int, look: Look) -> Pixels:
    """The board without its text."""
    pixels = np.zeros((height, width, 4), np.uint8)
    if look.ground is None:
        pixels[..., :3] = look.ink
        return pixels
    colour = np.array(look.ground, np.float32)
    if look.pattern == "gradient":
        slope = np.linspace(0.8, 1.1, height, dtype=np.float32)[:, None, None]
        pixels[..., :3] = np.clip(colour * slope, 0, 255)
    elif look.pattern == "picture":
        pixels[..., :3] = picture(random, height, width, look.ground)
    else:
        pixels[..., :3] = look.ground
    pixels[..., 3] = 255
    if look.border:
        line = max(1, round(look.border * EM))
        cv2.rectangle(pixels, (line, line), (width - 1 - line, height - 1 - line), (*look.ink, 255), line)
    return pixels


def picture(random: Random, height: int, width: int, colour: Colour) -> Pixels:
    """What stands for a photograph: soft patches around a colour, and a few shapes."""
    coarse = random.normal(0, 55, (5, 7, 3)).astype(np.float32) + np.array(colour, np.float32)
    image = np.clip(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), 0, 255).astype(np.uint8)
    for _ in range(int(random.integers(1, 6))):
        centre = (int(random.integers(width)), int(random.integers(height)))
        axes = (int(random.integers(4, max(5, width // 3))), int(random.integers(4, max(5, height // 3))))
        shade = tuple(int(v) for v in random.integers(0, 256, 3))
        cv2.ellipse(image, centre, axes, float(random.integers(180)), 0, 360, shade, -1, cv2.LINE_AA)
    return image


def ink(pixels: Pixels, mask: Pixels, x: int, y: int, colour: Colour) -> None:
    """Lay `colour` on `pixels` where `mask` says, its top left at (x, y)."""
    height, width = mask.shape
    part = pixels[y : y + height, x : x + width]
    cover = mask[: part.shape[0], : part.shape[1], None].astype(np.float32) / 255
    part[..., :3] = (part[..., :3] * (1 - cover) + np.array(colour, np.float32) * cover).astype(np.uint8)
    part[..., 3] = np.maximum(part[..., 3], mask[: part.shape[0], : part.shape[1]])


def _draw_icon(random: Random, pixels: Pixels, box: tuple[int, int, int, int], colour: Colour) -> None:
    left, top, right, bottom = box
    centre, radius = ((left + right) // 2, (top + bottom) // 2), max(2, min(right - left, bottom - top) // 2)
    if random.random() < 0.5:
        cv2.circle(pixels, centre, radius, (*colour, 255), -1, cv2.LINE_AA)
    else:
        corner = (centre[0] - radius, centre[1] - radius)
        cv2.rectangle(pixels, corner, (centre[0] + radius, centre[1] + radius), (*colour, 255), -1)
    other = tuple(int(v) for v in 255 - np.array(colour))
    points = random.integers(-radius, radius + 1, (5, 2)) * 0.7 + np.array(centre)
    cv2.fillPoly(pixels, [points.astype(np.int32)], (*other, 255), cv2.LINE_AA)


def _box(left: float, top: float, right: float, bottom: float) -> NDArray[np.float32]:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float32)


def paste(parent: Board, child: Board, left: int, top: int, width: int, height: int) -> Board:
    """`parent` with `child` drawn into a box of it, opaque."""
    image = cv2.resize(child.pixels, (width, height), interpolation=cv2.INTER_AREA)
    part = parent.pixels[top : top + height, left : left + width]
    image = image[: part.shape[0], : part.shape[1]]
    if image[..., 3].min() == 255:
        part[:] = image
    else:
        cover = image[..., 3:].astype(np.float32) / 255
        part[..., :3] = (part[..., :3] * (1 - cover) + image[..., :3] * cover).astype(np.uint8)
        part[..., 3] = np.maximum(part[..., 3], image[..., 3])
    scale = np.array([width / child.pixels.shape[1], height / child.pixels.shape[0]], np.float32)
    moved = [replace(m, polygon=m.polygon * scale + np.array([left, top], np.float32)) for m in child.marks]
    return Board(parent.pixels, (*parent.marks, *moved))


def plain(height: int, width: int, colour: Colour) -> Board:
    """A board of one colour."""
    pixels = np.full((height, width, 4), 255, np.uint8)
    pixels[..., :3] = colour
    return Board(pixels)


def beside(boards: Sequence[Board], colour: Colour, gap: int = 8) -> Board:
    """Boards in a row, brought to the height of the first, on a ground of `colour`."""
    height = boards[0].pixels.shape[0]
    widths = [max(1, round(height * b.aspect)) for b in boards]
    parent = plain(height, sum(widths) + gap * (len(boards) - 1), colour)
    left = 0
    for child, width in zip(boards, widths, strict=True):
        parent = paste(parent, child, left, 0, width, height)
        left += width + gap
    return parent


def stacked(boards: Sequence[Board], colour: Colour, gap: int = 8) -> Board:
    """Boards one below the other, brought to the width of the first, on a ground of `colour`."""
    width = boards[0].pixels.shape[1]
    heights = [max(1, round(width / b.aspect)) for b in boards]
    parent = plain(sum(heights) + gap * (len(boards) - 1), width, colour)
    top = 0
    for child, height in zip(boards, heights, strict=True):
        parent = paste(parent, child, 0, top, width, height)
        top += height + gap
    return parent
