"""Names of places: the bundled ones of chains, the user's from a map, and which of them a text is."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from nipstool.detect_navtext.words import is_cjk, normalised

CUTOFF = 80  # of fuzz.ratio: below it two names are different names
EXACT_BELOW = 4  # characters: shorter names differ in one letter from too many words
CHUNK = 64  # lines compared at once; the table of similarities has so many rows
MOST_WORDS = 6  # of a name that is looked for inside a text
BUNDLED = "names.json.gz"

# The first of these tags that an object has says what a sign with its name is.
_KIND_OF_KEY = (
    ("aeroway", {"gate": "gate"}, None),
    (
        "railway",
        {"platform": "platform", "station": "station", "halt": "station", "subway_entrance": "exit"},
        None,
    ),
    ("public_transport", {"platform": "platform", "station": "station"}, None),
    ("indoor", {"room": "room", "level": "floor", "area": "section"}, None),
    ("room", {}, "room"),
    ("door", {}, "room"),
    ("entrance", {}, "exit"),
    (
        "amenity",
        {"toilets": "facility", "parking": "facility", "hospital": "facility", "library": "facility"},
        "store",
    ),
    ("shop", {}, "store"),
    ("highway", {"bus_stop": "station", "elevator": "facility", "steps": "facility"}, "street"),
    ("tourism", {"information": "directory"}, "store"),
)


@dataclass(frozen=True)
class Name:
    """One name on a map.

    Attributes:
        text: as it is written.
        kind: what a sign with this name names; one of KINDS.
        source: `map` for the user's, `chains` for the bundled.
        id: of the object on the map, as `node/123`; empty where there is none.
    """

    text: str
    kind: str = "store"
    source: str = "map"
    id: str = ""


@dataclass(frozen=True)
class Match:
    """A name that a text is, or holds.

    Attributes:
        name: the name.
        similarity: 0.8 to 1: fuzz.ratio / 100 of whole texts; of a name inside, 0.8 + 0.2 * its share of the text.
        whole: whether the whole text is the name.
    """

    name: Name
    similarity: float
    whole: bool


class Names:
    """Names to compare with. Of two that read alike, the first one given stands."""

    def __init__(self, names: Sequence[Name]):
        self._by_key: dict[str, Name] = {}
        for name in names:
            key = normalised(name.text)
            if key:
                self._by_key.setdefault(key, name)
        self._keys = [key for key in self._by_key if len(key) >= EXACT_BELOW]

    @property
    def names(self) -> list[Name]:
        """The names in the order given."""
        return list(self._by_key.values())

    @property
    def texts(self) -> list[str]:
        """The names as they are written, in the order given."""
        return [name.text for name in self._by_key.values()]

    def __len__(self) -> int:
        return len(self._by_key)

    @staticmethod
    def bundled() -> Names:
        """The names of chains in the name-suggestion-index of OpenStreetMap."""
        return _bundled()

    def match(self, texts: Sequence[str | None]) -> list[Match | None]:
        """The name that each text is or holds; None where there is none.

        Whole texts are compared by rapidfuzz's fuzz.ratio on `normalised` text with CUTOFF; names below
        EXACT_BELOW characters must be equal. Then whole words (of Chinese and Japanese: characters) inside the
        text are looked up.
        """
        keys = [normalised(text) if text else "" for text in texts]
        found = {key: self._at_once(key) for key in dict.fromkeys(keys)}
        self._compare([key for key, match in found.items() if match is None and len(key) >= EXACT_BELOW], found)
        for key, match in found.items():
            inside = self._inside(key) if match is None or match.similarity < 0.9 else None
            if inside is not None and (match is None or inside.similarity > match.similarity):
                found[key] = inside
        return [found[key] for key in keys]

    def _at_once(self, key: str) -> Match | None:
        name = self._by_key.get(key) if key else None
        return None if name is None else Match(name, 1.0, True)

    def _compare(self, keys: Sequence[str], found: dict[str, Match | None]) -> None:
        """Fill in, for each key, the most similar name at or above CUTOFF."""
        from rapidfuzz import fuzz, process

        if not self._keys:
            return
        for start in range(0, len(keys), CHUNK):
            rows = keys[start : start + CHUNK]
            table = process.cdist(
                rows, self._keys, scorer=fuzz.ratio, score_cutoff=CUTOFF, dtype=np.uint8, workers=1
            )
            best = table.argmax(axis=1)
            for key, row, column in zip(rows, table, best, strict=True):
                if row[column]:
                    exact = fuzz.ratio(key, self._keys[column]) / 100
                    found[key] = Match(self._by_key[self._keys[column]], round(exact, 4), True)

    def _inside(self, key: str) -> Match | None:
        """The longest name that stands as whole words in a text."""
        length = len(key.replace(" ", ""))
        for part in _parts(key):
            name = self._by_key.get(part)
            if name is not None:
                share = len(part.replace(" ", "")) / length
                return Match(name, round(0.8 + 0.2 * share, 4), False)
        return None


def _parts(key: str) -> Iterator[str]:
    """What may be a name inside a text: runs of words, longest first; of Chinese and Japanese, of characters."""
    words = key.split()
    for count in range(min(MOST_WORDS, len(words) - 1), 0, -1):
        for start in range(len(words) - count + 1):
            part = " ".join(words[start : start + count])
            if len(part) >= EXACT_BELOW and not part.isdigit():
                yield part
    for word in words:
        if is_cjk(word):
            for count in range(min(12, len(word) - 1), 1, -1):
                yield from (word[start : start + count] for start in range(len(word) - count + 1))


def kind_of(tags: Mapping[str, object]) -> str:
    """What a sign with the name of an OpenStreetMap object names, by the object's tags."""
    for key, kinds, default in _KIND_OF_KEY:
        value = tags.get(key)
        if value and str(value) != "no":
            kind = kinds.get(str(value), default)
            if kind is not None:
                return kind
    return "store"


@cache
def _bundled() -> Names:
    packed = resources.files("nipstool.detect_navtext").joinpath("data", BUNDLED).read_bytes()
    groups: dict[str, list[str]] = json.loads(gzip.decompress(packed))
    return Names([Name(text, kind, "chains") for kind, texts in groups.items() for text in texts])
