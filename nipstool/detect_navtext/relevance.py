"""Which text tells where one is: numbers about each line, and the classifier that weighs them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext import appearance, company, phrasing
from nipstool.detect_navtext.boards import board_of
from nipstool.detect_navtext.evidence import Evidence, evidence_of
from nipstool.detect_navtext.lexicon import NAVIGATES
from nipstool.detect_navtext.lines import KINDS, Image, Line, gaps
from nipstool.detect_navtext.poi import Match, Names
from nipstool.kit.errors import DataError
from nipstool.kit.files import check_input
from nipstool.kit.tensor_header import read_header

__all__ = ["FEATURE_NAMES", "FEATURE_VERSION", "Classifier", "board_of", "classify", "features", "load_classifier"]

FEATURE_VERSION = 3
SHIPPED = "relevance.safetensors"
LARGEST = 1e6  # of a weight, a mean or a scale that training has left
WHOLE_BOARD = 3  # lines of which one with a form makes a board of it
CLIP = 4.0  # standard deviations; further out a number says no more

_AGAINST = company.AGAINST
_WORDS = (
    *(f"word_{kind}" for kind in KINDS if kind != "other"),
    "word_any",
    *(f"form_{form}" for form in NAVIGATES),
    "sale",
    "notice",
    "goods",
    *(f"form_{form}" for form in _AGAINST),
    "map_own",
    "map_chain",
    "map_whole",
    "board_map",
    "board_for",
    "board_against",
)
_SHAPE = (
    "read",
    "text_score",
    "det_score",
    "letters",
    "upper",
    "digits",
    "letter_share",
    "word_length",
    "cjk",
)
_LAYOUT = (
    "height_picture",
    "height_median",
    "height_rank",
    "height_board",
    "x",
    "y",
    "aspect",
    "tilt",
    "lines",
    "board_lines",
    "board_width",
    "board_height",
    "board_regular",
    "board_aligned",
    "board_area",
    "isolation",
    "density",
)
_BOARD_LOOK = ("board_unrest", "board_ring_step")
FEATURE_NAMES = (
    *_WORDS,
    *phrasing.NAMES,
    *company.NAMES,
    *_SHAPE,
    *_LAYOUT,
    *appearance.NAMES,
    *_BOARD_LOOK,
)


def features(
    lines: Sequence[Line],
    image: Image,
    boards: Sequence[int],
    names: Names,
    evidence: Sequence[Evidence] | None = None,
) -> NDArray[np.float32]:
    """Numbers about each line that do not change with the size of the picture: (n, len(FEATURE_NAMES)).

    Args:
        boards: as `board_of` gives them.
        names: the bundled names, or those with the user's before them.
        evidence: of the lines, where it is known already.
    """
    if not lines:
        return np.zeros((0, len(FEATURE_NAMES)), np.float32)
    found = evidence if evidence is not None else evidence_of(lines, boards, names)
    words = np.array([_words(one) for one in found], np.float32)
    told = np.array([phrasing.phrasing(one.text, one.board_text) for one in found], np.float32)
    shape = np.array([_shape(line) for line in lines], np.float32)
    looks = np.array([appearance.appearance(image, line) for line in lines], np.float32)
    table = np.concatenate(
        [
            words,
            told,
            company.company(lines, found, told),
            shape,
            _layout(lines, image, boards),
            looks,
            _board_looks(looks, boards),
        ],
        axis=1,
    )
    return table.astype(np.float32)


def _words(found: Evidence) -> list[float]:
    words, board = found.words, found.board_words
    against = sum(board.against.values()) + 0.5 * _forms_on(found.board_forms, _AGAINST)
    speaks = max(board.kinds.values(), default=0.0) + 0.5 * _forms_on(found.board_forms, NAVIGATES)
    return [
        *(words.kinds.get(kind, 0.0) for kind in KINDS if kind != "other"),
        max(words.kinds.values(), default=0.0),
        *(_form(form, found) for form in NAVIGATES),
        words.against.get("sale", 0.0),
        words.against.get("notice", 0.0),
        words.against.get("goods", 0.0),
        *(float(form in words.forms) for form in _AGAINST),
        _similarity(found.place, "map"),
        _similarity(found.place, "chains"),
        float(found.place is not None and found.place.whole),
        0.0 if found.board_place is None else 5 * found.board_place.similarity - 4,
        min(speaks, 2.0),
        min(against, 2.0),
    ]


def _form(form: str, found: Evidence) -> float:
    """Whether a text has a form; by half a number alone, which is a room's, a bus's or a player's."""
    alone = form == "code" and found.text is not None and found.text.strip().isdigit()
    return (0.5 if alone else 1.0) * (form in found.words.forms)


def _forms_on(shares: Mapping[str, float], forms: Sequence[str]) -> float:
    """How many of the forms a board has: one that a third of its lines have, or more, counts whole."""
    return sum(min(1.0, WHOLE_BOARD * shares.get(form, 0.0)) for form in forms)


def _similarity(match: Match | None, source: str) -> float:
    """0 for no name, 0 to 1 from the cutoff to equality."""
    return 0.0 if match is None or match.name.source != source else 5 * match.similarity - 4


def _shape(line: Line) -> list[float]:
    """Of the text as letters: how many, how long, which case."""
    text = line.text or ""
    letters = [sign for sign in text if sign.isalpha()]
    words = text.split()
    solid = max(1, sum(not sign.isspace() for sign in text))
    return [
        float(line.text is not None),
        line.text_score or 0.0,
        line.det_score,
        float(np.log1p(len(text))),
        sum(sign.isupper() for sign in letters) / len(letters) if letters else 0.0,
        sum(sign.isdigit() for sign in text) / solid,
        len(letters) / solid if text else 0.0,
        float(np.log1p(solid / len(words))) if words else 0.0,
        sum("\u2e80" <= sign <= "\uffdc" for sign in text) / solid,
    ]


def _layout(lines: Sequence[Line], image: Image, boards: Sequence[int]) -> NDArray[np.float32]:
    """Of sizes and places, all relative to the picture, the other lines and the board: (n, len(_LAYOUT))."""
    height, width = image.shape[:2]
    boxes = np.array([line.bbox for line in lines], np.float64)  # left, top, width, height
    heights = np.array([max(line.height, 1.0) for line in lines])
    lengths = np.array([max(line.width, 1.0) for line in lines])
    centres = boxes[:, :2] + boxes[:, 2:] / 2
    sides = np.array([line.polygon[1] - line.polygon[0] for line in lines])
    rank = np.array([(heights < h).mean() + (heights == h).mean() / 2 for h in heights])
    own = [
        np.log(heights / np.sqrt(width * height)),
        np.log(heights / np.median(heights)),
        rank,
        centres[:, 0] / width,
        centres[:, 1] / height,
        np.log(lengths / heights),
        np.abs(np.arctan2(sides[:, 1], np.abs(sides[:, 0]) + 1e-6)),
        np.full(len(lines), np.log1p(len(lines))),
    ]
    on_board, ratio = _board_layout(boxes, heights, np.asarray(boards), np.array([width, height]))
    around = _neighbourhood(boxes, heights, np.asarray(boards))
    return np.column_stack([*own[:3], ratio, *own[3:], on_board, around]).astype(np.float32)


def _board_layout(
    boxes: NDArray[np.float64],
    heights: NDArray[np.float64],
    boards: NDArray[np.int_],
    size: NDArray[np.int_],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Six numbers on each line's board, (n, 6), and the line's height against the highest on it, (n,)."""
    table, ratio = np.zeros((len(boxes), 6)), np.zeros(len(boxes))
    for number in np.unique(boards):
        on = boards == number
        low, high = boxes[on, :2].min(axis=0), (boxes[on, :2] + boxes[on, 2:]).max(axis=0)
        span = np.maximum(high - low, 1.0)
        left, middle = boxes[on, 0], boxes[on, 0] + boxes[on, 2] / 2
        aligned = min(left.std(), middle.std()) / span[0]
        table[on] = [
            np.log1p(on.sum()),
            span[0] / size[0],
            span[1] / size[1],
            heights[on].std() / heights[on].mean(),
            aligned,
            (boxes[on, 2] * boxes[on, 3]).sum() / span.prod(),
        ]
        ratio[on] = np.log(heights[on] / heights[on].max())
    return table, ratio


def _neighbourhood(
    boxes: NDArray[np.float64],
    heights: NDArray[np.float64],
    boards: NDArray[np.int_],
) -> NDArray[np.float64]:
    """How far, in heights, the nearest line of another board is, and how many lines stand within ten heights."""
    distance = gaps(boxes) / heights[:, None]
    elsewhere = np.where(boards[:, None] == boards[None], np.inf, distance).min(axis=1)
    near = (distance < 10).sum(axis=1) - 1
    return np.column_stack([np.log1p(np.minimum(elsewhere, 50)), np.log1p(near)])


def _board_looks(looks: NDArray[np.float32], boards: Sequence[int]) -> NDArray[np.float32]:
    """The mean unrest and the mean step around the lines of each line's board: (n, 2)."""
    columns = [appearance.NAMES.index("ring_unrest"), appearance.NAMES.index("ring_step")]
    numbers = np.asarray(boards)
    return np.array([looks[numbers == number][:, columns].mean(axis=0) for number in boards], np.float32)


@dataclass(frozen=True, eq=False)
class Classifier:
    """A network of at most one hidden layer, on standardised features.

    Attributes:
        arrays: mean (F,), scale (F,), w1 (1, H), b1 (1,), and, where there is a hidden layer, w0 (H, F), b0 (H,).
        threshold: score at or above which a line counts as navigating.
        about: what the file says of itself.
    """

    arrays: dict[str, NDArray[np.float32]]
    threshold: float
    about: dict[str, str] = field(default_factory=dict)


def load_classifier(path: str | Path | None = None) -> Classifier:
    """The classifier of a safetensors file; the shipped one by default.

    Raises:
        InputMissingError: no such file.
        DataError: it is no classifier, or one of other features than these.
    """
    return _shipped() if path is None else _loaded(Path(path))


@cache
def _shipped() -> Classifier:
    with resources.as_file(resources.files("nipstool.detect_navtext").joinpath("data", SHIPPED)) as path:
        return _loaded(path)


def classifier_in(data: bytes, name: str) -> Classifier:
    """As `load_classifier`, of a file's bytes; `name` is what errors call it."""
    with tempfile.NamedTemporaryFile(prefix="nipstool-", suffix=".safetensors") as file:
        file.write(data)
        file.flush()
        try:
            return _loaded(Path(file.name))
        except DataError as error:
            raise DataError(str(error).replace(file.name, name)) from error


def _loaded(path: Path) -> Classifier:
    from safetensors.numpy import load_file

    about = read_header(check_input(path)).metadata
    arrays = load_file(path)
    if about.get("features") != str(FEATURE_VERSION) or arrays.get("mean", np.zeros(0)).shape != (
        len(FEATURE_NAMES),
    ):
        raise DataError(
            f"{path}: was trained on features {about.get('features')}; expected a relevance classifier of features"
            f" {FEATURE_VERSION}, {len(FEATURE_NAMES)} of them"
        )
    try:
        threshold = float(about.get("threshold", "0.5"))
    except ValueError:
        threshold = -1.0
    if not (0 <= threshold <= 1 and _fit_together(arrays)):
        raise DataError(f"{path}: is damaged: its weights or its threshold are not those of a classifier")
    return Classifier(arrays, threshold, about)


def _fit_together(arrays: dict[str, NDArray[np.float32]]) -> bool:
    """Whether arrays have the shapes that `classify` needs, and numbers in them."""
    count = len(FEATURE_NAMES)
    hidden = len(arrays["w0"]) if "w0" in arrays else count
    shapes = {"mean": (count,), "scale": (count,), "w1": (1, hidden), "b1": (1,)}
    if "w0" in arrays:
        shapes |= {"w0": (hidden, count), "b0": (hidden,)}
    for name, shape in shapes.items():
        array = arrays.get(name)
        if array is None or array.shape != shape or array.dtype.kind != "f" or not (np.abs(array) < LARGEST).all():
            return False
    return bool((arrays["scale"] > 1 / LARGEST).all())


def classify(table: NDArray[np.float32], model: Classifier | None = None) -> NDArray[np.float32]:
    """The probability that each line tells where one is: (n,), 0 to 1. `model` is the shipped one by default."""
    arrays = (model or load_classifier()).arrays
    hidden = np.clip((table - arrays["mean"]) / arrays["scale"], -CLIP, CLIP)
    if "w0" in arrays:
        hidden = np.tanh(hidden @ arrays["w0"].T + arrays["b0"])
    logit = (hidden @ arrays["w1"].T + arrays["b1"])[:, 0]
    return (1 / (1 + np.exp(-np.clip(logit, -30, 30)))).astype(np.float32)
