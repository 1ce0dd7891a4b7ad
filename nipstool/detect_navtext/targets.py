"""What the compact detector is to answer for a picture, from its labels and from the OCR detector's map."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.boxes import UNCLIP
from nipstool.detect_navtext.dataset import Truth
from nipstool.detect_navtext.lines import Image
from nipstool.detect_navtext.network import SCALE

Random = np.random.Generator
Maps = NDArray[np.float32]

TEXT, TEXT_MASK, NAV, NAV_WEIGHT = range(4)
SHORT = 736  # pixels: the short side at which a picture is shown to a detector
TOUCHED = 0.3  # of a cell of the map: if so much is the shrunk line it shows text; small text is thinner than one
HELD = 0.3  # the share of an example's crops that need not hold text


@dataclass(frozen=True, eq=False)
class Example:
    """A picture, its labels, and the teacher's map (height, width) as bytes, 0 to 255, where there is one."""

    image: Image
    truths: tuple[Truth, ...]
    teacher: NDArray[np.uint8] | None = None


def shrunk(polygon: NDArray[np.floating]) -> NDArray[np.float32]:
    """The part of a line that the text map shows: the post-processing grows it back to the line.

    A box w x h grows by UNCLIP w h / (2 (w + h)) on every side, so the part is what that growth makes w x h.
    """
    (centre, (width, height), angle) = cv2.minAreaRect(np.asarray(polygon, np.float32))
    low, high = 0.0, min(width, height) / 2
    for _ in range(20):
        cut = (low + high) / 2
        w, h = width - 2 * cut, height - 2 * cut
        low, high = (cut, high) if UNCLIP * w * h / (2 * (w + h)) > cut else (low, cut)
    kept = (max(width - 2 * low, 1.0), max(height - 2 * low, 1.0))
    return np.asarray(cv2.boxPoints((centre, kept, angle)), np.float32)


def maps_of(truths: tuple[Truth, ...], width: int, height: int, teacher: NDArray[np.uint8] | None = None) -> Maps:
    """(4, h/4, w/4): text 0 to 1 and whether it counts; navigation 0 or 1 and its weight.

    Ignored lines count in neither, but for what the teacher says about text.
    """
    full = np.zeros((4, height, width), np.uint8)
    full[TEXT_MASK] = 255
    for truth in truths:
        whole = np.round(truth.polygon).astype(np.int32)
        if truth.label == "ignore":
            cv2.fillPoly(full[TEXT_MASK], [whole], (0,))
        else:
            inner = np.round(shrunk(truth.polygon) * 16).astype(np.int32)
            cv2.fillPoly(full[TEXT], [inner], (255,), cv2.LINE_8, 4)
            cv2.fillPoly(full[NAV], [whole], (255 if truth.label == "nav" else 0,))
            cv2.fillPoly(full[NAV_WEIGHT], [whole], (255,))
    maps = _smaller(full)
    maps[TEXT] = maps[TEXT] > TOUCHED
    if teacher is not None:
        [seen] = _smaller(teacher[None])
        maps[TEXT] = np.maximum(maps[TEXT], seen)
        maps[TEXT_MASK][seen > 0.5] = 1
    return maps


def _smaller(full: NDArray[np.uint8]) -> Maps:
    size = (full.shape[2] // SCALE, full.shape[1] // SCALE)
    smaller = [np.asarray(cv2.resize(m, size, interpolation=cv2.INTER_AREA), np.float32) for m in full]
    return np.stack(smaller) / np.float32(255)


def crop(random: Random, example: Example, side: int) -> tuple[NDArray[np.float32], Maps]:
    """A square of a picture at a size and tilt by chance, as the network takes it, and its maps."""
    height, width = example.image.shape[:2]
    scale = SHORT / min(height, width) * float(np.exp(random.uniform(np.log(0.55), np.log(1.4))))
    angle = float(random.normal(0, 3))
    margin = np.minimum(side / scale, [width, height]) / 2  # so that the crop lies inside, where it is the smaller
    centre = np.clip(_centre(random, example, side / scale), margin, np.array([width, height]) - margin)
    matrix = cv2.getRotationMatrix2D((float(centre[0]), float(centre[1])), angle, scale)
    matrix[:, 2] += side / 2 - np.array(centre)
    image = cv2.warpAffine(example.image, matrix, (side, side), flags=cv2.INTER_AREA, borderValue=(114, 114, 114))
    truths = tuple(
        Truth((t.polygon @ matrix[:, :2].T + matrix[:, 2]).astype(np.float32), t.label) for t in example.truths
    )
    near = tuple(t for t in truths if (t.polygon.max(axis=0) > 0).all() and (t.polygon.min(axis=0) < side).all())
    teacher = None
    if example.teacher is not None:
        teacher = np.asarray(cv2.warpAffine(example.teacher, matrix, (side, side)), np.uint8)
    return shown(_disturbed(random, image)), maps_of(near, side, side, teacher)


def _centre(random: Random, example: Example, wide: float) -> NDArray[np.float64]:
    """Where to look: mostly at a line, signs as often as all others together."""
    lines = [t for t in example.truths if t.label != "ignore"]
    size = np.array([example.image.shape[1], example.image.shape[0]], float)
    if not lines or random.random() < HELD:
        return random.uniform(0, 1, 2) * size
    signs = [t for t in lines if t.label == "nav"]
    chosen = signs if signs and random.random() < 0.5 else lines
    middle = chosen[int(random.integers(len(chosen)))].polygon.mean(axis=0)
    return np.clip(middle + random.uniform(-0.4, 0.4, 2) * wide, 0, size)


def _disturbed(random: Random, image: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Other light and colours, at times blurred."""
    seen = image.astype(np.float32)
    seen = (seen - 128) * random.uniform(0.6, 1.25) + 128 + random.uniform(-30, 30)
    seen *= random.uniform(0.9, 1.1, 3).astype(np.float32)
    if random.random() < 0.2:
        seen = cv2.GaussianBlur(seen, (0, 0), random.uniform(0.4, 1.2))
    return np.clip(seen, 0, 255).astype(np.uint8)


def shown(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(h, w, 3) as the network takes it: (3, h, w), -1 to 1."""
    return np.ascontiguousarray(image.transpose(2, 0, 1), np.float32) / 127.5 - 1
