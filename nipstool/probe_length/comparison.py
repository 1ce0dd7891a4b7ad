"""Predictors beside each other: every probe stands next to what is known without it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nipstool.kit.errors import DataError
from nipstool.probe_length.metrics import Scores, score, skill_interval

Array = np.ndarray
PROBE, BOTH = "probe", "position-and-probe"
CONSTANT, POSITION, POSITION_ENDED = "constant", "position", "position (ended only)"
LENGTH, TOKEN = "position and prompt length", "token identity"
SMOOTH = "position, smooth"  # a ridge on t, log1p t, sqrt t: what trace draws, free of the table's noise
PROMPT, PROMPT_TOKEN, TOBIT = "prompt length", "last prompt token", "probe (Tobit)"
HIDDEN = (PROBE, BOTH, TOKEN, PROMPT_TOKEN, TOBIT)  # these read a hidden state
NOTHING = 0.02  # a skill up to this is called nothing


@dataclass(frozen=True)
class Line:
    """One predictor beside the others."""

    name: str
    layer: int | None
    r2: float  # from the sums
    skill: float  # over the best baseline, from the sums
    scores: Scores | None  # from the sample
    interval: tuple[float, float] | None = None  # of the skill, 95 %, bootstrap over groups of the sample


def position_features(t: Array) -> Array:
    """[n, 3]: t, log1p t, sqrt t."""
    t = t.astype(np.float64)
    return np.stack([t, np.log1p(t), np.sqrt(t)], 1)


def lines_of(
    errors: dict[str, float],
    deviation: float,
    predicted: dict[str, Array],
    target: Array,
    weight: Array,
    group: Array,
    layers: dict[str, int],
    seed: int,
) -> list[Line]:
    """One line a predictor. Skill is over the best baseline that knows no hidden state.

    Raises DataError where a predictor gives no number at all.
    """
    plain = [name for name in errors if name not in HIDDEN]
    best = min(plain, key=lambda name: errors[name])
    lines = []
    for name, error in errors.items():
        sure = np.isfinite(predicted[name])
        if not weight[sure].sum() > 0:
            raise DataError(f"{name}: none of its predictions is a number; are the statistics damaged?")
        interval = None
        if name in (PROBE, BOTH, TOBIT):
            _, low, high = skill_interval(
                target[sure], predicted[name][sure], predicted[best][sure], weight[sure], group[sure], seed=seed
            )
            interval = (low, high)
        scores = score(target[sure], predicted[name][sure], weight[sure])
        r2, skill = 1 - error / deviation, 1 - error / errors[best]
        lines.append(Line(name, layers.get(name), r2, skill, scores, interval))
    return lines
