"""Controlled completions: answers whose length the prompt decides, as no dataset has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from nipstool.kit.errors import UsageError

WORDS = ("apple", "river", "stone", "cloud", "green", "tiger", "paper", "music", "seven", "light")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
KINDS = ("count", "list", "repeat", "copy", "spell")


def completions(kinds: Sequence[str], number: int, low: int, high: int, seed: int) -> Iterator[dict[str, Any]]:
    """`number` records {"prompt", "response"} of low..high items, the kinds in turn; the dataset is the kind.

    Raises UsageError for a kind that there is not, or lengths that are none.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"--synthetic {kind}: expected some of {', '.join(KINDS)}")
    if not 1 <= low <= high:
        raise UsageError(f"--lengths {low}:{high}: expected LOW:HIGH with 1 <= LOW <= HIGH")
    random = Random(seed)
    for i in range(number):
        kind = kinds[i % len(kinds)]
        prompt, response = _made(kind, random.randint(low, high), random)
        yield {
            "id": f"{kind}-{i}",
            "group": f"{kind} {prompt}",
            "dataset": kind,
            "prompt": prompt,
            "response": response,
            "finish_reason": "stop",
        }


def _made(kind: str, items: int, random: Random) -> tuple[str, str]:
    if kind == "count":
        return f"Count from 1 to {items}:", "".join(f" {i}" for i in range(1, items + 1))
    if kind == "list":
        words = [random.choice(WORDS) for _ in range(items)]
        return f"Write a list of {items} words:", "".join(f"\n{i}. {w}" for i, w in enumerate(words, 1))
    if kind == "repeat":
        word = random.choice(WORDS)
        return f"Repeat the word {word} {items} times:", f" {word}" * items
    if kind == "copy":
        text = " ".join(random.choice(WORDS) for _ in range(items))
        return f"Copy this text: {text}\nCopy:", f" {text}"
    number = [random.randrange(10) for _ in range(items)]
    return f"Spell the digits of {''.join(map(str, number))}:", "".join(f" {DIGITS[d]}" for d in number)
