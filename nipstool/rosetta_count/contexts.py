"""What shared neurons respond to: their strongest contexts in text, their strongest images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError, InputMissingError, UsageError
from nipstool.kit.progress import Progress, silent
from nipstool.kit.records import shown
from nipstool.rosetta_count.documents import read_texts
from nipstool.rosetta_count.results import PAIRS, read_rows, read_summary
from nipstool.rosetta_count.sources import Corpus, Reading, TextModel, corpus, load_text_model
from nipstool.rosetta_count.text_model import Reader, reader_of, token_values

if TYPE_CHECKING:
    from nipstool.rosetta_count.tokens import Tokens

SEGMENT = 48  # tokens of a context
NAME = re.compile(r"L(\d+)N(\d+)")


@dataclass(frozen=True)
class Neuron:
    """A neuron by its layer's number and its place in the layer; written L8N859."""

    layer: int
    index: int

    def __str__(self) -> str:
        return f"L{self.layer}N{self.index}"


@dataclass(frozen=True)
class Context:
    """A run of tokens (or, of an image, its places): texts, values, and where it came from."""

    where: str
    pieces: tuple[str, ...]
    values: tuple[float, ...]
    document: int = 0
    first: int = 0  # token of the document

    @property
    def peak(self) -> float:
        """The highest value."""
        return max(self.values)


@dataclass(frozen=True)
class Shown:
    """A neuron of one model with its strongest contexts, the strongest first."""

    model: str
    neuron: Neuron
    contexts: tuple[Context, ...]


@dataclass(frozen=True)
class Entry:
    """A pair of shared neurons, with r."""

    r: float
    neurons: tuple[Shown, ...]


def parse_neurons(text: str, option: str = "--neurons") -> list[Neuron]:
    """L8N859,L3N7 as neurons. Raises UsageError."""
    found = []
    for word in text.split(","):
        match = NAME.fullmatch(word.strip())
        if match is None:
            raise UsageError(f"{option} {word.strip()!r}: expected a neuron such as L8N859")
        found.append(Neuron(int(match[1]), int(match[2])))
    return found


def neuron_of(layer: str, index: str) -> Neuron:
    """The neuron of two cells of a table. Raises ValueError where they are no numbers, or negative."""
    found = Neuron(int(layer), int(index))
    if min(found.layer, found.index) < 0:
        raise ValueError(f"layer {layer}, neuron {index}")
    return found


def reading_of(document: Mapping[str, Any], told: str) -> Reading:
    """How the models of a count read their data. UsageError where they were dumps."""
    kept = document.get("reading")
    if not isinstance(kept, dict):
        raise UsageError(f"{told}: is a count of dumps; neurons are looked at in models and data")
    known = {field.name: str(field.type) for field in fields(Reading)}
    for name, value in kept.items():
        if not (name in known and _is_a(known[name], value)):
            raise DataError(f"{told}: its summary says what this version does not know: {name} {shown(value)}")
    if "data" not in kept:
        raise DataError(f"{told}: its summary does not say which data were read")
    return Reading(**kept)


def _is_a(kind: str, value: object) -> bool:
    """Whether a value is of a type as annotations write it; a whole number is one that counts something."""
    name = "None" if value is None else type(value).__name__
    return name in kind.split(" | ") and (type(value) is not int or value >= 1)


def _seed_of(document: Mapping[str, Any], told: str) -> int:
    options = document.get("options")
    seed = options.get("seed") if isinstance(options, dict) else None
    if type(seed) is not int or seed < 0:
        raise DataError(f"{told}: its summary does not say which seed drew the documents")
    return seed


def strongest_pairs(
    folder: str, most: int, wanted: Sequence[Neuron] = ()
) -> list[tuple[float, Neuron, Neuron, str]]:
    """(r, neuron, partner, partner's model) of the pairs with the highest r, or of named neurons of the anchor."""
    found = []
    for row in read_rows(folder, PAIRS):
        try:
            a, b = (neuron_of(row[f"layer_{s}"], row[f"neuron_{s}"]) for s in "ab")
            found.append((float(row["r"]), a, b, row["model_b"]))
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(f"{Path(folder) / PAIRS}: a row is not that of a count ({error})") from error
    if wanted:
        missing = [str(n) for n in wanted if all(a != n for _, a, _, _ in found)]
        if missing:
            raise UsageError(f"{folder}: {missing[0]} of the first model is in no pair")
        found = [pair for pair in found if pair[1] in wanted]
    if not found:
        raise DataError(f"{Path(folder) / PAIRS}: holds no pair of neurons; nothing to show")
    return sorted(found, key=lambda pair: -pair[0])[:most]


def look(
    folder: str,
    *,
    neurons: Sequence[Neuron] = (),
    most: int = 20,
    contexts: int = 8,
    device: Any = "cpu",
    progress: Progress = silent,
) -> list[Entry]:
    """The strongest contexts of the shared neurons of a count, from its models and data anew.

    Raises InputMissingError where those are gone, UsageError for a count of dumps, DataError for a damaged folder.
    """
    document = read_summary(folder)
    reading = reading_of(document, folder)
    pairs = strongest_pairs(folder, most, neurons)
    names = [model["model"] for model in document["models"]]
    needed: dict[str, list[Neuron]] = {name: [] for name in names}
    for _, a, b, partner in pairs:
        for name, neuron in ((names[0], a), (partner, b)):
            if neuron not in needed.setdefault(name, []):
                needed[name].append(neuron)
    if document.get("kind") == "vision":
        from nipstool.rosetta_count.image_contexts import strongest_images

        strongest = strongest_images(needed, reading, contexts, device, progress)
    else:
        strongest = _strongest_texts(needed, reading, _seed_of(document, folder), contexts, device, progress)
    entries = []
    for r, a, b, partner in pairs:
        both = ((names[0], a), (partner, b))
        entries.append(Entry(r, tuple(Shown(name, n, tuple(strongest[name, n])) for name, n in both)))
    return entries


def _strongest_texts(
    needed: Mapping[str, Sequence[Neuron]], reading: Reading, seed: int, most: int, device: Any, progress: Progress
) -> dict[tuple[str, Neuron], list[Context]]:
    if reading.data == "-":
        raise UsageError("the count read standard input, which is gone; count with a file to inspect")
    if not (Path(reading.data).is_file() or Path(reading.data).is_dir()):  # not a device that never ends
        raise InputMissingError(f"{reading.data}: is no file or folder; the count read its documents there")
    names = list(needed)
    loaded = {name: load_text_model(name, reading, device) for name in names}
    readers = [reader_of(one.tokeniser, one.body.config, reading.context) for one in loaded.values()]
    texts = read_texts(reading.data, text_field=reading.text_field, domain_field=reading.domain_field)
    found = corpus(texts.documents, readers, reading.tokens, seed)
    strongest: dict[tuple[str, Neuron], list[Context]] = {}
    for at, name in enumerate(names):
        contexts = strongest_contexts(loaded[name], readers[at], needed[name], found, at, most, progress)
        strongest |= {(name, neuron): one for neuron, one in contexts.items()}
    return strongest


def strongest_contexts(
    model: TextModel,
    reader: Reader,
    neurons: Sequence[Neuron],
    found: Corpus,
    at: int,
    most: int,
    progress: Progress = silent,
) -> dict[Neuron, list[Context]]:
    """The strongest contexts of some neurons of one model; of each run of SEGMENT tokens at most one."""
    best: dict[Neuron, list[Context]] = {neuron: [] for neuron in neurons}
    for number, (document, tokens) in enumerate(zip(found.documents, found.tokens[at], strict=True)):
        progress(number + 1, len(found.documents))
        if not len(tokens.ids):
            continue
        values = neuron_values(model, reader, neurons, [tokens])
        data = document.text.encode(errors="surrogatepass")
        for column, neuron in enumerate(neurons):
            own = values[:, column].tolist()
            for first in range(0, len(own), SEGMENT):
                part = own[first : first + SEGMENT]
                held = best[neuron]
                if len(held) < most or max(part) > held[-1].peak:
                    pieces = spoken(data, tokens, first, first + len(part))
                    held.append(Context(document.where, pieces, tuple(part), number, first))
                    held.sort(key=lambda context: -context.peak)
                    del held[most:]
    return best


def neuron_values(model: TextModel, reader: Reader, neurons: Sequence[Neuron], tokens: Sequence[Tokens]) -> Any:
    """Values [tokens, neurons] of some documents, float32 on the CPU. UsageError for neurons that do not exist."""
    import torch

    by_number = {site.number: site for site in model.sites}
    for neuron in neurons:
        if neuron.layer not in by_number:
            known = f"{min(by_number)} to {max(by_number)}"
            raise UsageError(f"{neuron}: {model.name} has no layer {neuron.layer}; layers are {known}")
    sites = [site for site in model.sites if site.number in {neuron.layer for neuron in neurons}]
    out = torch.zeros(sum(len(one.ids) for one in tokens), len(neurons))
    for places, values in token_values(model.body, reader, sites, tokens):
        for column, neuron in enumerate(neurons):
            layer = values[by_number[neuron.layer].name]
            if neuron.index >= layer.shape[1]:
                raise UsageError(f"{neuron}: layer {neuron.layer} of {model.name} has {layer.shape[1]} neurons")
            out[places, column] = layer[:, neuron.index].float().cpu()
    return out


def spoken(data: bytes, tokens: Tokens, first: int, last: int) -> tuple[str, ...]:
    """What each token says; bytes between tokens belong to the later; parts of characters wait for the last."""
    pieces: list[str] = []
    held = b""
    at = int(tokens.start[first])
    for row in range(first, last):
        stop = int(tokens.stop[row])
        held += data[at:stop]
        at = max(at, stop)
        try:
            pieces.append(held.decode())
            held = b""
        except UnicodeDecodeError:
            pieces.append("")
    if held and pieces:
        pieces[-1] += held.decode(errors="replace")
    return tuple(pieces)
