"""A whole training run: filter the family, train, and leave the checkpoint; an interrupted run can be taken up."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nipstool.filter_nbf.checkpoint import Checkpoint, describe, save
from nipstool.filter_nbf.family import snapshots
from nipstool.filter_nbf.journal import Journal
from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.train import train
from nipstool.kit.distributed import Group
from nipstool.kit.files import is_stdio
from nipstool.kit.progress import Progress

Stage = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True)
class Plan:
    """What a run is of. made_with: whatever else its bytes depend on."""

    generator: str = "gmm"
    scenarios: int = 1024
    steps: int = 8000
    batch: int = 128
    seed: int = 0
    made_with: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fitted:
    """How many beliefs were learned from; validation and coverage as Training has them."""

    beliefs: int
    validation: dict[str, float]
    coverage: float | None


def fit(
    dynamics: Dynamics,
    plan: Plan,
    output: str,
    *,
    start: Checkpoint | None = None,
    device: Any = "cpu",
    force: bool = False,
    resume: bool = False,
    stage: Stage,
    group: Group,
) -> Fitted:
    """Train a checkpoint into `output`; rank 0 of the group writes it.

    While it trains, the run is kept beside the output; --resume goes on with it.

    Raises what `train`, the model and AtomicFile raise.
    """
    journal = None
    if not (is_stdio(output) or (os.path.exists(output) and not os.path.isfile(output))):
        target = Path(os.path.realpath(output))
        about = {**describe(dynamics), **asdict(plan), "device": str(device), "processes": group.size}
        journal = Journal(target.with_name(f".{target.name}.training"), about, resume)
    with stage("filter the family") as show:
        family = snapshots(dynamics, plan.scenarios, plan.seed, progress=show, group=group)
    with stage("train") as show:
        done = train(
            dynamics,
            family,
            generator=plan.generator,
            steps=plan.steps,
            batch=plan.batch,
            seed=plan.seed,
            start=start,
            device=device,
            progress=show,
            journal=journal,
            group=group,
        )
    if group.rank == 0:
        save(output, done.checkpoint.params, done.checkpoint.about, force=force)
        if journal is not None:
            journal.remove()
    return Fitted(len(family.sets), done.validation, done.coverage)
