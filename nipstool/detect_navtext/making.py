"""What `build-dataset` does: pictures and rendered scenes, labelled, split and written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from nipstool.detect_navtext import build
from nipstool.detect_navtext.build import Built, Shot
from nipstool.detect_navtext.choices import Choices, finder_of
from nipstool.detect_navtext.fitting import drawable
from nipstool.detect_navtext.poi import Names
from nipstool.detect_navtext.run import Tally
from nipstool.detect_navtext.sources import sources_of
from nipstool.kit.errors import DataError, NipsError
from nipstool.kit.files import AtomicFolder
from nipstool.kit.progress import Progress, silent


@dataclass(frozen=True)
class Job:
    """What a dataset is made of.

    Attributes:
        inputs: pictures and folders. synthetic: number of rendered scenes.
        positive, negative: nav_score from which a line is nav, and up to which it is other.
        share: of the pictures that is for validation. prefixes: of file names, that name places.
    """

    inputs: Sequence[str]
    synthetic: int = 0
    positive: float = 0.6
    negative: float = 0.4
    share: float = 0.2
    prefixes: Sequence[str] = ()
    licence: str = ""
    seed: int = 0


def make(
    folder: Path,
    job: Job,
    choices: Choices,
    *,
    force: bool = False,
    warn: Callable[[str], None] = lambda text: None,
    progress: Progress = silent,
) -> tuple[Built, Tally]:
    """Write the dataset that a job describes; what could not be used is in the tally.

    Raises:
        DataError, InputMissingError: nothing could be used. OutputError, BusyError: as `AtomicFolder`.
    """
    tally = Tally()
    shots = chain(_photographs(job, choices, tally, progress), _rendered(job, progress))
    with AtomicFolder(folder, force=force) as part:
        try:
            built = build.write(shots, part, share=job.share, licence=job.licence, warn=warn)
        except DataError as error:
            failure = tally.failure(strict=True)
            if failure is None or tally.pictures:
                raise
            raise failure from error  # why there was none says more than that there was none
    return built, tally


def _photographs(job: Job, choices: Choices, tally: Tally, progress: Progress) -> Iterator[Shot]:
    if not job.inputs:
        return
    find, _ = finder_of(replace(choices, min_score=job.positive))

    def failed(error: NipsError, named: bool) -> None:
        tally.failures.append((error, named))

    shots = build.photographs(
        sources_of(job.inputs),
        find,
        positive=job.positive,
        negative=job.negative,
        prefixes=job.prefixes,
        failed=failed,
        progress=progress,
    )
    for shot in shots:
        tally.pictures += 1
        yield shot


def _rendered(job: Job, progress: Progress) -> Iterator[Shot]:
    if job.synthetic:
        yield from build.rendered(job.synthetic, job.seed, drawable(Names.bundled()), progress=progress)
