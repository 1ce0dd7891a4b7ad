"""A pass of data through a model: in shares where torchrun asks for it, and taken up again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from nipstool.kit.distributed import Group
from nipstool.kit.errors import DataError, UsageError
from nipstool.kit.files import check_input, is_stdio, sha256
from nipstool.kit.language_models import CONFIG
from nipstool.kit.progress import Progress, silent
from nipstool.kit.runtime import float_dtype
from nipstool.probe_length import collected
from nipstool.probe_length.collect import NOWHERE, Collector, Place, collect
from nipstool.probe_length.collected import Collected, Origin
from nipstool.probe_length.encoding import Sequence as TokenSequence
from nipstool.probe_length.encoding import sequences
from nipstool.probe_length.formats import FORMATS, Example, Layout, read_examples
from nipstool.probe_length.hidden import Language, choose_layers, open_language
from nipstool.probe_length.probe import model_hash

PARTIAL_EVERY_S = 60.0


@dataclass
class Faults:
    """What is done about records that cannot be used: the first one raises, or all are counted."""

    skip: bool
    count: int = 0
    first: str = ""

    def __call__(self, told: str) -> None:
        """Raise DataError, or count."""
        if not self.skip:
            raise DataError(told)
        self.count += 1
        self.first = self.first or told

    def note(self) -> list[str]:
        """What to tell the user at the end."""
        return [f"{self.count} records were skipped; the first: {self.first}"] if self.count else []


@dataclass(frozen=True)
class Reading:
    """How data and model are read."""

    layout: Layout = field(default_factory=Layout)
    skip_bad: bool = False
    dtype: str | None = None
    device: Any = "cpu"
    template: str | None = None  # a file
    cap: int | None = None
    batch_tokens: int = 8192


def reading_of(given: Mapping[str, Any], device: Any) -> Reading:
    """How data and model are read, from options by name; those that are not there are at their defaults.

    Raises UsageError for values that mean nothing.
    """
    format, fields = given["format"], {}
    if format not in FORMATS:
        raise UsageError(f"--format {format}: expected one of {', '.join(FORMATS)}")
    for text in given.get("field") or []:
        name, mark, key = text.partition("=")
        if name not in ("prompt", "response") or not mark or not key:
            raise UsageError(f"--field {text}: expected prompt=KEY or response=KEY")
        fields[name] = key
    layout = Layout(format, given.get("group"), fields, given.get("split_at"), given.get("prompt_chars", 64))
    rest = (given["skip_bad"], float_dtype(given["dtype"]), device, given["chat_template"], given.get("cap"))
    return Reading(layout, *rest, given["batch_tokens"])


@dataclass(frozen=True)
class Pass:
    """What is collected, and where an interrupted pass leaves its part (None: nowhere)."""

    layers: str = "all"
    folds: int = 5
    rows: int = 5000
    partial: Path | None = None
    resume: bool = False


def open_for(model: str | Path, reading: Reading) -> Language:
    """The model of a pass."""
    template = None
    if reading.template is not None:
        template = check_input(reading.template).read_text(encoding="utf-8")
    return open_language(model, dtype=reading.dtype, device=reading.device, template=template, cap=reading.cap)


def examples_of(paths: Sequence[str], reading: Reading, faults: Faults, *, responses: bool) -> Iterator[Example]:
    """The examples of all files, in order. Raises UsageError where '-' is named twice."""
    if sum(is_stdio(path) for path in paths) > 1:
        raise UsageError("- is named twice, and standard input can be read once")
    for path in paths:
        if not is_stdio(path):
            check_input(path)
    for path in paths:
        yield from read_examples(path, reading.layout, responses=responses, fault=faults)


def sequences_of(
    paths: Sequence[str], language: Language, reading: Reading, faults: Faults, group: Group | None = None
) -> Iterator[TokenSequence]:
    """The sequences of all files, or this process's share of them."""
    group = group or Group()
    mine = (
        faults if group.rank == 0 else Faults(faults.skip)
    )  # a bad line is met by every process, and counts once
    examples = examples_of(paths, reading, mine, responses=True)
    return sequences(islice(examples, group.rank, None, group.size), language.encoder, faults)


def run_pass(
    model: str,
    named: str,
    paths: Sequence[str],
    reading: Reading,
    what: Pass,
    *,
    group: Group | None = None,
    progress: Progress = silent,
) -> tuple[Collected, list[str]]:
    """Collect statistics of `paths` under a model, and what had to be assumed.

    Args:
        named: the model's folder as the result should name it.

    Raises what opening model and data raises; UsageError for layers that the model does not have.
    """
    group = group or Group()
    for path in paths:
        if not is_stdio(path):
            check_input(path)
    language = open_for(model, reading)
    collector = Collector(language, _origin(language, named, reading, what))
    partial = _Partial(what, collector, _key(paths, collector.origin, reading), group)
    start = partial.start()
    faults = Faults(reading.skip_bad)
    source = sequences_of(paths, language, reading, faults, group)
    try:
        collect(
            source,
            collector,
            batch_tokens=reading.batch_tokens,
            start=start,
            progress=progress,
            after_batch=partial.after_batch,
        )
    except (KeyboardInterrupt, SystemExit):
        partial.write()
        raise
    collector.skipped = faults.count
    found = collector.joined(group)
    return found, [*faults.note(), *language.encoder.assumptions()]


def _origin(language: Language, named: str, reading: Reading, what: Pass) -> Origin:
    try:
        chosen = choose_layers(what.layers, len(language.blocks))
    except ValueError as error:
        raise UsageError(str(error)) from error
    template = language.encoder.template
    return Origin(
        model=named,
        sha256=model_hash(language.folder),
        width=language.width,
        layers=(0, *chosen),
        folds=what.folds,
        rows=what.rows,
        dtype=str(language.model.dtype).removeprefix("torch."),
        context=language.encoder.context,
        template=None if template is None else hashlib.sha256(template.encode()).hexdigest(),
    )


def _key(paths: Sequence[str], origin: Origin, reading: Reading) -> str:
    """What must be the same for a part to be taken up again."""
    stamps = []
    for path in paths:
        found = None if is_stdio(path) else os.stat(path)
        stamps.append([path, found and found.st_size, found and found.st_mtime_ns])
    parts = (stamps, asdict(origin), asdict(reading.layout), reading.skip_bad, reading.cap, reading.batch_tokens)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@dataclass
class _Partial:
    """The part that an interrupted pass leaves beside its output, written now and then and when it is stopped."""

    what: Pass
    collector: Collector
    key: str
    group: Group
    place: Place = NOWHERE
    written: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> Path | None:
        if self.what.partial is None or self.group.size == 1:
            return self.what.partial
        mine = f"{self.what.partial.name}.{self.group.rank}-of-{self.group.size}"
        return self.what.partial.with_name(mine)

    def start(self) -> Place:
        if not self.what.resume or self.path is None or not self.path.exists():
            return NOWHERE
        found, more = collected.load(self.path)
        if more["key"] != self.key:
            raise UsageError(f"{self.path}: was collected with other options, data or model; run without --resume")
        self.collector.go_on_from(found)
        self.place = Place(more["given"], more["batches"])
        return self.place

    def after_batch(self, place: Place) -> None:
        self.place = place
        if time.monotonic() - self.written > PARTIAL_EVERY_S:
            self.write()

    def write(self) -> None:
        if self.path is None or self.collector.sequences == 0:
            return
        more = {"key": self.key, "given": self.place.given, "batches": self.place.batches}
        collected.save(self.path, self.collector.part(), force=True, more=more)
        self.written = time.monotonic()


def partial_of(output: str) -> Path | None:
    """Where the part of a pass lies until its output stands; None where that is no place for files."""
    if is_stdio(output) or (os.path.exists(output) and not os.path.isfile(output)):
        return None
    target = Path(os.path.realpath(output))
    return target.with_name(f".{target.name}.collected")


def remove_partial(output: str) -> None:
    """The parts of a pass whose output stands."""
    partial = partial_of(output)
    if partial is not None:
        for path in (partial, *partial.parent.glob(f"{partial.name}.*-of-*")):
            with suppress(OSError):
                path.unlink()


def model_files(model: str | Path) -> list[Path]:
    """The files of a model that a manifest names."""
    return [Path(model) / CONFIG, *sorted(Path(model).glob("*.safetensors"))]


def hashes_of(paths: Iterable[str | Path]) -> dict[str, str]:
    """SHA-256 of each file, by name, for a manifest; what came through a pipe has none."""
    return {str(path): sha256(path) for path in paths if not is_stdio(path) and os.path.isfile(path)}
