"""Tokens to measure a model with: text that it samples from itself, random ids, or a given text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError
from nipstool.kit.language_models import beginning_token, cache_word, longest_context
from nipstool.kit.progress import Progress, silent

if TYPE_CHECKING:
    from torch import Tensor

LENGTH, BATCH = 256, 48
_PROBE = 6  # steps timed before the whole is predicted
SLOW_S = 1800.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Shape:
    """How many sequences of which length make up the tokens asked for."""

    sequences: int
    length: int

    @property
    def batches(self) -> list[int]:
        """Sizes of the batches."""
        full, rest = divmod(self.sequences, BATCH)
        return [BATCH] * full + [rest] * (rest > 0)


def shape_of(config: Any, tokens: int) -> Shape:
    """Sequences of at most LENGTH tokens, as many as give at least `tokens`."""
    length = max(2, min(LENGTH, longest_context(config), tokens))
    return Shape(-(-tokens // length), length)


def sampled(
    model: Any, tokens: int, seed: int, say: Say, done: Sequence[Tensor] = (), progress: Progress = silent
) -> Iterator[Tensor]:
    """Batches [sequences, length] of ids that the model samples from itself: from BOS on, T = 1, no top-k.

    A model without BOS begins with a random token. Each batch has a seed of its own, so that those already `done`
    are taken as they are. The predicted time is said first.
    """
    import torch

    shape = shape_of(model.config, tokens)
    yield from done
    for index, size in enumerate(shape.batches):
        if index < len(done):
            continue
        generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
        teller = None if index > len(done) else _Teller(shape, len(done), say)
        before = sum(shape.batches[:index]) * shape.length

        def show(step: int, size: int = size, before: int = before, teller: _Teller | None = teller) -> None:
            progress(before + size * step, shape.sequences * shape.length)
            if teller is not None:
                teller.step(step)

        yield _one_batch(model, size, shape.length, generator, show)


class _Teller:
    """Says once, after a few steps, how long the sampling will take."""

    def __init__(self, shape: Shape, batches_done: int, say: Say):
        self._steps = (len(shape.batches) - batches_done) * (shape.length - 1)
        self._say, self._start = say, time.monotonic()

    def step(self, step: int) -> None:
        if step == 1:  # the first one warms up
            self._start = time.monotonic()
        if step != _PROBE + 1:
            return
        left = (time.monotonic() - self._start) / _PROBE * self._steps * 1.3  # the cache grows
        self._say(f"sampling text from the model: about {left:.0f} s")
        if left > SLOW_S:
            self._say(
                "this model is slow to sample here: --units layers needs a few thousand tokens only,"
                " --channels noise none"
            )


def _one_batch(model: Any, size: int, length: int, generator: Any, show: Callable[[int], None]) -> Tensor:
    import torch

    device = model.get_input_embeddings().weight.device
    first = beginning_token(model.config)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.full((size, 1), first or 0)
    if first is None:
        ids = torch.randint(vocabulary, (size, 1), generator=generator)
    cache, word = None, cache_word(model)
    with torch.inference_mode():
        for step in range(1, length):
            out = model(input_ids=ids[:, -1:].to(device), use_cache=True, **{word: cache})
            cache = out[word]
            chances = out.logits[:, -1].float().cpu().softmax(dim=-1)
            if not bool(chances.isfinite().all()):
                raise DataError("the model gives NaN or infinity for its own text")
            ids = torch.cat((ids, torch.multinomial(chances, 1, generator=generator)), dim=1)
            show(step)
    return ids


def noise(config: Any, tokens: int, seed: int) -> list[Tensor]:
    """Batches of uniformly random ids, each sequence after BOS."""
    import torch

    shape = shape_of(config, tokens)
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for size in shape.batches:
        ids = torch.randint(config.vocab_size, (size, shape.length), generator=generator)
        first = beginning_token(config)
        if first is not None:
            ids[:, 0] = first
        batches.append(ids)
    return batches


def of_text(ids: Sequence[int], config: Any) -> list[Tensor]:
    """Sequences [1, length] of a text's ids, each after BOS."""
    import torch

    first = beginning_token(config)
    start = [] if first is None else [first]
    step = min(LENGTH, longest_context(config)) - len(start)
    return [torch.tensor([[*start, *ids[i : i + step]]]) for i in range(0, len(ids), step)]
