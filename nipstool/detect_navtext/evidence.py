"""What speaks for and against each line: its words, its form, the map, the board it stands on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nipstool.detect_navtext.lexicon import Reading, read_words
from nipstool.detect_navtext.lines import Line
from nipstool.detect_navtext.poi import Match, Names


@dataclass(frozen=True)
class Evidence:
    """What is known about one line.

    Attributes:
        words: what its own words and form say.
        place: the name on the map that it is or holds.
        board_words: what the words of its whole board say, joined.
        board_place: the name on the map that the joined text of its board is.
        text: the line's own, where it can be trusted. board_text: that of its board, joined.
    """

    words: Reading
    place: Match | None
    board_words: Reading
    board_place: Match | None
    text: str | None
    board_text: str | None

    @property
    def read(self) -> bool:
        """Whether its text can be trusted."""
        return self.text is not None


TRUSTED = 0.5  # of the recogniser: below it a text is a guess


def evidence_of(lines: Sequence[Line], boards: Sequence[int], names: Names) -> list[Evidence]:
    """The evidence of each line; `boards` as `boards.board_of` gives them."""
    texts = [_trusted(line) for line in lines]
    joined: dict[int, str] = {}
    for text, board in zip(texts, boards, strict=True):
        if text:
            joined[board] = f"{joined.get(board, '')} {text}".strip()
    numbers = list(joined)
    matches = names.match([*texts, *(joined[number] for number in numbers)])
    own, of_boards = matches[: len(lines)], dict(zip(numbers, matches[len(lines) :], strict=True))
    readings = {number: read_words(text) for number, text in joined.items()}
    nothing = Reading()
    return [
        Evidence(
            read_words(text), place, readings.get(board, nothing), of_boards.get(board), text, joined.get(board)
        )
        for text, place, board in zip(texts, own, boards, strict=True)
    ]


def _trusted(line: Line) -> str | None:
    return line.text if line.text and (line.text_score or 0.0) >= TRUSTED else None
