"""A family of networks of seven widths on handwritten digits, its counts and its controls: `python -m ... FOLDER`.

64-w-w-10 with ReLU, AdamW at 1e-3, 300 steps of 128 on the 1797 digits of scikit-learn and their eight shifts by
one pixel; three seeds a width. The untrained control is other seeds' initialisations. Writes counts.csv for `fit`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.rosetta_count.count import Inputs, Subject
from nipstool.rosetta_count.stream import Layer, layers_of
from nipstool.rosetta_count.units import Unit, make_units
from nipstool.rosetta_count.work import Options, Outcome, count_neurons

if TYPE_CHECKING:
    from torch import Tensor, nn

WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
SEEDS = (0, 1, 2)
STEPS, BATCH, RATE = 300, 128, 1e-3
REPEATS = 1  # permuted repetitions: five would take more than all the rest of a demo
COLUMNS = ("size", "neurons", "params", "count", "raw", "pair", "control", "accuracy")


def shifted(images: Tensor) -> Tensor:
    """[N, 8, 8] and its eight shifts by one pixel, zeros moving in: [9 N, 64]."""
    from torch.nn.functional import pad

    wide = pad(images, (1, 1, 1, 1))
    moved = [wide[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    return _stacked(moved)


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    import torch

    return torch.cat(list(parts)).flatten(1)


def load_digits() -> tuple[Tensor, Tensor]:
    """(images [16173, 64] in 0 ... 1, classes [16173]) in a fixed random order."""
    import torch
    from sklearn.datasets import load_digits as load

    found: Any = load()
    images = torch.tensor(found.images, dtype=torch.float32) / 16
    classes = torch.tensor(found.target).repeat(9)
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(0))
    return shifted(images)[order], classes[order]


def network(width: int, seed: int) -> nn.Sequential:
    """A fresh network."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*hidden, nn.Linear(width, 10))


def train(model: nn.Sequential, images: Tensor, classes: Tensor, seed: int, steps: int = STEPS) -> float:
    """Train in place; returns the accuracy on all images."""
    import torch
    from torch.nn.functional import cross_entropy

    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(images), (BATCH,), generator=generator)
        optimiser.zero_grad()
        cross_entropy(model(images[rows]), classes[rows]).backward()
        optimiser.step()
    with torch.inference_mode():
        return float((model(images).argmax(1) == classes).float().mean())


@dataclass(frozen=True)
class Hidden:
    """Both hidden layers of a network on all images, after ReLU."""

    name: str
    layers: tuple[Layer, ...]
    values: Tensor
    units: tuple[Unit, ...]

    def unit(self, index: int) -> Tensor:
        """[S, 2 w]."""
        unit = self.units[index]
        return self.values[unit.start : unit.stop]


def hidden(model: nn.Sequential, images: Tensor, name: str, repeats: int = REPEATS) -> Hidden:
    """A network's neurons."""
    import torch

    with torch.inference_mode():
        first = model[:2](images)
        second = model[2:4](first)
    width = first.shape[1]
    units = make_units([1] * len(images), repeats=repeats)
    layers = layers_of([("1", 0, width), ("3", 1, width)])
    return Hidden(name, layers, torch.cat([first, second], 1), tuple(units))


def count_hidden(trained: Sequence[Hidden], fresh: Sequence[Hidden], parameters: int, **options: Any) -> Outcome:
    """The count of one anchor with the others."""
    inputs = Inputs(
        models=trained,
        subjects=[Subject(one.name, one.layers, parameters) for one in trained],
        units=len(trained[0].units),
        samples=len(trained[0].values),
        documents=len(trained[0].values),
        untrained=lambda: list(fresh),
    )
    return count_neurons(inputs, Options(**{"repeats": REPEATS, **options}))


def rows_of(width: int, images: Tensor, classes: Tensor) -> Iterator[tuple[Any, ...]]:
    """The rows of counts.csv of one width: every pair of seeds, observed and with each control."""
    networks = [network(width, seed) for seed in SEEDS]
    accuracies = [train(model, images, classes, seed) for model, seed in zip(networks, SEEDS, strict=True)]
    trained = [hidden(model, images, f"seed {seed}") for model, seed in zip(networks, SEEDS, strict=True)]
    fresh = [hidden(network(width, seed + 100), images, f"seed {seed + 100}") for seed in SEEDS]
    parameters = sum(p.numel() for p in networks[0].parameters())
    for first, second in combinations(SEEDS, 2):
        outcome = count_hidden([trained[first], trained[second]], [fresh[first], fresh[second]], parameters)
        (one,) = outcome.count.pairs
        about = (width, 2 * width, parameters)
        accuracy = f"{(accuracies[first] + accuracies[second]) / 2:.4f}"
        yield (*about, one.thresholded, one.raw, f"{first}-{second}", "", accuracy)
        repeats = len(one.permuted)
        some, raw = (sum(getattr(t, kind) for t in one.permuted) / repeats for kind in ("thresholded", "raw"))
        yield (*about, some, raw, f"{first}-{second}", "permuted")
        for name, tally in (("rotated", one.rotated), ("untrained", one.untrained)):
            assert tally is not None
            yield (*about, tally.thresholded, tally.raw, f"{first}-{second}", name)


def main() -> None:
    """Write counts.csv into the folder that the command line names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    images, classes = load_digits()
    with (folder / "counts.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for width in WIDTHS:
            writer.writerows(rows_of(width, images, classes))


if __name__ == "__main__":
    main()
