"""Text as it is compared: one spelling for what looks the same on a sign."""

from __future__ import annotations

import re
import unicodedata

# Accents over Latin, Greek and Cyrillic letters: recognisers drop them. The voicing marks of kana are others.
_ACCENTS = re.compile("[\u0300-\u036f]")
_SILENT = re.compile("['’`´ʼ.·]")  # between letters of one word: McDonald's, U.S.
_APART = re.compile(r"[^\w]+|_+")
_LETTERS = str.maketrans(
    {"đ": "d", "ø": "o", "ł": "l", "ı": "i", "æ": "ae", "œ": "oe", "ħ": "h"}
)  # no accents in Unicode
CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


def normalised(text: str) -> str:
    """Text without case, accents, width, punctuation; one space between words: `Café  O'N` -> `cafe on`."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = unicodedata.normalize("NFKC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))
    text = text.translate(_LETTERS)
    return _APART.sub(" ", _SILENT.sub("", text)).strip()


def is_cjk(text: str) -> bool:
    """Whether a text holds Chinese characters or kana, which are written without spaces."""
    return CJK.search(text) is not None
