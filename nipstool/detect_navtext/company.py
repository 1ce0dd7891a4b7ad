"""What the lines around a line say: a receipt, a packet or an advertisement is many lines of one kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.evidence import Evidence
from nipstool.detect_navtext.lexicon import NAVIGATES
from nipstool.detect_navtext.lines import Line, gaps
from nipstool.detect_navtext.phrasing import NAMES as PHRASING
from nipstool.detect_navtext.words import normalised

NAMES = (
    "near_for",  # what speaks for the lines around, each by its nearness
    "near_against",
    "repeated",  # log of how often the picture says the same: packets stand in rows
)
AGAINST = ("price", "percent", "phone", "link", "time", "amount")
REACH = 3.0  # heights of the larger of two lines: so far apart, half of what one says is left
SOME_LETTERS = 3  # a text of fewer may stand twice by chance
SOME = 1.0  # lines that say nothing, added to every mean: two lines prove less than twenty

_LENGTH = PHRASING.index("length")


def company(
    lines: Sequence[Line], found: Sequence[Evidence], phrasings: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The numbers NAMES of each line: (n, 3). `phrasings` (n, p) are those of `phrasing`."""
    boxes = np.array([line.bbox for line in lines], np.float64)
    heights = np.array([max(line.height, 1.0) for line in lines])
    distance = gaps(boxes) / np.maximum(heights[:, None], heights[None])
    said = np.array([(_speaks(one), _tells(one, row)) for one, row in zip(found, phrasings, strict=True)])
    weight = 0.5 ** (distance / REACH)
    np.fill_diagonal(weight, 0.0)
    near = weight @ said / (weight.sum(axis=1, keepdims=True) + SOME)
    return np.column_stack([near, _repeated(found)]).astype(np.float32)


def _repeated(found: Sequence[Evidence]) -> NDArray[np.float64]:
    """Log of the number of lines with the same text, 0 for those without a text of some letters: (n,)."""
    keys = [normalised(one.text or "") for one in found]
    counts = Counter(key for key in keys if len(key) >= SOME_LETTERS)
    return np.log([max(counts[key], 1) for key in keys])


def _speaks(found: Evidence) -> float:
    """How much speaks for a line, 0 to 1."""
    place = 0.0 if found.place is None or not found.place.whole else 0.5
    return max(*found.words.kinds.values(), place, 0.5 * bool(found.words.forms & set(NAVIGATES)), 0.0)


def _tells(found: Evidence, phrasing: NDArray[np.float32]) -> float:
    """How much speaks against a line, 0 to 1."""
    marks = phrasing.sum() - phrasing[_LENGTH]
    return min(1.0, float(sum(found.words.against.values()) + bool(found.words.forms & set(AGAINST)) + marks))
