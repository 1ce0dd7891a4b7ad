"""What a text says by its words and its form: rooms, floors, exits …, and prices, phone numbers, notices."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from nipstool.detect_navtext.words import CJK, is_cjk, normalised

NEGATIVE = ("sale", "notice", "goods")  # in the file with a minus before them
MOST_WORDS = 5
SHORT = 2  # letters: words like `to` or `al` count only at an end of a text

Found = Mapping[str, float]

_CURRENCY = r"(?:€|eur|kr|zł|zl|kč|kc|ft|lei|tl|₺|usd|円|元|лв|руб|rm|rp|chf|s\$|hk\$|nt\$)"
# Form on the text after NFKC, case kept. What a search finds decides, not where.
_FORMS = {
    "price": re.compile(
        rf"[$€£¥₹₩₺฿]\s?\d|\d\s?{_CURRENCY}(?!\w)|(?<!\w){_CURRENCY}\s?\d|^[^\w-]{{0,3}}\d{{1,4}}[.,]\d{{2}}\W{{0,3}}$"
        r"|\d\s?¢|\d+[.,][-–]$",
        re.I,
    ),
    "percent": re.compile(r"\d\s?[%％]|[%％]\s?\d|\d折"),
    "phone": re.compile(
        # not two numbers of four digits that begin alike: rooms from one to another
        r"(?<!\d)(?!(\d)\d{3}\s?[-–]\s?\1\d{3}(?!\d))(?:\+?\d[\s().\-–/]{0,2}){7,}"
        r"|(?i:\b(?:tel|phone|call|fax|hotline)\b.*\d{3})"
    ),
    "link": re.compile(
        r"(?i)www\b|https?\b|@\w|\w\.(?:com|org|net|gov|edu|info|shop|co|de|fr|uk|sg|es|it|nl|jp|cn)\b|\bqr\b"
    ),
    "time": re.compile(
        r"(?i)\b\d{1,2}[:h][0-5]\d\b|\b\d{1,2}\s?[ap]\.?m\b|\b\d{1,2}[/.-]\d{1,2}[/.-]\d{2,4}\b|\b(?:19|20)\d{2}\b"
        r"|\b(?:mon|tue|tues|wed|thu|thur|thurs|fri|sat|sun)(?:day)?s?\b\s*[-–:.&]"
        r"|\b(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|june?|july?|aug(?:ust)?|sept?(?:ember)?"
        r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?\s\d|24\s?(?:hours|hrs|h|小时|時間)\b|\d+月\d+|\d+[時点]\d*"
    ),
    "amount": re.compile(
        r"(?i)\b\d+(?:[.,]\d+)?\s?(?:ml|cl|g|gr|kg|mg|l|lt|oz|lb|lbs|mm|cm|pcs|kw|mb|gb|tb|hz|cal|kcal|inch)\b"
    ),
    "code": re.compile(r"^(?=.*\d)(?!(?:1[89]|20)\d\d$)[A-Z]{0,3}[-. ]?\d{1,4}(?:[-./]\d{1,4})?[ -]?[A-Za-z]?$"),
    "floor": re.compile(
        r"(?i)^(?:[bl]\d{1,2}|b?\d{1,2}/?f|[gul]/f|[gul]f|lg|ug|eg|dg|\d{1,2}\.?\s?(?:og|ug)|-\d)$"
        r"|\b(?:level|floor|lvl|etage|stock|piso|planta|piano|nivel|niveau|lantai|tingkat|kat|plan)\s?[-b]?\d{1,2}\b"
        r"|\b\d{1,2}(?:st|nd|rd|th|er|e|eme|º|ª|°|\.)?\s?(?:floor|level|etage|étage|stock|og|piso|planta|piano|kerros"
        r"|etasje|våning|sal|patro|poschodie|piętro|emelet|kat|tingkat|andar|verdieping)\b|[地下负B]?\d{1,2}\s?[階楼层樓層F]$"
    ),
    "gate": re.compile(
        r"(?i)\b(?:gates?|platforms?|gleis(?:e)?|quai|voie|binari[oi]?|spår|spor|anden|andén|peron|vágány|track|steig)"
        r"\s?[a-z]?\d{1,2}[a-z]?\b|^[A-Z]\s?\d{1,2}\s?[-–]\s?[A-Z]?\s?\d{1,2}$"
        r"|\bterminal\s?[a-z]?\d{0,2}\b|\d{1,2}\s?(?:番線|番のりば|号站台|号登机口|號月台)"
    ),
    "room": re.compile(
        r"(?i)\b(?:room|rm|raum|zimmer|salle|sala|aula|kamer|sal|rum|lokale|rom|huone|sala|učebna|místnost|terem|oda|phòng"
        r"|ruang|bilik|suite|unit|apt|office)\b\.?\s?#?[a-z]{0,2}[-. ]?\d{1,4}[a-z]?\b"
        r"|#\d{1,2}-\d{1,3}\b|\d{2,4}\s?(?:号室|教室|室)"
    ),
    "aisle": re.compile(
        r"(?i)\b(?:aisle|gang|pasillo|allée|corsia|corredor|gangpad|row|lorong|rayon)\s?#?\d{1,3}\b"
    ),
    "street": re.compile(
        r"(?i)^\d{1,4}[a-z]?[ ,-]+\w+.*\b(?:st|rd|ave|street|road|avenue|lane|dr|blvd)\b"
        r"|\b\w+ (?:st|rd|ave|blvd|ln)\.?$"
        r"|^(?:rue|via|calle|avenida|avenue|piazza|place|rua|praça|plaza|ul\.|jl\.?|jalan|ulica|viale)\s\w+"
        r"|[路街道巷弄里庄村]\d[\d-]*[号號]?$|\d丁目|\d番地"
    ),
    "direction": re.compile(
        r"[←↑→↓↖↗↘↙⇐⇑⇒⇓⬅⬆➡⬇➔➜◀▶▲▼«»]|^[<>]{1,2}\s|\s[<>]{1,2}$|^[<>]+$|(?i:^to\s(?:the\s)?\w)"
        r"|\b\d+(?:[.,]\d+)?\s?(?:km|mi|m)$"
    ),
}
NAVIGATES = ("code", "floor", "gate", "room", "aisle", "street", "direction")
ARROWS = {"←": "left", "↑": "up", "→": "right", "↓": "down", "↖": "up-left", "↗": "up-right", "↘": "down-right"}
ARROWS |= {
    "↙": "down-left",
    "⇐": "left",
    "⇑": "up",
    "⇒": "right",
    "⇓": "down",
    "⬅": "left",
    "⬆": "up",
    "➡": "right",
}
ARROWS |= {"⬇": "down", "➔": "right", "➜": "right", "◀": "left", "▶": "right", "▲": "up", "▼": "down"}


@dataclass(frozen=True)
class Reading:
    """What the words and the form of one text say.

    Attributes:
        kinds: kind -> share of the text's letters in words of that kind, 0 to 1.
        against: `sale` and `notice` -> the same.
        forms: names of the forms it has (price, phone, code …).
    """

    kinds: Found = field(default_factory=dict)
    against: Found = field(default_factory=dict)
    forms: frozenset[str] = frozenset()


def read_words(text: str | None) -> Reading:
    """Compare a text with the bundled lexicon; what is None or empty says nothing."""
    key = normalised(text) if text else ""
    if not text or not key:
        return Reading(forms=_forms(text or ""))
    shares = _shares(key)
    against = {name: share for name in NEGATIVE if (share := shares.pop(f"-{name}", 0.0))}
    return Reading(shares, against, _forms(text))


def _forms(text: str) -> frozenset[str]:
    plain = unicodedata.normalize("NFKC", text).strip()
    return frozenset(name for name, form in _FORMS.items() if form.search(plain))


def arrow_in(text: str | None) -> str | None:
    """The direction of the first arrow in a text: left, up, right, down, up-left …; None without one."""
    return next((ARROWS[sign] for sign in text or "" if sign in ARROWS), None)


def _shares(key: str) -> dict[str, float]:
    length = len(key.replace(" ", ""))
    shares: dict[str, float] = {}
    for phrase, kinds in _phrases_in(key):
        for kind in kinds:
            shares[kind] = min(1.0, shares.get(kind, 0.0) + len(phrase.replace(" ", "")) / length)
    return {kind: round(share, 4) for kind, share in shares.items()}


def _phrases_in(key: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The lexicon's phrases in a text, no word in two of them."""
    whole, endings, inside = _lexicon()
    words = key.split()
    taken = [False] * len(words)
    for count in range(min(MOST_WORDS, len(words)), 0, -1):
        for start in range(len(words) - count + 1):
            phrase = " ".join(words[start : start + count])
            kinds = whole.get(phrase)
            at_end = start == 0 or start + count == len(words)
            if kinds and not any(taken[start : start + count]) and (len(phrase) > SHORT or at_end):
                taken[start : start + count] = [True] * count
                yield phrase, kinds
    for word in (word for word, used in zip(words, taken, strict=True) if not used):
        yield from _endings(word, endings)
        if is_cjk(word):
            yield from _in_cjk(word, inside)


def _endings(word: str, endings: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for start in range(1, len(word)):
        if word[start:] in endings:
            yield word, endings[word[start:]]
            return


def _in_cjk(word: str, inside: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The phrases in a word of Chinese or Japanese, the longest first, no character in two: 出租车 is no 出租."""
    taken = [False] * len(word)
    for size in range(min(_longest(), len(word)), 0, -1):
        for start in range(len(word) - size + 1):
            sign, own = word[start : start + size], slice(start, start + size)
            kinds = inside.get(sign)
            if kinds and not any(taken[own]) and (size > 1 or _stands_alone(word, start, kinds)):
                taken[own] = [True] * size
                yield sign, kinds


def _stands_alone(word: str, at: int, kinds: tuple[str, ...]) -> bool:
    """A single character ends a name (…店, …駅); of notices it stands at either end, of sales beside a number."""
    if kinds[0] == "-sale":
        beside = word[max(at - 1, 0) : at] + word[at + 1 : at + 2]
        return len(word) == 1 or any(sign.isdigit() for sign in beside)
    return at == len(word) - 1 or (at == 0 and kinds[0].startswith("-"))


@cache
def _lexicon() -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Whole phrases, endings of words, and Chinese and Japanese phrases: each with the kinds it stands for."""
    text = resources.files("nipstool.detect_navtext").joinpath("data", "lexicon.json").read_text(encoding="utf-8")
    whole: dict[str, set[str]] = {}
    endings: dict[str, set[str]] = {}
    inside: dict[str, set[str]] = {}
    for kind, languages in json.loads(text).items():
        for phrases in languages.values():
            for phrase in phrases:
                key = normalised(phrase)
                place = inside if CJK.search(key) else endings if phrase.startswith("*") else whole
                place.setdefault(key, set()).add(kind)
    return _frozen(whole), _frozen(endings), _frozen(inside)


@cache
def _longest() -> int:
    return max(map(len, _lexicon()[2]))


def _frozen(table: Mapping[str, set[str]]) -> dict[str, tuple[str, ...]]:
    return {phrase: tuple(sorted(kinds)) for phrase, kinds in table.items()}
