"""From what the user named to activations: Hugging Face folders on text, factories on images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError, UsageError
from nipstool.kit.files import check_input, sha256
from nipstool.kit.language_models import fresh_body, load_body, load_tokenizer
from nipstool.rosetta_count.align import Aligned, align
from nipstool.rosetta_count.count import Inputs, Subject
from nipstool.rosetta_count.documents import Document, read_texts
from nipstool.rosetta_count.record import Site, find_sites
from nipstool.rosetta_count.stream import layers_of
from nipstool.rosetta_count.text_model import Reader, TextActivations, reader_of
from nipstool.rosetta_count.tokens import Tokeniser, Tokens
from nipstool.rosetta_count.units import FEW_DOCUMENTS, SMALLEST, Unit, make_units

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from nipstool.kit.progress import Stages
    from nipstool.rosetta_count.work import Options

FACTORY = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)(?:\+(?P<weights>.+))?")
LEAST_SAMPLES = 8
KINDS = ("prefix", "suffix")  # of special tokens: before a window, after it


@dataclass(frozen=True)
class Reading:
    """The data, and how models read it."""

    data: str
    text_field: str = "text"
    domain_field: str | None = None
    context: int = 256
    tokens: int = 200_000
    sites: str | None = None
    dtype: str | None = None
    image_size: int | None = None
    grid: str | None = None
    keep_special: bool = False

    def key(self) -> list[Any]:
        """What a resumed run must share."""
        own = [self.text_field, self.domain_field, self.context, self.tokens]
        return [self.data, *own, self.sites, self.dtype, self.image_size, self.grid, self.keep_special]


def open_models(
    models: Sequence[str], reading: Reading, options: Options, stages: Stages
) -> tuple[Inputs, dict[str, str], dict[str, Any]]:
    """The models on the data; hashes of the files read; what summary.json says of them."""
    from nipstool.rosetta_count.vision_folders import is_vision_folder

    kinds = {bool(FACTORY.fullmatch(name)) or is_vision_folder(name) for name in models}
    if len(kinds) > 1:
        raise UsageError("language models read text, vision models and factories read images: no common data")
    if kinds == {True}:
        from nipstool.rosetta_count.vision import open_vision

        return open_vision(models, reading, options, stages)
    return open_text(models, reading, options, stages)


@dataclass(frozen=True)
class Corpus:
    """Documents cut and chosen, in the order in which they are read, and each model's tokens of them."""

    documents: tuple[Document, ...]
    tokens: tuple[tuple[Tokens, ...], ...]  # [models][documents]
    notes: tuple[str, ...] = ()


def corpus(documents: Sequence[Document], readers: Sequence[Reader], tokens: int, seed: int) -> Corpus:
    """Documents in a random order until the first model has `tokens` tokens, the last one cut there.

    Of fewer than 20 documents blocks of about 256 tokens are taken as documents, in order.
    """
    import numpy as np

    few = len(documents) < FEW_DOCUMENTS
    order = (
        list(range(len(documents))) if few else np.random.default_rng(seed).permutation(len(documents)).tolist()
    )
    chosen: list[Document] = []
    left = tokens
    for at in range(0, len(order), 64):
        batch = [documents[i] for i in order[at : at + 64]]
        for document, found in zip(batch, readers[0].tokeniser([d.text for d in batch]), strict=True):
            if left > 0 and len(found.ids):
                chosen += _cut(document, found, min(left, len(found.ids)), SMALLEST if few else None)
                left -= len(found.ids)
        if left <= 0:
            break
    note = f"{len(documents)} documents are few: blocks of {SMALLEST} tokens are permuted instead"
    spoken = [tuple(reader.tokeniser([d.text for d in chosen])) for reader in readers]
    return Corpus(tuple(chosen), tuple(spoken), (note,) if few else ())


def _cut(document: Document, tokens: Tokens, count: int, block: int | None) -> list[Document]:
    """The first `count` tokens of a document, whole or in blocks."""
    if count == len(tokens.ids) and (block is None or count <= block):
        return [document]
    data = document.text.encode(errors="surrogatepass")
    edges = [*range(0, count, block or count), count]
    pieces = []
    for first, last in pairwise(edges):
        start = int(tokens.start[first]) if first else 0
        stop = int(tokens.start[last]) if last < len(tokens.ids) else len(data)
        text = data[start:stop].decode(errors="ignore")  # a block may end within a character
        if text:
            pieces.append(replace(document, text=text))
    return pieces


def open_text(
    models: Sequence[str], reading: Reading, options: Options, stages: Stages
) -> tuple[Inputs, dict[str, str], dict[str, Any]]:
    """Hugging Face models on documents."""
    import torch

    from nipstool.rosetta_count.job import same_twice

    for model in models:
        check_input(model)
    texts = read_texts(reading.data, text_field=reading.text_field, domain_field=reading.domain_field)
    for warning in texts.warnings:
        stages.note(warning)
    for warning in same_twice(models):
        stages.note(warning)
    loaded = [load_text_model(name, reading, options.device) for name in models]
    readers = [reader_of(one.tokeniser, one.body.config, reading.context) for one in loaded]
    found = corpus(texts.documents, readers, reading.tokens, options.seed)
    activations, document_of, units = on_text(loaded, readers, found, options.repeats, reading.keep_special)
    samples = sum(activations[0].samples)
    if samples < LEAST_SAMPLES:
        raise DataError(f"{reading.data}: the models share {samples} spans of text; expected many more")
    labels = tuple(d.label or "" for d in found.documents)
    inputs = Inputs(
        models=activations,
        subjects=[
            Subject(a.name, a.layers, body_size(one.body)) for a, one in zip(activations, loaded, strict=True)
        ],
        units=len(units),
        samples=samples,
        documents=len(found.documents),
        untrained=lambda: [fresh(one, options.seed + at) for at, one in enumerate(activations)],
        document_of=lambda unit: torch.from_numpy(document_of[unit]),
        labels=labels if len(set(labels)) > 1 else None,
        notes=(*found.notes, *_lacking(readers, reading.keep_special)),
    )
    spoken = sum(len(one.ids) for one in found.tokens[0])
    told = {"kind": "text", "data": reading.data, "tokens": spoken, "units": len(units), "reading": vars(reading)}
    return inputs, _hashes(models, reading.data), told


def fresh(activations: TextActivations, seed: int) -> TextActivations:
    """The same activations of a model with fresh weights."""
    return replace(activations, model=fresh_body(activations.model, seed))


@dataclass(frozen=True)
class TextModel:
    """A loaded model with its tokenizer and sites."""

    name: str
    body: Any
    tokeniser: Tokeniser
    sites: tuple[Site, ...]


def load_text_model(name: str, reading: Reading, device: Any) -> TextModel:
    """A Hugging Face folder, ready to be recorded."""
    from nipstool.kit.runtime import float_dtype

    body = load_body(name, dtype=float_dtype(reading.dtype) or "auto", device=device)
    tokeniser = Tokeniser(load_tokenizer(name), name)
    return TextModel(name, body, tokeniser, tuple(find_sites(body, reading.sites, name)))


def body_size(body: Any) -> int:
    """Parameters without embeddings."""
    from torch import nn

    embedded = {id(p) for m in body.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    return sum(p.numel() for p in body.parameters() if id(p) not in embedded)


def on_text(
    loaded: Sequence[TextModel], readers: Sequence[Reader], found: Corpus, repeats: int, special: bool = False
) -> tuple[list[TextActivations], list[np.ndarray], list[Unit]]:
    """Each model's activations on the spans that all share, the document of each sample, and the units of work.

    With `special` the tokens before a document's windows are one more sample, and those after them, where every
    model has some.
    """
    import numpy as np

    sizes = [len(d.text.encode(errors="surrogatepass")) for d in found.documents]
    units = make_units([len(one.ids) for one in found.tokens[0]], repeats=repeats)
    tokens = [[own[u.start : u.stop] for u in units] for own in found.tokens]
    tokens_of = [[own[u.index] for own in tokens] for u in units]
    aligned = [align(part, sizes[u.start : u.stop]) for part, u in zip(tokens_of, units, strict=True)]
    ends = [special_samples(readers, part, at, special) for part, at in zip(tokens_of, aligned, strict=True)]
    documents = [np.append(one.document, more.document) for one, more in zip(aligned, ends, strict=True)]
    counts = [len(one) for one in documents]
    activations = []
    for at, (one, reader) in enumerate(zip(loaded, readers, strict=True)):
        widths = [one.body.get_submodule(site.name).weight for site in one.sites]
        named = [(site.name, site.number, _inputs(w, one.body)) for site, w in zip(one.sites, widths, strict=True)]
        pooled = special or any(spans.pooled[at] for spans in aligned)
        sample = [np.append(spans.sample[at], more.sample) for spans, more in zip(aligned, ends, strict=True)]
        activations.append(
            TextActivations(
                one.name,
                layers_of(named),
                one.body,
                reader,
                one.sites,
                tokens[at],
                sample,
                counts,
                pooled,
                special,
            )
        )
    return activations, [one + u.start for one, u in zip(documents, units, strict=True)], units


@dataclass(frozen=True)
class Ends:
    """Samples made of special tokens: which one each place beyond the tokens' belongs to, and their documents."""

    sample: np.ndarray
    document: np.ndarray


def special_samples(
    readers: Sequence[Reader], tokens: Sequence[Sequence[Tokens]], aligned: Aligned, wanted: bool
) -> Ends:
    """The special samples of a unit, `tokens` [models][documents]; they are numbered after its spans.

    A document that some model has no token of has none: there is no window to begin.
    """
    import numpy as np

    count = len(tokens[0])
    spoken = np.array([all(len(own[at].ids) for own in tokens) for at in range(count)], dtype=bool)
    sample, document = np.full(2 * count if wanted else 0, -1), np.zeros(0, dtype=np.int64)
    for side, kind in enumerate(KINDS if wanted else ()):
        if all(getattr(reader, kind) for reader in readers):
            own = np.flatnonzero(spoken)
            sample[side * count + own] = len(aligned.document) + len(document) + np.arange(len(own))
            document = np.append(document, own)
    return Ends(sample, document)


def _lacking(readers: Sequence[Reader], wanted: bool) -> tuple[str, ...]:
    """A note where special tokens are wanted and there are none that all models have."""
    common = any(all(getattr(reader, kind) for reader in readers) for kind in KINDS)
    return ("no special token is kept: the models have none in common",) if wanted and not common else ()


def _inputs(weight: Tensor, body: Any) -> int:
    """The inputs of a projection to the hidden size; GPT-2's weight is transposed."""
    rows, columns = weight.shape
    hidden = body.config.hidden_size
    return rows if columns == hidden and rows != hidden else columns


def _hashes(models: Sequence[str], data: str) -> dict[str, str]:
    files = [
        file
        for model in models
        for file in sorted(Path(model).iterdir())
        if file.suffix in (".json", ".safetensors")
    ]
    if data != "-":
        place = Path(data)
        files += [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    return {str(file): sha256(file) for file in files}
