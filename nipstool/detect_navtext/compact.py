"""A trained detector by itself: boxes, and how much each navigates by its second map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.boxes import boxes_in, mean_inside
from nipstool.detect_navtext.detector import metadata
from nipstool.detect_navtext.lines import Image
from nipstool.detect_navtext.maps import Detector as OnnxDetector
from nipstool.detect_navtext.maps import View
from nipstool.detect_navtext.models import Models
from nipstool.kit.errors import DataError


class Compact:
    """A detector with two maps from an ONNX file: where text is, and how much it navigates.

    Raises:
        InputMissingError, DataError: the file is missing or no detector.
    """

    def __init__(self, path: Path, *, threads: int = 1, view: View | None = None):
        self._path = path
        self._detector = OnnxDetector(Models(path, None), threads=threads)
        self._view = view or View()
        self.threshold = float(metadata(path).get("nav_threshold", 0.5))

    def find(self, image: Image) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Boxes (n, 4, 2) in pixels of an upright picture, and how much each navigates, 0 to 1."""
        maps = self._detector.maps(image, self._view)
        if len(maps) < 2:
            raise DataError(f"{self._path}: has {len(maps)} map; expected two, of text and of navigation text")
        height, width = image.shape[:2]
        boxes, _ = boxes_in(maps[0], width, height, self._detector.rule)
        full = 255.0 if maps.dtype == np.uint8 else 1.0
        size = np.array([maps.shape[2] / width, maps.shape[1] / height], np.float32)
        return boxes, np.array([mean_inside(maps[1], box * size) / full for box in boxes], np.float64)
