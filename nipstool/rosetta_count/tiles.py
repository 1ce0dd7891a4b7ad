"""Sums tile by tile from activations on disk, where all of them would not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from nipstool.kit.distributed import Group
from nipstool.kit.progress import Progress, silent
from nipstool.rosetta_count.controls import Rotated
from nipstool.rosetta_count.correlate import Best, Frame
from nipstool.rosetta_count.dense import Recorded, Settings
from nipstool.rosetta_count.moments import Neurons
from nipstool.rosetta_count.plan import tile_rows
from nipstool.rosetta_count.spool import Spooled
from nipstool.rosetta_count.stream import Found, Framed, Held, Layer, Products, inner_sums
from nipstool.rosetta_count.units import segments

if TYPE_CHECKING:
    import torch

WIDE = 4096  # columns of a tile, in whole layers


def run_tiles(
    spooled: Sequence[Spooled],
    frames: Sequence[Frame],
    neurons: Sequence[Neurons],
    units: int,
    settings: Settings,
    *,
    samples: int,
    memory: int,
    group: Group | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Recorded:
    """The same as run_dense finds, a tile at a time; processes share the tiles."""
    group = group or Group()
    settings = replace(settings, repeats=min(settings.repeats, max(0, units - 1)))
    pairs = []
    for other in range(1, len(spooled)):
        both = (spooled[0], spooled[other])
        na, nb = (one.layers[-1].columns.stop for one in both)
        found = Found.none(na, nb, settings.k, settings.repeats, rotate=settings.rotate, device=device)
        work = [
            (rows, layers)
            for layers in column_groups(both[1].layers)
            for rows in row_groups(na, _width(layers), settings.repeats, memory)
        ]
        for number, (rows, layers) in enumerate(group.share(work)):
            tile = Tile(both, (frames[0], frames[other]), rows, layers, units, settings, device)
            tile.run(found, (neurons[0], neurons[other]))
            progress(number + 1, len(work))
        pairs.append(joined(group.gather(found)))
    return Recorded(list(neurons), pairs, samples)


def column_groups(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Whole layers together, as long as they stay below WIDE columns: a rotation needs a whole layer."""
    groups: list[list[Layer]] = []
    for layer in layers:
        if groups and layer.columns.stop - groups[-1][0].columns.start <= WIDE:
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return groups


def _width(layers: Sequence[Layer]) -> int:
    return layers[-1].columns.stop - layers[0].columns.start


def row_groups(rows: int, columns: int, repeats: int, memory: int) -> Iterator[slice]:
    """Runs of rows whose sums with so many columns fit into memory."""
    size = max(1, tile_rows(memory, columns, repeats))
    for at in range(0, rows, size):
        yield slice(at, min(rows, at + size))


class Tile:
    """Some columns of a against some layers of b."""

    def __init__(
        self,
        models: tuple[Spooled, Spooled],
        frames: tuple[Frame, Frame],
        rows: slice,
        layers: Sequence[Layer],
        units: int,
        settings: Settings,
        device: torch.device | str,
    ):
        self.rows, self.layers, self.units, self.settings = rows, layers, units, settings
        self.columns = slice(layers[0].columns.start, layers[-1].columns.stop)
        self.frames = frames
        repeats = settings.repeats
        a = Held(partial(_read, models[0], rows), repeats, 1)
        b = Held(partial(_read, models[1], self.columns), 0, repeats + 1)
        self.read_a, self.read_b = Framed(frames[0][rows], a), Framed(frames[1][self.columns], b)
        self.products = Products.zeros(rows.stop - rows.start, _width(layers), repeats, device)
        self.own = [_moved(layer.columns, self.columns.start) for layer in layers]
        self.inner = inner_sums(self.own, device) if settings.rotate else []

    def run(self, found: Found, neurons: tuple[Neurons, Neurons]) -> None:
        """Sum over all units and take the result into `found`."""
        live = (neurons[0].live[self.rows], neurons[1].live[self.columns])
        place = (self.rows.start, self.columns.start)
        for start, stop in segments(self.units):
            for index in range(start, stop):
                self.products.add(index, self.read_a, self.read_b)
                if self.inner:
                    values = self.read_b(index)
                    for sums, own in zip(self.inner, self.own, strict=True):
                        sums.add(values[:, own], values[:, own])
            if self.settings.prefixes:
                found.take_prefix(self.products.observed.count, self.products.observed, live, place)
        self.products.close(self.units, self.read_a, self.read_b)
        found.take(self.products, live, place, self._rotated())

    def _rotated(self) -> Rotated | None:
        if not self.settings.rotate:
            return None
        numbers = [layer.number for layer in self.layers]
        return Rotated(self.own, self.inner, self.frames[1][self.columns], self.settings.seed, numbers)


def _read(model: Spooled, columns: slice, index: int) -> torch.Tensor:
    return model.columns(index, columns)


def _moved(columns: slice, start: int) -> slice:
    return slice(columns.start - start, columns.stop - start)


def joined(parts: Sequence[Found]) -> Found:
    """What several processes found, as one."""
    whole, *others = parts
    for other in others:
        for ours, theirs in zip(_all(whole), _all(other), strict=True):
            for mine, more in zip(ours, theirs, strict=True):
                join(mine, more)
        for samples, both in other.prefixes.items():
            if samples not in whole.prefixes:
                whole.prefixes[samples] = both
                continue
            for mine, more in zip(whole.prefixes[samples], both, strict=True):
                join(mine, more)
    return whole


def _all(found: Found) -> list[tuple[Best, Best]]:
    return [found.observed, *found.permuted, *([found.rotated] if found.rotated is not None else [])]


def join(mine: Best, more: Best) -> None:
    """Take in the neighbours that another process found among other columns."""
    mine.take(slice(None), more.r, more.index)
