"""The pass that holds all sums in memory: every unit's activations are used and forgotten."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nipstool.kit.distributed import Group
from nipstool.kit.progress import Progress, silent
from nipstool.rosetta_count.checkpoint import Keeper
from nipstool.rosetta_count.controls import Rotated
from nipstool.rosetta_count.correlate import Best, Frame, Sums, frame_of
from nipstool.rosetta_count.moments import Distinct, Moments, Neurons, check_finite, neurons_of
from nipstool.rosetta_count.stream import Activations, Found, Framed, Held, Products, inner_sums
from nipstool.rosetta_count.units import segments, share

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Watch = Callable[[int, int, "Tensor"], None]
"""`watch(model, unit, values)`: sees every unit's activations once."""


def unwatched(model: int, unit: int, values: Tensor) -> None:
    """Nobody looks."""


@dataclass(frozen=True)
class Settings:
    """What is computed in a pass: neighbours k, permuted repetitions, the rotated control, counts on prefixes."""

    k: int = 1
    repeats: int = 5
    rotate: bool = True
    prefixes: bool = True
    seed: int = 0


@dataclass(frozen=True)
class Recorded:
    """Of each model its neurons; of each pair (first, other) what was found; how many samples there were."""

    neurons: list[Neurons]
    pairs: list[Found]
    samples: int


@dataclass
class Dense:
    """The state of a pass over the units."""

    models: Sequence[Activations]
    units: int
    settings: Settings
    held: list[Held]
    frames: list[Frame]
    watched: Mapping[str, Tensor] = field(default_factory=dict)  # sums of who watches, to be kept with the rest
    device: torch.device | str = "cpu"
    readers: list[Framed] = field(init=False)
    moments: list[Moments] = field(init=False)
    products: list[Products] = field(init=False)
    inner: list[list[Sums]] = field(init=False)
    found: list[Found] = field(init=False)

    def __post_init__(self) -> None:
        first, others = self.models[0], self.models[1:]
        na, where, s = width(first), self.device, self.settings
        self.readers = [Framed(frame, held) for frame, held in zip(self.frames, self.held, strict=True)]
        self.moments = [Moments.zeros(frame) for frame in self.frames]
        self.products = [Products.zeros(na, width(m), s.repeats, where) for m in others]
        self.inner = [inner_sums((layer.columns for layer in m.layers), where) if s.rotate else [] for m in others]
        self.found = [Found.none(na, width(m), s.k, s.repeats, rotate=s.rotate, device=where) for m in others]

    def add(self, unit: int, watch: Watch) -> None:
        """Take in one unit."""
        for at, (model, moments) in enumerate(zip(self.models, self.moments, strict=True)):
            values = self.held[at](unit)
            moments.add(values, self.readers[at](unit), unit)
            if not bool(moments.absolute.isfinite().all()):
                check_finite(values, model.layers, model.name)
            watch(at, unit, values)
        a, *others = self.readers
        for other, products, inner, b in zip(self.models[1:], self.products, self.inner, others, strict=True):
            products.add(unit, a, b)
            if inner:
                values = b(unit)
                for sums, layer in zip(inner, other.layers, strict=True):
                    sums.add(values[:, layer.columns], values[:, layer.columns])

    def close(self) -> None:
        """Pair the ends, so that permuted pairings have every sample."""
        a, *others = self.readers
        for products, b in zip(self.products, others, strict=True):
            products.close(self.units, a, b)

    def take_prefix(self, group: Group) -> None:
        """Count what the samples so far give."""
        neurons = [neurons_of(merged(m, group)) for m in self.moments]
        for other, (found, products) in enumerate(zip(self.found, self.products, strict=True), 1):
            sums = added(products.observed, group)
            live = (neurons[0].live, neurons[other].live)
            found.take_prefix(sums.count, sums, live, (0, 0))

    def finish(self, group: Group) -> Recorded:
        """What the pass found."""
        neurons = [neurons_of(merged(m, group)) for m in self.moments]
        for at, (other, found, products) in enumerate(
            zip(self.models[1:], self.found, self.products, strict=True)
        ):
            whole = Products(added(products.observed, group), [added(sums, group) for sums in products.permuted])
            rotated = None
            if self.settings.rotate:
                inner = [added(sums, group) for sums in self.inner[at]]
                layers = [layer.columns for layer in other.layers]
                numbers = [layer.number for layer in other.layers]
                rotated = Rotated(layers, inner, self.frames[at + 1], self.settings.seed, numbers)
            found.take(whole, (neurons[0].live, neurons[at + 1].live), (0, 0), rotated)
        return Recorded(neurons, self.found, merged(self.moments[0], group).count)

    def tensors(self) -> dict[str, Tensor]:
        """The whole state by name, as views: what is copied into them is taken up."""
        named = {f"watched.{name}": tensor for name, tensor in self.watched.items()}
        for at, moments in enumerate(self.moments):
            parts = {**moments.tensors(), "values": moments.distinct.values, "found": moments.distinct.found}
            named |= {f"moments.{at}.{name}": tensor for name, tensor in parts.items()}
        for at, (products, inner) in enumerate(zip(self.products, self.inner, strict=True)):
            for which, sums in enumerate([*products.all, *inner]):
                named |= {f"sums.{at}.{which}.{name}": tensor for name, tensor in sums.tensors().items()}
        return named

    def counts(self) -> list[list[int]]:
        """How many samples each part of the state has seen."""
        moments = [m.count for m in self.moments]
        return [moments, *([s.count for s in self._sums(at)] for at in range(len(self.products)))]

    def set_counts(self, counts: Sequence[Sequence[int]]) -> None:
        """The counts of a state that is taken up."""
        for moments, count in zip(self.moments, counts[0], strict=True):
            moments.count = count
        for at, numbers in enumerate(counts[1:]):
            for sums, count in zip(self._sums(at), numbers, strict=True):
                sums.count = count

    def prefixes(self) -> dict[str, Tensor]:
        """What was counted on parts of the samples."""
        return {
            f"{at}.{samples}.{side}.{name}": tensor
            for at, found in enumerate(self.found)
            for samples, both in found.prefixes.items()
            for side, best in enumerate(both)
            for name, tensor in (("r", best.r), ("index", best.index))
        }

    def set_prefixes(self, kept: Mapping[str, Tensor]) -> None:
        """The reverse of prefixes."""
        for name in kept:
            at, samples, *_ = name.split(".")
            parts = [
                kept[f"{at}.{samples}.{side}.{part}"].to(self.device) for side in "01" for part in ("r", "index")
            ]
            self.found[int(at)].prefixes[int(samples)] = (Best(*parts[:2]), Best(*parts[2:]))

    def _sums(self, at: int) -> list[Sums]:
        return [*self.products[at].all, *self.inner[at]]


def width(model: Activations) -> int:
    """How many neurons a model has."""
    return model.layers[-1].columns.stop


def hold(models: Sequence[Activations], repeats: int) -> list[Held]:
    """Readers that keep the units which permuted pairings need again."""
    first, *others = models
    return [Held(first.unit, repeats, 1), *(Held(model.unit, 0, repeats + 1) for model in others)]


def frames_of(
    models: Sequence[Activations], held: Sequence[Held], group: Group, device: torch.device | str = "cpu"
) -> list[Frame]:
    """Each model's frame, from unit 0 of the first process, the same on all."""
    frames = []
    if group.rank == 0:
        for model, read in zip(models, held, strict=True):
            values = read(0)
            check_finite(values, model.layers, model.name)
            frames.append(frame_of(values))
    sent = group.gather([(frame.shift.cpu(), frame.scale.cpu()) for frame in frames])[0]
    return [Frame(shift.to(device), scale.to(device)) for shift, scale in sent]


def added(sums: Sums, group: Group) -> Sums:
    """The sums of all processes; of one alone its own."""
    if group.size == 1:
        return sums
    total = Sums(*(tensor.clone() for tensor in sums.tensors().values()), count=0)
    group.add(list(total.tensors().values()))
    total.count = sum(group.gather(sums.count))
    return total


def merged(moments: Moments, group: Group) -> Moments:
    """The moments of all processes; of one alone its own."""
    if group.size == 1:
        return moments
    total = Moments.zeros(moments.frame)
    for target, source in zip(total.tensors().values(), moments.tensors().values(), strict=True):
        target.copy_(source)
    group.add(list(total.tensors().values()))
    total.count = sum(group.gather(moments.count))
    total.distinct = Distinct.none(len(moments.distinct.found), moments.distinct.found.device)
    for values in group.gather(moments.distinct.values.cpu()):
        total.distinct.add_known(values)
    return total


def run_dense(
    models: Sequence[Activations],
    units: int,
    settings: Settings,
    *,
    group: Group | None = None,
    keeper: Keeper | None = None,
    watch: Watch = unwatched,
    watched: Mapping[str, Tensor] | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Recorded:
    """One pass over all units with every sum in memory; under torchrun each process takes a share of the units."""
    group, keeper = group or Group(), keeper or Keeper()
    settings = replace(settings, repeats=min(settings.repeats, max(0, units - 1)))
    held = hold(models, settings.repeats)
    frames = frames_of(models, held, group, device)
    state = Dense(models, units, settings, held, frames, watched or {}, device)
    done = keeper.restore(state)
    parts = segments(units) if settings.prefixes else [(0, units)]
    for start, stop in parts:
        for unit in range(*share(start, stop, group.rank, group.size)):
            if unit >= done:
                state.add(unit, watch)
                keeper.keep(state, unit + 1)
            progress(unit + 1, units)
        if settings.prefixes and stop >= done:
            state.take_prefix(group)
    if group.rank == group.size - 1:
        state.close()
    return state.finish(group)
