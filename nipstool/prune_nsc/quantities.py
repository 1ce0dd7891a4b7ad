"""Numbers as people write them on a command line: 5.7B, 11G, 40M, lists of widths."""

from __future__ import annotations

from nipstool.kit.errors import UsageError

SUFFIXES = {"K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}


def count(option: str, text: str | None) -> int | None:
    """5.7B, 11G, 40M, 1e9 or 123 as a whole number; None stays None. Raises UsageError naming the option."""
    if text is None:
        return None
    factor = SUFFIXES.get(text[-1:].upper())
    digits = text if factor is None else text[:-1]
    try:
        number = int(digits) * (factor or 1) if digits.isdigit() else round(float(digits) * (factor or 1))
    except (ValueError, OverflowError):
        number = 0
    if number < 1:
        raise UsageError(f"{option} {text}: expected a number above 0, such as 5.7B, 11G, 40M or 1e9")
    return number


def numbers(option: str, text: str | None) -> list[int] | None:
    """11008,9632 as a list; None stays None. Raises UsageError naming the option."""
    if text is None:
        return None
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text}: expected whole numbers with commas between them") from None
