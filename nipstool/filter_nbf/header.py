"""The header of a CSV: whether a stream's first line is one, and whether its columns are those of the model."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from nipstool.kit.errors import DataError

SEPARATORS = {",": "','", ";": "';'", "\t": "tabs"}
WORD = re.compile(r"[^\W\d]\w*")
JSON_WORDS = ("true", "false", "null", "NaN", "Infinity")
LONGEST = 200  # characters of the columns that an error shows


class HeaderError(DataError):
    """The header makes every row unusable: the stream ends here."""


def split(text: str, separator: str = ",") -> list[str]:
    """The fields of a line of CSV. Raises DataError where a quote is not closed."""
    try:
        return next(csv.reader([text], delimiter=separator, strict=True))
    except (csv.Error, StopIteration) as error:
        raise DataError(f"invalid CSV ({error})") from error


def plain(name: str, known: Mapping[str, str]) -> str:
    """A column's name, without "obs." or "control.", unless `known` (field -> name) has it with them."""
    name = name.strip()
    return name if name in known.values() else name.removeprefix("obs.").removeprefix("control.")


def is_header(text: str, known: Mapping[str, str]) -> bool:
    """Whether the first line of a stream is the header of a CSV, be it one that cannot be used.

    It is where it has a name of `known`, or where separators part it into words none of which is a number. A line
    that begins with a brace or a bracket never is: it is JSON, be it broken.
    """
    if text[0] in "{[":
        return False
    fields = _fields(text, ",")
    if any(plain(field, known) in known.values() for field in fields):
        return True
    if len(fields) == 1 and WORD.fullmatch(text) and text not in JSON_WORDS:
        return True
    return any(_are_words(_fields(text, separator)) for separator in SEPARATORS)


def checked(text: str, known: Mapping[str, str], wanted: Sequence[str], *, mapped: Sequence[str]) -> list[str]:
    """The names of the columns.

    Args:
        known: field -> the name it has in the input. wanted: observations and controls among the fields.
        mapped: the fields that --columns names. Where there are some, other columns are let be.

    Raises HeaderError: another separator than commas; a column that is not known; one that --columns names and
    that is not there; none but others.
    """
    fields = _fields(text, ",")
    names = [plain(field, known) for field in fields]
    if not set(names) & set(known.values()):
        for separator in (";", "\t"):
            if _are_words(_fields(text, separator)):
                said = f"columns are separated by {SEPARATORS[separator]}; expected commas"
                raise HeaderError(f"{said}: {_shown(_fields(text, separator))}")
    others = [name for name in names if name not in (*known.values(), "obs", "control", "truth")]
    lacking = [field for field in mapped if known[field] not in names]
    if mapped and others and not lacking and not any(known[field] in names for field in wanted):
        lacking = list(wanted[:1])
    if lacking or (others and not mapped):
        raise HeaderError(_advice(names, others, known, wanted, lacking))
    return names


def _advice(
    names: Sequence[str],
    others: Sequence[str],
    known: Mapping[str, str],
    wanted: Sequence[str],
    lacking: Sequence[str],
) -> str:
    """What was found, what was expected, and an example of --columns that would be taken."""
    absent = [*lacking, *(field for field in wanted if known[field] not in names)]
    times = [name for name in others if name.lower().startswith("time")]
    if absent:
        field, column = absent[0], _likely(known[absent[0]], others)
    elif known["t"] not in names and times:
        field, column = "t", times[0]
    else:
        field, column = wanted[0], known[wanted[0]]
    expected = ", ".join(known.values())
    return f"columns {_shown(names)}; expected {expected}: name them with --columns {field}={column}"


def _likely(name: str, others: Sequence[str]) -> str:
    """The column that is most probably meant by a name: one that begins with it, one like it, or the last."""
    begun = [other for other in others if other.lower().startswith(name.lower())]
    near = get_close_matches(name, others, n=1)
    return next(iter([*begun, *near, *others[-1:], name]))


def _fields(text: str, separator: str) -> list[str]:
    """`split`, with nothing for what is no CSV."""
    try:
        return split(text, separator)
    except DataError:
        return []


def _are_words(fields: Sequence[str]) -> bool:
    """Whether these are two fields or more, not all empty, without numbers or anything of JSON in them."""
    return len(fields) > 1 and any(map(str.strip, fields)) and not any(map(_is_no_word, fields))


def _is_no_word(field: str) -> bool:
    field = field.strip()
    if field in JSON_WORDS or field[:4].isdigit() or set('{}[]":') & set(field):
        return True
    try:
        float(field)
    except ValueError:
        return False
    return True


def _shown(names: Sequence[str]) -> str:
    text = ", ".join(name.strip() for name in names)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
