"""What the compact detector is to answer for a picture, from its labels and from what the OCR detector sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.boxes import COMPACT
from nipstool.detect_navtext.dataset import Truth
from nipstool.detect_navtext.lines import Image, Line
from nipstool.detect_navtext.metrics import COVERED, shares
from nipstool.detect_navtext.network import SCALE
from nipstool.detect_navtext.textures import amid

Random = np.random.Generator
Maps = NDArray[np.float32]

TEXT, TEXT_MASK, NAV, NAV_WEIGHT = range(4)
SHORT = 736  # pixels: the short side at which a picture is shown to a detector
USUAL = 900.0  # square pixels of a line whose pixels count once; small lines count as much as large ones by more
HEAVIEST = 2.5  # but no pixel counts more, or less than one part in so much
UNIT = 50  # what counts once, in maps of bytes
DRAWN = 1.0  # pixels by which OpenCV fills a shape too wide and too high
SCALES = (0.7, 1.7)  # times that, a crop is shown at
ANYWHERE = 0.3  # the share of an example's crops that need not hold text


@dataclass(frozen=True, eq=False)
class Example:
    """A picture and its labels; the label `text` is of lines that only a teacher saw, as sure as their score."""

    image: Image
    truths: tuple[Truth, ...]


def taught(truths: Sequence[Truth], seen: Sequence[Line]) -> tuple[Truth, ...]:
    """The lines that a teacher saw where no label is: as `text`, of which nobody says whether it navigates."""
    known = [truth.polygon for truth in truths if truth.label != "ignore"]
    boxes = [line.polygon for line in seen]
    near = np.maximum(shares(boxes, known).max(axis=1, initial=0.0), shares(known, boxes).max(axis=0, initial=0.0))
    return tuple(
        Truth(line.polygon, "text", score=line.det_score)
        for line, share in zip(seen, near, strict=True)
        if share <= 1 - COVERED
    )


def shrunk(polygon: NDArray[np.floating]) -> NDArray[np.float32]:
    """The part of a line that the text map shows: the post-processing grows it back to the line.

    A box w x h grows by unclip w h / (2 (w + h)) on every side, so the part is what that growth makes w x h.
    """
    (centre, (width, height), angle) = cv2.minAreaRect(np.asarray(polygon, np.float32))
    low, high = 0.0, min(width, height) / 2
    for _ in range(20):
        cut = (low + high) / 2
        w, h = width - 2 * cut, height - 2 * cut
        low, high = (cut, high) if COMPACT.unclip * w * h / (2 * (w + h)) > cut else (low, cut)
    kept = (max(width - 2 * low, 0.0), max(height - 2 * low, 0.0))
    return np.asarray(cv2.boxPoints((centre, kept, angle)), np.float32)


def maps_of(truths: Sequence[Truth], width: int, height: int) -> Maps:
    """(4, h/2, w/2): text, and how much it counts; navigation 0 or 1, and its weight.

    Text is the share of each cell that lies in a shrunk line, so that where the map crosses one half is the
    outline to a fraction of a cell. Ignored lines count in neither map, but for what a teacher says about text.
    """
    full = np.zeros((4, height, width), np.uint8)
    full[TEXT_MASK] = UNIT
    order = ("ignore", "text", "other", "nav")
    for truth in sorted(truths, key=lambda truth: order.index(truth.label)):
        _draw(full, truth)
    size = (width // SCALE, height // SCALE)
    maps = np.stack([cv2.resize(m, size, interpolation=cv2.INTER_AREA) for m in full]).astype(np.float32)
    maps[[TEXT, NAV]] /= 255
    maps[[TEXT_MASK, NAV_WEIGHT]] /= UNIT
    return maps


def _draw(full: NDArray[np.uint8], truth: Truth) -> None:
    """A line into the four maps at the size of the picture."""
    whole = np.round(truth.polygon).astype(np.int32)
    if truth.label == "ignore":
        cv2.fillPoly(full[TEXT_MASK], [whole], (0,))
        return
    share = np.sqrt(USUAL / max(float(cv2.contourArea(truth.polygon)), 1.0))
    weight = round(UNIT * float(np.clip(share, 1 / HEAVIEST, HEAVIEST)))
    sure = 255 if truth.label != "text" or truth.score is None else round(255 * truth.score)
    cv2.fillPoly(full[TEXT_MASK], [whole], (weight,))
    cv2.fillPoly(full[TEXT], [_filled(shrunk(truth.polygon))], (sure,), cv2.LINE_8, 4)
    if truth.label != "text":
        cv2.fillPoly(full[NAV], [whole], (255 if truth.label == "nav" else 0,))
        cv2.fillPoly(full[NAV_WEIGHT], [whole], (weight,))


def _filled(polygon: NDArray[np.float32]) -> NDArray[np.int32]:
    """A box so much smaller that filling it gives its area, in sixteenths of a pixel."""
    (centre, (width, height), angle) = cv2.minAreaRect(polygon)
    size = (max(width - DRAWN, 0.1), max(height - DRAWN, 0.1))
    return np.round(cv2.boxPoints((centre, size, angle)) * 16).astype(np.int32)


def crop(random: Random, example: Example, side: int, clutter: float = 0.0) -> tuple[NDArray[np.float32], Maps]:
    """A square of a picture at a size and tilt by chance, as the network takes it, and its maps.

    Args:
        clutter: the share of crops that show textures where no text is.
    """
    height, width = example.image.shape[:2]
    scale = SHORT / min(height, width) * float(np.exp(random.uniform(*np.log(SCALES))))
    angle = float(random.normal(0, 3))
    margin = np.minimum(side / scale, [width, height]) / 2  # so that the crop lies inside, where it is the smaller
    centre = np.clip(_centre(random, example, side / scale), margin, np.array([width, height]) - margin)
    matrix = cv2.getRotationMatrix2D((float(centre[0]), float(centre[1])), angle, scale)
    matrix[:, 2] += side / 2 - np.array(centre)
    image = cv2.warpAffine(example.image, matrix, (side, side), flags=cv2.INTER_AREA, borderValue=(114, 114, 114))
    truths = tuple(
        Truth((t.polygon @ matrix[:, :2].T + matrix[:, 2]).astype(np.float32), t.label, score=t.score)
        for t in example.truths
    )
    near = [t for t in truths if (t.polygon.max(axis=0) > 0).all() and (t.polygon.min(axis=0) < side).all()]
    if clutter and random.random() < clutter:
        image = _photographed(random, amid(random, np.asarray(image, np.uint8), _ground(random, near, side)))
    return shown(_disturbed(random, image)), maps_of(near, side, side)


def _ground(random: Random, truths: Sequence[Truth], side: int) -> NDArray[np.bool_]:
    """Where lines are, with more or less of what is around them: (side, side)."""
    kept = np.zeros((side, side), np.uint8)
    for truth in truths:
        centre, (width, height), angle = cv2.minAreaRect(truth.polygon)
        room = min(width, height) * float(random.uniform(0, 0.7))
        corners = cv2.boxPoints((centre, (width + room, height + room), angle))
        cv2.fillPoly(kept, [np.round(corners).astype(np.int32)], (1,))
    return kept.astype(bool)


def _photographed(random: Random, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What cameras and files do at times: too few pixels, sharpening, noise, compression."""
    side, seen = image.shape[0], image
    if random.random() < 0.3:
        few = round(side / float(random.uniform(1.1, 2.0)))
        seen = cv2.resize(cv2.resize(seen, (few, few), interpolation=cv2.INTER_AREA), (side, side))
    if random.random() < 0.3:
        more = float(random.uniform(0.3, 1.5))
        seen = cv2.addWeighted(seen, 1 + more, cv2.GaussianBlur(seen, (0, 0), 1.5), -more, 0.0)
    if random.random() < 0.5:
        grain = random.standard_normal((side, side, 1), np.float32) * np.float32(random.uniform(1, 12))
        seen = np.clip(seen + grain, 0, 255).astype(np.uint8)
    if random.random() < 0.5:
        quality = [int(cv2.IMWRITE_JPEG_QUALITY), int(random.integers(25, 90))]
        seen = cv2.imdecode(cv2.imencode(".jpg", seen, quality)[1], cv2.IMREAD_COLOR)
    return np.asarray(seen, np.uint8)


def _centre(random: Random, example: Example, wide: float) -> NDArray[np.float64]:
    """Where to look: mostly at a line, signs as often as all others together."""
    lines = [t for t in example.truths if t.label in ("nav", "other")]
    size = np.array([example.image.shape[1], example.image.shape[0]], float)
    if not lines or random.random() < ANYWHERE:
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
