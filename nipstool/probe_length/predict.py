"""Predicted lengths for prompts as they come: one forward pass a batch, which stops at the probe's layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from nipstool.kit.errors import DataError
from nipstool.kit.records import parse_json, to_json
from nipstool.probe_length.encoding import Encoder
from nipstool.probe_length.formats import Example, Layout, to_example
from nipstool.probe_length.hidden import Language, padded, reading, run
from nipstool.probe_length.probe import Probe

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE = 64  # prompts of a file that are answered together
_BLOCK = 1 << 16


@dataclass
class Predictor:
    """Answers prompts with the distribution of their answers' lengths."""

    probe: Probe
    language: Language
    coverage: float
    budget: int | None = None
    batch_tokens: int = 8192
    skipped: int = 0
    _spread: Any = field(init=False)

    def __post_init__(self) -> None:
        self._spread = self.probe.at_coverage(self.coverage)

    def answers(self, prompts: list[list[int]]) -> list[dict[str, Any]]:
        """One record a prompt, in order: tokens at p10, p50, p90, mean, lo and hi, and the risk of a budget."""
        logged = self._logged(prompts)
        return [self._record(len(ids), z) for ids, z in zip(prompts, logged, strict=True)]

    def _logged(self, prompts: list[list[int]]) -> np.ndarray:
        """log1p of the predicted number of tokens, [prompts]."""
        found = np.zeros(len(prompts))
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        while order:
            size = 1
            while size < len(order) and (size + 1) * len(prompts[order[size]]) <= self.batch_tokens:
                size += 1
            chosen, order = order[:size], order[size:]
            found[chosen] = self._run([prompts[i] for i in chosen])
        return found

    def _run(self, prompts: list[list[int]]) -> np.ndarray:
        last: list[np.ndarray] = []

        def read(layer: int, h: Tensor) -> None:
            rows = h[range(len(prompts)), [len(ids) - 1 for ids in prompts]]
            last.append(rows.float().cpu().numpy().astype(np.float64))

        with reading(self.language, [self.probe.first.layer], read, stop=True):
            run(self.language, padded(prompts, self.language.device))
        return self.probe.first(last[0])

    def _record(self, prompt: int, z: float) -> dict[str, Any]:
        if not np.isfinite(z):
            raise DataError(f"layer {self.probe.first.layer}, row t = 0: the hidden state is NaN or infinite")
        spread = self._spread
        most = float(self.language.encoder.context - prompt)
        lo, hi = spread.interval(z, most)
        record = {f"p{share}": round(spread.quantile(z, share / 100, most), 1) for share in (10, 50, 90)}
        record |= {"mean": round(spread.mean(z, most), 1), "lo": round(lo, 1), "hi": round(hi, 1)}
        if self.budget is not None:
            record["risk"] = round(spread.risk(z, self.budget) if self.budget < most else 0.0, 4)
        return {"prompt_tokens": prompt, **record, "layer": self.probe.first.layer}

    def records(self, examples: Sequence[Example | str]) -> list[dict[str, Any] | DataError]:
        """For each example its record, or what is wrong with it; a text is a line that could not be read.

        The id is passed on, and n_response and arrival where the example has them: a schedule takes both.
        """
        ids: dict[int, list[int]] = {}
        found: list[dict[str, Any] | DataError] = [{} for _ in examples]
        for i, example in enumerate(examples):
            try:
                if isinstance(example, str):
                    raise DataError(example)
                ids[i] = self.encoder.prompt_ids(example)
            except DataError as error:
                found[i] = error
        for i, record in zip(ids, self.answers(list(ids.values())) if ids else [], strict=True):
            example = examples[i]
            assert isinstance(example, Example)
            known = {"n_response": example.n_response, "arrival": example.arrival}
            found[i] = {"id": example.id, **record, **{k: v for k, v in known.items() if v is not None}}
        return found

    @property
    def encoder(self) -> Encoder:
        """What makes ids of prompts."""
        return self.language.encoder


def answer_stream(
    source: BinaryIO,
    predictor: Predictor,
    write: Callable[[str], None],
    layout: Layout,
    *,
    told: str,
    skip_bad: bool,
) -> int:
    """Answer every line of a stream before the next one is waited for; returns the number of prompts.

    A line is a JSON record, a JSON text, or plain text. Raises DataError at the first line that cannot be used,
    where `skip_bad` is false; what came before is answered.
    """
    number = count = 0
    for lines in _as_they_come(source):
        examples: list[Example | str] = []
        for line in lines:
            number += 1
            if line.strip():
                examples.append(_example(line, f"{told}:{number}", layout))
        count += len(examples)
        answer(examples, predictor, write, skip_bad=skip_bad)
    return count


def answer(
    examples: Sequence[Example | str], predictor: Predictor, write: Callable[[str], None], *, skip_bad: bool
) -> None:
    """Write the answers to some examples, in order; a skipped one is answered with its error."""
    for record, example in zip(predictor.records(examples), examples, strict=True):
        if isinstance(record, DataError):
            told = str(record)
            if isinstance(example, Example) and not told.startswith(example.where):
                told = f"{example.where}: {told}"
            if not skip_bad:
                raise DataError(told)
            predictor.skipped += 1
            record = {"id": None, "error": told}
        write(to_json(record) + "\n")


def _example(line: bytes, where: str, layout: Layout) -> Example | str:
    """The example of a line, or what is wrong with it."""
    try:
        text = line.decode().strip()
        record = parse_json(text) if text[0] in '{["' else text
        if "\0" in text:
            raise DataError(f"{where}: is neither JSON nor text")
        return to_example(record, where, layout, "stdin")
    except DataError as error:
        return str(error)
    except UnicodeDecodeError:
        return f"{where}: is no UTF-8 text"
    except ValueError as error:
        return f"{where}: is no JSON: {' '.join(str(error).split())}"


def _as_they_come(source: BinaryIO) -> Iterator[list[bytes]]:
    """The whole lines that each read brings; the last may lack its end."""
    held = b""
    while block := source.read(_BLOCK):
        *lines, held = (held + block).split(b"\n")
        for start in range(0, len(lines), AT_ONCE):
            yield lines[start : start + AT_ONCE]
    if held:
        yield [held]
