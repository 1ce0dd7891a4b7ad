"""Activations on disk, unit by unit, in the model's own dtype; a finished file is also what --resume takes up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nipstool.kit.distributed import Group
from nipstool.kit.progress import Progress, silent
from nipstool.rosetta_count.correlate import Frame, frame_of
from nipstool.rosetta_count.dense import Watch, merged, unwatched
from nipstool.rosetta_count.moments import Moments, Neurons, check_finite, neurons_of
from nipstool.rosetta_count.stream import Activations, Layer
from nipstool.rosetta_count.units import share

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Spooled:
    """One model's activations as they lie in a folder."""

    name: str
    layers: tuple[Layer, ...]
    folder: Path
    device: torch.device | str = "cpu"

    def file(self, index: int) -> Path:
        """Where a unit lies."""
        return self.folder / f"unit-{index:06d}.safetensors"

    def unit(self, index: int) -> Tensor:
        """[S, n]."""
        return self.columns(index, slice(0, self.layers[-1].columns.stop))

    def columns(self, index: int, columns: slice) -> Tensor:
        """[S, columns]: what is not asked for is not read."""
        from safetensors import safe_open

        with safe_open(self.file(index), framework="pt") as file:
            return file.get_slice("values")[:, columns].to(self.device)

    def write(self, index: int, values: Tensor) -> None:
        """Store a unit; it is there whole or not at all."""
        from safetensors.torch import save_file

        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.file(index).with_suffix(".part")
        save_file({"values": values.contiguous().cpu()}, part)
        part.rename(self.file(index))


def spool(
    models: Sequence[Activations],
    units: int,
    folder: Path,
    *,
    group: Group | None = None,
    watch: Watch = unwatched,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> tuple[list[Spooled], list[Frame], list[Neurons], int]:
    """One pass over all units; each process writes its share into the same folder.

    Returns the models as spooled, frames, neurons, and how many samples there are.
    """
    group = group or Group()
    spooled = [Spooled(m.name, tuple(m.layers), folder / str(at), device) for at, m in enumerate(models)]
    if group.rank == 0:
        _store(models, spooled, 0)
    group.gather(None)
    frames = [frame_of(one.unit(0)) for one in spooled]
    moments = [Moments.zeros(frame) for frame in frames]
    for index in range(*share(0, units, group.rank, group.size)):
        _store(models, spooled, index)
        for at, one in enumerate(spooled):
            values = one.unit(index)
            moments[at].add(values, frames[at](values), index)
            watch(at, index, values)
        progress(index + 1, units)
    whole = [merged(one, group) for one in moments]
    return spooled, frames, [neurons_of(one) for one in whole], whole[0].count


def _store(models: Sequence[Activations], spooled: Sequence[Spooled], index: int) -> None:
    """Compute and write what is not there yet."""
    for model, one in zip(models, spooled, strict=True):
        if not one.file(index).exists():
            values = model.unit(index)
            check_finite(values, model.layers, model.name)
            one.write(index, values)
