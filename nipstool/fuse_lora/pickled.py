"""LoRAs in torch's own .bin and .pt files, read without running any code that they may hold."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nipstool.kit.errors import DataError
from nipstool.kit.files import check_input
from nipstool.kit.tensors import TensorReader, TensorWriter, dtype_name


def open_pickled(path: Path) -> TensorReader:
    """The tensors of a file that torch.save wrote, as a reader over a temporary safetensors file.

    Raises:
        DataError: it needs more than weights_only loading allows, or is no flat mapping of tensors.
    """
    try:
        loaded = torch.load(check_input(path), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{path}: cannot be loaded as plain weights: {reason}") from error
    tensors = _flat(loaded, path)
    with tempfile.NamedTemporaryFile(prefix="nipstool-", suffix=".safetensors") as copy:
        specs = {name: (dtype_name(t.dtype), tuple(t.shape)) for name, t in tensors.items()}
        writer = TensorWriter(copy, specs, {"format": "pt"})  # type: ignore[arg-type]
        for name, tensor in tensors.items():
            writer.write(name, tensor)
        writer.close()
        copy.flush()
        return TensorReader(copy.name)  # holds the file open; its name may go


def _flat(loaded: Any, path: Path) -> dict[str, Tensor]:
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not loaded:
        raise DataError(f"{path}: expected a mapping of names to tensors, found {type(loaded).__name__}")
    for name, tensor in loaded.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise DataError(f"{path}: expected tensors by name, found {type(tensor).__name__} under {name!r}")
    return loaded
