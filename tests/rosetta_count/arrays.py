"""Activations from arrays, and a float64 reference that nobody optimised."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nipstool.rosetta_count.dense import Recorded, Settings, run_dense
from nipstool.rosetta_count.stream import Layer, layers_of
from nipstool.rosetta_count.work import Outcome


@dataclass
class Arrays:
    """A model whose activations [N, n] are given, in units of `rows`."""

    values: Tensor
    rows: int = 256
    widths: Sequence[int] = ()
    name: str = "array"

    @property
    def layers(self) -> tuple[Layer, ...]:
        widths = self.widths or [self.values.shape[1]]
        return layers_of((f"layer{at}", at, width) for at, width in enumerate(widths))

    @property
    def units(self) -> int:
        return -(-len(self.values) // self.rows)

    def unit(self, index: int) -> Tensor:
        return self.values[index * self.rows : (index + 1) * self.rows]


def numbers(outcome: Outcome) -> dict[str, Tensor]:
    """All that a count found, in full precision: neighbours, statistics, q, the highest r of every control."""
    count = outcome.count
    found = {}
    for at, neurons in enumerate(count.neurons):
        names = ("mean", "deviation", "skew", "kurtosis", "sparseness", "frequency", "live")
        found |= {f"{at}.{name}": getattr(neurons, name).double() for name in names}
    for at, (pair, best) in enumerate(zip(count.pairs, count.best, strict=True)):
        tallies = [*pair.permuted, *([pair.rotated] if pair.rotated else [])]
        kinds = ("raw", "kept", "thresholded", "highest")
        values = [[getattr(tally, kind) for kind in kinds] for tally in tallies]
        found[f"pair.{at}.controls"] = torch.tensor(
            [[torch.nan if v is None else v for v in row] for row in values], dtype=torch.float64
        )
        found[f"pair.{at}.q"] = torch.from_numpy(pair.q.copy())
        for side, one in enumerate(best):
            found |= {f"pair.{at}.{side}.r": one.r.clone(), f"pair.{at}.{side}.index": one.index.double()}
    if count.excess is not None:
        found["excess"] = torch.from_numpy(count.excess.copy())
    return found


def passed(*models: Arrays, **settings: object) -> Recorded:
    """One pass over arrays."""
    return run_dense(models, models[0].units, Settings(**settings))  # type: ignore[arg-type]


def reference(a: Tensor, b: Tensor) -> np.ndarray:
    """Pearson's r [na, nb] by numpy in float64."""
    both = np.corrcoef(a.double().numpy(), b.double().numpy(), rowvar=False)
    return both[: a.shape[1], a.shape[1] :]


def related(samples: int, na: int, nb: int, seed: int = 0, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    """Two sets of heavy-tailed neurons that read the same hidden features."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(samples, 24, generator=generator)

    def neurons(n: int) -> Tensor:
        mixed = hidden @ torch.randn(24, n, generator=generator) / 5
        return torch.nn.functional.gelu(mixed + noise * torch.randn(samples, n, generator=generator))

    return neurons(na), neurons(nb)


def pairs_of(r: np.ndarray) -> set[tuple[int, int]]:
    """Mutual nearest neighbours with r >= 0 of a full matrix, lowest index first among equals."""
    best_b, best_a = r.argmax(1), r.argmax(0)
    return {(i, int(j)) for i, j in enumerate(best_b) if best_a[j] == i and r[i, j] >= 0}
