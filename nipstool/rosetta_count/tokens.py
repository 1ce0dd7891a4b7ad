"""Where each token stands in the bytes of a text.

Character offsets are wrong where a token is a part of a character (byte-level BPE, byte fallback), so the bytes of
each vocabulary entry are used wherever they give the text back; offsets are for the rest (lower-casing, NFKC).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import UnavailableError

if TYPE_CHECKING:
    import numpy as np

SPACE = "\u2581"  # what SentencePiece writes for a space
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Tokens:
    """The tokens of one text, special ones left out: ids and byte ranges [start, stop), int64 [n]."""

    ids: np.ndarray
    start: np.ndarray
    stop: np.ndarray


@cache
def byte_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE writes bytes with, as GPT-2's bytes_to_unicode defines them."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}


class Tokeniser:
    """A tokenizer with the bytes of each vocabulary entry."""

    def __init__(self, tokenizer: Any, told: str):
        self.tokenizer, self.told = tokenizer, told
        self.pieces = vocabulary_bytes(tokenizer)
        self.prefix, self.suffix = special_ends(tokenizer)

    def __call__(self, texts: list[str]) -> list[Tokens]:
        """Each text's tokens. Raises UnavailableError for a tokenizer that cannot say where they stand."""
        fast = bool(getattr(self.tokenizer, "is_fast", False))
        words = {"add_special_tokens": False, "verbose": False}
        coded = self.tokenizer(texts, return_offsets_mapping=fast, **words) if texts else {"input_ids": []}
        offsets = coded["offset_mapping"] if fast and texts else [None] * len(texts)
        return [self._tokens(*each) for each in zip(texts, coded["input_ids"], offsets, strict=True)]

    def _tokens(self, text: str, ids: list[int], offsets: Any) -> Tokens:
        import numpy as np

        data = text.encode(errors="surrogatepass")
        pieces = [self.pieces[i] if i < len(self.pieces) else None for i in ids]
        found = spelled(pieces, data)
        if found is None:
            if offsets is None:
                raise UnavailableError(
                    f"{self.told}: its tokenizer gives no offsets; expected a fast one (tokenizer.json)"
                )
            found = by_offsets(text, np.array(offsets, dtype=np.int64).reshape(-1, 2))
        return Tokens(np.array(ids, dtype=np.int64), *found)


def vocabulary_bytes(tokenizer: Any) -> list[bytes | None]:
    """id -> the bytes it stands for; None where its spelling does not say."""
    words: dict[str, int] = tokenizer.get_vocab()
    added = set(getattr(tokenizer, "added_tokens_encoder", {}))
    alphabet = byte_alphabet()
    usual = [word for word in words if word not in added]
    level = bool(usual) and all(c in alphabet for word in usual for c in word)
    pieces: list[bytes | None] = [None] * (max(words.values(), default=-1) + 1)
    for word, number in words.items():
        if word in added:
            pieces[number] = word.encode()
        elif level:
            pieces[number] = bytes(alphabet[c] for c in word)
        elif (byte := BYTE.fullmatch(word)) is not None:
            pieces[number] = bytes([int(byte[1], 16)])
        else:
            pieces[number] = word.replace(SPACE, " ").encode(errors="surrogatepass")
    return pieces


def spelled(pieces: list[bytes | None], data: bytes) -> tuple[np.ndarray, np.ndarray] | None:
    """(start, stop) where the pieces give the text back, but for a space put before it; None elsewhere."""
    import numpy as np

    known = [piece for piece in pieces if piece is not None]
    if len(known) != len(pieces):
        return None
    whole = b"".join(known)
    early = len(whole) - len(data)
    if early not in (0, 1) or whole != b" " * early + data:
        return None
    stop = np.cumsum(np.fromiter(map(len, known), dtype=np.int64, count=len(known)))
    start = np.concatenate([np.zeros(1, dtype=np.int64), stop])[: len(stop)]
    return np.maximum(start - early, 0), np.maximum(stop - early, 0)


def by_offsets(text: str, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(start, stop) in bytes from the tokenizer's own offsets [n, 2] in characters."""
    import numpy as np

    points = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
    lengths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    place = np.concatenate([[0], np.cumsum(lengths)])
    return place[offsets[:, 0]], place[offsets[:, 1]]


def special_ends(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and after a text."""
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    for at in range(len(whole) - len(inner) + 1):
        if whole[at : at + len(inner)] == inner:
            return whole[:at], whole[at + len(inner) :]
    return [], []
