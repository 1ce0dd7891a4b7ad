"""How well a score ranks networks: Kendall's tau over all pairs, and over pairs of nearly equal size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEAR = 0.10


@dataclass(frozen=True)
class Tau:
    """(concordant - discordant) / pairs; a tie counts among the pairs and in neither of the two."""

    tau: float | None
    pairs: int


def kendall(scores: Sequence[float], truth: Sequence[float], near: Sequence[float] | None = None) -> Tau:
    """Kendall's tau of `scores` against `truth`; with `near`, over pairs with |Pi - Pj| < NEAR max(Pi, Pj)."""
    import numpy as np

    s, t = np.asarray(scores, dtype=float), np.asarray(truth, dtype=float)
    i, j = np.triu_indices(len(s), k=1)
    if near is not None:
        p = np.asarray(near, dtype=float)
        kept = np.abs(p[i] - p[j]) < NEAR * np.maximum(p[i], p[j])
        i, j = i[kept], j[kept]
    if not len(i):
        return Tau(None, 0)
    agreement = np.sign(s[i] - s[j]) * np.sign(t[i] - t[j])
    return Tau(float(agreement.sum() / len(i)), len(i))
