"""What signs and clutter say: phrases in 20 languages with places to fill in, and names that nobody has.

`words.json` holds the phrases of each sort; `{n}` is a room number, `{brand}` a chain's name, and so on.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files

import numpy as np

Random = np.random.Generator

_SOUNDS = """
ba be bo ca ce co da de di do el en fa fi fo ga go il in ka ki ko la le li lo lu ma me mi mo na ne ni no or pa pe
po ra re ri ro sa se si so ta te ti to tra un va ve vi vo za zo
"""
SYLLABLES = tuple(_SOUNDS.split())


@cache
def phrases() -> dict[str, list[str]]:
    """The phrases of every sort."""
    return json.loads(files("nipstool.detect_navtext.scenes").joinpath("words.json").read_text(encoding="utf-8"))


def pick(random: Random, items: Sequence[str]) -> str:
    """One of `items`."""
    return items[int(random.integers(len(items)))]


def phrase(random: Random, sort: str, brands: Sequence[str] = ()) -> str:
    """A phrase of a sort, filled in. `brands` are names of chains, for the sorts that use them."""
    return fill(random, pick(random, phrases()[sort]), brands)


def fill(random: Random, text: str, brands: Sequence[str] = ()) -> str:
    """`text` with every `{place}` replaced."""
    names = [name for _, name, _, _ in string.Formatter().parse(text) if name]
    return text.format(**{name: _filler(name, random, brands) for name in names})


def shop(random: Random, brands: Sequence[str]) -> str:
    """What stands above a shop: half of them chains, the others known to no map."""
    kind = random.random()
    if brands and kind < 0.4:
        return pick(random, brands)
    trade = phrase(random, "shop_type")
    if not trade.isascii() and not trade[0].isalpha():
        return trade
    surname = pick(random, phrases()["surname"])
    forms = (f"{surname}'s {trade}", f"{trade} {surname}", f"{word(random).title()} {trade}", trade)
    names = (word(random).title(), word(random).upper(), f"{word(random).title()} & {surname}")
    return pick(random, forms if kind < 0.75 else names)


def word(random: Random) -> str:
    """A word that could be a name and is none."""
    return "".join(pick(random, SYLLABLES) for _ in range(int(random.integers(2, 4))))


def cased(random: Random, text: str) -> str:
    """`text` as signs write it: as it is, or all in capitals."""
    return text.upper() if random.random() < 0.35 and len(text) < 24 else text


def _filler(name: str, random: Random, brands: Sequence[str]) -> str:
    makers: dict[str, Callable[[], str]] = {
        "n": lambda: str(random.integers(1, 9) * 100 + random.integers(1, 60)),
        "n2": lambda: str(random.integers(1, 9) * 100 + random.integers(60, 99)),
        "nn": lambda: str(random.integers(1, 60)),
        "d": lambda: str(random.integers(1, 10)),
        "L": lambda: pick(random, "ABCDEFGH"),
        "p": lambda: f"{random.integers(1, 90)}{pick(random, '.,')}{random.integers(0, 100):02d}",
        "price": lambda: (
            pick(random, ("$", "€", "£", "")) + f"{random.integers(1, 90)}.{random.integers(0, 100):02d}"
        ),
        "pct": lambda: str(random.integers(1, 9) * 10),
        "w": lambda: str(random.integers(1, 20) * 50),
        "time": lambda: f"{random.integers(6, 12)}:{pick(random, ('00', '30'))}",
        "time2": lambda: f"{random.integers(13, 24)}:{pick(random, ('00', '30'))}",
        "year": lambda: str(random.integers(1880, 2026)),
        "date": lambda: f"{random.integers(1, 29)}.{random.integers(1, 13)}.{random.integers(2019, 2027)}",
        "phone": lambda: f"0{random.integers(10, 99)} {random.integers(100, 999)} {random.integers(1000, 9999)}",
        "low": lambda: word(random),
        "brand": lambda: pick(random, brands) if brands else word(random).title(),
    }
    return makers[name]() if name in makers else pick(random, phrases()[name])
