"""The verbs of detect-navtext."""

import json
from pathlib import Path

import numpy as np

from tests.conformance.cases.case import Case


def a_picture(folder: Path) -> None:
    """A small sign, black on white."""
    import cv2

    image = np.full((64, 160, 3), 255, np.uint8)
    cv2.putText(image, "Room 7", (10, 44), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (0, 0, 0), 4, cv2.LINE_AA)
    cv2.imwrite(str(folder / "sign.png"), image)


def rows(path: Path) -> list[dict[str, object]]:
    """The rows of an output without the name of the picture."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "image"} for row in found]


def a_dataset(folder: Path) -> None:
    """Two tiny pictures with a line each, one to train on and one to validate with."""
    import cv2

    from nipstool.detect_navtext import build, dataset

    root = folder / "dataset"
    root.mkdir()
    line = dataset.Truth(np.array([(8, 8), (88, 8), (88, 24), (8, 24)], np.float32), "nav", "room", "Room 7")
    shots = []
    for number in range(2):
        coarse = np.random.default_rng(number).integers(120, 255, (6, 6, 3)).astype(np.uint8)
        image = np.asarray(cv2.resize(coarse, (96, 96), interpolation=cv2.INTER_NEAREST), np.uint8)
        cv2.putText(image, f"Room {number}", (8, 22), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (0, 0, 0), 2)
        shots.append(build.Shot(f"p{number}.png", image, (line,), f"p{number}", "rendered", "case", str(number)))
    build.write(shots, root, share=0.5)


def weights(path: Path) -> int:
    """How large an exported model is: its metadata and weights are the seed's."""
    return path.stat().st_size


def labels(folder: Path) -> None:
    """Labels of one picture, and detections in it."""
    from nipstool.detect_navtext import dataset

    def line(top: float) -> np.ndarray:
        return np.array([(8, top), (88, top), (88, top + 16), (8, top + 16)], np.float32)

    truths = (dataset.Truth(line(8), "nav", "room", "Room 7"), dataset.Truth(line(40), "other", "", "SALE"))
    picture = dataset.Picture("hall_1.png", 96, 96, truths, "hall")
    (folder / "labels.json").write_text(json.dumps(dataset.coco([picture])))
    found = [(truth.polygon.tolist(), score) for truth, score in zip(truths, (0.9, 0.2), strict=True)]
    document = [{"image": "hall_1.png", "polygon": p, "nav_score": s, "kind": "room"} for p, s in found]
    (folder / "found.json").write_text(json.dumps(document, indent=1))


CASES = [
    Case(
        "detect-navtext",
        None,
        ("sign.png", "--scale", "160", "--threads", "1"),
        a_picture,
        inputs=("sign.png",),
        reads_stdin=True,
        setting=("--min-height", "1", "2", "3"),
    ),
    Case(
        "detect-navtext",
        None,
        ("sign.png", "--scale", "160", "--threads", "1"),
        a_picture,
        inputs=("sign.png",),
        output="signs.ndjson",
        reads_stdin=True,
        setting=("--min-height", "1", "2", "3"),
        essence=rows,
    ),
    Case(
        "detect-navtext",
        "build-dataset",
        ("--synthetic", "1", "--threads", "1"),
        output="scenes",
        folder=True,
        setting=("--seed", "1", "2", "3"),
    ),
    Case(
        "detect-navtext",
        "train",
        ("dataset", "--no-base", "--no-teacher", "--steps", "1", "--threads", "1"),
        a_dataset,
        inputs=("dataset/annotations/train.json", "dataset/annotations/val.json"),
        output="model.onnx",
        setting=("--seed", "1", "2", "3"),
        essence=weights,
    ),
    Case(
        "detect-navtext",
        "evaluate",
        ("labels.json", "found.json"),
        labels,
        inputs=("labels.json", "found.json"),
        reads_stdin=True,
        setting=("--min-score", "0.3", "0.4", "0.5"),
    ),
    Case(
        "detect-navtext",
        "evaluate",
        ("labels.json", "found.json"),
        labels,
        inputs=("labels.json", "found.json"),
        output="report.json",
        reads_stdin=True,
        writes_stdout=True,
        setting=("--min-score", "0.3", "0.4", "0.5"),
    ),
]
