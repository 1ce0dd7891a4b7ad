"""Training of the relevance classifier: the shipped one from rendered scenes and names alone, and one for a place.

A linear model on the features of `relevance`. Where it is known which way a feature must speak (a price makes no
sign), its weight may only have that sign; what rendered scenes cannot teach has weight 0; and looks are trusted
less than words. So it stays sensible in places that look like none it has seen.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext import company, phrasing, relevance
from nipstool.detect_navtext.boards import board_of
from nipstool.detect_navtext.lines import Line
from nipstool.detect_navtext.poi import Names
from nipstool.detect_navtext.relevance import CLIP, FEATURE_NAMES, FEATURE_VERSION, Classifier, classify
from nipstool.detect_navtext.scenes import FOLDS, Scene, fold_of, render
from nipstool.detect_navtext.scenes.reading import framed, lines_of, unknown
from nipstool.detect_navtext.scenes.retelling import retold
from nipstool.kit.progress import Progress, silent
from nipstool.kit.tensor_header import encode_header

Table = NDArray[np.float32]

# What a text says means the same everywhere: weights of words begin at EXPECTED in the direction that is known, so
# that rare ones have some. What is seen is the renderer's: its weights begin at 0 and are held there more firmly.
EXPECTED = 0.3
WORDS, LOOKS = 1e-2, 5e-2  # penalties on the squared distance of a weight from where it begins
PLACES, VIEWS = 40, 2  # of the shipped classifier; the last fold chooses its threshold
CAUTIOUS = 0.995  # of the navigation text of rendered places it was not trained on, the default keeps so much
SIZE = (960, 720)


@dataclass(frozen=True)
class Pass:
    """How the scenes are looked at once: in part or whole; the share of lines whose words become unknown; whether
    the words are exchanged for those of other texts; whether only the lines of one label are there."""

    in_part: bool = True
    unknown: float = 0.0
    retold: bool = False
    only: str | None = None


WHOLE = Pass(in_part=False)
PASSES = (
    Pass(),
    Pass(in_part=False, unknown=0.35),
    Pass(unknown=0.35),
    Pass(unknown=1.0),
    Pass(retold=True),
    Pass(in_part=False, retold=True, unknown=0.2),
    Pass(retold=True, only="other"),
    Pass(retold=True, only="nav", unknown=0.2),
)
NAMED = ("store", "station", "street", "room", "facility")  # what a user's map may name
ON_MAP = 0.3  # of these, so many are on it; of other text, a twentieth of that
NOISE = 0.35  # standard deviations added to every feature

FOR = ("word_", "form_code", "form_floor", "form_gate", "form_room", "form_aisle", "form_street", "form_direction")
FOR += ("map_", "board_map", "board_for", "contrast")
FOR += ("near_for", "height_picture", "height_median", "height_rank", "height_board")
AGAINST = (
    "sale",
    "notice",
    "goods",
    "form_price",
    "form_percent",
    "form_phone",
    "form_link",
    "form_time",
    "form_amount",
)
AGAINST += ("board_against", "density", "y", "length")
AGAINST += ("near_against", "repeated", "told", "sentence_mark", "goes_on", "serial", "measured", "registered")
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
# rendered signs hang alone on calm walls; signs in streets do not
SILENT += ("isolation", "ground_unrest", "ring_unrest", "board_unrest")


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
    scene: Scene,
    names: Names,
    seed: tuple[int, ...],
    how: Pass = WHOLE,
    brands: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Sample:
    """The lines of a rendered scene as an OCR might have read them, looked at in a way.

    Args:
        brands: names of chains for texts that are exchanged. without: registers of such texts that are not used.
    """
    random = np.random.default_rng(seed)
    scene = framed(scene, random) if how.in_part else scene
    pairs = zip(*lines_of(scene, random), strict=True)
    pairs = [(line, label) for line, label in pairs if how.only is None or label.label in (how.only, "ignore")]
    lines, labels = [line for line, _ in pairs], [label.label for _, label in pairs]
    if how.retold:
        lines = retold(lines, labels, board_of(lines), random, brands, without)
    sample = of_lines(unknown(lines, random, how.unknown), labels, scene.image, names)
    named = np.array([label.kind in NAMED for _, label in pairs if label.label != "ignore"], bool)
    on_map = random.random(len(named)) < np.where(named, ON_MAP, ON_MAP / 20)
    sample.table[on_map, FEATURE_NAMES.index("map_own")] = 1.0
    return sample


def fit(sample: Sample, *, prior: Classifier | None = None, penalty: float | None = None) -> dict[str, Table]:
    """The arrays of a linear classifier: weighted cross-entropy with both classes balanced, and an L2 penalty.

    Args:
        prior: a linear classifier to stay near: the penalty is on the distance from it, and signs are free.
        penalty: on every squared distance; by default WORDS for words and names, LOOKS for all others.

    Returns:
        mean, scale, w1 and b1 as `relevance.Classifier` has them.
    """
    from scipy.optimize import minimize

    mean, scale = _scales(sample) if prior is None else (prior.arrays["mean"], prior.arrays["scale"])
    x = np.clip((sample.table.astype(float) - mean) / scale, -CLIP, CLIP)
    centre = _expected() if prior is None else _weights(prior)
    weigh = np.append(_penalties() if penalty is None else np.full(x.shape[1], penalty), 0.0)
    limits = bounds() if prior is None else None
    args = (x, sample.is_nav.astype(float), _balanced(sample), weigh, centre)
    result = minimize(_objective, centre, args, "L-BFGS-B", jac=True, bounds=limits, options={"maxiter": 500})
    arrays = {"mean": mean, "scale": scale, "w1": result.x[None, :-1], "b1": result.x[-1:]}
    return {name: np.ascontiguousarray(value, np.float32) for name, value in arrays.items()}


def bounds() -> list[tuple[float, float]]:
    """Of all weights in the features' order, and of the bias: the signs of `sign_of`."""
    limits = {1: (0.0, np.inf), -1: (-np.inf, 0.0), 0: (0.0, 0.0), None: (-np.inf, np.inf)}
    return [*(limits[sign_of(name)] for name in FEATURE_NAMES), limits[None]]


def _scales(sample: Sample) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return sample.table.mean(axis=0, dtype=float), np.maximum(sample.table.std(axis=0, dtype=float), 0.05)


def _weights(classifier: Classifier) -> NDArray[np.float64]:
    return np.append(classifier.arrays["w1"][0], classifier.arrays["b1"]).astype(float)


def _spoken() -> NDArray[np.bool_]:
    """Which features are of what is said, and not of what is seen."""
    begin = ("word_", "form_", "sale", "notice", "goods", "map_", "board_map", "board_for", "board_against")
    return np.array([name.startswith((*begin, *phrasing.NAMES, *company.NAMES)) for name in FEATURE_NAMES])


def _penalties() -> NDArray[np.float64]:
    return np.where(_spoken(), WORDS, LOOKS)


def _expected() -> NDArray[np.float64]:
    """The weights that nothing has been learnt for, and a bias of 0."""
    signs = np.array([sign_of(name) or 0 for name in FEATURE_NAMES])
    return np.append(EXPECTED * signs * _spoken(), 0.0)


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
    penalties: NDArray[np.float64],
    centre: NDArray[np.float64],
) -> tuple[float, NDArray[np.float64]]:
    """The loss and its gradient: the last of `values` is the bias."""
    logit = x @ values[:-1] + values[-1]
    loss = float(weight @ (np.logaddexp(0, logit) - y * logit))
    error = weight * (1 / (1 + np.exp(-logit)) - y)  # d loss / d logit
    apart = values - centre
    gradient = np.append(x.T @ error, error.sum())
    return loss + float(penalties @ apart**2), gradient + 2 * penalties * apart


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
            scene = render(place, view, brands=brands, size=SIZE)
            own = held_out if fold_of(place) == FOLDS - 1 else taught
            own += [of_scene(scene, names, (seed, place, view, i), how, brands) for i, how in enumerate(PASSES)]
        progress(place + 1, places)
    sample = joined(taught)
    arrays = fit(joined([sample, noisy(sample, np.random.default_rng(seed))]))
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
