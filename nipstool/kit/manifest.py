"""What was run: a JSON file beside an output, so that a result can be traced and repeated."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nipstool import __version__
from nipstool.kit.files import write_text
from nipstool.kit.records import to_json
from nipstool.kit.runtime import peak_memory_bytes

PACKAGES = ("torch", "numpy", "safetensors")
SUFFIX = ".run.json"


def manifest_path(output: Path) -> Path:
    """Where the manifest of an output file or folder stands."""
    return output.with_name(output.name + SUFFIX)


@dataclass
class Run:
    """One run of a command, from its start; `write` says how it ended."""

    argv: Sequence[str]
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    _clock: float = field(default_factory=time.monotonic)

    def write(
        self, output: Path, *, device: str, seed: int | None, inputs: Mapping[str, str], **more: Any
    ) -> None:
        """Write the manifest beside `output`.

        Args:
            inputs: path of each input -> its sha256.
            more: whatever else the command wants remembered (settings, counts), JSON-able.
        """
        document = {
            "nipstool": __version__,
            "argv": list(self.argv),
            "started": self.started,
            "seconds": round(time.monotonic() - self._clock, 3),
            "peak_memory_bytes": peak_memory_bytes(),
            "device": device,
            "seed": seed,
            "inputs": dict(inputs),
            "packages": {name: _version(name) for name in PACKAGES},
            "python": platform.python_version(),
            "platform": platform.platform(),
            **more,
        }
        write_text(manifest_path(output), to_json(document, indent=2) + "\n", force=True)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
