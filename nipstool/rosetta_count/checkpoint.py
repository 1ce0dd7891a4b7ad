"""What an interrupted run leaves for --resume: the sums so far, at most once a minute, beside the output.

Its key says which work they belong to. Whoever writes the output holds the lock that also guards this folder.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nipstool.kit.errors import UsageError
from nipstool.kit.parts import sync

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 1 << 30  # bytes of sums that are worth writing once a minute
SECONDS = 60.0
PREFIX = "prefix."


class State(Protocol):
    """What is kept: tensors by name, and how many samples each part has seen."""

    def tensors(self) -> dict[str, Tensor]:
        """Views of the state."""
        ...

    def counts(self) -> list[list[int]]:
        """Samples seen."""
        ...

    def set_counts(self, counts: list[list[int]]) -> None:
        """The reverse of counts."""
        ...

    def prefixes(self) -> dict[str, Tensor]:
        """What was found on parts of the samples."""
        ...

    def set_prefixes(self, kept: Mapping[str, Tensor]) -> None:
        """The reverse of prefixes."""
        ...


def work_folder(output: str | os.PathLike[str]) -> Path:
    """Where the state of a run that writes `output` lies until it is done."""
    target = Path(os.path.realpath(output))
    return target.with_name(f".{target.name}.sums")


@dataclass
class Keeper:
    """Writes a state now and then into `folder` (None: never) and takes one up with `resume`."""

    folder: Path | None = None
    name: str = "state"
    key: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False
    seconds: float = SECONDS
    _last: float = field(default_factory=time.monotonic)

    def restore(self, state: State) -> int:
        """Fill `state` from the folder; returns the first unit that is still to be done (0 without --resume)."""
        from safetensors.torch import load_file

        file = self._file("json")
        if not self.resume or file is None or not file.exists():
            return 0
        about = json.loads(file.read_text())
        if about["key"] != json.loads(json.dumps(self.key)):
            raise UsageError(f"{self.folder}: was begun with other options or inputs; run without --resume")
        kept = load_file(file.with_name(about["file"]))
        for name, tensor in state.tensors().items():
            tensor.copy_(kept[name])
        state.set_counts(about["counts"])
        prefixes = {name: tensor for name, tensor in kept.items() if name.startswith(PREFIX)}
        state.set_prefixes({name.removeprefix(PREFIX): tensor for name, tensor in prefixes.items()})
        return about["unit"]

    def keep(self, state: State, unit: int) -> None:
        """Write the state after `unit` units, if it is time and it is not too large."""
        if self.folder is None or time.monotonic() - self._last < self.seconds:
            return
        tensors = state.tensors()
        if sum(tensor.nbytes for tensor in tensors.values()) > LARGEST:
            return
        tensors |= {PREFIX + name: tensor for name, tensor in state.prefixes().items()}
        self._write(tensors, {"unit": unit, "counts": state.counts(), "key": dict(self.key)})
        self._last = time.monotonic()

    def _write(self, tensors: Mapping[str, Tensor], about: dict[str, Any]) -> None:
        """Tensors first, under a new name; the small file that names them is replaced in one step."""
        from safetensors.torch import save_file

        assert self.folder is not None
        self.folder.mkdir(exist_ok=True)
        file = self.folder / f"{self.name}-{about['unit']}.safetensors"
        save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, file)
        sync(file)
        part = self.folder / f"{self.name}.part"
        part.write_text(json.dumps({**about, "file": file.name}))
        sync(part)
        part.rename(self.folder / f"{self.name}.json")
        for old in self.folder.glob(f"{self.name}-*.safetensors"):
            if old != file:
                old.unlink()

    def _file(self, kind: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.name}.{kind}"


def check_key(folder: Path, key: Mapping[str, Any]) -> None:
    """Make a folder for one piece of work; UsageError where it holds another's."""
    file = folder / "key.json"
    text = json.dumps(key)
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    elif file.read_text() != text:
        raise UsageError(f"{folder}: was begun with other options or inputs; run without --resume")


def clear(folder: Path) -> None:
    """Remove what a run has left; nothing happens where there is nothing."""
    shutil.rmtree(folder, ignore_errors=True)
