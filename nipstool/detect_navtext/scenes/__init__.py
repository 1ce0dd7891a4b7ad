"""Rendered scenes with signs and clutter, labelled: to learn from where there is no data yet, and to test on.

Scenes belong to places. A place has one setting, typefaces, kinds of wall and ways of hanging signs; places whose
numbers differ modulo `FOLDS` share none of these, so that what was learnt in some can be tested in others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.lines import Image, Polygon
from nipstool.detect_navtext.scenes.boards import Mark
from nipstool.detect_navtext.scenes.halls import scatter
from nipstool.detect_navtext.scenes.settings import SETTINGS
from nipstool.detect_navtext.scenes.space import Camera, Room, Stage
from nipstool.detect_navtext.scenes.style import FOLDS, PALE, Maker, style_of, surface

__all__ = ["FOLDS", "Label", "Scene", "fold_of", "render"]

SIZES = ((640, 480), (800, 600), (960, 720), (1280, 720), (1280, 960), (1600, 1200))


@dataclass(frozen=True, eq=False)
class Label:
    """A line of text as it is in truth.

    Attributes:
        polygon: its corners (4, 2) in pixels, clockwise from the top left of the text.
        label: nav, other or ignore.
        kind: what it names (see `lines.KINDS`); `other` unless the label is nav.
    """

    polygon: Polygon
    text: str
    label: str
    kind: str


@dataclass(frozen=True, eq=False)
class Scene:
    """A picture (height, width, 3), where it was taken, and the text in it."""

    image: Image
    place: str
    setting: str
    labels: tuple[Label, ...]


def fold_of(place: int) -> int:
    """Places of different folds share no typefaces, walls or arrangements."""
    return place % FOLDS


def render(place: int, view: int, *, brands: Sequence[str] = (), size: tuple[int, int] | None = None) -> Scene:
    """View number `view` of place number `place`: the same numbers give the same picture.

    Args:
        brands: names of chains that some shops have.
        size: width and height in pixels; by chance if None.
    """
    random = np.random.default_rng((place, view))
    style = style_of(place)
    make = Maker(random, style, brands)
    names = list(SETTINGS)
    setting = names[(place // FOLDS + 3 * fold_of(place)) % len(names)]
    room = _room(make, setting)
    camera = _camera(make, size or SIZES[int(random.integers(len(SIZES)))])
    stage = Stage(camera, _lit(make, room.seen_by(camera)))
    if setting != "market":
        scatter(stage, make, room)
    SETTINGS[setting](stage, make, room)
    image = _photographed(make, stage.image)
    return Scene(image, f"{setting}-{place}", setting, tuple(map(_label, stage.marks())))


def _label(mark: Mark) -> Label:
    return Label(mark.polygon, mark.text, mark.label, mark.kind if mark.label == "nav" else "other")


def _room(make: Maker, setting: str) -> Room:
    """How large the setting is, and its walls."""
    style, outdoors = make.style, setting == "street"
    half = {"corridor": 1.3, "market": 1.7, "lobby": 3.5, "parking": 5.0}.get(setting, 6.0) * make.between(
        0.9, 1.2
    )
    high = {"corridor": 1.0, "lobby": 1.5, "parking": 0.9, "market": 2.0}.get(setting, 1.9) + 0.3 * style.high
    back = {"corridor": 9.0, "market": 9.0, "lobby": 5.0, "shops": 5.5, "station": 5.0, "street": 8.0}.get(
        setting, 8.0
    )
    wall = surface(make, style.wall, style.fold)
    side = surface(make, style.wall, (0, 0, 0, 3, 4)[style.fold])
    ceiling = surface(make, (235, 215, 190) if outdoors else make.colour(PALE), 0)
    floor = surface(
        make, make.colour(((120, 125, 130), (90, 110, 130), (160, 165, 170))), 1 if style.fold % 2 else 4
    )
    ceiling_at = -40.0 if outdoors else -high
    return Room(-half, half, ceiling_at, 1.6, back * make.between(0.75, 1.15), (side, side, ceiling, floor, wall))


def _camera(make: Maker, size: tuple[int, int]) -> Camera:
    width, height = size
    focal = width * make.between(0.5, 0.95)
    yaw = float(np.clip(make.random.normal(0, 0.2), -0.5, 0.5))
    pitch = float(np.clip(make.random.normal(0.03, 0.06), -0.15, 0.2))
    return Camera(width, height, focal, yaw, pitch, float(make.random.normal(0, 0.025)))


def _lit(make: Maker, image: Image) -> Image:
    """Light that falls unevenly on the room; what hangs there is lit by itself."""
    spots = make.random.uniform(0.7, 1.15, (3, 4)).astype(np.float32)
    light = cv2.resize(spots, (image.shape[1], image.shape[0]), interpolation=cv2.INTER_CUBIC)
    return np.clip(image * light[..., None], 0, 255).astype(np.uint8)


def _photographed(make: Maker, image: NDArray[np.uint8]) -> Image:
    """What a camera adds: exposure, a cast of colour, blur, noise, compression."""
    random, height = make.random, image.shape[0]
    seen = image.astype(np.float32) * (
        random.uniform(0.55, 1.15) * random.uniform(0.93, 1.07, 3).astype(np.float32)
    )
    seen = 255 * np.clip(seen / 255, 0, 1) ** np.float32(random.uniform(0.8, 1.25))
    blur = random.uniform(0.3, 0.9) * height / 720
    seen = cv2.GaussianBlur(seen, (0, 0), blur)
    if random.random() < 0.2:
        length = int(random.integers(2, 5)) * height // 720 + 1
        kernel = np.zeros((length, length), np.float32)
        kernel[length // 2] = 1 / length
        seen = cv2.filter2D(seen, -1, kernel)
    noise = random.normal(0, random.uniform(1, 7), seen.shape[:2]).astype(np.float32)
    done = np.clip(seen + noise[..., None], 0, 255).astype(np.uint8)
    quality = [int(cv2.IMWRITE_JPEG_QUALITY), int(random.integers(55, 96))]
    return np.asarray(cv2.imdecode(cv2.imencode(".jpg", done, quality)[1], cv2.IMREAD_COLOR), np.uint8)
