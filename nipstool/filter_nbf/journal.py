"""A training run on disk while it lasts, so that an interrupted one goes on to the same bytes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from nipstool.kit.errors import UsageError
from nipstool.kit.files import AtomicFile

EVERY_S = 20.0  # seconds from one entry to the next


@dataclass
class Journal:
    """Where a run is kept; `about` is what it is a run of, and a run of anything else is not taken up.

    resume: whether to take up what is there.
    """

    path: Path
    about: Mapping[str, Any]
    resume: bool = False
    _last: float = field(default_factory=time.monotonic)

    def save(
        self, step: int, params: Mapping[str, Tensor], optimiser: Optimizer, rng: np.random.Generator
    ) -> None:
        """Write parameters, moments of the optimiser, and the state of the draws, where the last entry is old."""
        if time.monotonic() - self._last < EVERY_S:
            return
        from safetensors.torch import save

        tensors = {f"param.{name}": value.detach().contiguous() for name, value in params.items()}
        for name, value in params.items():
            for key, moment in optimiser.state.get(value, {}).items():
                tensors[f"{key}.{name}"] = moment.contiguous()
        entry = {"step": step, "rng": rng.bit_generator.state, "about": dict(self.about)}
        with AtomicFile(self.path, force=True) as out:
            out.file.write(save(tensors, {"training": json.dumps(entry)}))
        self._last = time.monotonic()

    def restore(self, params: Mapping[str, Tensor], optimiser: Optimizer, rng: np.random.Generator) -> int:
        """Put the last entry into params, optimiser and rng; the number of steps that were done.

        Raises UsageError where the entry is of another run.
        """
        if not (self.resume and self.path.exists()):
            return 0
        from safetensors import safe_open

        with safe_open(self.path, "pt") as file:
            entry = json.loads(file.metadata()["training"])
            if entry["about"] != json.loads(json.dumps(dict(self.about))):
                raise UsageError(f"{self.path}: is of a run with other options; run without --resume")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for name, value in params.items():
            value.data.copy_(tensors[f"param.{name}"])
            for key in ("step", "exp_avg", "exp_avg_sq"):
                if f"{key}.{name}" in tensors:
                    kept = tensors[f"{key}.{name}"]
                    optimiser.state[value][key] = kept if key == "step" else kept.to(value.device)
        rng.bit_generator.state = entry["rng"]
        return int(entry["step"])

    def remove(self) -> None:
        """The run is complete: nothing is left to go on with."""
        self.path.unlink(missing_ok=True)
