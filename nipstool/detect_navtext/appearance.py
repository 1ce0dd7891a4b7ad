"""How a line looks: the contrast of its letters, the colour and calm of what surrounds it."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.lines import Image, Line

NAMES = (
    "contrast",  # of letters and ground, 0 to 1
    "light_on_dark",  # whether the letters are the lighter part
    "ground_saturation",
    "ground_value",
    "ground_blue",  # how blue (or green, or red, or yellow) the ground is: saturation where the hue fits
    "ground_green",
    "ground_red",
    "ground_yellow",
    "ground_unrest",  # standard deviation of the lightness of the ground
    "ring_unrest",  # the same around the line
    "ring_step",  # how far the surroundings are from the ground in colour
    "sharpness",  # of the letters' edges, by their contrast
    "fill",  # share of the box that is letters
)
RING = 0.6  # heights around a line
SEEN = 24  # rows a line is looked at


def appearance(image: Image, line: Line) -> NDArray[np.float32]:
    """The numbers NAMES of a line in a picture, (len(NAMES),), whatever its size."""
    patch, inside = _patch(image, line)
    if patch.size == 0 or not inside.any():
        return np.zeros(len(NAMES), np.float32)
    hsv = cv2.cvtColor(patch, cv2.COLOR_BGR2HSV).astype(np.float32)
    grey = np.asarray(cv2.cvtColor(patch, cv2.COLOR_BGR2GRAY), np.uint8)
    letters, ground, light = _letters(grey, inside)
    ring = ~inside
    value = grey.astype(np.float32) / 255
    contrast = abs(float(value[letters].mean() - value[ground].mean()))
    around = value[ring] if ring.any() else value[ground]
    colour = patch.astype(np.float32) / 255
    step = float(np.linalg.norm(np.median(colour[ring], 0) - np.median(colour[ground], 0))) if ring.any() else 0.0
    hue, saturation = np.median(hsv[ground][:, 0]), float(np.median(hsv[ground][:, 1])) / 255
    edges = np.abs(np.diff(value, axis=1))[inside[:, 1:] & inside[:, :-1]]
    sharp = float(np.quantile(edges, 0.95)) / max(contrast, 0.05) if edges.size else 0.0
    return np.array(
        [
            contrast,
            light,
            saturation,
            float(np.median(hsv[ground][:, 2])) / 255,
            *(saturation * near for near in _hues(float(hue))),
            float(value[ground].std()),
            float(around.std()),
            step,
            min(sharp, 2.0),
            float(letters.sum() / inside.sum()),
        ],
        np.float32,
    )


def _hues(hue: float) -> list[float]:
    """Whether a hue of OpenCV's, 0 to 180, is blue, green, red, yellow."""
    return [float(95 <= hue <= 130), float(40 <= hue < 95), float(hue <= 9 or hue >= 170), float(18 <= hue < 40)]


def _patch(image: Image, line: Line) -> tuple[Image, NDArray[np.bool_]]:
    """A line with its surroundings, SEEN rows for the line, and which pixels are its box."""
    height = max(line.height, 1.0)
    low = np.floor(line.polygon.min(axis=0) - RING * height)
    high = np.ceil(line.polygon.max(axis=0) + RING * height) + 1
    limits = np.array([image.shape[1], image.shape[0]])
    low, high = np.clip(low, 0, limits).astype(int), np.clip(high, 0, limits).astype(int)
    part = image[low[1] : high[1], low[0] : high[0]]
    scale = min(1.0, SEEN / height)
    corners = (line.polygon - low) * scale
    if part.size and scale < 1:
        size = (max(1, round(part.shape[1] * scale)), max(1, round(part.shape[0] * scale)))
        part = cv2.resize(part, size, interpolation=cv2.INTER_AREA)
    mask = np.zeros(part.shape[:2], np.uint8)
    cv2.fillPoly(mask, [np.rint(corners).astype(np.int32)], (1.0,))
    return part.astype(np.uint8, copy=False), mask > 0


def _letters(
    grey: NDArray[np.uint8], inside: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], float]:
    """Which pixels of a box are letters and which ground, by Otsu's threshold; whether the letters are lighter.

    Letters are what touches the border of the box less.
    """
    values = np.ascontiguousarray(grey[inside], np.uint8)
    threshold, _ = cv2.threshold(values, 0, 1, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    lighter = (grey > threshold) & inside
    darker = ~(grey > threshold) & inside
    if not lighter.any() or not darker.any():
        return inside, inside, 0.0
    eroded = cv2.erode(inside.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
    border = inside & ~eroded
    light = (lighter & border).sum() < (darker & border).sum()
    return (lighter, darker, 1.0) if light else (darker, lighter, 0.0)
