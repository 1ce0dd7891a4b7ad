"""From a dataset to a detector of one's own: the teacher's maps, training, export, and what it reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext import dataset, fitting, metrics
from nipstool.detect_navtext.boxes import shares_in
from nipstool.detect_navtext.compact import Compact
from nipstool.detect_navtext.dataset import Picture
from nipstool.detect_navtext.detector import ALONE, NAV_THRESHOLD, as_input
from nipstool.detect_navtext.find import blended
from nipstool.detect_navtext.lines import Image, Line
from nipstool.detect_navtext.maps import STRIDE
from nipstool.detect_navtext.metrics import Found
from nipstool.detect_navtext.pictures import read_picture
from nipstool.detect_navtext.poi import Names
from nipstool.detect_navtext.relevance import Classifier, classify, load_classifier
from nipstool.detect_navtext.targets import Example, shrunk, taught
from nipstool.kit.errors import DataError
from nipstool.kit.files import AtomicFile, check_input, check_output, sha256, write_text
from nipstool.kit.progress import Progress, silent

if TYPE_CHECKING:
    import torch

    from nipstool.detect_navtext.learn import Course

Stage = Callable[[str], AbstractContextManager[Progress]]
Teacher = Callable[[Image], Sequence[Line]]

FEWEST = 4  # lines of each label from which a classifier for a place is fitted
COUNTED = ("nav", "other")
READ = 0.97  # what a line of truth counts as a recogniser's confidence


@dataclass(frozen=True, eq=False)
class Seen:
    """The means of a detector's maps in lines (n,): that they are text, and that they navigate if they are."""

    is_text: NDArray[np.float32]
    navigates: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Trained:
    """What training gives.

    Attributes:
        onnx: the detector as an ONNX file, with the adapted classifier in it if there is one.
        results: on the pictures for validation, by name; None where they have none to measure on.
        losses: of every step.
        apart: the largest difference between torch, onnxruntime and OpenCV.
    """

    onnx: bytes
    card: str
    results: dict[str, float | int | None]
    losses: list[float]
    apart: float
    adapted: bool


def read_split(folder: Path, split: str) -> Iterator[tuple[Picture, Image]]:
    """The pictures of a split, one after the other.

    Raises:
        InputMissingError, DataError: the dataset or one of its pictures cannot be read.
    """
    for picture in dataset.read_coco(dataset.file_in(folder, split)):
        yield picture, read_picture(folder / picture.name)


def train(
    folder: Path,
    course: Course,
    *,
    names: Names,
    teacher: Teacher | None,
    base: bool = True,
    device: torch.device | None = None,
    stage: Stage = lambda label: nullcontext(silent),
) -> Trained:
    """Train a compact detector on a dataset, and fit the relevance classifier to its places.

    Args:
        teacher: the OCR detector: a picture -> its lines, from which the text map is distilled.
        base: start from the weights in the package, else from random ones.

    Raises:
        InputMissingError, DataError: the dataset cannot be read, or no picture of it has text.
    """
    from nipstool.detect_navtext import detector, learn

    for picture in dataset.read_coco(dataset.file_in(folder, "val")):  # measured on last, a fault is told first
        check_input(folder / picture.name)
    # random weights have no statistics to keep, and do not know yet what is hard
    course = replace(course, keeps_statistics=True) if base else replace(course, clutter=0.0, hard=0.0)
    examples, samples = _examples(folder, teacher, names, stage)
    network = _network(course.seed, base)
    with stage("training") as show:
        losses = learn.train(network, examples, course, device=device, progress=show)
    sample = fitting.joined(samples)
    seen = _seen(network, examples)
    adapted = adapt(sample, seen)
    about = {
        "trained on": f"{len(examples)} pictures, {len(sample.is_nav)} lines",
        "steps": str(course.steps),
        "start": "the package's weights" if base else "random weights",
        "teacher": "PP-OCR" if teacher is not None else "none",
        "seed": str(course.seed),
    }
    if adapted is not None:
        about[NAV_THRESHOLD] = f"{best_threshold(seen.is_text * seen.navigates, sample.is_nav):g}"
        about[ALONE] = f"{best_threshold(classify(sample.table, adapted), sample.is_nav):g}"
    classifier = None if adapted is None else fitting.as_bytes(adapted)
    data = detector.onnx_bytes(network, about=about, classifier=classifier)
    apart = detector.check_export(data, network)
    with stage("validation") as show:
        results = validate(data, folder, show)
    card = detector.model_card(about, results)
    data = detector.with_metadata(data, {"card": card})
    return Trained(data, card, results, losses, apart, adapted is not None)


def _network(seed: int, base: bool) -> Any:
    import torch

    from nipstool.detect_navtext import detector

    torch.manual_seed(seed)
    return detector.start(base)


def _examples(
    folder: Path, teacher: Teacher | None, names: Names, stage: Stage
) -> tuple[list[Example], list[fitting.Sample]]:
    """The pictures to train on, with the teacher's lines, and their lines' features."""
    examples, samples = [], []
    count = len(dataset.read_coco(dataset.file_in(folder, "train")))
    with stage("teacher" if teacher is not None else "reading") as show:
        for picture, image in read_split(folder, "train"):
            seen = () if teacher is None else taught(picture.truths, teacher(image))
            examples.append(Example(image, (*picture.truths, *seen)))
            samples.append(sample_of(picture, image, names))
            show(len(examples), count)
    if not any(example.truths for example in examples):
        raise DataError(f"{folder}: no picture to train on has a line of text")
    return examples, samples


def sample_of(picture: Picture, image: Image, names: Names) -> fitting.Sample:
    """The lines of a labelled picture as the relevance classifier sees them."""
    known = [t for t in picture.truths if len(t.polygon) == 4]
    lines = [
        Line(t.polygon, t.text, READ if t.text else None, 0.9, None if t.text else "too-small") for t in known
    ]
    return fitting.of_lines(lines, [t.label for t in known], image, names)


def _seen(network: Any, examples: Sequence[Example]) -> Seen:
    """What the maps say of every line of the examples that counts, in their order."""
    import torch

    texts, shares = [], []
    for example in examples:
        height, width = example.image.shape[:2]
        size = (max(1, width // STRIDE) * STRIDE, max(1, height // STRIDE) * STRIDE)
        small = np.asarray(cv2.resize(example.image, size), np.uint8)
        with torch.no_grad():
            maps = torch.sigmoid(network(torch.from_numpy(as_input(small))))[0].numpy()
        lines = [t.polygon for t in example.truths if len(t.polygon) == 4 and t.label in COUNTED]
        drawn = [shrunk(polygon) for polygon in lines]
        whole, parts = (np.array(boxes, np.float32).reshape(-1, 4, 2) for boxes in (lines, drawn))
        texts.append(shares_in(maps[0], parts, width, height))
        shares.append(shares_in(maps[1], whole, width, height))
    return Seen(np.concatenate(texts), np.concatenate(shares))


def adapt(sample: fitting.Sample, seen: Seen | None = None, *, penalty: float = 1e-3) -> Classifier | None:
    """The shipped classifier fitted to the lines of a place; None where they are too few of either label.

    Args:
        seen: what the detector's maps say of each line: the threshold is then one for all together.
    """
    if min(int(sample.is_nav.sum()), int((~sample.is_nav).sum())) < FEWEST:
        return None
    arrays = fitting.fit(sample, penalty=penalty, prior=load_classifier())
    scores = classify(sample.table, Classifier(arrays, 0.5))
    if seen is not None:
        scores = blended(scores, seen.navigates) * seen.is_text
    return Classifier(arrays, best_threshold(scores, sample.is_nav))


def best_threshold(scores: NDArray[np.floating], is_nav: NDArray[np.bool_]) -> float:
    """The threshold with the best F1, half way to the next lower score, at most 0.5."""
    ranked = np.sort(np.unique(scores))
    cuts = np.append(ranked[0] / 2, (ranked[1:] + ranked[:-1]) / 2)
    cuts = cuts[cuts <= 0.5]
    if not len(cuts):
        return 0.5
    f1 = [2 * (is_nav & (scores >= cut)).sum() / ((scores >= cut).sum() + is_nav.sum()) for cut in cuts]
    return float(cuts[int(np.argmax(f1))])


def found_in(picture: Picture, polygons: Sequence[NDArray[np.float32]], scores: NDArray[np.float64]) -> Found:
    """Detections beside the labels of a picture."""
    return Found(
        picture.place,
        polygons,
        scores,
        ["other"] * len(polygons),
        [t.polygon for t in picture.truths],
        [t.label for t in picture.truths],
        [t.kind for t in picture.truths],
    )


def validate(data: bytes, folder: Path, progress: Progress = silent) -> dict[str, float | int | None]:
    """What an exported detector reaches on the validation pictures of a dataset."""
    import tempfile

    pictures = dataset.read_coco(dataset.file_in(folder, "val"))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "model.onnx")
        path.write_bytes(data)
        model = Compact(path)
    found = []
    for picture in pictures:
        boxes, scores = model.find(read_picture(folder / picture.name))
        found.append(found_in(picture, list(boxes), scores))
        progress(len(found), len(pictures))
    return summary(found)


def check_outputs(model: str, card: Path | None, folder: str, *, force: bool) -> None:
    """Refuse, before any work, a model or a model card that could not be written.

    Raises:
        UsageError, OutputError: as `check_output`.
    """
    check_output(model, inputs=[folder], force=force)
    if card is not None:
        check_output(card, inputs=[folder], force=force, binary=False)


def teacher_of(folder: Path | None, *, threads: int) -> Teacher:
    """The OCR detector of a folder, or the bundled one, as a teacher."""
    from nipstool.detect_navtext.models import bundled, in_folder
    from nipstool.detect_navtext.ocr import Reader, Reading

    models = bundled() if folder is None else in_folder(folder)
    return Reader(models, threads=threads, reading=Reading(read="none")).find


def write_model(output: str, card: Path | None, made: Trained, folder: Path, *, force: bool) -> dict[str, str]:
    """Write the ONNX file, and its card if asked to; returns the hashes of what it was made from."""
    with AtomicFile(output, force=force) as out:
        out.file.write(made.onnx)
    if card is not None:
        write_text(card, made.card, force=force)
    return {str(path): sha256(path) for path in (dataset.file_in(folder, split) for split in dataset.SPLITS)}


def summary(found: Sequence[Found]) -> dict[str, float | int | None]:
    """Pictures, lines, the recall of all text, and how well navigation text is ranked above other."""
    tallies = [metrics.tally(one) for one in found]
    rates = metrics.rates(tallies, 0.0)
    text = np.concatenate([np.zeros(0, bool), *(metrics.covered(text_only(one)) for one in found)])
    return {
        "pictures": len(found),
        "lines found, navigation": rates.nav,
        "lines found, other": rates.other,
        "recall of text": float(text.mean()) if len(text) else None,
        "recall of navigation text": rates.found,
        "AP of navigation text": rates.ap,
        "base rate": rates.precision,
    }


def text_only(found: Found) -> Found:
    """The same picture with all text as one label."""
    return replace(found, labels=["ignore" if label == "ignore" else "nav" for label in found.labels])
