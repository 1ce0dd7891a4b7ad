"""From a map of text probabilities to boxes: the post-processing of Differentiable Binarization.

Liao et al., Real-time Scene Text Detection with Differentiable Binarization (AAAI 2020), as PP-OCR runs it.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rule:
    """How the text in a map becomes boxes.

    Attributes:
        threshold, box_threshold: least probability of a pixel, and least mean of a box.
        unclip: maps show text shrunk; boxes grow by area * unclip / perimeter.
        is_whole: regions are made a pixel wider and higher, and boxes counted in whole pixels, as PP-OCR does.
    """

    threshold: float = 0.3
    box_threshold: float = 0.5
    unclip: float = 1.6
    is_whole: bool = True


PP_OCR = Rule()
# Growing less, the maps show more of a line: a pixel too many then costs a low line less of its outline.
COMPACT = Rule(0.3, 0.34, 1.0, is_whole=False)
STEPS = 1.5  # pixels of the map: how much wider and higher slanted edges make a box, at most
MIN_SIDE = 3  # pixels of the map, before growth
_KERNEL = np.ones((2, 2), np.uint8)


def boxes_in(
    probability: NDArray[np.float32] | NDArray[np.uint8],
    width: int,
    height: int,
    rule: Rule = PP_OCR,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Boxes of the text in a map.

    Args:
        probability: (h, w), 0 to 1, or 0 to 255 as uint8.
        width, height: of the picture that the map is of; boxes come in its pixels.
        rule: the detector's.

    Returns:
        corners (n, 4, 2) from top left clockwise, and the mean probability in each box before growth (n,).
    """
    full = 255.0 if probability.dtype == np.uint8 else 1.0
    mask = (probability > rule.threshold * full).astype(np.uint8)
    if rule.is_whole:
        mask = cv2.dilate(mask, _KERNEL)
    contours, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    size = np.array([width / mask.shape[1], height / mask.shape[0]])
    found, scores = [], []
    for contour in contours:
        corners, side = smallest_box(contour)
        if side < MIN_SIDE:
            continue
        score = mean_inside(probability, corners) / full
        if score < rule.box_threshold:
            continue
        if rule.is_whole:
            box = _placed(corners, size, (width, height), rule.unclip)
        else:
            box = _placed_exactly(contour, size, (width, height), rule.unclip)
        if box is not None:
            found.append(box)
            scores.append(score)
    shape = np.array(found, np.float32).reshape(-1, 4, 2)
    return shape, np.array(scores, np.float32)


def shares_in(
    navigation: NDArray[np.float32] | NDArray[np.uint8], boxes: NDArray[np.float32], width: int, height: int
) -> NDArray[np.float32]:
    """The mean of a map (h, w) in each box of a picture of width x height: (n,), 0 to 1."""
    full = 255.0 if navigation.dtype == np.uint8 else 1.0
    size = np.array([navigation.shape[1] / width, navigation.shape[0] / height], np.float32)
    return np.array([mean_inside(navigation, box * size) for box in boxes], np.float32) / np.float32(full)


def _placed(
    corners: NDArray[np.float32], size: NDArray[np.float64], limits: tuple[int, int], unclip: float
) -> NDArray[np.float32] | None:
    """The grown box in pixels of the picture; None where too little is left of it."""
    width, height = limits
    box, side = smallest_box(grown(corners, unclip))
    if side < MIN_SIDE + 2:
        return None
    box = clockwise(np.clip(np.round(box * size), 0, (width, height)).astype(np.float32))
    box = np.minimum(box, np.array([width - 1, height - 1], np.float32))
    sides = np.linalg.norm(box[0] - box[1]), np.linalg.norm(box[0] - box[3])
    return box if min(int(side) for side in sides) > 3 else None


def _placed_exactly(
    contour: NDArray[np.generic], size: NDArray[np.float64], limits: tuple[int, int], unclip: float
) -> NDArray[np.float32]:
    """The same without rounding, around the pixels' edges rather than their centres."""
    (x, y), (w, h), angle = cv2.minAreaRect(contour)  # pyright: ignore[reportArgumentType, reportCallIssue]
    # around the steps of a slanted edge a rectangle is larger than what it is drawn around
    over = w * h - cv2.contourArea(contour)  # pyright: ignore[reportArgumentType, reportCallIssue]
    cut = min(STEPS, (w + h - np.sqrt(max((w + h) ** 2 - 4 * over, 0.0))) / 2)
    w, h = w - cut + 1, h - cut + 1
    more = unclip * w * h / (w + h)
    box = np.asarray(cv2.boxPoints(((x, y), (w + more, h + more), angle)), np.float64)
    return clockwise(np.clip((box + 0.5) * size - 0.5, 0, np.array(limits) - 1).astype(np.float32))


def smallest_box(points: NDArray[np.generic]) -> tuple[NDArray[np.float32], float]:
    """The rectangle of least area around points, (4, 2) from top left clockwise, and its shorter side."""
    rectangle = cv2.minAreaRect(points)  # pyright: ignore[reportArgumentType, reportCallIssue]
    corners = cv2.boxPoints(rectangle)
    return clockwise(np.asarray(corners, np.float32)), min(rectangle[1])


def clockwise(corners: NDArray[np.float32]) -> NDArray[np.float32]:
    """Four corners from top left clockwise: the left two by height, then the right two."""
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    left, right = by_x[:2], by_x[2:]
    top_left, bottom_left = left[np.argsort(left[:, 1], kind="stable")]
    top_right, bottom_right = right[np.argsort(right[:, 1], kind="stable")]
    return np.array([top_left, top_right, bottom_right, bottom_left], np.float32)


def mean_inside(values: NDArray[np.float32] | NDArray[np.uint8], corners: NDArray[np.float32]) -> float:
    """The mean of a map's values inside a box given in the map's pixels."""
    height, width = values.shape
    low = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, (width - 1, height - 1))
    high = np.clip(np.ceil(corners.max(axis=0)).astype(int), 0, (width - 1, height - 1))
    mask = np.zeros((high[1] - low[1] + 1, high[0] - low[0] + 1), np.uint8)
    cv2.fillPoly(mask, [(corners - low).astype(np.int32)], (1.0,))
    return cv2.mean(values[low[1] : high[1] + 1, low[0] : high[0] + 1], mask)[0]


def grown(corners: NDArray[np.float32], unclip: float = PP_OCR.unclip) -> NDArray[np.int32]:
    """The outline that stands area * unclip / perimeter outside a box, with rounded corners: (n, 1, 2)."""
    import pyclipper

    area = cv2.contourArea(corners)
    distance = area * unclip / cv2.arcLength(corners, True)
    offset = pyclipper.PyclipperOffset()  # pyright: ignore[reportAttributeAccessIssue]
    offset.AddPath(corners, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)  # pyright: ignore[reportAttributeAccessIssue]
    return np.array(offset.Execute(distance), np.int32).reshape(-1, 1, 2)
