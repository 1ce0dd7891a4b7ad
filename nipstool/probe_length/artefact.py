"""Files of this method: tensors with one JSON description, as safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nipstool.kit.errors import DataError
from nipstool.kit.files import AtomicFile, StrPath
from nipstool.kit.records import parse_json
from nipstool.kit.tensors import TensorReader, TensorWriter, dtype_name

if TYPE_CHECKING:
    from torch import Tensor

KEY = "nipstool"
LARGEST = 1e30  # what is predicted from it must fit into float32
Array = np.ndarray


def write_tensors(path: StrPath, tensors: Mapping[str, Tensor], about: Mapping[str, Any], *, force: bool) -> None:
    """One file with `tensors` and `about`, whole or not at all."""
    specs = {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}
    with AtomicFile(path, force=force) as out:
        writer = TensorWriter(out.file, specs, {KEY: json.dumps(about, sort_keys=True)})
        for name, tensor in tensors.items():
            writer.write(name, tensor)
        writer.close()


def read_about(path: StrPath, reader: TensorReader, kind: str) -> dict[str, Any]:
    """The description of a file of this kind; DataError where it is another one."""
    try:
        about = parse_json(reader.metadata[KEY])
        found = about["kind"]
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is no file of probe-length; expected {kind}") from error
    if found != kind:
        raise DataError(f"{path}: is {found}; expected {kind}")
    return about


def read_array(path: StrPath, reader: TensorReader, name: str, kind: str, shape: Sequence[int | None]) -> Array:
    """A tensor of a file of ours. Raises DataError unless it is as it was written.

    Args:
        kind: numpy's letter, b, i or f; a tensor of numbers holds nothing beyond LARGEST, and no NaN.
        shape: None where any size will do.
    """
    try:
        array = reader.read(name).numpy()
    except TypeError as error:  # a dtype that numpy lacks
        raise DataError(f"{path}: {name} is {reader.infos[name].dtype}; expected what fit writes") from error
    sizes = zip(array.shape, shape, strict=False)
    if array.dtype.kind != kind or array.ndim != len(shape) or any(n not in (None, m) for m, n in sizes):
        expected = ", ".join("any" if n is None else str(n) for n in shape)
        raise DataError(f"{path}: {name} is {array.dtype} {list(array.shape)}; expected {kind} [{expected}]")
    # neither mask nor copy: the sums over pairs of a wide model's features are large
    if kind == "f" and array.size and not -LARGEST <= array.min() <= array.max() <= LARGEST:
        raise DataError(f"{path}: {name} holds NaN or numbers beyond {LARGEST:g}")
    return array


def kind_of(path: StrPath) -> str | None:
    """What a file of this method holds, or None where it is none; raises what opening it raises."""
    with TensorReader(path) as reader:
        try:
            return parse_json(reader.metadata[KEY])["kind"]
        except (KeyError, ValueError, TypeError):
            return None
