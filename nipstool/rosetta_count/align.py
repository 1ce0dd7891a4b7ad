"""Tokens of different tokenizers on common spans of bytes.

A boundary is a byte at which a token begins or ends, or the text does. The canonical spans lie between those
boundaries that all models share; a span in which some model has no token (WordPiece skips spaces) is no sample.
Models' tokens `cla|ud|e|co|de` and `clau|d|e|co|d|e` have the spans claud, e, co, de.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from nipstool.rosetta_count.tokens import Tokens


@dataclass(frozen=True)
class Aligned:
    """Samples of some documents. All int64.

    Args:
        sample: of each model [tokens], the sample that a token belongs to; -1 for none.
        document: [samples], the document's number, from 0.
        start, stop: [samples], its bytes in the document.
    """

    sample: tuple[np.ndarray, ...]
    document: np.ndarray
    start: np.ndarray
    stop: np.ndarray

    @property
    def pooled(self) -> tuple[bool, ...]:
        """Of each model whether some sample has several of its tokens."""
        used = [sample[sample >= 0] for sample in self.sample]
        return tuple(len(one) != len(self.document) for one in used)


def align(models: Sequence[Sequence[Tokens]], sizes: Sequence[int]) -> Aligned:
    """Common spans of documents, from each model's tokens of each of them.

    Args:
        models: [models][documents].
        sizes: of each document, in bytes.
    """
    import numpy as np

    ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
    begins = ends - np.asarray(sizes, dtype=np.int64)
    edges = np.concatenate([begins, ends])
    total = int(ends[-1]) if len(ends) else 0
    starts, shared = [], np.ones(total + 1, dtype=bool)
    for documents in models:
        lengths = [len(one.ids) for one in documents]
        offset = np.repeat(begins, lengths)
        start, stop = (_joined([getattr(one, side) for one in documents]) + offset for side in ("start", "stop"))
        marks = np.zeros(total + 1, dtype=bool)
        marks[start] = marks[stop] = marks[edges] = True
        shared &= marks
        starts.append(np.where(start < stop, start, -1))
    boundaries = np.flatnonzero(shared)
    number = np.cumsum(shared) - 1  # byte -> span
    spans = [np.where(start >= 0, number[start], -1) for start in starts]
    full = np.ones(max(len(boundaries) - 1, 0), dtype=bool)
    for span in spans:
        held = np.zeros(len(full) + 1, dtype=bool)
        held[span[span >= 0]] = True
        full &= held[: len(full)]
    place = np.where(full, np.cumsum(full) - 1, -1)
    place = np.append(place, -1)  # for -1 itself
    kept = boundaries[:-1][full]
    document = np.searchsorted(ends, kept, side="right")
    return Aligned(
        tuple(place[span] for span in spans),
        document,
        kept - begins[document],
        boundaries[1:][full] - begins[document],
    )


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    import numpy as np

    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
