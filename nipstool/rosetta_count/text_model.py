"""A transformers model on text: windows of tokens, passes in fixed batches, tokens pooled on common spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import UsageError
from nipstool.kit.language_models import beginning_token, longest_context
from nipstool.rosetta_count.record import Site, run_until_recorded
from nipstool.rosetta_count.stream import Layer
from nipstool.rosetta_count.tokens import Tokeniser, Tokens

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

BATCH_TOKENS = 2048


@dataclass(frozen=True)
class Reader:
    """How one model reads: its tokenizer, the tokens around each window, how many tokens fit between them."""

    tokeniser: Tokeniser
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    room: int
    pad: int


def reader_of(tokeniser: Tokeniser, config: Any, context: int) -> Reader:
    """A window begins as texts do: with the tokenizer's own special tokens, else with BOS where there is one."""
    prefix, suffix = tokeniser.prefix, tokeniser.suffix
    first = beginning_token(config, tokeniser.tokenizer) if not prefix and not suffix else None
    prefix = prefix if first is None else [first]
    most = longest_context(config)
    if type(config).__name__.startswith(("Roberta", "XLMRoberta", "Camembert")):
        most -= 2  # positions begin after the padding's
    room = min(context, most) - len(prefix) - len(suffix)
    if room < 1:
        raise UsageError(f"--ctx {context}: {tokeniser.told} adds {len(prefix) + len(suffix)} special tokens")
    pad = getattr(tokeniser.tokenizer, "pad_token_id", None)
    return Reader(tokeniser, tuple(prefix), tuple(suffix), room, 0 if pad is None else int(pad))


@dataclass(frozen=True)
class Window:
    """A run of a document's tokens: `at` is its first one's place in the unit, `document` that of the text."""

    at: int
    ids: list[int]
    document: int


def windows(documents: Sequence[Tokens], room: int) -> list[Window]:
    """Every document cut into windows of at most `room` tokens."""
    found: list[Window] = []
    at = 0
    for number, document in enumerate(documents):
        ids = document.ids.tolist()
        found += [Window(at + i, ids[i : i + room], number) for i in range(0, len(ids), room)]
        at += len(ids)
    return found


def batches(found: Sequence[Window], extra: int) -> Iterator[list[Window]]:
    """Windows of like length together, so many that their padded tokens stay below BATCH_TOKENS."""
    ordered = sorted(found, key=lambda window: -len(window.ids))
    at = 0
    while at < len(ordered):
        longest = len(ordered[at].ids) + extra
        many = max(1, BATCH_TOKENS // longest)
        yield ordered[at : at + many]
        at += many


def token_values(
    model: Any, reader: Reader, sites: Sequence[Site], documents: Sequence[Tokens], *, special: bool = False
) -> Iterator[Any]:
    """(places of tokens [t], {site: values [t, n]}) batch by batch; padding is left out, and special tokens.

    With `special` those before a window of document d (of D, with T tokens) have the place T + d, those after it
    T + D + d.
    """
    import torch

    tokens = sum(len(one.ids) for one in documents)

    device = next(model.parameters()).device
    before, extra = len(reader.prefix), len(reader.prefix) + len(reader.suffix)
    for batch in batches(windows(documents, reader.room), extra):
        rows = [[*reader.prefix, *window.ids, *reader.suffix] for window in batch]
        width = max(map(len, rows))
        ids = torch.tensor([row + [reader.pad] * (width - len(row)) for row in rows], device=device)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
        values = run_until_recorded(model, sites, lambda ids=ids, mask=mask: _forward(model, ids, mask))
        keep = torch.zeros(len(rows), width, dtype=torch.bool)
        places = []
        for row, window in enumerate(batch):
            first, last = (0, len(rows[row])) if special else (before, before + len(window.ids))
            keep[row, first:last] = True
            own = torch.arange(window.at, window.at + len(window.ids))
            begin = torch.full((before,), tokens + window.document)
            end = torch.full((extra - before,), tokens + len(documents) + window.document)
            places += [begin, own, end] if special else [own]
        flat = keep.flatten().to(device)
        yield torch.cat(places), {name: value.reshape(len(flat), -1)[flat] for name, value in values.items()}


def _forward(model: Any, ids: Tensor, mask: Tensor) -> Any:
    words = {"use_cache": False} if getattr(model.config, "is_decoder", True) else {}
    full = bool(mask.all())  # without a mask the faster attention is taken
    return model(input_ids=ids, attention_mask=None if full else mask, **words)


@dataclass(frozen=True)
class TextActivations:
    """A model's neurons on the samples of every unit.

    Args:
        tokens: [units][documents].
        sample: [units] the sample of every token of the unit's documents, -1 for none; with `special` also of the
            tokens before and after each document's windows (see token_values).
        samples: [units] how many there are.
        pooled: whether a sample may have several tokens: values are then means, in float32.
    """

    name: str
    layers: tuple[Layer, ...]
    model: Any
    reader: Reader
    sites: tuple[Site, ...]
    tokens: Sequence[Sequence[Tokens]]
    sample: Sequence[np.ndarray]
    samples: Sequence[int]
    pooled: bool
    special: bool = False

    def unit(self, index: int) -> Tensor:
        """[S, n] in the model's own dtype, or float32 where tokens are pooled."""
        import torch

        parameter = next(self.model.parameters())
        dtype = torch.float32 if self.pooled else parameter.dtype
        width = self.layers[-1].columns.stop
        out = torch.zeros(self.samples[index], width, dtype=dtype, device=parameter.device)
        sample = torch.from_numpy(self.sample[index])
        held = torch.zeros(len(out), 1, device=out.device)
        documents = self.tokens[index]
        for places, values in token_values(self.model, self.reader, self.sites, documents, special=self.special):
            rows = sample[places]
            used = (rows >= 0).to(parameter.device)
            rows = rows[rows >= 0].to(parameter.device)
            held.index_add_(0, rows, torch.ones(len(rows), 1, device=out.device))
            for layer, site in zip(self.layers, self.sites, strict=True):
                taken = values[site.name][used].to(dtype)
                if self.pooled:
                    out[:, layer.columns].index_add_(0, rows, taken)
                else:
                    out[rows, layer.columns] = taken
        if self.pooled:
            out /= held.clamp_min(1)
        return out
