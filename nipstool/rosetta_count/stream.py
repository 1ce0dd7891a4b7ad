"""One pass over the units of work: sums of the observed pairing, of permuted ones, of layers with themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nipstool.rosetta_count.correlate import Best, Frame, Sums, correlations

if TYPE_CHECKING:
    from torch import Tensor

    from nipstool.rosetta_count.controls import Rotated


class Layer(NamedTuple):
    """A layer: its name, the number that it is known by, and the columns of its neurons among all."""

    name: str
    number: int
    columns: slice


class Activations(Protocol):
    """The activations of one model: its layers' places among all its neurons, and values unit by unit."""

    @property
    def name(self) -> str:
        """What the user called it."""
        ...

    @property
    def layers(self) -> Sequence[Layer]:
        """In the order of their columns."""
        ...

    def unit(self, index: int) -> Tensor:
        """[S, n] in the model's own dtype; the same values whenever it is asked."""
        ...


@dataclass
class Held:
    """Units that will be needed again, so that each forward pass is made once: the first and the latest few."""

    read: Callable[[int], Tensor]
    first: int
    latest: int
    values: dict[int, Tensor] = field(default_factory=dict)

    def __call__(self, index: int) -> Tensor:
        if index not in self.values:
            self.values[index] = self.read(index)
            keep = sorted(at for at in self.values if at >= self.first)[-self.latest :]
            self.values = {at: v for at, v in self.values.items() if at < self.first or at in keep}
        return self.values[index]


@dataclass
class Products:
    """The sums of one block of columns of a with one of b: as observed, and with b moved on by 1 ... B units."""

    observed: Sums
    permuted: list[Sums]

    @classmethod
    def zeros(cls, na: int, nb: int, repeats: int, device: object = None) -> Products:
        """Nothing summed yet."""
        return cls(Sums.zeros(na, nb, device), [Sums.zeros(na, nb, device) for _ in range(repeats)])

    @property
    def all(self) -> list[Sums]:
        """Every set of sums, in a fixed order."""
        return [self.observed, *self.permuted]

    def add(self, index: int, a: Callable[[int], Tensor], b: Callable[[int], Tensor]) -> None:
        """Take in unit `index`: with the same unit of b, and with those before it as far as there are any."""
        za = a(index)
        self.observed.add(za, b(index))
        for k, sums in enumerate(self.permuted, 1):
            if index >= k:
                sums.add(za, b(index - k))

    def close(self, count: int, a: Callable[[int], Tensor], b: Callable[[int], Tensor]) -> None:
        """Pair the first units of a with the last ones of b: the permutation goes round in a circle."""
        for index in range(min(len(self.permuted), count)):
            za = a(index)
            for k in range(index + 1, len(self.permuted) + 1):
                self.permuted[k - 1].add(za, b((index - k) % count))


@dataclass
class Found:
    """Nearest neighbours (of a, of b) under every pairing; `prefixes` after a part of the samples."""

    observed: tuple[Best, Best]
    permuted: list[tuple[Best, Best]]
    rotated: tuple[Best, Best] | None
    prefixes: dict[int, tuple[Best, Best]] = field(default_factory=dict)

    @classmethod
    def none(cls, na: int, nb: int, k: int, repeats: int, *, rotate: bool, device: object = None) -> Found:
        """Nothing found yet."""

        def empty(k: int) -> tuple[Best, Best]:
            return Best.none(na, k, device), Best.none(nb, k, device)

        return cls(empty(k), [empty(k) for _ in range(repeats)], empty(k) if rotate else None)

    def take(
        self, products: Products, live: tuple[Tensor, Tensor], place: tuple[int, int], rotated: Rotated | None
    ) -> None:
        """Take in finished sums of a block of columns that begins at `place`; `live` are those of the block."""
        merge(self.observed, products.observed, live, place)
        for both, sums in zip(self.permuted, products.permuted, strict=True):
            merge(both, sums, live, place)
        if rotated is None or self.rotated is None:
            return
        best_a, best_b = self.rotated
        for rows, columns, r in rotated.correlations(products.observed, live[0]):
            rows = slice(rows.start + place[0], rows.stop + place[0])
            columns = slice(columns.start + place[1], columns.stop + place[1])
            best_a.merge(rows, r, columns.start)
            best_b.merge(columns, r.T, rows.start)

    def take_prefix(self, samples: int, sums: Sums, live: tuple[Tensor, Tensor], place: tuple[int, int]) -> None:
        """Take in the sums of a block of columns after so many samples."""
        if samples not in self.prefixes:
            device = self.observed[0].r.device
            na, nb = (len(best.r) for best in self.observed)
            self.prefixes[samples] = (Best.none(na, 1, device), Best.none(nb, 1, device))
        merge(self.prefixes[samples], sums, live, place)


def layers_of(named: Iterable[tuple[str, int, int]]) -> tuple[Layer, ...]:
    """Layers side by side, from (name, number, width)."""
    layers: list[Layer] = []
    at = 0
    for name, number, width in named:
        layers.append(Layer(name, number, slice(at, at + width)))
        at += width
    return tuple(layers)


def merge(both: tuple[Best, Best], sums: Sums, live: tuple[Tensor, Tensor], place: tuple[int, int]) -> None:
    """Take the correlations of a block of columns into the nearest neighbours of both sides."""
    best_a, best_b = both
    columns = slice(place[1], place[1] + sums.ab.shape[1])
    for rows, r in correlations(sums, *live):
        moved = slice(rows.start + place[0], rows.stop + place[0])
        best_a.merge(moved, r, columns.start)
        best_b.merge(columns, r.T, moved.start)


def inner_sums(layers: Iterable[slice], device: object = None) -> list[Sums]:
    """Empty sums of each layer with itself."""
    return [Sums.zeros(c.stop - c.start, c.stop - c.start, device) for c in layers]


@dataclass
class Framed:
    """Reads a unit, shifted and scaled. What it gives lasts until the next call: the memory is used again."""

    frame: Frame
    read: Callable[[int], Tensor]
    _memory: Tensor | None = None

    def __call__(self, index: int) -> Tensor:
        """[S, n] in float32."""
        import torch

        values = self.read(index)
        if self._memory is None or len(self._memory) < len(values):
            self._memory = torch.empty(values.shape, device=values.device)
        return self.frame(values, self._memory[: len(values)])
