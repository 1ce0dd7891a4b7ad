"""The weights that training starts from: learnt from rendered scenes alone, places of the last fold left out.

python -m nipstool.detect_navtext.base DATASET FILE [STEPS]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nipstool.detect_navtext.learn import Course
from nipstool.kit.progress import Progress, silent

COURSE = Course(steps=6500, batch=4, side=320, rate=2e-3, bfloat16=True)


def base(folder: Path, course: Course = COURSE, *, progress: Progress = silent) -> bytes:
    """Train a detector from random weights on the labels of a dataset; its weights as the package keeps them."""
    import torch

    from nipstool.detect_navtext import detector, learn
    from nipstool.detect_navtext.targets import Example
    from nipstool.detect_navtext.training import read_split

    torch.manual_seed(course.seed)
    network = detector.start(base=False)
    examples = [Example(image, picture.truths) for picture, image in read_split(folder, "train")]
    learn.train(network, examples, course, progress=progress)
    return detector.base_bytes(network)


def main(words: Sequence[str]) -> None:
    """Write the file that the words of the command line name."""
    course = COURSE if len(words) < 3 else replace(COURSE, steps=int(words[2]))
    Path(words[1]).write_bytes(base(Path(words[0]), course))


if __name__ == "__main__":
    main(sys.argv[1:])
