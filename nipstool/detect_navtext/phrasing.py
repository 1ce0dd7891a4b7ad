"""How a text is put: as a sentence or as a name, with numbers that name a place or a thing.

What is told or sold is put into sentences; signs name. That holds in places and about goods that no lexicon knows.
"""

from __future__ import annotations

import json
import re
import unicodedata
from functools import cache
from importlib import resources
from math import log1p

from nipstool.detect_navtext.words import is_cjk, normalised

NAMES = (
    "told",  # share of the words that only sentences need, of the text and of its board, in the mean
    "length",  # log of the number of words, two Chinese or Japanese characters counting as one
    "sentence_mark",  # what ends, opens or divides sentences: ! ? . , ; quotes
    "goes_on",  # begins with a small letter: the middle of a sentence, or by half a shop's name
    "serial",  # plates of cars, numbers of articles and accounts
    "measured",  # units of electricity, weight, dose …
    "registered",  # ® ™ © * #tag and the like
)
ENOUGH = 2  # words: a text of one word is no sentence
UNIT = 2  # letters: so few that begin small are a unit ("km")

_MARK = re.compile(r"[!?！？。、；…]|[,;:]$|\w{5,}\.$|^['\"“”‘«„]|^[-•·*]\s")
_SERIAL = re.compile(
    r"\d{5,}|\d{3,4}[ -]\d{3,4}[ -]\d{2,4}|\*{3,}|[A-Z]\d+[A-Z]+\d"
    r"|(?i:\b(?:no|nr|ref|lot|art|id)\b[.:]* ?\d{3,})"
    # plates: Britain; Germany; France and Italy; Spain; India; China
    r"|^[A-Z]{2}\d{2} ?[A-Z]{3}$|^[A-ZÄÖÜ]{1,3}[ :·-]{1,2}[A-Z]{1,2} ?\d{3,4}[EH]?$"
    r"|^[A-Z]{2}[ -]\d{3}[ -][A-Z]{2}$"
    r"|^\d{4} ?[B-DF-HJ-NP-TV-Z]{3}$|^[A-Z]{2} ?\d{1,2} ?[A-Z]{1,2} ?\d{4}$"
    r"|^[\u4e00-\u9fff][A-Z][ ·.]?[A-Z0-9]{5,6}$"
)
_MEASURED = re.compile(
    r"(?i)\d\s?(?:[kmµ]?[vw]|[km]?hz|m?ah|va|rpm|psi|bar|dpi|fps|mp|°|º|µg|mcg|kj|vol|hp|ps|k?cal|lbs?|fl|oz|ct|pcs)\b"
    r"|\d\s?°|\d\s?[x×]\s?\d|\d/\d{2,}|\biso \d|\bip\d\d\b"
)
_OTHER = re.compile("[^\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")  # than Chinese characters and kana
_REGISTERED = re.compile(r"[®™©*_|=\\{}~^%]|#\D|^@|\+$|&c\b")


def phrasing(text: str | None, board: str | None) -> list[float]:
    """The numbers NAMES of a text, and of the joined text of its board; zeros of what was not read."""
    if not text:
        return [0.0] * len(NAMES)
    plain = unicodedata.normalize("NFKC", text).strip()
    return [
        (told(text) + told(board)) / 2,
        length(text),
        float(_MARK.search(plain) is not None),
        _goes_on(plain),
        float(_SERIAL.search(plain) is not None),
        float(_MEASURED.search(plain) is not None),
        float(_REGISTERED.search(plain) is not None),
    ]


def _goes_on(plain: str) -> float:
    """1 for words of which the first has a small letter; by half for one word, which may be a shop's name."""
    return (1.0 if " " in plain else 0.5) * (plain[:1].islower() and len(plain) > UNIT)


def told(text: str | None) -> float:
    """The share of the words of a text, 0 to 1, that sentences need and names do not."""
    words = _units(normalised(text or ""))
    if len(words) < ENOUGH:
        return 0.0
    return sum(word in _function_words() for word in words) / len(words)


def length(text: str) -> float:
    """Log of one more than the number of words."""
    return log1p(sum(len(word) / 2 if is_cjk(word) else 1.0 for word in normalised(text).split()))


def _units(key: str) -> list[str]:
    """Words, and of Chinese and Japanese what may be particles and the characters between them."""
    found: list[str] = []
    for word in key.split():
        found += _cut(word) if is_cjk(word) else [word]
    return found


def _cut(word: str) -> list[str]:
    """A word of Chinese or Japanese as particles, the longest first, and single characters; of others as it is."""
    particles, parts, start = _function_words(), [], 0
    while start < len(word):
        other = _OTHER.match(word, start)
        size = len(other[0]) if other else next((n for n in (4, 3, 2) if word[start : start + n] in particles), 1)
        parts.append(word[start : start + size])
        start += size
    return parts


@cache
def _function_words() -> frozenset[str]:
    folder = resources.files("nipstool.detect_navtext").joinpath("data")
    languages = json.loads(folder.joinpath("function_words.json").read_text(encoding="utf-8"))
    return frozenset(word for words in languages.values() for word in words.split())
