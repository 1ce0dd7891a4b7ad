"""Reading a picture: where text is, which of it is worth reading, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from nipstool.detect_navtext.boxes import PP_OCR, boxes_in, shares_in
from nipstool.detect_navtext.lines import Image, Line
from nipstool.detect_navtext.maps import LONG, Detector, View, padded, shown_size
from nipstool.detect_navtext.models import Models, bundled
from nipstool.detect_navtext.recognise import Recogniser, strip_of

LEGIBLE = 7.0  # pixels; lower text is not read: the recogniser guesses
SURER = 0.05  # than the least score of a box; what is below that is seldom text that can be read
LIKELY = 0.1  # by a detector that knows: what is below it hardly navigates
COARSE = 1600  # longest side of the second look at a tiled picture, for text larger than a tile can hold
LARGE = 0.3  # of a tile's side: text so high is taken from the second look


@dataclass(frozen=True)
class Reading:
    """What is looked for, and what is read.

    Attributes:
        view: scale and tiles.
        min_height: lines lower than this many pixels are left out.
        min_share: the same, as a share of the picture's height.
        read: `worth` reads what is legible, `all` everything, `none` nothing.
    """

    view: View = field(default_factory=View)
    min_height: float = 0.0
    min_share: float = 0.0
    read: str = "worth"


class Reader:
    """Finds and reads the lines of text in pictures.

    Args:
        models: detector and recogniser; PP-OCRv6 small from rapidocr's wheel by default.
        detector: an ONNX detector in the first one's place, as `train` writes it.
        threads: CPU threads of both networks.

    Raises:
        UnavailableError, InputMissingError, DataError: as `models.session`.
    """

    def __init__(
        self,
        models: Models | None = None,
        *,
        detector: Models | None = None,
        threads: int = 1,
        device: str = "cpu",
        reading: Reading | None = None,
    ):
        models = models or bundled()
        self.reading = reading or Reading()
        self._detector = Detector(detector or models, threads=threads, device=device)
        self._recogniser = None
        if self.reading.read != "none" and models.recogniser is not None:
            self._recogniser = Recogniser(models.recogniser, models.characters, threads=threads, device=device)

    def read(self, image: Image) -> list[Line]:
        """The lines of an upright picture, from top to bottom and left to right."""
        shown, above = padded(image)
        least = max(self.reading.min_height, self.reading.min_share * image.shape[0])
        lines = [line for line in in_order(self.find(shown)) if line.height >= least]
        lines = self._read_text(shown, lines)
        return [_moved(line, above, image.shape[0]) for line in lines] if above else lines

    def find(self, image: Image) -> list[Line]:
        """The lines of a picture, not read."""
        view = self.reading.view
        width, height = shown_size(image.shape[1], image.shape[0], view)
        fine = self._boxes(image, view)
        if max(width, height) <= LONG or not view.tile:
            return fine
        high = LARGE * view.tile * image.shape[1] / width
        coarse = [line for line in self._boxes(image, View(scale=COARSE)) if line.height >= high]
        return [*coarse, *(line for line in fine if not any(_inside(line, one) for one in coarse))]

    def _boxes(self, image: Image, view: View) -> list[Line]:
        maps = self._detector.maps(image, view)
        found, scores = boxes_in(maps[0], image.shape[1], image.shape[0], self._detector.rule)
        lines = [
            Line(box, None, None, round(float(score), 5), "not-asked")
            for box, score in zip(found, scores, strict=True)
        ]
        if len(maps) == 1:
            return lines
        shares = shares_in(maps[1], found, image.shape[1], image.shape[0])
        return [replace(line, nav_map=round(float(one), 5)) for line, one in zip(lines, shares, strict=True)]

    def _read_text(self, image: Image, lines: Sequence[Line]) -> list[Line]:
        """The same lines with their text, or the reason why there is none."""
        if self._recogniser is None:
            return list(lines)
        sure = self._detector.rule.box_threshold + SURER
        reasons = [None if self.reading.read == "all" else not_worth(line, sure) for line in lines]
        asked = [i for i, reason in enumerate(reasons) if reason is None]
        answers = dict(
            zip(asked, self._recogniser.read([strip_of(image, lines[i].polygon) for i in asked]), strict=True)
        )
        return [_told(line, reasons[i], answers.get(i)) for i, line in enumerate(lines)]


def not_worth(line: Line, sure: float = PP_OCR.box_threshold + SURER) -> str | None:
    """Why a line is not read: `too-small`, `unsure`, or `unlikely` to navigate; None where it is worth it."""
    if min(line.height, line.width) < LEGIBLE:
        return "too-small"
    if line.nav_map is not None and line.nav_map < LIKELY:
        return "unlikely"
    return "unsure" if line.det_score < sure else None


def _told(line: Line, reason: str | None, answer: tuple[str, float] | None) -> Line:
    if answer is None:
        return replace(line, reason=reason)
    text, score = " ".join(answer[0].split()), round(answer[1], 5)
    if not text:
        return replace(line, text_score=score, reason="no-text")
    return replace(line, text=text, text_score=score, reason=None)


def in_order(lines: Sequence[Line]) -> list[Line]:
    """Lines from top to bottom, those of one row from left to right."""
    if not lines:
        return []
    by_top = sorted(lines, key=lambda line: float(line.polygon[0, 1]))
    step = float(np.median([line.height for line in lines])) / 2
    rows: list[list[Line]] = [[by_top[0]]]
    for before, line in pairwise(by_top):
        if line.polygon[0, 1] - before.polygon[0, 1] >= step:
            rows.append([])
        rows[-1].append(line)
    return [line for row in rows for line in sorted(row, key=lambda line: float(line.polygon[0, 0]))]


def _inside(line: Line, other: Line) -> bool:
    """Whether more than half of a line's upright box lies in another's."""
    x, y, width, height = line.bbox
    left, top, wide, high = other.bbox
    across = min(x + width, left + wide) - max(x, left)
    down = min(y + height, top + high) - max(y, top)
    return across > 0 and down > 0 and across * down > 0.5 * width * height


def _moved(line: Line, above: int, height: int) -> Line:
    """A line of a padded picture in pixels of the picture itself."""
    polygon = line.polygon - np.array([0, above], np.float32)
    return replace(line, polygon=np.clip(polygon, 0, [np.inf, height]).astype(np.float32))
