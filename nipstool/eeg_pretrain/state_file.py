"""Everything a training needs to go on, in one safetensors file that is replaced whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from nipstool.kit.errors import DataError
from nipstool.kit.files import AtomicFile
from nipstool.kit.signals import uninterrupted

KEY = "eeg-pretrain"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and a JSON document. A signal that comes meanwhile waits."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    data = save(plain, {KEY: json.dumps(about, sort_keys=True)})
    with uninterrupted(), AtomicFile(path, force=True) as out:
        out.file.write(data)


def load_tensors(path: Path, told: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote. Raises DataError where the file is another one."""
    from safetensors import SafetensorError, safe_open

    told = told or str(path)
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})[KEY])
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (KeyError, ValueError, SafetensorError, OSError) as error:
        raise DataError(f"{told}: holds no weights of this method") from error
