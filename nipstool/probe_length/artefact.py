"""Files of this method: tensors with one JSON description, as safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError
from nipstool.kit.files import AtomicFile, StrPath
from nipstool.kit.tensors import TensorReader, TensorWriter, dtype_name

if TYPE_CHECKING:
    from torch import Tensor

KEY = "nipstool"


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
        about = json.loads(reader.metadata[KEY])
        found = about["kind"]
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is no file of probe-length; expected {kind}") from error
    if found != kind:
        raise DataError(f"{path}: is {found}; expected {kind}")
    return about


def kind_of(path: StrPath) -> str | None:
    """What a file of this method holds, or None where it is none; raises what opening it raises."""
    with TensorReader(path) as reader:
        try:
            return json.loads(reader.metadata[KEY])["kind"]
        except (KeyError, ValueError, TypeError):
            return None
