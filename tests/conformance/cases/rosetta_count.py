"""The verbs of rosetta-count."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.conformance.cases.case import Case


def some_dumps(folder: Path) -> None:
    """The activations of two models on the same 120 samples."""
    random = np.random.default_rng(0)
    hidden = random.standard_normal((120, 6))
    for name, width in (("a", 12), ("b", 10)):
        values = np.maximum(hidden @ random.standard_normal((6, width)), 0).astype(np.float32)
        save_file({"layer": values}, folder / f"{name}.safetensors")


DUMPS = ("a.safetensors", "b.safetensors")


CASES = [
    Case(
        "rosetta-count",
        None,
        ("--acts", *DUMPS),
        some_dumps,
        inputs=DUMPS,
        output="shared",
        folder=True,
        setting=("--k", "2", "3", "4"),
    ),
]
