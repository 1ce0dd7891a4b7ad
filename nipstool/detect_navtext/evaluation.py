"""What `evaluate` does: detections and labels of the same pictures, and everything measured on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext import dataset, metrics
from nipstool.detect_navtext.compact import Compact
from nipstool.detect_navtext.dataset import Picture, corners_of, polygon_of
from nipstool.detect_navtext.lines import Image
from nipstool.detect_navtext.metrics import Found, Rates, Tally
from nipstool.detect_navtext.relevance import load_classifier
from nipstool.kit.counts import counted
from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.files import check_input, sha256, spooled_input
from nipstool.kit.manifest import Run
from nipstool.kit.progress import Progress, silent
from nipstool.kit.records import parse_json

Finder = Callable[[Image], tuple[Sequence[NDArray[np.float32]] | NDArray[np.float32], NDArray[np.float64]]]


@dataclass(frozen=True, eq=False)
class Prediction:
    """One detection of a file: the picture's name as the file gives it, corners, score and kind."""

    image: str
    polygon: NDArray[np.float32]
    score: float
    kind: str


@dataclass(frozen=True)
class Evaluation:
    """All that is measured.

    Attributes:
        overall, places: the rates at the threshold.
        everything: the same where every detection is kept, by place, and over all under "".
        intervals: 95 % bootstrap intervals over pictures, of precision, recall, f1, ap and dropped.
        kinds: kind -> lines of truth, how many were covered.
        at_90: the threshold at which 90 % of the navigation text is kept, and the share of other text then gone.
        icdar: precision, recall and hmean of all text by the rule of ICDAR 2015, IoU > 0.5.
    """

    pictures: int
    threshold: float
    overall: Rates
    places: dict[str, Rates]
    everything: dict[str, Rates]
    intervals: dict[str, tuple[float, float] | None]
    kinds: dict[str, tuple[int, int]]
    at_90: tuple[float, float] | None
    icdar: dict[str, float]
    absent: int


def read_predictions(path: Path) -> list[Prediction]:
    """Detections as `detect` writes them: NDJSON, one JSON array, or COCO.

    Raises:
        InputMissingError, DataError: the file, or a row of it (its number), is no such thing.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputMissingError(f"{path}: no such file; expected detections or an ONNX model") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text: {error}") from error
    if not text.strip():
        raise DataError(f"{path}: is empty; expected detections ([] where there are none)")
    rows = list(_rows(text, path))
    return [_prediction(row, f"{path}: row {number}") for number, row in enumerate(rows, 1)]


def _rows(text: str, path: Path) -> Iterator[Mapping[str, Any]]:
    start = text.lstrip()[:1]
    if start == "[" or (start == "{" and '"annotations"' in text):
        try:
            document = parse_json(text)
        except ValueError as error:
            raise DataError(f"{path}: is no JSON: {error}") from error
        yield from _of_document(document)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = parse_json(line)
            except ValueError as error:
                raise DataError(f"{path}: line {number} is no JSON: {error}") from error
            yield row


def _of_document(document: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(document, list):
        yield from document
        return
    names = {entry["id"]: entry["file_name"] for entry in document.get("images", [])}
    for entry in document["annotations"]:
        attributes = entry.get("attributes") or {}
        score = entry.get("score", attributes.get("nav_score"))
        yield {**attributes, **entry, "image": names.get(entry["image_id"]), "nav_score": score}


def _prediction(row: Any, where: str) -> Prediction:
    try:
        corners = row.get("polygon") or (row.get("segmentation") or [None])[0] or corners_of(row["bbox"])
        points = polygon_of(corners, "it")
        score = row.get("nav_score", row.get("score"))
        if score is None:
            raise ValueError("it has no score")
        return Prediction(str(row["image"]), points, float(score), str(row.get("kind") or "other"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where} is no detection with image, polygon and nav_score: {error}") from error


def beside(pictures: Sequence[Picture], predictions: Iterable[Prediction]) -> tuple[list[Found], int]:
    """Every picture with its detections, by the longest end of the path that agrees; how many are of others."""
    by_name: dict[str, list[int]] = {}
    for i, picture in enumerate(pictures):
        by_name.setdefault(Path(picture.name).name, []).append(i)
    own: list[list[Prediction]] = [[] for _ in pictures]
    absent = 0
    for prediction in predictions:
        places = by_name.get(Path(prediction.image).name, [])
        if not places:
            absent += 1
            continue
        own[max(places, key=lambda i: _agreement(pictures[i].name, prediction.image))].append(prediction)
    return [_found(picture, found) for picture, found in zip(pictures, own, strict=True)], absent


def _agreement(one: str, other: str) -> int:
    """How many parts of two paths agree, from the end."""
    pairs = zip(reversed(Path(one).parts), reversed(Path(other).parts), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), 99)


def _found(picture: Picture, predictions: Sequence[Prediction]) -> Found:
    return Found(
        picture.place,
        [p.polygon for p in predictions],
        np.array([p.score for p in predictions], np.float64),
        [p.kind for p in predictions],
        [t.polygon for t in picture.truths],
        [t.label for t in picture.truths],
        [t.kind or "unsaid" for t in picture.truths],
    )


def detected(
    pictures: Sequence[Picture], folder: Path, find: Finder, *, progress: Progress = silent
) -> list[Found]:
    """Run a detector on the pictures of a COCO file, which lie in `folder` or in `images` there or beside it.

    Raises:
        InputMissingError: a picture is in none of these.
    """
    from nipstool.detect_navtext.pictures import read_picture

    found = []
    for number, picture in enumerate(pictures, 1):
        polygons, scores = find(read_picture(place_on_disk(picture.name, folder)))
        rows = [Prediction(picture.name, p, float(s), "other") for p, s in zip(polygons, scores, strict=True)]
        found.append(_found(picture, rows))
        progress(number, len(pictures))
    return found


def place_on_disk(name: str, folder: Path) -> Path:
    """Where the picture of a COCO file lies.

    Raises:
        InputMissingError: in none of the usual folders.
    """
    for place in (folder, folder / "images", folder.parent, folder.parent / "images"):
        if (place / name).is_file():
            return place / name
    raise InputMissingError(f"{name}: is neither in {folder} nor in an images folder there; name it by --images")


def in_places(pictures: Sequence[Picture], prefixes: Sequence[str]) -> list[Picture]:
    """The pictures with their places named by the longest prefix of the file's name, where one fits."""
    from dataclasses import replace

    def place(picture: Picture) -> str:
        name = Path(picture.name).name
        return max((p for p in prefixes if name.startswith(p)), key=len, default=picture.place)

    return [replace(picture, place=place(picture)) for picture in pictures]


def evaluate(found: Sequence[Found], threshold: float, *, absent: int = 0, seed: int = 0) -> Evaluation:
    """Everything about detections beside truth, with those of at least `threshold` as navigation text.

    Raises:
        DataError: there is no picture.
    """
    if not found:
        raise DataError("no picture to evaluate on; the labels name none")
    tallies = [metrics.tally(one) for one in found]
    low = -np.inf
    return Evaluation(
        len(found),
        threshold,
        metrics.rates(tallies, threshold),
        metrics.by_place(tallies, threshold),
        {"": metrics.rates(tallies, low), **metrics.by_place(tallies, low)},
        _intervals(tallies, threshold, seed),
        metrics.by_kind(tallies),
        metrics.at_recall(tallies, 0.9),
        metrics.icdar([(f.polygons, f.truths, [label == "ignore" for label in f.labels]) for f in found]),
        absent,
    )


def _intervals(tallies: Sequence[Tally], threshold: float, seed: int) -> dict[str, tuple[float, float] | None]:
    names = ("precision", "recall", "f1", "dropped", "found", "ap")
    drawn = metrics.draws(len(tallies), seed)
    table = [metrics.rates([tallies[i] for i in draw], threshold) for draw in drawn]
    return {name: metrics.spread([getattr(rates, name) for rates in table]) for name in names}


def run(
    truth: str,
    predicted: str,
    threshold: float | None,
    prefixes: Sequence[str],
    images: Path | None,
    threads: int,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> Evaluation:
    """Evaluate a file of detections, or an ONNX model by running it on the pictures, against a COCO file.

    Args:
        threshold: of nav_score; by default the model's own, or that of the shipped classifier.
        prefixes: of file names, that name places.
        images: where the pictures lie; by default beside the COCO file.

    Raises:
        InputMissingError, DataError: a file is missing or is not what it should be.
    """
    with spooled_input(truth) as path:
        pictures = in_places(dataset.read_coco(path), prefixes)
    if Path(predicted).suffix.lower() == ".onnx":
        model = Compact(check_input(predicted), threads=threads)
        folder = images or Path(truth).parent
        found, absent = detected(pictures, folder, model.find, progress=progress), 0
        least = model.threshold if threshold is None else threshold
    else:
        with spooled_input(predicted) as path:
            found, absent = beside(pictures, read_predictions(path))
        least = load_classifier(None).threshold if threshold is None else threshold
    return evaluate(found, least, absent=absent, seed=seed)


def remember(run_: Run, output: str, inputs: Sequence[str], seed: int) -> None:
    """Write the manifest beside a report that is a file."""
    if Path(output).is_file():
        hashes = {name: sha256(name) for name in inputs if name != "-"}
        run_.write(Path(output), device="cpu", seed=seed, inputs=hashes)


PLACE_COLUMNS = ("place", "nav", "other", "precision", "recall", "F1", "F1 of all", "other gone", "found", "AP")


def place_rows(result: Evaluation) -> list[list[str | int | float | None]]:
    """One row a place and one over all, with F1 beside that of keeping everything."""
    rows = {**result.places, "": result.overall}
    return [
        [
            name or "all",
            r.nav,
            r.other,
            r.precision,
            r.recall,
            r.f1,
            result.everything[name].f1,
            r.dropped,
            r.found,
            r.ap,
        ]
        for name, r in rows.items()
    ]


KIND_COLUMNS = ("kind", "lines", "found")


def kind_rows(result: Evaluation) -> list[list[str | int | float | None]]:
    """One row a kind of navigation text: how many lines there are, and the share that is found."""
    return [[kind, count, hits / count] for kind, (count, hits) in result.kinds.items()]


def outcome(result: Evaluation) -> str:
    """What else there is to say, in a few lines."""
    named = {"precision": "precision", "recall": "recall", "f1": "F1", "dropped": "other gone", "ap": "AP"}
    spans = [f"{named[n]} {s[0]:.3f} to {s[1]:.3f}" for n, s in result.intervals.items() if s and n in named]
    lines = [f"95 % intervals over {counted(result.pictures, 'picture')}: {', '.join(spans) or 'none'}"]
    if result.at_90 is not None:
        score, gone = result.at_90
        lines.append(
            f"keeping 90 % of the navigation text found (score {score:.3f}), {gone:.1%} of other text is gone"
        )
    words = ", ".join(f"{name} {value:.4f}" for name, value in result.icdar.items())
    return "\n".join([*lines, f"all text by ICDAR 2015's rule: {words}"])
