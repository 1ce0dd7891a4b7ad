"""One teacher-forced pass: every hidden state is summed up where it is computed, and forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from nipstool.kit.distributed import Group
from nipstool.kit.errors import DataError
from nipstool.kit.progress import Progress, silent
from nipstool.kit.signals import uninterrupted
from nipstool.probe_length.artefact import LARGEST
from nipstool.probe_length.collected import POSITION, SEQUENCE_COLUMNS, Collected, Origin
from nipstool.probe_length.encoding import Sequence, hash64
from nipstool.probe_length.hidden import Language, padded, reading, run
from nipstool.probe_length.lengths import Lengths, no_lengths
from nipstool.probe_length.sample import Reservoir
from nipstool.probe_length.statistics import Sums, empty

if TYPE_CHECKING:
    from torch import Tensor

Spans = list[tuple[int, slice]]  # (fold, rows)
WINDOW = 128  # sequences that are sorted by length before they are batched


@dataclass(frozen=True)
class Place:
    """How far a pass has come: sequences of whole windows, and batches of the window after them."""

    given: int = 0
    batches: int = 0


NOWHERE = Place()


@dataclass
class Collector:
    """Sums, counts and sample while they grow. `add` takes a batch of sequences, `part` gives the result."""

    language: Language
    origin: Origin
    sequences: int = 0
    censored: int = 0
    skipped: int = 0
    datasets: Counter[str] = field(default_factory=Counter)
    lengths: Lengths = field(init=False)
    reservoir: Reservoir = field(init=False)
    along: dict[int, Sums] = field(default_factory=dict)
    first: dict[int, Sums] = field(default_factory=dict)
    position: Sums | None = None
    prompt: Sums | None = None

    def __post_init__(self) -> None:
        self.lengths = no_lengths(self.origin.folds)
        self.reservoir = Reservoir(self.origin.rows, len(self.origin.layers), self.origin.width)

    def fold(self, sequence: Sequence) -> int:
        """The fold of a sequence's group."""
        return sequence.group % self.origin.folds

    def add(self, batch: list[Sequence]) -> None:
        """One forward pass. Raises DataError, with layer and row, where a hidden state is no number."""
        batch = sorted(batch, key=self.fold)
        rows = _rows_of(batch, self)
        with reading(self.language, self.origin.layers, lambda layer, h: self._take(layer, h, rows), stop=True):
            run(self.language, padded([s.prompt + s.response for s in batch], self.language.device))
        self._count(batch, rows)

    def _take(self, layer: int, h: Tensor, rows: _Rows) -> None:
        import torch

        flat = h.reshape(-1, h.shape[-1])
        states = flat[rows.all_places.to(flat.device)].to(_sum_device(flat.device), torch.float64)
        if not bool((states.abs() <= LARGEST).all()):
            raise DataError(_told_bad_state(layer, states, rows))
        along = torch.cat([states[: len(rows.t)], rows.features.to(states.device)], 1)
        self._sum(self.along, layer, along, rows.along, rows.target, rows.weight)
        first = states[rows.first_rows.to(states.device)]
        self._sum(self.first, layer, first, rows.first, rows.first_target, rows.first_weight)
        kept = flat[rows.sampled.to(flat.device)].float().cpu().numpy()
        place = self.origin.layers.index(layer)
        for i, slot in enumerate(rows.slots):
            self.reservoir.put(slot, place, kept[2 * i], kept[2 * i + 1])

    def _sum(self, sums: dict[int, Sums], layer: int, x: Tensor, spans: Spans, y: Tensor, weight: Tensor) -> None:
        if layer not in sums:
            shift = x.mean(0) if len(x) else None
            sums[layer] = empty(x.shape[1], self.origin.folds, shift, x.device)
        y, weight = y.to(x.device), weight.to(x.device)
        for fold, span in spans:
            sums[layer].add(fold, x[span], y[span], weight[span])

    def _count(self, batch: list[Sequence], rows: _Rows) -> None:
        import torch

        design = torch.cat([rows.features, rows.prompt[:, None], rows.prompt[:, None].log1p()], 1)
        both = {0: self.position} if self.position is not None else {}
        self._sum(both, 0, design, rows.along, rows.target, rows.weight)  # type: ignore[arg-type]
        self.position = both[0]
        both = {0: self.prompt} if self.prompt is not None else {}
        self._sum(both, 0, design[rows.first_rows, 3:], rows.first, rows.first_target, rows.first_weight)  # type: ignore[arg-type]
        self.prompt = both[0]
        for s in batch:
            self.lengths.add(self.fold(s), s.length, len(s.response), s.censored, s.weight)
            self.datasets[s.dataset] += 1
            self.censored += s.censored
        self.sequences += len(batch)

    def part(self) -> Collected:
        """What was collected so far. Raises DataError where there was nothing."""
        if self.sequences == 0 or self.position is None or self.prompt is None:
            raise DataError("no prompts with responses were found that the model can read")
        return Collected(
            self.origin,
            {layer: sums.cpu() for layer, sums in self.along.items()},
            {layer: sums.cpu() for layer, sums in self.first.items()},
            self.position,
            self.prompt,
            self.lengths,
            self.reservoir.sample(),
            dict(self.datasets),
            self.sequences,
            self.censored,
            self.skipped,
        )

    def joined(self, group: Group) -> Collected:
        """What all processes of a group have collected, on each of them; see `part`."""
        if group.size == 1:
            return self.part()
        width = self.origin.width
        for layer in self.origin.layers:
            self.along[layer] = _added(group, self.along.get(layer), width + POSITION, self)
            self.first[layer] = _added(group, self.first.get(layer), width, self)
        self.position = _added(group, self.position, SEQUENCE_COLUMNS, self, "cpu")
        self.prompt = _added(group, self.prompt, SEQUENCE_COLUMNS - POSITION, self, "cpu")
        rest = (self.lengths, self.reservoir.sample(), dict(self.datasets), self.sequences, self.censored)
        parts = group.gather((*rest, self.skipped))
        self.lengths, sample, datasets, *counts = parts[0]
        for lengths, other, names, *more in parts[1:]:
            self.lengths, sample = self.lengths.plus(lengths), sample.plus(other, self.origin.rows)
            datasets = Counter(datasets) + Counter(names)
            counts = [a + b for a, b in zip(counts, more, strict=True)]
        self.sequences, self.censored, self.skipped = counts
        self.datasets = Counter(dict(sorted(datasets.items())))
        return replace(self.part(), sample=sample)

    def go_on_from(self, found: Collected) -> None:
        """Take up what an earlier run had collected."""
        device = _sum_device(self.language.device)
        self.along = {layer: _moved(sums, device) for layer, sums in found.along.items()}
        self.first = {layer: _moved(sums, device) for layer, sums in found.first.items()}
        self.position, self.prompt, self.lengths = found.position, found.prompt, found.lengths
        self.reservoir.refill(found.sample)
        self.datasets = Counter(found.datasets)
        self.sequences, self.censored, self.skipped = found.sequences, found.censored, found.skipped


@dataclass(frozen=True)
class _Rows:
    """Where the rows of a batch lie among its places, flattened; those of answers that ended come by fold."""

    all_places: Tensor  # rows at t = 0..T of ended answers, then the sampled rows of cut ones
    told: list[tuple[Sequence, int]]  # the sequence and first row of each run of rows
    t: Tensor
    features: Tensor  # [rows, 3]
    prompt: Tensor  # [rows] P
    target: Tensor
    weight: Tensor
    along: Spans
    first_rows: Tensor
    first: Spans
    first_target: Tensor
    first_weight: Tensor
    sampled: Tensor  # places, two a sampled sequence
    slots: list[int]


def _rows_of(batch: list[Sequence], collector: Collector) -> _Rows:
    import torch

    width = max(len(s.prompt) + len(s.response) for s in batch)
    ended = [(i, s) for i, s in enumerate(batch) if not s.censored]
    starts = [i * width + len(s.prompt) - 1 for i, s in enumerate(batch)]
    counts = [len(s.response) + 1 for _, s in ended]
    t = torch.cat([torch.arange(count) for count in counts] or [torch.zeros(0, dtype=torch.long)])
    repeat = torch.tensor(counts, dtype=torch.long)

    def each(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).repeat_interleave(repeat)

    places = t + each([float(starts[i]) for i, _ in ended]).long()
    sampled, slots = _sampled(batch, starts, collector)
    real = t.double()
    firsts = torch.cumsum(repeat, 0) - repeat
    length, weight = each([s.length for _, s in ended]), each([s.weight for _, s in ended])
    cut = [place for i, place in enumerate(sampled) if batch[slots[i // 2][0]].censored]
    return _Rows(
        torch.cat([places, torch.tensor(cut, dtype=torch.long)]),
        [(s, int(first)) for (_, s), first in zip(ended, firsts, strict=True)],
        t,
        torch.stack([real, real.log1p(), real.sqrt()], 1),
        each([len(s.prompt) for _, s in ended]),
        (length - real).log1p(),
        weight,
        _spans([(collector.fold(s), count) for (_, s), count in zip(ended, counts, strict=True)]),
        firsts,
        _spans([(collector.fold(s), 1) for _, s in ended]),
        torch.tensor([s.length for _, s in ended], dtype=torch.float64).log1p(),
        torch.tensor([s.weight for _, s in ended], dtype=torch.float64),
        torch.tensor(sampled, dtype=torch.long),
        [slot for _, slot in slots],
    )


def _sampled(
    batch: list[Sequence], starts: list[int], collector: Collector
) -> tuple[list[int], list[tuple[int, int]]]:
    """Places of the rows to keep, two a sampled sequence, and (sequence of the batch, slot) of each."""
    places: dict[int, tuple[int, int, int]] = {}
    for i, s in enumerate(batch):
        seen = len(s.response)
        t = hash64("position", s.key) % (seen + 1)
        facts = (s.group, collector.fold(s), len(s.prompt), s.length, int(s.censored), t, seen)
        slot = collector.reservoir.place(s.key, facts, s.weight)
        if slot is not None:
            places[slot] = (i, starts[i], starts[i] + t)  # one that gives way within the batch is not written
    rows = [place for _, first, drawn in places.values() for place in (first, drawn)]
    return rows, [(i, slot) for slot, (i, _, _) in places.items()]


def _spans(runs: list[tuple[int, int]]) -> Spans:
    """(fold, rows) of neighbouring runs of the same fold."""
    found: Spans = []
    start = 0
    for fold, count in runs:
        if found and found[-1][0] == fold:
            found[-1] = (fold, slice(found[-1][1].start, start + count))
        else:
            found.append((fold, slice(start, start + count)))
        start += count
    return found


def _told_bad_state(layer: int, states: Tensor, rows: _Rows) -> str:
    bad = int((~(states.abs() <= LARGEST).all(1)).nonzero()[0])
    if bad >= len(rows.t):
        return f"layer {layer}: a hidden state of a cut answer is NaN or beyond {LARGEST:g}"
    sequence, first = [found for found in rows.told if found[1] <= bad][-1]
    place = f"layer {layer}, row t = {bad - first}"
    return f"{sequence.where}: {place}: the hidden state is NaN or beyond {LARGEST:g}"


def _added(group: Group, sums: Sums | None, columns: int, collector: Collector, device: Any = None) -> Sums:
    """The sums of all processes, about the shift of the first that has one."""
    place = _sum_device(collector.language.device) if device is None else device
    shifts = group.gather(None if sums is None else sums.shift.cpu())
    shift = next((shift for shift in shifts if shift is not None), None)
    own = empty(columns, collector.origin.folds, shift, place)
    own = own if sums is None or shift is None else sums.about(shift.to(sums.shift.device))
    tensors = [getattr(own, f.name).clone() for f in fields(Sums)[1:]]
    group.add(tensors)
    return Sums(own.shift, *tensors)


def _sum_device(device: Any) -> Any:
    """Where sums are kept: beside the model on CUDA, else in main memory (float64 is not everywhere)."""
    return device if str(device).startswith("cuda") else "cpu"


def _moved(sums: Sums, device: Any) -> Sums:
    return Sums(*(getattr(sums, f.name).to(device) for f in fields(sums)))


def collect(
    source: Iterable[Sequence],
    collector: Collector,
    *,
    batch_tokens: int = 8192,
    start: Place = NOWHERE,
    progress: Progress = silent,
    after_batch: Callable[[Place], None] = lambda place: None,
) -> None:
    """Run all sequences through the model. A signal waits for the end of a batch, so that the sums stay whole.

    Args:
        batch_tokens: places a batch, padding included.
        start: what of the source the collector has seen.
        after_batch: told after every batch how far it has come.
    """
    source = islice(source, start.given, None)
    given, skip = start.given, start.batches
    while window := list(islice(source, WINDOW)):
        for number, batch in enumerate(batches(window, batch_tokens)):
            if number < skip:
                continue
            with uninterrupted():
                collector.add(batch)
            progress(collector.sequences, 0)
            after_batch(Place(given, number + 1))
        given, skip = given + len(window), 0


def batches(window: list[Sequence], batch_tokens: int) -> Iterator[list[Sequence]]:
    """Sequences of like length together, at most so many places a batch."""
    held: list[Sequence] = []
    for sequence in sorted(window, key=lambda s: len(s.prompt) + len(s.response)):
        size = len(sequence.prompt) + len(sequence.response)
        if held and (len(held) + 1) * size > batch_tokens:
            yield held
            held = []
        held.append(sequence)
    if held:
        yield held
