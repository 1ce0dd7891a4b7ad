"""What an architecture consists of: its matrices by layer, and what it costs to store and to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import fsum
from typing import Any

from nipstool.prune_nsc.capacity import Scale, degeneracy


@dataclass(frozen=True)
class Matrix:
    """`count` weight matrices m x n (n inputs); `mixes` is false for tables that are only looked up in."""

    name: str
    m: int
    n: int
    count: int = 1

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.m * self.n * self.count

    def nsc(self, scale: Scale) -> float:
        """NSC of all `count` of them at initialisation."""
        return self.count * scale.nsc(self.m, self.n)


@dataclass(frozen=True)
class Layer:
    """A layer's matrices and how many further parameters (norms, biases) it has."""

    matrices: tuple[Matrix, ...]
    vectors: int
    attends: bool = True
    kv_values: int = 0  # numbers that the layer caches for a token

    @property
    def params(self) -> int:
        """Parameters of the layer."""
        return sum(matrix.size for matrix in self.matrices) + self.vectors

    def nsc(self, scale: Scale) -> float:
        """Sum over the layer's matrices, each on its own."""
        return fsum(matrix.nsc(scale) for matrix in self.matrices)


@dataclass(frozen=True)
class Architecture:
    """A network to score.

    `outside` are matrices beside the layers that count for NSC (embedding projections); `other` are parameters
    that do not (embeddings, LM head, final norm, biases); `head_size` are weights of the LM head used in a
    matmul, tied or not; `heads_width` is heads * head_dim, one a network or one a layer.
    """

    id: str
    outside: tuple[Matrix, ...]
    layers: tuple[Layer, ...]
    other: int
    heads_width: int | tuple[int, ...]
    head_size: int = 0
    kv_bytes_a_value: int = 2

    @property
    def params(self) -> int:
        """All parameters, embeddings included, tied ones once."""
        inside = sum(layer.params for layer in self.layers)
        return inside + sum(matrix.size for matrix in self.outside) + self.other

    def flops(self, seq: int) -> int:
        """Forward FLOPs a token: 2 for each weight in a matmul, and 4 seq heads head_dim for each attention."""
        weights = self.head_size + sum(matrix.size for matrix in self.all_matrices())
        widths = self.heads_width
        if not isinstance(widths, tuple):
            widths = (widths,) * len(self.layers)
        attention = sum(width for width, layer in zip(widths, self.layers, strict=True) if layer.attends)
        return 2 * weights + 4 * seq * attention

    @property
    def kv_bytes(self) -> int:
        """Bytes that a token takes in the key and value cache."""
        return self.kv_bytes_a_value * sum(layer.kv_values for layer in self.layers)

    def all_matrices(self) -> Iterator[Matrix]:
        """Those outside the layers, then those of each layer."""
        yield from self.outside
        for layer in self.layers:
            yield from layer.matrices

    def nsc(self, scale: Scale) -> float:
        """Sum over all matrices, rounded once: the same matrices in another order tie exactly."""
        return fsum(matrix.nsc(scale) for matrix in self.all_matrices())

    def mean_snr(self, scale: Scale) -> float:
        """Mean of s sigma^2; the score degenerates to a parameter count where it is far below 1."""
        return degeneracy(((matrix.m, matrix.n, matrix.count) for matrix in self.all_matrices()), scale)

    def frobenius(self, scale: Scale) -> float:
        """Sum of expected Frobenius norms sqrt(size v), one a weight tensor: a plain score to compare with."""
        return fsum((matrix.size * scale.variance(matrix.m, matrix.n)) ** 0.5 for matrix in self.all_matrices())


def bytes_a_value(raw: Mapping[str, Any]) -> int:
    """Bytes of a number in the dtype that a configuration names; 2 where it names none."""
    return {"float32": 4, "float64": 8}.get(str(raw.get("dtype") or raw.get("torch_dtype")), 2)
