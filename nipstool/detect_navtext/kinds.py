"""What kind of place a line names, from the evidence about it."""

from __future__ import annotations

from collections.abc import Iterable

from nipstool.detect_navtext.evidence import Evidence
from nipstool.detect_navtext.lexicon import Reading, read_words
from nipstool.detect_navtext.lines import KINDS
from nipstool.detect_navtext.poi import Match

_OF_FORM = {"floor": 1.2, "room": 1.1, "aisle": 1.2, "street": 0.9, "direction": 0.5, "gate": 0.9}
_BOARD = 0.4  # what the rest of the board weighs against the line's own words
_EVERYDAY = {"store": 0.6, "section": 0.6}  # words that stand on many signs of other kinds


def kind_of_line(found: Evidence) -> str:
    """The kind of a line that navigates; `store` where nothing speaks for another."""
    scores = _scores(found.words, found.place)
    for kind, score in _scores(found.board_words, found.board_place).items():
        scores[kind] = scores.get(kind, 0.0) + _BOARD * score
    if not scores:
        return "store"
    return max(KINDS, key=lambda kind: scores.get(kind, 0.0))


def _scores(words: Reading, place: Match | None) -> dict[str, float]:
    scores = {kind: share * _EVERYDAY.get(kind, 1.0) for kind, share in words.kinds.items()}
    for form, weight in _OF_FORM.items():
        if form in words.forms:
            kind = "platform" if form == "gate" and "platform" in scores else form
            scores[kind] = scores.get(kind, 0.0) + weight
    if "code" in words.forms and not scores:
        scores["room"] = 0.5
    if place is not None:
        own = place.name.source == "map"
        weight = 1.5 if own else 0.9 if place.whole else 0.6
        scores[place.name.kind] = scores.get(place.name.kind, 0.0) + weight * place.similarity
    return scores


def kind_by_words(text: str | None) -> str:
    """The kind by the text alone."""
    words = read_words(text)
    return kind_of_line(Evidence(words, None, Reading(), None, text, text))


def wanted(kinds: Iterable[str]) -> frozenset[str]:
    """The kinds in words like `room,floor`. Raises ValueError naming one that is none."""
    found = [kind.strip() for word in kinds for kind in word.split(",") if kind.strip()]
    for kind in found:
        if kind not in KINDS:
            raise ValueError(kind)
    return frozenset(found)
