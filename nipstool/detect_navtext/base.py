"""The weights that training starts from: learnt from rendered scenes alone, places of the last fold left out.

python -m nipstool.detect_navtext.base DATASET FILE
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from nipstool.detect_navtext import detector, learn
from nipstool.detect_navtext.learn import Course
from nipstool.detect_navtext.targets import Example
from nipstool.detect_navtext.training import read_split
from nipstool.kit.progress import Progress, silent

COURSES = (  # what text looks like, then what only looks like it, then both
    Course(steps=8000, rate=2e-3, bfloat16=True, clutter=0.0, hard=0.0),
    Course(steps=6500, rate=1e-3, seed=1, bfloat16=True, clutter=0.6, hard=1.0),
    Course(steps=5000, rate=7e-4, seed=2, bfloat16=True, clutter=0.4, hard=1.0),
)


def base(folder: Path, courses: Sequence[Course] = COURSES, *, progress: Progress = silent) -> bytes:
    """Train a detector from random weights on the labels of a dataset; its weights as the package keeps them."""
    torch.manual_seed(courses[0].seed)
    examples = [Example(image, picture.truths) for picture, image in read_split(folder, "train")]
    network = detector.start(base=False)
    for course in courses:
        learn.train(network, examples, course, progress=progress)
        # as it is kept, so that a course can be repeated from what the one before it left
        network = detector.with_weights(detector.base_bytes(network))
    return detector.base_bytes(network)


def main(words: Sequence[str]) -> None:
    """Write the file that the words of the command line name."""
    Path(words[1]).write_bytes(base(Path(words[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
