"""A trained detector by itself: boxes, and how probably each is text that navigates, by its two maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.boxes import boxes_in, shares_in
from nipstool.detect_navtext.detector import NAV_THRESHOLD, metadata
from nipstool.detect_navtext.lines import Image
from nipstool.detect_navtext.maps import Detector as OnnxDetector
from nipstool.detect_navtext.maps import View
from nipstool.detect_navtext.models import Models
from nipstool.kit.errors import DataError

UNTOLD = 0.25  # the threshold of a detector that names none: even chances that it is text, and that it navigates


class Compact:
    """A detector with two maps from an ONNX file: where text is, and how much it navigates.

    Raises:
        InputMissingError, DataError: the file is missing or no detector.
    """

    def __init__(self, path: Path, *, threads: int = 1, view: View | None = None):
        self._path = path
        self._detector = OnnxDetector(Models(path, None), threads=threads)
        self._view = view or View()
        self.threshold = float(metadata(path).get(NAV_THRESHOLD, UNTOLD))

    def find(self, image: Image) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Boxes (n, 4, 2) in pixels of an upright picture, and how probably each navigates."""
        maps = self._detector.maps(image, self._view)
        if len(maps) < 2:
            raise DataError(f"{self._path}: has {len(maps)} map; expected two, of text and of navigation text")
        height, width = image.shape[:2]
        boxes, scores = boxes_in(maps[0], width, height, self._detector.rule)
        return boxes, (shares_in(maps[1], boxes, width, height) * scores).astype(np.float64)
