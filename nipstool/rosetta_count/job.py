"""The job behind `nipstool rosetta-count`: from what the user named to the folder with the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.distributed import Group
from nipstool.kit.errors import NipsError, UsageError
from nipstool.kit.files import AtomicFolder, check_output
from nipstool.kit.progress import Silent, Stages
from nipstool.rosetta_count.checkpoint import SECONDS, clear, work_folder
from nipstool.rosetta_count.count import Inputs, Subject
from nipstool.rosetta_count.dumps import dump_hashes, open_dumps
from nipstool.rosetta_count.pictures import draw_count
from nipstool.rosetta_count.results import summary, write
from nipstool.rosetta_count.work import Keeping, Options, Outcome, count_neurons

if TYPE_CHECKING:
    from nipstool.rosetta_count.sources import Reading

PLOT = "counts.png"
NO_WEIGHTS = "not available: dumped activations cannot be re-initialised"


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    models: tuple[str, ...]
    output: str
    acts: bool = False
    sample_ids: tuple[str, ...] = ()
    grid: str | None = None
    reading: Reading | None = None  # of models: data and how they are run
    options: Options = field(default_factory=Options)
    compat: bool = False
    force: bool = False
    resume: bool = False
    checkpoint_seconds: float = SECONDS


@dataclass(frozen=True)
class Finished:
    """What a job gives: the outcome, the content of summary.json, and file -> sha256 of what was read."""

    outcome: Outcome
    document: dict[str, Any]
    inputs: dict[str, str]


def run(request: Request, *, group: Group | None = None, stages: Stages | None = None) -> Finished:
    """Count and write the folder; under torchrun the first process writes."""
    group, stages = group or Group(), stages or Silent()
    named = [*request.models, *request.sample_ids, *([request.reading.data] if request.reading else [])]
    inputs = [name for name in named if name != "-"]
    check_output(request.output, inputs=inputs, force=request.force, folder=True)
    if request.options.seed < 0:
        raise UsageError(f"--seed {request.options.seed}: expected 0 or more")
    if len(request.models) < 2:
        raise UsageError(f"{len(request.models)} model named; expected two or more to compare")
    work = work_folder(request.output)
    with _written_by_first(request, group) as folder, _cleared(work, group):
        if not request.resume and group.rank == 0:
            clear(work)
        group.gather(None)  # nobody begins before the folder is clear
        found, hashes, told = _open(request, stages)
        keeping = Keeping(work, _key(request, hashes), request.resume, request.checkpoint_seconds)
        outcome = count_neurons(found, request.options, group=group, keeping=keeping, stages=stages)
        document = summary(outcome.count, outcome.gaps, _told(request, outcome, told))
        if folder is not None:
            write(folder, outcome.count, document, outcome.labels, compat=request.compat)
            with (folder / PLOT).open("wb") as file:
                draw_count(file, outcome.count)
    return Finished(outcome, document, hashes)


def _written_by_first(request: Request, group: Group) -> AbstractContextManager[Path | None]:
    return AtomicFolder(request.output, force=request.force) if group.rank == 0 else nullcontext()


@contextmanager
def _cleared(work: Path, group: Group) -> Iterator[None]:
    """An interrupted run leaves its sums for --resume; one that is done, or failed, leaves nothing."""
    try:
        yield
    except NipsError as error:
        if group.rank == 0 and not isinstance(error, UsageError):
            clear(work)
        raise
    if group.rank == 0:
        clear(work)


def _open(request: Request, stages: Stages) -> tuple[Inputs, dict[str, str], dict[str, Any]]:
    """The activations, the files' hashes, and what summary.json says about how they came about."""
    if not request.acts:
        from nipstool.rosetta_count.sources import open_models

        if request.reading is None:
            raise UsageError("models are compared on --data; dumped activations take --acts")
        return open_models(request.models, request.reading, request.options, stages)
    if request.reading is not None:
        raise UsageError("--acts takes activations that were dumped before; --data has no meaning there")
    dumps, units, places = open_dumps(
        request.models, sample_ids=request.sample_ids, grid=request.grid, repeats=request.options.repeats
    )
    rows = units[-1].stop
    found = Inputs(
        models=dumps,
        subjects=[Subject(dump.name, dump.layers) for dump in dumps],
        units=len(units),
        samples=rows * places,
        documents=rows,
        untrained=NO_WEIGHTS,
        notes=tuple(same_twice(request.models)),
    )
    return found, dump_hashes(request.models), {"kind": "acts", "units": len(units)}


def same_twice(models: Sequence[str]) -> list[str]:
    """A warning where two names lead to the same place: every neuron then finds itself."""
    seen: dict[Path, str] = {}
    found = []
    for name in models:
        place = Path(name).resolve()
        if place in seen:
            found.append(f"warning: {name} is {seen[place]}: every neuron will find itself")
        seen[place] = name
    return found


def _key(request: Request, hashes: dict[str, str]) -> dict[str, Any]:
    options = request.options
    own = [options.k, options.min_r, options.repeats, options.seed, options.method, str(options.device)]
    reading = None if request.reading is None else request.reading.key()
    return {"inputs": hashes, "options": own, "grid": request.grid, "ids": request.sample_ids, "reading": reading}


def _told(request: Request, outcome: Outcome, told: dict[str, Any]) -> dict[str, Any]:
    options = request.options
    return {
        "options": {"k": options.k, "min_r": options.min_r, "n_null": options.repeats, "seed": options.seed},
        "method": outcome.plan.method,
        "plan": outcome.plan.text,
        **told,
    }
