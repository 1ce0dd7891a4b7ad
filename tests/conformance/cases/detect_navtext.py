"""The verbs of detect-navtext."""

import json
from pathlib import Path

import numpy as np

from tests.conformance.cases.case import Case


def a_picture(folder: Path) -> None:
    """A small sign, black on white."""
    import cv2

    image = np.full((64, 160, 3), 255, np.uint8)
    cv2.putText(image, "EXIT", (20, 46), cv2.FONT_HERSHEY_SIMPLEX, 1.5, (0, 0, 0), 4, cv2.LINE_AA)
    cv2.imwrite(str(folder / "sign.png"), image)


def rows(path: Path) -> list[dict[str, object]]:
    """The rows of an output without the name of the picture."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "image"} for row in found]


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
        json=False,
        reads_stdin=True,
        writes_stdout=True,
        setting=("--min-height", "1", "2", "3"),
        essence=rows,
    ),
]
