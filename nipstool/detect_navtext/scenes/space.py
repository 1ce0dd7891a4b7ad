"""A room, a camera in it, and boards that hang there: where they come to lie in the picture.

Metres: x to the right, y down, z away from the camera, which stands at the origin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.scenes.boards import Board, Mark

Points = NDArray[np.float32]

FACINGS = {  # the reading direction of what hangs there, seen from within
    "front": (1.0, 0.0, 0.0),
    "left": (0.0, 0.0, 1.0),
    "right": (0.0, 0.0, -1.0),
}
NEAR = 0.25  # nothing closer is drawn
HIDDEN, PARTLY = 0.75, 0.12  # shares of a line that something covers: then it is not there, or to be ignored
SMALLEST, LEGIBLE = 3.0, 7.0  # heights in pixels: below, there is no line, or one to be ignored


@dataclass(frozen=True)
class Camera:
    """A pinhole camera: picture size, focal length in pixels, and turns in radians (right, up, clockwise)."""

    width: int
    height: int
    focal: float
    yaw: float = 0.0
    pitch: float = 0.0
    roll: float = 0.0

    @property
    def rotation(self) -> NDArray[np.float64]:
        """(3, 3), from the room to the camera."""
        cy, sy, cp, sp = np.cos(self.yaw), np.sin(self.yaw), np.cos(self.pitch), np.sin(self.pitch)
        cr, sr = np.cos(self.roll), np.sin(self.roll)
        turn = np.array([[cy, 0, -sy], [0, 1, 0], [sy, 0, cy]])
        tilt = np.array([[1, 0, 0], [0, cp, sp], [0, -sp, cp]])
        return np.array([[cr, sr, 0], [-sr, cr, 0], [0, 0, 1]]) @ tilt @ turn

    def project(self, points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Pixels (n, 2) of points (n, 3), and how far before the camera they are (n,)."""
        seen = points @ self.rotation.T
        depth = np.maximum(seen[:, 2], 1e-6)
        centre = np.array([self.width / 2, self.height / 2])
        return seen[:, :2] / depth[:, None] * self.focal + centre, seen[:, 2]


@dataclass(frozen=True, eq=False)
class Room:
    """A box around the camera: where its sides are, and one repeating texture (s, s, 3) of a metre a side."""

    left: float
    right: float
    ceiling: float
    floor: float
    back: float
    textures: tuple[NDArray[np.uint8], ...]  # left, right, ceiling, floor, back

    def seen_by(self, camera: Camera) -> NDArray[np.uint8]:
        """The empty room (height, width, 3); computed at half size, for walls are smooth."""
        rays = _rays(camera)
        planes = ((0, self.left), (0, self.right), (1, self.ceiling), (1, self.floor), (2, self.back))
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.stack([np.where(rays[..., a] * at > 0, at / rays[..., a], np.inf) for a, at in planes])
        first = times.argmin(axis=0)
        hit = rays * np.minimum(times.min(axis=0), 1e3)[..., None]
        image = np.empty((*first.shape, 3), np.uint8)
        for number, ((axis, _), texture) in enumerate(zip(planes, self.textures, strict=True)):
            where = first == number
            u, v = (hit[where][:, a] for a in ((2, 1), (0, 2), (0, 1))[axis])
            size = texture.shape[0]
            image[where] = texture[(v * size).astype(int) % size, (u * size).astype(int) % size]
        sized = cv2.resize(image, (camera.width, camera.height), interpolation=cv2.INTER_LINEAR)
        return np.asarray(sized, np.uint8)


def _rays(camera: Camera) -> NDArray[np.float64]:
    x = (np.arange(0, camera.width, 2) + 0.5 - camera.width / 2) / camera.focal
    y = (np.arange(0, camera.height, 2) + 0.5 - camera.height / 2) / camera.focal
    grid = np.stack([*np.meshgrid(x, y), np.ones((len(y), len(x)))], axis=-1)
    return grid @ camera.rotation


class Stage:
    """The picture in the making. Hang what is far away first: later boards cover earlier ones."""

    def __init__(self, camera: Camera, image: NDArray[np.uint8]):
        self.camera = camera
        self.image = image
        self._marks: list[Mark] = []

    def hang(
        self,
        board: Board,
        centre: tuple[float, float, float],
        *,
        width: float = 0.0,
        height: float = 0.0,
        facing: str = "front",
        tilt: float = 0.0,
    ) -> None:
        """Hang a board by its centre, with its width or its height in metres (the other follows), or both."""
        width, height = width or height * board.aspect, height or width / board.aspect
        across, down = np.array(FACINGS[facing]), np.array([0.0, 1.0, 0.0])
        across, down = np.cos(tilt) * across + np.sin(tilt) * down, np.cos(tilt) * down - np.sin(tilt) * across
        across, down = across * width / 2, down * height / 2
        middle = np.array(centre)
        corners = np.stack(
            [middle - across - down, middle + across - down, middle + across + down, middle - across + down]
        )
        pixels, depth = self.camera.project(corners)
        if depth.min() > NEAR and _in_sight(pixels, self.camera):
            self._draw(board, pixels.astype(np.float32))

    def _draw(self, board: Board, corners: Points) -> None:
        pixels, scale = _shrunk(board.pixels, corners)
        height, width = pixels.shape[:2]
        source = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float32)
        left, top = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, None)
        limit = np.array([self.camera.width, self.camera.height])
        right, bottom = np.minimum(np.ceil(corners.max(axis=0)).astype(int) + 1, limit)
        if right <= left or bottom <= top:
            return
        matrix = cv2.getPerspectiveTransform(source, corners - np.array([left, top], np.float32))
        size = (int(right - left), int(bottom - top))
        warped = cv2.warpPerspective(pixels, matrix, size, flags=cv2.INTER_LINEAR)
        cover = warped[..., 3:].astype(np.float32) / 255
        part = self.image[top:bottom, left:right]
        part[:] = (part * (1 - cover) + warped[..., :3] * cover).astype(np.uint8)
        if pixels[..., 3].min() == 255:
            self._cover(corners)
        for mark in board.marks:
            points = mark.polygon.reshape(-1, 1, 2) * scale
            moved = cv2.perspectiveTransform(points, matrix).reshape(-1, 2) + np.array([left, top], np.float32)
            self._marks.append(replace(mark, polygon=moved.astype(np.float32)))

    def _cover(self, corners: Points) -> None:
        """What a new board hides of the lines that were there."""
        kept = []
        for mark in self._marks:
            hidden = _overlap(mark.polygon, corners)
            if hidden < HIDDEN:
                kept.append(mark if hidden < PARTLY else replace(mark, label="ignore", kind="other"))
        self._marks = kept

    def marks(self) -> list[Mark]:
        """The lines in the picture; those that are tiny, cut or partly hidden have the label `ignore`."""
        frame = np.array([(0, 0), (1, 0), (1, 1), (0, 1)], np.float32)
        frame *= np.array([self.camera.width, self.camera.height], np.float32)
        found = []
        for mark in self._marks:
            inside, height = _overlap(mark.polygon, frame), _height(mark.polygon)
            if inside < 1 - HIDDEN or height < SMALLEST:
                continue
            poor = inside < 1 - PARTLY or height < LEGIBLE or _is_too_slanted(mark.polygon)
            found.append(replace(mark, label="ignore", kind="other") if poor else mark)
        return found


def _in_sight(corners: NDArray[np.float64], camera: Camera) -> bool:
    low, high = corners.min(axis=0), corners.max(axis=0)
    limit = np.array([camera.width, camera.height])
    return bool((high > 0).all() and (low < limit).all() and (high - low < 12 * limit).all())


def _shrunk(pixels: NDArray[np.uint8], corners: Points) -> tuple[NDArray[np.uint8], Points]:
    """The pixels at about the size they will have, so that warping them does not skip any; and by how much."""
    sides = np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1)
    wanted = np.array([max(sides[0], sides[2]), max(sides[1], sides[3])]) * 1.15
    size = np.array([pixels.shape[1], pixels.shape[0]])
    new = np.clip(np.ceil(wanted), 2, size).astype(int)
    if (new == size).all():
        return pixels, np.ones(2, np.float32)
    small = cv2.resize(pixels, (int(new[0]), int(new[1])), interpolation=cv2.INTER_AREA)
    return np.asarray(small, np.uint8), (new / size).astype(np.float32)


def _overlap(polygon: Points, other: Points) -> float:
    """The share of `polygon` that lies on `other`, both convex."""
    area = abs(cv2.contourArea(polygon))
    return cv2.intersectConvexConvex(polygon, other)[0] / area if area > 0 else 1.0


def _height(polygon: Points) -> float:
    return float(np.linalg.norm(polygon[3] - polygon[0]) + np.linalg.norm(polygon[2] - polygon[1])) / 2


def _is_too_slanted(polygon: Points) -> bool:
    """Seen so much from the side that its letters have no width left."""
    area, height = abs(cv2.contourArea(polygon)), _height(polygon)
    return area < 0.35 * height * height
