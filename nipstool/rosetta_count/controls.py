"""What a count must be compared with: permuted samples, rotated layers, and the false discovery rate.

Mutual nearest neighbours exist without any signal: two unrelated sets of n_a and n_b neurons give about
n_a n_b / (n_a + n_b - 1) pairs. So no count is reported without these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nipstool.rosetta_count.correlate import Best, Sums, masked, row_blocks

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from nipstool.rosetta_count.correlate import Frame


def chance_pairs(na: int, nb: int) -> float:
    """Expected mutual nearest neighbours among n_a and n_b unrelated neurons with exchangeable correlations."""
    return na * nb / (na + nb - 1) if na and nb else 0.0


def q_values(r: Sequence[float], null: Sequence[float], repeats: int) -> np.ndarray:
    """The false discovery rate at which each observed pair is found, in the order of `r`.

    FDR(tau) = (1 + null pairs with r >= tau) / (B x observed pairs with r >= tau), and q is the lowest FDR of all
    tau <= r. With few pairs it cannot come near 0: the least possible value is 1 / (B x number of pairs).

    Args:
        r: of the observed pairs.
        null: of all pairs of the `repeats` permuted repetitions together.
    """
    import numpy as np

    observed, chance = np.asarray(r, dtype=float), np.sort(np.asarray(null, dtype=float))
    order = np.argsort(-observed, kind="stable")
    falling = observed[order]
    at_least = np.searchsorted(-falling, -falling, side="right")  # pairs with r >= tau, ties included
    above = len(chance) - np.searchsorted(chance, falling, side="left")
    rate = np.minimum(1.0, (1 + above) / (max(repeats, 1) * at_least))
    running = np.minimum.accumulate(rate[::-1])[::-1]
    q = np.empty_like(running)
    q[order] = running
    return q


def least_q(pairs: int, repeats: int) -> float:
    """The lowest q that so many pairs and repetitions can reach."""
    return 1.0 / (repeats * pairs) if pairs and repeats else 1.0


def rotation(width: int, seed: int, layer: int) -> Tensor:
    """A Gaussian matrix [width, width] with rows of length 1, in float64 (universal-neurons' baseline)."""
    import torch

    generator = torch.Generator().manual_seed(seed * 100_003 + layer)
    matrix = torch.randn(width, width, generator=generator, dtype=torch.float64)
    return matrix / matrix.norm(dim=1, keepdim=True)


class Rotated:
    """Correlations of model a with model b whose layers are each multiplied by a fixed random matrix.

    Nothing is recorded anew: cov(a, R b) = cov(a, b) R^T and var(R b) = diag(R cov(b, b) R^T).
    """

    def __init__(
        self,
        layers: Sequence[slice],
        inner: Sequence[Sums],
        frame: Frame,
        seed: int,
        numbers: Sequence[int],
    ):
        """`inner` holds the sums of each layer of b with itself; `numbers` are what layers are known by."""
        import torch

        self.layers = list(layers)
        self.matrices: list[Tensor] = []
        self.inverse: list[Tensor] = []
        for columns, sums, number in zip(layers, inner, numbers, strict=True):
            device = sums.ab.device
            matrix = rotation(columns.stop - columns.start, seed, number).to(device)
            matrix /= frame.scale[columns].double()  # the rotation is of the activations, not of framed ones
            covariance = sums.covariance(slice(None))
            variance = ((matrix @ covariance) * matrix).sum(1)
            safe = variance.clamp_min(1e-300).rsqrt()
            self.inverse.append(torch.where(variance > 0, safe, torch.zeros_like(safe)))
            self.matrices.append(matrix)

    def correlations(self, sums: Sums, live_a: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """(rows of a, columns of rotated b, r) block by block, from the sums of a with b."""
        import torch

        va, _ = sums.variances()
        scale_a = torch.where(live_a & (va > 0), va.clamp_min(1e-300).rsqrt(), torch.zeros_like(va))
        for rows in row_blocks(len(va)):
            for columns, matrix, inverse in zip(self.layers, self.matrices, self.inverse, strict=True):
                r = sums.covariance(rows, columns) @ matrix.T
                r = r.mul_(scale_a[rows, None]).mul_(inverse)
                yield rows, columns, masked(r, live_a[rows], inverse > 0)

    def neighbours(self, sums: Sums, live_a: Tensor, k: int) -> tuple[Best, Best]:
        """The k nearest of every neuron of a among the rotated ones, and the reverse."""
        best_a = Best.none(len(live_a), k, sums.ab.device)
        best_b = Best.none(self.layers[-1].stop, k, sums.ab.device)
        for rows, columns, r in self.correlations(sums, live_a):
            best_a.merge(rows, r, columns.start)
            best_b.merge(columns, r.T, rows.start)
        return best_a, best_b


def excess(best: Sequence[Best], rotated: Sequence[Best]) -> np.ndarray:
    """Excess correlation of every neuron of the anchor: mean over models of max_j r - max_j r with rotated layers.

    [n]; NaN where a neuron takes no part. A neuron is called universal above 0.5 (Gurnee et al. 2024).
    """
    import numpy as np

    differences = []
    for ours, theirs in zip(best, rotated, strict=True):
        a, b = ours.r[:, 0].cpu().numpy(), theirs.r[:, 0].cpu().numpy()
        with np.errstate(invalid="ignore"):
            differences.append(np.where(np.isfinite(a) & np.isfinite(b), a - b, np.nan))
    return np.mean(differences, 0)
