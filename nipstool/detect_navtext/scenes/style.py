"""How a place looks: its typefaces, signs, walls, and where things hang. Folds share none of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.scenes import typefaces
from nipstool.detect_navtext.scenes.boards import Board, Colour, Look, Row, board
from nipstool.detect_navtext.scenes.typefaces import Typeface
from nipstool.detect_navtext.scenes.words import cased, phrase, shop

Random = np.random.Generator
Pixels = NDArray[np.uint8]

FOLDS = len(typefaces.FOLDS)
DARK: tuple[Colour, ...] = ((90, 50, 20), (60, 80, 10), (30, 30, 30), (40, 20, 110), (110, 60, 60), (20, 70, 120))
PALE: tuple[Colour, ...] = ((245, 245, 245), (225, 235, 240), (200, 220, 225), (235, 225, 210), (215, 225, 235))
BRIGHT: tuple[Colour, ...] = (
    (30, 30, 210),
    (20, 160, 240),
    (60, 170, 50),
    (200, 110, 30),
    (160, 30, 160),
    (20, 210, 240),
)


@dataclass(frozen=True, eq=False)
class Style:
    """What all scenes of one place have in common."""

    place: int
    sign: Look  # of signs that lead the way
    plate: Look  # of small plates at doors
    wall: Colour
    high: float  # how high things hang, 0 to 1
    order: int  # which of a layout's arrangements this place has
    capitals: bool

    @property
    def fold(self) -> int:
        """Places of different folds share no typeface, wall or arrangement."""
        return self.place % FOLDS

    @property
    def faces(self) -> tuple[Typeface, ...]:
        """The place's typefaces."""
        return typefaces.FOLDS[self.fold]


def style_of(place: int) -> Style:
    """The style of a place, the same at every call."""
    random = np.random.default_rng((7321, place))
    fold = place % FOLDS
    faces = typefaces.FOLDS[fold]
    sign = _sign_look(random, fold, faces[int(random.integers(len(faces)))])
    plate = replace(sign, icon=0.0)
    if random.random() < 0.5:
        plate = _sign_look(random, int(random.integers(FOLDS)), faces[int(random.integers(len(faces)))])
        plate = replace(plate, icon=0.0)
    wall = PALE[int(random.integers(len(PALE)))]
    if fold in (2, 3):
        grey = int(random.integers(70, 200))
        red, green, blue = (grey + int(v) for v in random.integers(-25, 26, 3))
        wall = (red, green, blue)
    return Style(place, sign, plate, wall, float(random.random()), fold, bool(random.random() < 0.4))


def _sign_look(random: Random, fold: int, face: Typeface) -> Look:
    dark, pale = DARK[int(random.integers(len(DARK)))], PALE[int(random.integers(len(PALE)))]
    margin, leading = float(random.uniform(0.35, 1.1)), float(random.uniform(0.35, 0.9))
    looks = (
        Look(face, (250, 250, 250), dark, "flat", 0.0),
        Look(face, dark, (245, 245, 245), "flat", 0.5, border=0.08),
        Look(face, (15, 15, 15), (30, 190 + int(random.integers(50)), 245), "flat", 0.0),
        Look(face, dark, pale, "gradient", 0.5),
        Look(
            face, (60, 220, 250) if random.random() < 0.5 else (240, 240, 240), (25, 25, 25), "flat", 0.0, icon=0.9
        ),
    )
    return replace(looks[fold], margin=margin, leading=leading)


@dataclass(frozen=True, eq=False)
class Maker:
    """What a scene is made with: the draw of chance, the place's style, and names of chains."""

    random: Random
    style: Style
    brands: Sequence[str]

    def say(self, sort: str) -> str:
        """A phrase of a sort, in capitals where the place writes so."""
        text = phrase(self.random, sort, self.brands)
        return text.upper() if self.style.capitals and len(text) < 22 else text

    def shop(self) -> str:
        """The name of a shop."""
        return cased(self.random, shop(self.random, self.brands))

    def sign(self, rows: Sequence[Row]) -> Board:
        """A sign as the place makes them."""
        return board(self.random, rows, self.style.sign)

    def plate(self, rows: Sequence[Row]) -> Board:
        """A small plate as the place makes them."""
        return board(self.random, rows, self.style.plate)

    def chance(self, share: float) -> bool:
        """Whether it happens this time."""
        return bool(self.random.random() < share)

    def between(self, low: float, high: float) -> float:
        """A number."""
        return float(self.random.uniform(low, high))

    def count(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self.random.integers(low, high + 1))

    def colour(self, colours: Sequence[Colour]) -> Colour:
        """One of the colours, a little changed."""
        picked = np.array(colours[int(self.random.integers(len(colours)))]) + self.random.integers(-15, 16, 3)
        blue, green, red = (int(v) for v in np.clip(picked, 0, 255))
        return blue, green, red

    def face(self) -> Typeface:
        """One of the place's typefaces."""
        return self.style.faces[int(self.random.integers(len(self.style.faces)))]


def surface(make: Maker, colour: Colour, kind: int, size: int = 192) -> Pixels:
    """A metre of wall (size, size, 3): 0 plain, 1 tiles, 2 bricks, 3 planks, 4 rough."""
    random = make.random
    noise = random.normal(0, 1, (size // 4, size // 4)).astype(np.float32)
    grain = cv2.resize(noise, (size, size), interpolation=cv2.INTER_CUBIC)
    image = np.empty((size, size, 3), np.float32)
    image[:] = np.array(colour, np.float32)
    image += grain[..., None] * (3, 4, 9, 7, 16)[kind]
    joint = np.array(colour, np.float32) * random.uniform(0.6, 0.85)
    if kind == 1:
        step = size // int(random.integers(2, 5))
        image[::step], image[:, ::step] = joint, joint
    elif kind == 2:
        _draw_bricks(image, joint, random)
    elif kind == 3:
        for x in range(0, size, size // 4):
            image[:, x : x + size // 4] *= random.uniform(0.85, 1.1)
            image[:, x : x + 2] = joint
    return np.clip(image, 0, 255).astype(np.uint8)


def _draw_bricks(image: Pixels | NDArray[np.float32], joint: NDArray[np.float32], random: Random) -> None:
    size, rows = image.shape[0], 12
    high, wide = size // rows, size // 4
    for row in range(rows):
        shift = (row % 2) * wide // 2
        for column in range(-1, 4):
            left = max(0, column * wide + shift)
            image[row * high : (row + 1) * high, left : (column + 1) * wide + shift] *= random.uniform(0.8, 1.15)
            image[row * high : (row + 1) * high, left : left + 2] = joint
        image[row * high : row * high + 2] = joint
