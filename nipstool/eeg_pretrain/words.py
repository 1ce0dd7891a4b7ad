"""What is told of a person before the recording, as hashed n-grams: a vocabulary that needs no file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from nipstool.eeg_pretrain.config import TEXT_BUCKETS

MOST = 256  # n-grams of one text


def grams(text: Mapping[str, str]) -> list[str]:
    """Words, pairs of words and letters in threes of each field, marked with the field's name."""
    found = []
    for field, value in sorted(text.items()):
        words = re.findall(r"[^\W_]+", value.lower())
        found += [f"{field}:{word}" for word in words]
        found += [f"{field}:{one} {two}" for one, two in pairwise(words)]
        found += [f"{field}:{word[i : i + 3]}~" for word in words for i in range(len(word) - 2)]
    return found[:MOST]


def bucket(gram: str) -> int:
    """Its place among TEXT_BUCKETS, the same on every machine."""
    return int.from_bytes(blake2b(gram.encode(), digest_size=4).digest(), "big") % TEXT_BUCKETS


def numbers(texts: list[Mapping[str, str]]) -> np.ndarray:
    """(B, W) buckets of each text, -1 beyond its end."""
    rows = [[bucket(gram) for gram in grams(text)] for text in texts]
    width = max([1, *map(len, rows)])
    return np.array([row + [-1] * (width - len(row)) for row in rows], np.int64)
