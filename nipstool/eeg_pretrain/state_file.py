"""Everything a training needs to go on, in one safetensors file that is replaced whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from nipstool.kit.errors import DataError
from nipstool.kit.files import AtomicFile
from nipstool.kit.records import parse_json

KEY = "eeg-pretrain"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and a JSON document, whole or not at all."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    data = save(plain, {KEY: json.dumps(about, sort_keys=True)})
    with AtomicFile(path, force=True) as out:
        out.file.write(data)


def load_tensors(path: Path, told: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote. Raises DataError where the file is another one."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    from nipstool.kit.tensors import read_header

    try:
        header = read_header(path)
        return load(path.read_bytes()), parse_json(header.metadata[KEY])
    except (KeyError, ValueError, SafetensorError) as error:
        raise DataError(f"{told or path}: holds no weights of this method") from error
