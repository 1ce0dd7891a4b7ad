"""Activations that were dumped before, from any framework: .npy, .safetensors, or a folder of them.

Arrays are [N, n] (a sample a row), [N, C, H, W] (a neuron a channel, a sample a place) or [N, T, n] (a sample a
position). Files are mapped, so that what is read is the rows of one unit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError, InputMissingError, UsageError
from nipstool.kit.files import check_input, sha256
from nipstool.kit.parts import reason
from nipstool.kit.tensors import TensorReader, torch_dtype
from nipstool.rosetta_count.grids import Grid, common_grid, grid_of, samples
from nipstool.rosetta_count.stream import Layer, layers_of
from nipstool.rosetta_count.units import Unit, make_units

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FORMATS = (".npy", ".safetensors")
EXPECTED = "[N, n] (a sample a row), [N, C, H, W] or [N, T, n], none of them 0"
NPY = b"\x93NUMPY"
NO_HEADER = (ValueError, EOFError, TypeError, SyntaxError, TokenError)  # what numpy makes of a damaged one


@dataclass(frozen=True)
class Array:
    """One layer's dump: its shape and how rows [start, stop) of its first axis are read."""

    name: str
    path: Path
    shape: tuple[int, ...]
    read: Callable[[int, int], Tensor]

    @property
    def width(self) -> int:
        """How many neurons it has."""
        return self.shape[1] if len(self.shape) == 4 else self.shape[-1]

    @property
    def places(self) -> int:
        """How many samples a row of the first axis holds."""
        return math.prod(self.shape[1:]) // max(1, self.width)


def open_dump(path: str) -> list[Array]:
    """The arrays of a dump, by name. Raises InputMissingError or DataError."""
    found = check_input(path)
    files = [found]
    if found.is_dir():
        files = sorted(file for file in found.iterdir() if file.suffix in FORMATS)
        if not files:
            raise DataError(f"{path}: no .npy or .safetensors file in this folder")
    arrays = [array for file in files for array in _arrays(file, alone=len(files) == 1)]
    for array in arrays:
        if len(array.shape) not in (2, 3, 4) or 0 in array.shape:
            told = "" if array.path.suffix == ".npy" else f"{array.name} "
            raise DataError(f"{array.path}: {told}has the shape {list(array.shape)}; expected {EXPECTED}")
        if array.shape[0] != arrays[0].shape[0]:
            told = f"{array.name} has {array.shape[0]} rows, {arrays[0].name} {arrays[0].shape[0]}"
            raise DataError(f"{path}: {told}; expected the same samples in all layers")
    return arrays


def dump_hashes(paths: Sequence[str]) -> dict[str, str]:
    """file -> sha256 of everything that is read."""
    return {str(array.path): sha256(array.path) for path in paths for array in open_dump(path)}


def _arrays(file: Path, *, alone: bool) -> list[Array]:
    if file.suffix == ".npy":
        return [_npy(file)]
    if file.suffix == ".safetensors":
        return _safetensors(file, "" if alone else f"{file.stem}.")
    raise DataError(f"{file}: expected a dump that ends in .npy or .safetensors")


def _npy(file: Path) -> Array:
    import numpy as np
    import torch

    try:
        values = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise InputMissingError(f"{file}: cannot be read: {reason(error)}") from error
    except NO_HEADER as error:
        raise DataError(f"{file}: {_no_npy(file)}") from error
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub":
        raise DataError(
            f"{file}: holds {getattr(values, 'dtype', 'several arrays')}; expected one array of numbers"
        )

    def read(start: int, stop: int) -> Tensor:
        part = np.array(values[start:stop])
        part = part.astype(part.dtype.newbyteorder("="), copy=False)
        return torch.from_numpy(part if part.dtype.kind == "f" else part.astype(np.float64))

    return Array(file.stem, file, tuple(values.shape), read)


def _no_npy(file: Path) -> str:
    """Why a file cannot be mapped as .npy, in words of our own: numpy's advise to load what is unsafe."""
    from numpy.lib import format as npy

    expected = "expected one array of numbers, as numpy.save writes it"
    with file.open("rb") as opened:
        start = opened.read(len(NPY))
        if start != NPY:
            return f"is no .npy file, it {f'begins with {start!r}' if start else 'is empty'}; {expected}"
        opened.seek(0)
        try:
            old = npy.read_magic(opened) == (1, 0)
            shape, _, dtype = (npy.read_array_header_1_0 if old else npy.read_array_header_2_0)(opened)
        except NO_HEADER:
            return f"is a .npy file whose header is damaged; {expected}"
        needed, there = math.prod(shape) * dtype.itemsize, file.stat().st_size - opened.tell()
    if dtype.hasobject:
        return f"holds Python objects; {expected}"
    if there < needed:
        return f"is cut short: shape {list(shape)} in {dtype} takes {needed} bytes, {there} are there"
    return f"holds shape {list(shape)} in {dtype}; expected {EXPECTED}"


def _safetensors(file: Path, prefix: str) -> list[Array]:
    reader = TensorReader(file)
    arrays = []
    for name, info in reader.infos.items():
        dtype = torch_dtype(info.dtype)
        if not dtype.is_floating_point:
            raise DataError(f"{file}: {name} holds {info.dtype}; expected floating-point activations")
        arrays.append(Array(prefix + name, file, tuple(info.shape), _reader(reader, name, info, dtype)))
    if not arrays:
        raise DataError(f"{file}: holds no tensor")
    return arrays


def _reader(reader: TensorReader, name: str, info: Any, dtype: torch.dtype) -> Callable[[int, int], Tensor]:
    def read(start: int, stop: int) -> Tensor:
        import torch

        row = info.nbytes // max(1, info.shape[0])
        data = torch.empty((stop - start) * row, dtype=torch.uint8)
        reader.read_into(name, memoryview(data.numpy().data), start * row)
        return data.view(dtype).reshape(stop - start, *info.shape[1:])

    return read


def read_ids(path: str) -> list[str]:
    """Sample ids, one a line. Raises DataError where they are not UTF-8, empty or not unique."""
    try:
        ids = check_input(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no UTF-8 text: {error}") from error
    except OSError as error:
        raise InputMissingError(f"{path}: cannot be read: {reason(error)}") from error
    if not ids:
        raise DataError(f"{path}: is empty; expected a sample id a line")
    if len(set(ids)) != len(ids):
        twice, _ = Counter(ids).most_common(1)[0]
        raise DataError(f"{path}: the sample id {twice!r} stands there twice")
    return ids


def joined_rows(ids: Sequence[list[str]], told: Sequence[str]) -> list[list[int]]:
    """For each list of ids the rows of those that all have, in the order of the first. DataError where none."""
    common = set(ids[0]).intersection(*ids[1:])
    if not common:
        raise DataError(f"{told[0]} and {told[1]}: no sample id in common")
    places = [{name: at for at, name in enumerate(one)} for one in ids]
    return [[place[name] for name in ids[0] if name in common] for place in places]


@dataclass(frozen=True)
class DumpActivations:
    """A dump as activations: every row of the first axis is a document of `places` samples."""

    name: str
    layers: tuple[Layer, ...]
    arrays: tuple[Array, ...]
    units: tuple[Unit, ...]
    grid: Grid
    rows: tuple[int, ...] | None = None  # of the first axis, where ids were joined

    def unit(self, index: int) -> Tensor:
        """[S, n] in the widest of the layers' own dtypes."""
        import torch

        unit = self.units[index]
        return torch.cat([samples(self._rows(array, unit), self.grid) for array in self.arrays], 1)

    def _rows(self, array: Array, unit: Unit) -> Tensor:
        import torch

        if self.rows is None:
            return array.read(unit.start, unit.stop)
        return torch.cat([array.read(row, row + 1) for row in self.rows[unit.start : unit.stop]])


def open_dumps(
    paths: Sequence[str], *, sample_ids: Sequence[str] = (), grid: str | None = None, repeats: int
) -> tuple[list[DumpActivations], list[Unit], int]:
    """The dumps as activations on the same samples; the units of work; how many samples a row of the files gives.

    Raises DataError where sample counts differ and no ids join them, and what open_dump raises.
    """
    dumps = [open_dump(path) for path in paths]
    rows = _joined(paths, dumps, sample_ids)
    chosen = common_grid((grid_of(array.shape) for array in dumps[0]), grid)
    places = chosen[0] * chosen[1]
    count = len(rows[0]) if rows else dumps[0][0].shape[0]
    if count * places < 3:
        raise DataError(f"{paths[0]}: {count * places} samples; expected many, at least 3")
    units = make_units([places] * count, repeats=repeats)
    found = []
    for at, (path, arrays) in enumerate(zip(paths, dumps, strict=True)):
        layers = layers_of((array.name, number, array.width) for number, array in enumerate(arrays))
        own = tuple(rows[at]) if rows else None
        found.append(DumpActivations(path, layers, tuple(arrays), tuple(units), chosen, own))
    return found, units, places


def _joined(
    paths: Sequence[str], dumps: Sequence[Sequence[Array]], sample_ids: Sequence[str]
) -> list[list[int]] | None:
    """Rows of each dump that belong together, by ids; None where they are in order as they are."""
    counts = [arrays[0].shape[0] for arrays in dumps]
    if not sample_ids:
        if len(set(counts)) > 1:
            told = ", ".join(f"{path} has {count}" for path, count in zip(paths, counts, strict=True))
            raise DataError(f"sample counts differ: {told}; --sample-id joins rows by their ids")
        return None
    if len(sample_ids) != len(paths):
        raise UsageError(
            f"--sample-id is given {len(sample_ids)} times; expected one file for each of {len(paths)} dumps"
        )
    ids = [read_ids(path) for path in sample_ids]
    for file, path, own, count in zip(sample_ids, paths, ids, counts, strict=True):
        if len(own) != count:
            raise DataError(f"{file}: {len(own)} ids for the {count} rows of {path}")
    return joined_rows(ids, sample_ids)
