"""From words on a command line to settings; what makes no sense is a UsageError that says what would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nipstool.filter_nbf.filter import Settings
from nipstool.kit.errors import UsageError
from nipstool.kit.records import parse_json

COVS = ("auto", "full", "shrunk", "diag")


def one_of(option: str, value: str, allowed: Sequence[str]) -> str:
    """`value`, which is one of `allowed`."""
    if value not in allowed:
        raise UsageError(f"{option} {value}: expected {', '.join(allowed)}")
    return value


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """NAME=VALUE words as a mapping."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"{option} {text}: expected NAME=VALUE")
        found[name] = value
    return found


def parameters(given: Sequence[str] | None) -> dict[str, Any]:
    """--param words: a value is JSON, or else text."""
    found: dict[str, Any] = {}
    for name, value in pairs("--param", given).items():
        try:
            found[name] = parse_json(value)
        except ValueError:
            found[name] = value
    return found


def settings_of(
    n: int,
    *,
    belief: str,
    paper: bool = False,
    regenerate: str = "ess",
    threshold: float | None = None,
    keep: float | None = None,
    temper: bool = True,
    max_dt: float | None = None,
) -> Settings:
    """How the loop runs; `paper` overrides what is ours."""
    one_of("--regenerate", regenerate, ("ess", "always", "never"))
    if max_dt is not None and not max_dt > 0:
        raise UsageError(f"--max-dt {max_dt}: expected a time above 0")
    if paper and belief == "pf":
        raise UsageError("--paper is about regenerating from an embedding, and --belief pf has none")
    if paper:
        return Settings(n, "always", keep=0.0, temper=False, max_dt=max_dt)
    return Settings(n, regenerate, threshold, keep, temper and belief != "pf", max_dt=max_dt)
