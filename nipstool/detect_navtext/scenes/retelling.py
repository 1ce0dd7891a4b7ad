"""Rendered lines with other words: where they stand and how they look stays, what they say is exchanged.

What a text says and how a rendered picture looks are thus learnt apart. Text that leads nowhere becomes a receipt,
a packet, a page, a display … (`registers.json`), a board one such; signs become other signs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files

import numpy as np

from nipstool.detect_navtext.lines import Line
from nipstool.detect_navtext.scenes.words import fill, pick

Random = np.random.Generator
CAPITALS, ONE_REGISTER = 0.3, 0.4  # how often a board is set in capitals, and a picture is of one register


@cache
def registers() -> dict[str, dict[str, list[list[str]]]]:
    """`other` and `nav`: register -> texts, each some lines that stand below each other."""
    text = files("nipstool.detect_navtext.scenes").joinpath("registers.json").read_text(encoding="utf-8")
    found = json.loads(text)
    signs = {register: [[line] for line in lines] for register, lines in found["nav"].items()}
    return {"other": found["other"], "nav": signs}


def retold(
    lines: Sequence[Line],
    labels: Sequence[str],
    boards: Sequence[int],
    random: Random,
    brands: Sequence[str] = (),
    without: Sequence[str] = (),
) -> list[Line]:
    """The lines with the words of other texts of their label; those to be ignored and those not read as they are.

    Args:
        labels: nav, other, ignore. boards: as `boards.board_of` gives them.
        brands: names of chains. without: registers that are not used.
    """
    alike = random.random() < ONE_REGISTER
    chosen = {label: pick(random, _used(label, without)) for label in ("other", "nav")}
    said: dict[tuple[int, str], Iterator[str]] = {}
    new = []
    for line, label, board in zip(lines, labels, boards, strict=True):
        if label == "ignore" or line.text is None:
            new.append(line)
            continue
        if (board, label) not in said:
            register = chosen[label] if alike else pick(random, _used(label, without))
            said[board, label] = _texts(label, register, random, brands)
        new.append(replace(line, text=next(said[board, label])))
    return new


def _used(label: str, without: Sequence[str]) -> list[str]:
    return [register for register in registers()[label] if register not in without]


def _texts(label: str, register: str, random: Random, brands: Sequence[str]) -> Iterator[str]:
    """Lines of one text after the other."""
    capitals, texts = random.random() < CAPITALS, registers()[label][register]
    while True:
        for line in texts[int(random.integers(len(texts)))]:
            text = fill(random, line, brands)
            if line.startswith("{low}") or label == "nav":
                text = text[:1].upper() + text[1:]
            yield text.upper() if capitals else text
