"""What speaks for and against each line: its words, its form, the map, the board it stands on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
        board_forms: form -> the share of the read lines of its board that have it.
    """

    words: Reading
    place: Match | None
    board_words: Reading
    board_place: Match | None
    text: str | None
    board_text: str | None
    board_forms: Mapping[str, float] = field(default_factory=dict)

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
    words = [read_words(text) for text in texts]
    forms = _board_forms(words, texts, boards)
    nothing = Reading()
    return [
        Evidence(
            said,
            place,
            readings.get(board, nothing),
            of_boards.get(board),
            text,
            joined.get(board),
            forms.get(board, {}),
        )
        for said, text, place, board in zip(words, texts, own, boards, strict=True)
    ]


def _board_forms(
    words: Sequence[Reading], texts: Sequence[str | None], boards: Sequence[int]
) -> dict[int, dict[str, float]]:
    """Of each board, the share of its read lines that have a form: one price makes a street no shelf."""
    lines = Counter(board for text, board in zip(texts, boards, strict=True) if text)
    having = Counter((board, form) for said, board in zip(words, boards, strict=True) for form in said.forms)
    shares: dict[int, dict[str, float]] = {}
    for (board, form), count in having.items():
        shares.setdefault(board, {})[form] = count / lines[board]
    return shares


def _trusted(line: Line) -> str | None:
    return line.text if line.text and (line.text_score or 0.0) >= TRUSTED else None
