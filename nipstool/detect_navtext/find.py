"""A picture in, the signs in it out: read, grouped, weighed, named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.boards import board_of
from nipstool.detect_navtext.evidence import Evidence, evidence_of
from nipstool.detect_navtext.kinds import kind_of_line
from nipstool.detect_navtext.lexicon import arrow_in
from nipstool.detect_navtext.lines import Image, Line
from nipstool.detect_navtext.ocr import Reader
from nipstool.detect_navtext.poi import Match, Names
from nipstool.detect_navtext.relevance import Classifier, classify, features, load_classifier
from nipstool.kit.errors import UsageError

Box = tuple[float, float, float, float]
Embed = Callable[[Image, Sequence[Line], Sequence[int]], NDArray[np.float32]]
"""Scores, 0 to 1, of the boards of lines in a picture by an image-text model: (n,)."""


@dataclass(frozen=True, eq=False)
class Sign:
    """A line of text, and whether and how it tells where one is.

    Attributes:
        line: what was found and read.
        nav_score: probability that it navigates, 0 to 1.
        kind: one of KINDS; `other` below the threshold.
        arrow: left, up, right … where an arrow goes with it.
        evidence: what spoke for and against, JSON-able.
        board: number of the board it stands on, in its picture.
    """

    line: Line
    nav_score: float
    kind: str
    arrow: str | None
    evidence: Mapping[str, Any]
    board: int


class Finder:
    """Finds the signs in pictures.

    Args:
        reader: finds and reads text.
        names: of places; the bundled ones by default.
        classifier: the shipped one by default.
        embed: an image-text model's scores, or None.
        threshold: nav_score at or above which a line is a sign; the classifier's own by default.
        roi: the region that is looked at, as `cut` takes it; the whole picture by default.
    """

    def __init__(
        self,
        reader: Reader,
        names: Names | None = None,
        classifier: Classifier | None = None,
        *,
        embed: Embed | None = None,
        threshold: float | None = None,
        roi: Box | None = None,
    ):
        self._reader = reader
        self._names = names or Names.bundled()
        self._classifier = classifier or load_classifier()
        self._embed = embed
        self.threshold = self._classifier.threshold if threshold is None else threshold
        self._roi = roi

    def find(self, image: Image) -> list[Sign]:
        """The signs and the other text of an upright picture, in reading order; polygons in its own pixels."""
        part, shift = cut(image, self._roi)
        lines = self._reader.read(part)
        if not lines:
            return []
        boards = board_of(lines)
        evidence = evidence_of(lines, boards, self._names)
        scores = classify(features(lines, part, boards, self._names, evidence), self._classifier)
        has_map = lines[0].nav_map is not None
        if has_map:
            scores = blended(scores, np.array([line.nav_map for line in lines], np.float32))
        embedded = self._embed(part, lines, boards) if self._embed is not None else None
        if embedded is not None:
            scores = blended(scores, embedded)
        if has_map:  # what navigates is text first: a small detector is often unsure of that
            scores = scores * np.array([line.det_score for line in lines], np.float32)
        return [
            self._sign(
                moved(line, shift), float(score), found, board, None if embedded is None else float(embedded[i])
            )
            for i, (line, score, found, board) in enumerate(zip(lines, scores, evidence, boards, strict=True))
        ]

    def _sign(self, line: Line, score: float, found: Evidence, board: int, embedded: float | None) -> Sign:
        kind = kind_of_line(found) if score >= self.threshold else "other"
        told = shown(found)
        if embedded is not None:
            told["embedding"] = round(embedded, 4)
        return Sign(line, round(score, 5), kind, arrow_in(line.text), told, board)


def blended(scores: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Two probabilities of each line as one: the mean of their log odds, neither nearer to certainty than 0.01."""
    odds = [np.log(p / (1 - p)) for p in (np.clip(scores, 0.01, 0.99), np.clip(others, 0.01, 0.99))]
    return (1 / (1 + np.exp(-(odds[0] + odds[1]) / 2))).astype(np.float32)


def shown(found: Evidence) -> dict[str, Any]:
    """Evidence as it is written: only what was found."""
    told: dict[str, Any] = {}
    if found.words.kinds:
        told["lexicon"] = dict(sorted(found.words.kinds.items(), key=lambda item: -item[1]))
    if found.words.against:
        told["against"] = dict(found.words.against)
    if found.words.forms:
        told["form"] = sorted(found.words.forms)
    if found.place is not None:
        told["map"] = _place(found.place)
    if found.board_place is not None and found.board_place != found.place:
        told["board_map"] = _place(found.board_place)
    return told


def _place(match: Match) -> dict[str, Any]:
    told = {"name": match.name.text, "source": match.name.source, "similarity": match.similarity}
    return told | ({"id": match.name.id} if match.name.id else {})


def cut(image: Image, roi: Box | None) -> tuple[Image, NDArray[np.float32]]:
    """The part of a picture in a region (left, top, width, height), and where it begins.

    Numbers up to 1 are shares of the picture, others pixels. Raises UsageError where it holds nothing.
    """
    if roi is None:
        return image, np.zeros(2, np.float32)
    height, width = image.shape[:2]
    size = np.array([width, height, width, height], np.float64)
    left, top, wide, high = np.rint(np.array(roi) * (size if max(roi) <= 1 else 1)).astype(int)
    x0, y0 = max(0, left), max(0, top)
    part = image[y0 : max(0, top + high), x0 : max(0, left + wide)]
    if part.size == 0:
        raise UsageError(
            f"--roi {','.join(f'{v:g}' for v in roi)}: holds nothing of a picture of {width}x{height}"
        )
    return part, np.array([x0, y0], np.float32)


def moved(line: Line, shift: NDArray[np.float32]) -> Line:
    """A line of a part of a picture in pixels of the whole."""
    return replace(line, polygon=line.polygon + shift) if shift.any() else line
