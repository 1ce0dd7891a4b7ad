"""One count, from activations to the result: the observed pass, the untrained one, selectivity, what is told."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.distributed import Group
from nipstool.kit.progress import Progress, Silent, Stages
from nipstool.rosetta_count.checkpoint import SECONDS, Keeper, check_key
from nipstool.rosetta_count.count import Count, Inputs, assemble
from nipstool.rosetta_count.dense import Recorded, Settings, Watch, run_dense, unwatched
from nipstool.rosetta_count.plan import Plan, make_plan
from nipstool.rosetta_count.results import rosetta
from nipstool.rosetta_count.selectivity import MEASURES, Gap, Labelled, Profile, gaps, labelled
from nipstool.rosetta_count.sketch import run_sketch
from nipstool.rosetta_count.spool import spool
from nipstool.rosetta_count.stream import Activations
from nipstool.rosetta_count.tiles import run_tiles

if TYPE_CHECKING:
    import torch
    from torch import Tensor


UNKNOWN = "not computed by a sketch: the raw count, excess correlations, counts on parts of the samples"


@dataclass(frozen=True)
class Options:
    """What a count is asked for; see the command's help."""

    k: int = 1
    min_r: float = 0.0
    repeats: int = 5
    seed: int = 0
    memory: int = 4 << 30
    method: str = "auto"
    device: torch.device | str = "cpu"


@dataclass(frozen=True)
class Keeping:
    """Where an interrupted run's sums lie (None: nowhere), what they belong to, and whether to take them up."""

    folder: Path | None = None
    key: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False
    seconds: float = SECONDS

    def keeper(self, name: str, group: Group) -> Keeper:
        """The keeper of one pass; every process keeps its own share."""
        key = {**self.key, "processes": group.size}
        return Keeper(self.folder, f"{name}-{group.rank}", key, self.resume, self.seconds)

    @contextmanager
    def spool_folder(self, name: str, group: Group) -> Iterator[Path]:
        """A folder for a pass's activations: beside the output, or a temporary one of this process."""
        if self.folder is None:
            with tempfile.TemporaryDirectory(prefix="nipstool-") as place:
                yield Path(group.gather(place)[0])
                group.gather(None)
            return
        folder = self.folder / name
        if group.rank == 0:
            check_key(folder, {**self.key, "processes": group.size})
        group.gather(None)
        yield folder


@dataclass(frozen=True)
class Outcome:
    """A count, each model's selectivity for labels (None without them) and the gaps of shared neurons."""

    count: Count
    labels: tuple[Labelled | None, ...]
    gaps: tuple[tuple[Gap, ...], ...]
    plan: Plan


def count_neurons(
    inputs: Inputs,
    options: Options | None = None,
    *,
    group: Group | None = None,
    keeping: Keeping | None = None,
    stages: Stages | None = None,
) -> Outcome:
    """Count what the models share, with every control. Raises DataError for activations that cannot be used."""
    options, group, keeping, stages = (
        options or Options(),
        group or Group(),
        keeping or Keeping(),
        stages or Silent(),
    )
    repeats = min(options.repeats, max(0, inputs.units - 1))
    plan = make_plan(
        inputs.subjects,
        samples=inputs.samples,
        repeats=repeats,
        rotate=True,
        untrained=not isinstance(inputs.untrained, str),
        memory=options.memory,
        method=options.method,
        min_r=options.min_r,
        k=options.k,
    )
    raw = plan.method != "sketch"
    stages.note(plan.text)
    settings = Settings(options.k, repeats, True, True, options.seed)
    profiles = _profiles(inputs)
    with stages.progress("record") as show:
        recorded = _pass(
            inputs.models, inputs, settings, options, "observed", group, keeping, profiles, show, plan.method
        )
    untrained, told = _untrained(inputs, settings, options, group, keeping, stages, plan.method)
    count = assemble(
        inputs.subjects,
        recorded,
        untrained,
        min_r=options.min_r,
        documents=inputs.documents,
        told=told,
        raw=raw,
        notes=[*_notes(inputs, options, repeats), *([] if raw else [UNKNOWN])],
    )
    for profile in profiles:
        group.add([profile.sums, profile.counts])
    labels = tuple(_labelled(profile, inputs, options.seed) for profile in profiles) or (None,) * len(
        inputs.models
    )
    return Outcome(count, labels, _gaps(count, labels, options.seed), plan)


def _pass(
    models: Sequence[Activations],
    inputs: Inputs,
    settings: Settings,
    options: Options,
    name: str,
    group: Group,
    keeping: Keeping,
    profiles: Sequence[Profile],
    progress: Progress,
    method: str,
) -> Recorded:
    watch = _watch(inputs, profiles)
    if method == "dense":
        watched = {f"{at}.sums": profile.sums for at, profile in enumerate(profiles)}
        watched |= {f"{at}.counts": profile.counts for at, profile in enumerate(profiles)}
        keeper = keeping.keeper(name, group)
        return run_dense(
            models,
            inputs.units,
            settings,
            group=group,
            keeper=keeper,
            watch=watch,
            watched=watched,
            device=options.device,
            progress=progress,
        )
    with keeping.spool_folder(name, group) as folder:
        found = spool(
            models, inputs.units, folder, group=group, watch=watch, device=options.device, progress=progress
        )
        spooled, frames, neurons, samples = found
        if method == "sketch":
            return run_sketch(
                spooled,
                neurons,
                inputs.units,
                settings,
                samples=samples,
                min_r=options.min_r,
                group=group,
                device=options.device,
                progress=progress,
            )
        return run_tiles(
            spooled,
            frames,
            neurons,
            inputs.units,
            settings,
            samples=samples,
            memory=options.memory,
            group=group,
            device=options.device,
            progress=progress,
        )


def _profiles(inputs: Inputs) -> list[Profile]:
    if inputs.labels is None or inputs.document_of is None:
        return []
    return [Profile(inputs.documents, subject.neurons) for subject in inputs.subjects]


def _watch(inputs: Inputs, profiles: Sequence[Profile]) -> Watch:
    if not profiles:
        return unwatched
    document_of: Callable[[int], Tensor] | None = inputs.document_of
    assert document_of is not None

    def watch(model: int, unit: int, values: Tensor) -> None:
        profiles[model].add(values, document_of(unit))

    return watch


def _untrained(
    inputs: Inputs,
    settings: Settings,
    options: Options,
    group: Group,
    keeping: Keeping,
    stages: Stages,
    method: str,
) -> tuple[Recorded | None, str]:
    """The same pass with fresh weights, without further controls."""
    if isinstance(inputs.untrained, str):
        return None, inputs.untrained
    plain = replace(settings, repeats=0, rotate=False, prefixes=False)
    with stages.progress("untrained") as show:
        models = inputs.untrained()
        return _pass(
            models, inputs, plain, options, "untrained", group, keeping, (), show, method
        ), "re-initialised"


def _notes(inputs: Inputs, options: Options, repeats: int) -> list[str]:
    notes = list(inputs.notes)
    if repeats < options.repeats:
        notes.append(f"{inputs.units} units of work allow {repeats} permuted repetitions, not {options.repeats}")
    return notes


def _labelled(profile: Profile, inputs: Inputs, seed: int) -> Labelled | None:
    means, documents = profile.means()
    assert inputs.labels is not None
    return labelled(means, [inputs.labels[at] for at in documents.tolist()], seed)


def _gaps(count: Count, labels: Sequence[Labelled | None], seed: int) -> tuple[tuple[Gap, ...], ...]:
    """The gap between shared and other live neurons of every model."""
    import numpy as np

    found = []
    for subject, neurons, own, flags in zip(count.subjects, count.neurons, labels, rosetta(count), strict=True):
        live = neurons.live.cpu().numpy()
        layer = np.zeros(subject.neurons, dtype=int)
        for number, one in enumerate(subject.layers):
            layer[one.columns] = number
        measures = {name: getattr(neurons, name).cpu().numpy()[live] for name in MEASURES}
        if own is not None:
            measures |= {"selectivity": own.selectivity.numpy()[live], "auroc": own.auroc.numpy()[live]}
        found.append(tuple(gaps(measures, layer[live], flags[live], seed)))
    return tuple(found)
