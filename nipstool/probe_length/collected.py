"""What one pass over prompts and responses leaves: sums, counts and a sample. Parts of it merge into the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nipstool.kit.errors import DataError
from nipstool.kit.files import StrPath, check_input
from nipstool.kit.records import shown
from nipstool.kit.tensors import TensorReader
from nipstool.probe_length.artefact import read_about, read_array, write_tensors
from nipstool.probe_length.lengths import NAMES, Lengths
from nipstool.probe_length.sample import Sample
from nipstool.probe_length.statistics import Sums

if TYPE_CHECKING:
    from torch import Tensor

KIND = "probe-length statistics"
Array = np.ndarray
POSITION = 3  # columns after the hidden state: t, log1p t, sqrt t
SEQUENCE_COLUMNS = 5  # t, log1p t, sqrt t, P, log1p P


@dataclass(frozen=True)
class Origin:
    """What statistics belong to: they merge only where all of this is the same."""

    model: str  # as named by the user, relative to the file where it is written
    sha256: str
    width: int  # d
    layers: tuple[int, ...]  # 0 first, which is token identity
    folds: int
    rows: int  # sequences in the sample at most
    dtype: str
    context: int
    template: str | None  # sha256 of a chat template that replaced the tokenizer's

    def check_same(self, other: Origin, told: str) -> None:
        """Raises DataError, about `told`, where two sets of statistics do not belong together."""
        for name, mine in asdict(self).items():
            theirs = getattr(other, name)
            if name != "model" and theirs != mine:
                raise DataError(f"{told}: its {name} is {theirs}, the first file's {mine}: of another pass")


def origin_of(plain: Any) -> Origin:
    """What JSON says of an origin. Raises KeyError, TypeError or ValueError where it is none."""
    origin = Origin(**{**plain, "layers": tuple(plain["layers"])})
    for name, value in asdict(origin).items():
        if name == "layers":
            right = bool(value) and all(type(one) is int and one >= 0 for one in value)
        elif name in ("width", "folds", "rows", "context"):
            right = type(value) is int and value >= 0
        else:
            right = isinstance(value, str) or (name == "template" and value is None)
        if not right:
            raise ValueError(f"{name} is {shown(value)}")
    return origin


@dataclass
class Collected:
    """Statistics of teacher-forced hidden states; see the fields' modules."""

    origin: Origin
    along: dict[int, Sums]  # layer -> rows [h, t, log1p t, sqrt t] at t = 0..T of answers that ended
    first: dict[int, Sums]  # layer -> rows h at t = 0 of answers that ended
    position: Sums  # rows of SEQUENCE_COLUMNS at t = 0..T of answers that ended
    prompt: Sums  # rows [P, log1p P] at t = 0 of answers that ended
    lengths: Lengths
    sample: Sample
    datasets: dict[str, int]  # name -> sequences
    sequences: int
    censored: int
    skipped: int

    def plus(self, other: Collected, told: str) -> Collected:
        """Both together. Raises DataError, about `told`, where they do not belong together."""
        self.origin.check_same(other.origin, told)
        names = list(dict.fromkeys([*self.datasets, *other.datasets]))
        return Collected(
            self.origin,
            {layer: sums.plus(other.along[layer]) for layer, sums in self.along.items()},
            {layer: sums.plus(other.first[layer]) for layer, sums in self.first.items()},
            self.position.plus(other.position),
            self.prompt.plus(other.prompt),
            self.lengths.plus(other.lengths),
            self.sample.plus(other.sample, self.origin.rows),
            {name: self.datasets.get(name, 0) + other.datasets.get(name, 0) for name in names},
            self.sequences + other.sequences,
            self.censored + other.censored,
            self.skipped + other.skipped,
        )

    @property
    def tokens(self) -> float:
        """Rows at all positions, of answers that ended."""
        return float(self.position.n.sum())

    def with_model(self, model: str) -> Collected:
        """The same with another name for the model."""
        origin = Origin(**{**asdict(self.origin), "model": model})
        return Collected(origin, *(getattr(self, f.name) for f in fields(self)[1:]))


def merged(parts: Sequence[tuple[str, Collected]]) -> Collected:
    """All parts together, in order; the names are for errors."""
    whole = parts[0][1]
    for told, part in parts[1:]:
        whole = whole.plus(part, told)
    return whole


def save(path: StrPath, found: Collected, *, force: bool, more: Mapping[str, Any] | None = None) -> None:
    """Write statistics; `more` is remembered with them."""
    about = {
        "kind": KIND,
        "origin": asdict(found.origin),
        "datasets": found.datasets,
        "sequences": found.sequences,
        "censored": found.censored,
        "skipped": found.skipped,
        "more": dict(more or {}),
    }
    write_tensors(path, _tensors(found), about, force=force)


def _tensors(found: Collected) -> dict[str, Tensor]:
    import torch

    sums = {"position": found.position, "prompt": found.prompt}
    for layer in found.along:
        sums[f"along.{layer}"], sums[f"first.{layer}"] = found.along[layer], found.first[layer]
    tensors = {f"{name}.{f.name}": getattr(one, f.name).cpu() for name, one in sums.items() for f in fields(Sums)}
    arrays = {f"lengths.{name}": getattr(found.lengths, name) for name in NAMES}
    arrays |= {f"sample.{f.name}": getattr(found.sample, f.name) for f in fields(Sample)}
    return tensors | {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def load(path: StrPath) -> tuple[Collected, dict[str, Any]]:
    """Statistics of a file, and what was remembered with them. Raises InputMissingError or DataError."""
    with TensorReader(check_input(path)) as reader:
        about = read_about(path, reader, KIND)
        try:
            origin = origin_of(about["origin"])
            array = partial(read_array, path, reader)
            found = Collected(
                origin,
                {layer: _sums(array, f"along.{layer}", origin.folds) for layer in origin.layers},
                {layer: _sums(array, f"first.{layer}", origin.folds) for layer in origin.layers},
                _sums(array, "position", origin.folds),
                _sums(array, "prompt", origin.folds),
                _lengths(array, origin.folds),
                _sample(array, origin),
                *(about[name] for name in ("datasets", "sequences", "censored", "skipped")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: its description is not that of statistics: {error}") from error
    return found, about["more"]


def _sums(array: Callable[..., Array], name: str, folds: int) -> Sums:
    import torch

    shift = array(f"{name}.shift", "f", [None])
    d = len(shift)
    shapes = {"n": [folds], "s": [folds, d], "S": [folds, d, d], "sy": [folds], "b": [folds, d], "yy": [folds]}
    others = [array(f"{name}.{part}", "f", shape) for part, shape in shapes.items()]
    return Sums(*map(torch.from_numpy, (shift, *others)))


def _lengths(array: Callable[..., Array], folds: int) -> Lengths:
    first = array(f"lengths.{NAMES[0]}", "f", [folds, None])
    return Lengths(first, *(array(f"lengths.{name}", "f", first.shape) for name in NAMES[1:]))


def _sample(array: Callable[..., Array], origin: Origin) -> Sample:
    key = array("sample.key", "i", [None])
    m = len(key)
    rows = [m, len(origin.layers), origin.width]
    kinds = {"censored": ("b", [m]), "weight": ("f", [m]), "first": ("f", rows), "drawn": ("f", rows)}
    rest = (array(f"sample.{f.name}", *kinds.get(f.name, ("i", [m]))) for f in fields(Sample)[1:])
    found = Sample(key, *rest)
    counts = (found.fold, found.prompt, found.length, found.t, found.seen, found.weight)
    if any((one < 0).any() for one in counts) or (found.fold >= origin.folds).any():
        raise ValueError("the sample counts below 0, or folds that are not there")
    if (found.t > found.length).any():
        raise ValueError("a sampled position lies behind its answer's end")
    return found
