"""What is known of every neuron after one pass: moments, how often it is active, and whether it is alive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nipstool.kit.errors import DataError
from nipstool.rosetta_count.correlate import row_blocks

if TYPE_CHECKING:
    from torch import Tensor

    from nipstool.rosetta_count.correlate import Frame
    from nipstool.rosetta_count.stream import Layer

QUANTISED = 3  # a neuron with at most so many distinct values has too few for a correlation
COLUMNS, ROWS = 1024, 64  # at a time: they lie in the cache while all sums are taken
FIRST_ROWS = 32


@dataclass
class Moments:
    """Sums over samples of framed values z and raw values x, [n] each."""

    frame: Frame
    powers: Tensor  # [4, n]: sums of z, z^2, z^3, z^4
    absolute: Tensor  # sum of |x|
    active: Tensor  # how often x > 0
    hashes: Tensor  # int64, of the first unit: equal for columns that are equal
    distinct: Distinct
    count: int = 0

    @classmethod
    def zeros(cls, frame: Frame) -> Moments:
        """Nothing seen yet."""
        import torch

        n, device = len(frame.shift), frame.shift.device
        wide = torch.zeros(6, n, dtype=torch.float64, device=device)
        whole = torch.zeros(n, dtype=torch.int64, device=device)
        return cls(frame, wide[:4], wide[4], wide[5], whole, Distinct.none(n, device))

    def add(self, values: Tensor, z: Tensor, unit: int) -> None:
        """Take in the values [S, n] of a unit of work, as they are and framed."""
        import torch

        self.count += len(values)
        weights = _weights(len(values)).to(values.device) if unit == 0 else None
        held = torch.empty(2, ROWS, min(COLUMNS, values.shape[1]), device=values.device)
        for columns in row_blocks(values.shape[1], COLUMNS):
            for rows in row_blocks(len(values), ROWS):
                self._add(values[rows, columns], z[rows, columns], columns, held)
            if weights is not None:
                bits = values[:, columns].float().contiguous().view(torch.int32)
                self.hashes[columns] += (bits * weights[:, None]).sum(0)
        self.distinct.add(values)

    def _add(self, x: Tensor, z: Tensor, columns: slice, held: Tensor) -> None:
        """All sums of a piece; `held` is memory for intermediate values, which asking for anew would cost more."""
        import torch

        odd, even = held[:, : len(x), : x.shape[1]]
        torch.mul(z, z, out=even)
        self.powers[0, columns] += z.sum(0)
        self.powers[1, columns] += even.sum(0)
        torch.mul(z, even, out=odd)
        even.mul_(even)
        self.powers[2, columns] += odd.sum(0)
        self.powers[3, columns] += even.sum(0)
        if x.dtype == torch.float64:
            odd, even = torch.empty(2, *x.shape, dtype=x.dtype, device=x.device)
        else:
            x = x.float()
        self.absolute[columns] += torch.abs(x, out=even).sum(0)
        self.active[columns] += torch.sign(x, out=odd).clamp_min_(0).sum(0)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds, and what processes add up (but for the distinct values)."""
        return {
            "powers": self.powers,
            "absolute": self.absolute,
            "active": self.active,
            "hashes": self.hashes,
        }


def _weights(rows: int) -> Tensor:
    import torch

    generator = torch.Generator().manual_seed(1)
    return torch.randint(-(2**31), 2**31 - 1, (rows,), generator=generator, dtype=torch.int32)


@dataclass
class Distinct:
    """Up to QUANTISED + 1 distinct values of every neuron, [QUANTISED + 1, n], and how many were found."""

    values: Tensor
    found: Tensor

    @classmethod
    def none(cls, n: int, device: object = None) -> Distinct:
        """No value seen yet."""
        import torch

        values = torch.full((QUANTISED + 1, n), float("nan"), dtype=torch.float64, device=device)  # type: ignore[call-overload]
        return cls(values, torch.zeros(n, dtype=torch.int64, device=device))  # type: ignore[call-overload]

    def add(self, values: Tensor) -> None:
        """Look for new values of those neurons that have not yet shown enough; the first rows mostly suffice."""
        self._look(values[:FIRST_ROWS])
        self._look(values)

    def _look(self, values: Tensor) -> None:
        import torch

        for _ in range(QUANTISED + 1):
            few = (self.found <= QUANTISED).nonzero()[:, 0]
            if not len(few):
                return
            new = torch.zeros(len(few), dtype=torch.bool, device=values.device)
            for at in range(0, len(few), COLUMNS):
                columns = few[at : at + COLUMNS]
                new[at : at + COLUMNS] = self._take(values[:, columns].double(), columns)
            if not bool(new.any()):
                return

    def add_known(self, values: Tensor) -> None:
        """Take in the distinct values that another process has found."""
        known = values.to(self.values.device)
        for row in known:
            has = ~row.isnan() & (self.values != row).all(0) & (self.found <= QUANTISED)
            columns = has.nonzero()[:, 0]
            self.values[self.found[columns], columns] = row[columns]
            self.found[columns] += 1

    def _take(self, x: Tensor, columns: Tensor) -> Tensor:
        """Take one new value of each of these columns x [S, c]; says which had one."""
        import torch

        fresh = torch.ones_like(x, dtype=torch.bool)
        for known in self.values[:, columns]:
            fresh &= x != known  # NaN differs from all
        has = fresh.any(0)
        first = x.gather(0, fresh.long().argmax(0, keepdim=True))[0]
        chosen = columns[has]
        self.values[self.found[chosen], chosen] = first[has]
        self.found[chosen] += 1
        return has


@dataclass(frozen=True)
class Neurons:
    """Every neuron's statistics, [n] each, in the units of the activations; `kurtosis` is 3 for a Gaussian."""

    mean: Tensor
    deviation: Tensor
    skew: Tensor
    kurtosis: Tensor
    sparseness: Tensor  # Treves-Rolls: 1 - E|x|^2 / E[x^2]
    frequency: Tensor  # how often x > 0
    live: Tensor  # bool
    state: tuple[str, ...] = field(repr=False)  # live, dead, constant, quantised, duplicate

    def count(self, state: str) -> int:
        """How many neurons are in a state."""
        return self.state.count(state)


def neurons_of(moments: Moments) -> Neurons:
    """The statistics of every neuron, as scipy.stats.skew and kurtosis(fisher=False) define them."""
    import torch

    n = max(moments.count, 1)
    m1, m2, m3, m4 = moments.powers / n
    variance = (m2 - m1**2).clamp_min(0)
    third = m3 - 3 * m1 * m2 + 2 * m1**3
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    scale, shift = moments.frame.scale.double(), moments.frame.shift.double()
    mean, deviation = m1 / scale + shift, variance.sqrt() / scale
    state = _states(moments)
    live = torch.tensor([word == "live" for word in state], device=m1.device)
    safe = variance.clamp_min(1e-300)
    return Neurons(
        mean=mean,
        deviation=deviation,
        skew=third / safe**1.5,
        kurtosis=fourth / safe**2,
        sparseness=1 - (moments.absolute / n) ** 2 / (deviation**2 + mean**2).clamp_min(1e-300),
        frequency=moments.active / n,
        live=live,
        state=state,
    )


def _states(moments: Moments) -> tuple[str, ...]:
    """live, or why a neuron takes no part: dead (always 0), constant, quantised, or the copy of an earlier one."""
    found, first = moments.distinct.found.tolist(), moments.distinct.values[0].tolist()
    hashes, seconds = moments.hashes.tolist(), moments.powers[1].tolist()
    states: list[str] = []
    seen: dict[int, list[float]] = {}
    for number, value, key, second in zip(found, first, hashes, seconds, strict=True):
        if number <= QUANTISED:
            states.append("quantised" if number > 1 else "dead" if value == 0 else "constant")
        elif any(abs(second - other) <= 1e-9 * abs(other) for other in seen.get(key, ())):
            states.append("duplicate")
        else:
            seen.setdefault(key, []).append(second)
            states.append("live")
    return tuple(states)


def check_finite(values: Tensor, layers: Sequence[Layer], told: str) -> None:
    """DataError, naming the layer and its first such neuron, where values [S, n] hold NaN or infinity.

    They are the samples of one unit of work: nothing is said of those that follow.
    """
    import torch

    sums = values.sum(0, dtype=torch.float64 if values.dtype == torch.float64 else torch.float32)
    if bool(sums.isfinite().all()):
        return
    for layer in layers:
        bad = (~values[:, layer.columns].isfinite()).any(0)
        if bool(bad.any()):
            raise DataError(
                f"{told}: layer {layer.name}: {int(bad.sum())} of {len(bad)} neurons are NaN or infinite"
                f" (the first is {int(bad.nonzero()[0])}) in the {len(values)} samples read together;"
                " what follows was not read"
            )
