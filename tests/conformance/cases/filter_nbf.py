"""The verbs of filter-nbf."""

from pathlib import Path

import numpy as np

from tests.conformance.cases.case import Case


def some_rows(folder: Path) -> None:
    """A hundred years of a river."""
    flows = 1000.0 + 150.0 * np.random.default_rng(0).standard_normal(100)
    rows = (f'{{"t": {t}, "flow": {flow:.1f}}}\n' for t, flow in enumerate(flows))
    (folder / "rows.ndjson").write_text("".join(rows))


CASES = [
    Case(
        "filter-nbf",
        None,
        ("rows.ndjson", "--domain", "nile", "--particles", "16", "--on-error", "stop"),
        some_rows,
        inputs=("rows.ndjson",),
        json=False,
        reads_stdin=True,
        halves_are_bad=False,
        setting=("--seed", "1", "2", "3"),
    ),
    Case(
        "filter-nbf",
        "train",
        ("--domain", "nile", "--scenarios", "2", "--steps", "2", "--batch", "2"),
        output="nile.safetensors",
        writes_stdout=True,
        setting=("--seed", "1", "2", "3"),
    ),
    Case(
        "filter-nbf",
        "simulate",
        ("--domain", "arena", "--steps", "200"),
        json=False,
        setting=("--seed", "1", "2", "3"),
    ),
    Case(
        "filter-nbf",
        "evaluate",
        ("--domain", "nile", "--scenarios", "2", "--steps", "3", "--reference", "100", "--particles", "16"),
        setting=("--seed", "1", "2", "3"),
    ),
]
