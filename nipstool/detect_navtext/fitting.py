"""Training of the relevance classifier: the shipped one from rendered scenes and names alone, and one for a place.

A network of one small hidden layer on the features of `relevance`. Where it is known which way a feature must
speak (a price never makes a sign), its weights may only have that sign; what rendered scenes cannot teach has
weight 0. So it stays sensible in places that look like none it has seen.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext import relevance
from nipstool.detect_navtext.boards import board_of
from nipstool.detect_navtext.lines import Line
from nipstool.detect_navtext.poi import Names
from nipstool.detect_navtext.relevance import CLIP, FEATURE_NAMES, FEATURE_VERSION, Classifier, classify
from nipstool.detect_navtext.scenes import FOLDS, Scene, fold_of, render
from nipstool.detect_navtext.scenes.reading import framed, lines_of, unknown
from nipstool.kit.progress import Progress, silent
from nipstool.kit.tensor_header import encode_header

Table = NDArray[np.float32]

HIDDEN = 8
PLACES, VIEWS = 40, 4  # of the shipped classifier; the last fold chooses its threshold
CAUTIOUS = 0.99  # of the navigation text of rendered places it was not trained on, the default keeps so much
# Passes over the scenes: whether a part of the scene is looked at, and the share of lines with unknown words.
PASSES = ((True, 0.0), (False, 0.35), (True, 0.35), (True, 1.0))
TRIED = PASSES[:3]  # what the threshold is chosen on
NAMED = ("store", "station", "street", "room", "facility")  # what a user's map may name
ON_MAP = 0.3  # of these, so many are on it; of other text, a twentieth of that
NOISE = 0.35  # standard deviations added to every feature

FOR = ("word_", "form_code", "form_floor", "form_gate", "form_room", "form_aisle", "form_street", "form_direction")
FOR += ("map_", "board_map", "board_for", "contrast", "isolation")
FOR += ("height_picture", "height_median", "height_rank", "height_board")
AGAINST = ("sale", "notice", "form_price", "form_percent", "form_phone", "form_link", "form_time", "form_amount")
AGAINST += ("board_against", "ground_unrest", "ring_unrest", "board_unrest", "density", "y", "words")
AGAINST += ("board_regular", "board_aligned")  # spreads: a sign's lines are alike, and begin at one edge
# not taught: what only the rendering or the simulated reading decides, or what says little by itself
SILENT = ("read", "text_score", "det_score", "x", "tilt", "lines", "sharpness", "ground_value", "light_on_dark")
SILENT += (
    "ground_blue",
    "ground_green",
    "ground_red",
    "ground_yellow",
    "ground_saturation",
    "fill",
    "cjk",
    "aspect",
)
SILENT += ("ring_step", "board_ring_step", "upper", "letters", "letter_share", "digits", "word_length")
SILENT += ("board_width", "board_height", "board_area")


@dataclass(frozen=True, eq=False)
class Sample:
    """The lines of some pictures as features (n, F), whether each is navigation text, and how much it counts."""

    table: Table
    is_nav: NDArray[np.bool_]
    weight: NDArray[np.float64]


def sign_of(name: str) -> int | None:
    """Which way a feature may speak: 1, -1, 0 for not at all, None for both ways."""
    if name in SILENT:
        return 0
    if name in AGAINST:
        return -1
    return 1 if name.startswith(FOR) else None


def of_lines(lines: Sequence[Line], labels: Sequence[str], image: NDArray[np.uint8], names: Names) -> Sample:
    """The features of the lines of one picture; those with the label `ignore` are there for the others' sake only.

    Each of the two kinds counts as the square root of its number, so that one full shelf is not everything.
    """
    table = relevance.features(lines, image, board_of(lines), names)
    is_nav = np.array([label == "nav" for label in labels], bool)
    kept = np.array([label != "ignore" for label in labels], bool)
    counts = np.where(is_nav, is_nav.sum(), (kept & ~is_nav).sum())
    weight = 1 / np.sqrt(np.maximum(counts, 1.0))
    return Sample(table[kept], is_nav[kept], weight[kept])


def joined(samples: Sequence[Sample]) -> Sample:
    """Several pictures as one."""
    width = len(FEATURE_NAMES)
    return Sample(
        np.concatenate([np.zeros((0, width), np.float32), *(s.table for s in samples)]),
        np.concatenate([np.zeros(0, bool), *(s.is_nav for s in samples)]),
        np.concatenate([np.zeros(0), *(s.weight for s in samples)]),
    )


def of_scene(
    scene: Scene, names: Names, seed: tuple[int, ...], in_part: bool = False, share: float = 0.0
) -> Sample:
    """A rendered scene, or a part of it, as an OCR might have read it, a share of its words unknown."""
    random = np.random.default_rng(seed)
    scene = framed(scene, random) if in_part else scene
    lines, labels = lines_of(scene, random)
    sample = of_lines(unknown(lines, random, share), [label.label for label in labels], scene.image, names)
    named = np.array([label.kind in NAMED for label in labels if label.label != "ignore"], bool)
    on_map = random.random(len(named)) < np.where(named, ON_MAP, ON_MAP / 20)
    sample.table[on_map, FEATURE_NAMES.index("map_own")] = 1.0
    return sample


def fit(
    sample: Sample, *, seed: int = 0, penalty: float = 3e-3, prior: Classifier | None = None
) -> dict[str, Table]:
    """The arrays of a classifier: weighted cross-entropy with both classes balanced, and an L2 penalty.

    Args:
        penalty: on the squared weights, or on their squared distance from those of `prior`.
        prior: a classifier to start from and stay near.

    Returns:
        mean, scale, w0, b0, w1, b1 as `relevance.Classifier` has them.
    """
    from scipy.optimize import minimize

    if prior is not None and "w0" in prior.arrays:
        mean, scale = prior.arrays["mean"].astype(float), prior.arrays["scale"].astype(float)
        start = np.concatenate([prior.arrays[n].astype(float).ravel() for n in ("w0", "b0", "w1", "b1")])
        centre = start
    else:
        mean = sample.table.mean(axis=0, dtype=float)
        scale = np.maximum(sample.table.std(axis=0, dtype=float), 0.05)
        start = _start(np.random.default_rng(seed))
        centre = np.zeros_like(start)
    x = np.clip((sample.table - mean) / scale, -CLIP, CLIP)
    weight = _balanced(sample)
    result = minimize(
        _objective,
        np.clip(start, *np.array(bounds(), float).T),
        args=(x, sample.is_nav.astype(float), weight, penalty, centre),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds(),
        options={"maxiter": 300},
    )
    w0, b0, w1, b1 = _parts(result.x)
    arrays = {"mean": mean, "scale": scale, "w0": w0, "b0": b0, "w1": w1[None], "b1": b1}
    return {name: np.ascontiguousarray(value, np.float32) for name, value in arrays.items()}


def bounds() -> list[tuple[float, float]]:
    """Of all weights in their order: the signs of `sign_of`; outputs of hidden units are not negative."""
    limits = {1: (0.0, np.inf), -1: (-np.inf, 0.0), 0: (0.0, 0.0), None: (-np.inf, np.inf)}
    row = [limits[sign_of(name)] for name in FEATURE_NAMES]
    free = limits[None]
    return [*(row * HIDDEN), *([free] * HIDDEN), *([limits[1]] * HIDDEN), free]


def _start(random: np.random.Generator) -> NDArray[np.float64]:
    width = len(FEATURE_NAMES)
    w0 = random.normal(0, 0.3, (HIDDEN, width))
    for column, name in enumerate(FEATURE_NAMES):
        sign = sign_of(name)
        if sign is not None:
            w0[:, column] = sign * np.abs(w0[:, column])
    return np.concatenate([w0.ravel(), np.zeros(HIDDEN), np.full(HIDDEN, 0.5), np.zeros(1)])


def _parts(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    size = HIDDEN * len(FEATURE_NAMES)
    w0, b0, w1, b1 = np.split(values, [size, size + HIDDEN, size + 2 * HIDDEN])
    return w0.reshape(HIDDEN, -1), b0, w1, b1


def _balanced(sample: Sample) -> NDArray[np.float64]:
    weight = sample.weight.copy()
    for kind in (True, False):
        weight[sample.is_nav == kind] /= max(weight[sample.is_nav == kind].sum(), 1e-9)
    return weight / 2


def _objective(
    values: NDArray[np.float64],
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    weight: NDArray[np.float64],
    penalty: float,
    centre: NDArray[np.float64],
) -> tuple[float, NDArray[np.float64]]:
    """The loss and its gradient by hand: logit = w1 tanh(w0 x + b0) + b1."""
    w0, b0, w1, b1 = _parts(values)
    hidden = np.tanh(x @ w0.T + b0)
    logit = hidden @ w1 + b1[0]
    loss = float(weight @ (np.logaddexp(0, logit) - y * logit))
    error = weight * (1 / (1 + np.exp(-logit)) - y)  # d loss / d logit
    inner = error[:, None] * w1 * (1 - hidden**2)
    gradient = np.concatenate([(inner.T @ x).ravel(), inner.sum(axis=0), hidden.T @ error, [error.sum()]])
    apart = values - centre
    return loss + penalty * float(apart @ apart), gradient + 2 * penalty * apart


def noisy(sample: Sample, random: np.random.Generator) -> Sample:
    """The same lines with noise on every feature that varies: another rendering, camera, OCR."""
    spread = sample.table.std(axis=0)
    table = sample.table + random.normal(0, NOISE, sample.table.shape) * spread
    return Sample(table.astype(np.float32), sample.is_nav, sample.weight)


def cautious_threshold(scores: NDArray[np.floating], is_nav: NDArray[np.bool_], recall: float = CAUTIOUS) -> float:
    """The highest threshold at which this share of the navigation text is kept, to three digits downwards."""
    kept = np.sort(scores[is_nav])
    return float(np.floor(kept[int((1 - recall) * len(kept))] * 1000) / 1000) if len(kept) else 0.5


def shipped(
    names: Names, *, places: int = PLACES, views: int = VIEWS, seed: int = 0, progress: Progress = silent
) -> Classifier:
    """The classifier of the package, from rendered scenes and names alone: the same always, to the byte."""
    brands = drawable(names)
    taught: list[Sample] = []
    held_out: list[Sample] = []
    for place in range(places):
        for view in range(views):
            scene = render(place, view, brands=brands)
            own = held_out if fold_of(place) == FOLDS - 1 else taught
            passes = PASSES if own is taught else TRIED
            own += [of_scene(scene, names, (seed, place, view, i), *how) for i, how in enumerate(passes)]
        progress(place + 1, places)
    sample = joined(taught)
    arrays = fit(joined([sample, noisy(sample, np.random.default_rng(seed))]), seed=seed)
    tried = joined(held_out)
    threshold = cautious_threshold(classify(tried.table, Classifier(arrays, 0.5)), tried.is_nav)
    return Classifier(arrays, threshold)


def drawable(names: Names) -> list[str]:
    """Names that the typefaces of rendered scenes can write: Latin and Greek letters, no longer than a sign."""
    return [t for t in names.texts if 2 < len(t) < 22 and all(c < "\u0250" or "\u0370" <= c < "\u0400" for c in t)]


def as_bytes(classifier: Classifier) -> bytes:
    """The classifier as a safetensors file: the same one always as the same bytes."""
    arrays = {name: np.ascontiguousarray(classifier.arrays[name], "<f4") for name in sorted(classifier.arrays)}
    about = {
        "features": str(FEATURE_VERSION),
        "names": ",".join(FEATURE_NAMES),
        "threshold": f"{classifier.threshold:g}",
    }
    header = encode_header({name: ("F32", array.shape) for name, array in arrays.items()}, about)
    return header + b"".join(array.tobytes() for array in arrays.values())


def main(path: str) -> None:
    """Write the shipped classifier: python -m nipstool.detect_navtext.fitting FILE."""
    Path(path).write_bytes(as_bytes(shipped(Names.bundled())))


if __name__ == "__main__":
    main(sys.argv[1])
