"""Token ids of an example: prompt and response tokenised apart, a chat template applied once.

A sequence is x_1..x_P (prompt) and y_1..y_T (response, end token not counted). Position t = 0 is the last prompt
token, t = k the k-th response token; at t there remain T - t tokens. Of a censored sequence only T >= T_seen is
known: its answer was cut off.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nipstool.kit.errors import DataError
from nipstool.kit.language_models import longest_context
from nipstool.probe_length.formats import CUT, Example, Fault, Turns


@dataclass(frozen=True)
class Sequence:
    """Ids of a prompt and of as much of its response as the context holds; `length` counts all of it."""

    where: str
    dataset: str
    id: str | int | None
    group: int  # 64-bit hash of what it is grouped by
    key: int  # 64-bit hash of the sequence itself
    prompt: list[int]
    response: list[int]
    length: int
    censored: bool
    weight: float = 1.0


def hash64(*parts: object) -> int:
    """A hash that is the same on every machine, below 2^63."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=8).digest()) >> 1


@dataclass
class Encoder:
    """Makes sequences of examples, and counts what it had to assume."""

    tokenizer: Any  # None where the model's folder has none: then only ids can be read
    config: Any
    template: str | None = None  # a chat template that replaces the tokenizer's
    ends: frozenset[int] = frozenset()
    cap: int | None = None  # a response of so many tokens without a finish reason is cut
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def context(self) -> int:
        """Tokens that the model takes at once."""
        return longest_context(self.config)

    def prompt_ids(self, example: Example) -> list[int]:
        """The ids of the prompt. Raises DataError where it leaves no room for an answer, or holds odd ids."""
        prompt = example.prompt
        ids: list[int]
        if isinstance(prompt, str):
            ids = self._ids(prompt)
        else:
            turns = [turn for turn in prompt if isinstance(turn, dict)]
            ids = self._templated(turns) if turns else [i for i in prompt if isinstance(i, int)]
        if not ids:
            raise DataError(f"{example.where}: the prompt has no tokens")
        self._check(ids, example.where)
        if len(ids) >= self.context:
            most = f"the model's context holds {self.context}"
            raise DataError(f"{example.where}: the prompt has {len(ids)} tokens and {most}")
        return ids

    def sequence(self, example: Example) -> Sequence:
        """The sequence of an example with a response. Raises DataError as prompt_ids does, or for an empty one."""
        prompt = self.prompt_ids(example)
        response, stopped = self._response_ids(example)
        if not response:
            raise DataError(f"{example.where}: the response is empty")
        length = len(response)
        censored = not stopped and self._is_cut(example, len(prompt), length)
        fits = response[: self.context - len(prompt)]
        group = example.group if example.group is not None else prompt
        return Sequence(
            example.where,
            example.dataset,
            example.id,
            hash64("group", group),
            hash64("sequence", example.id, prompt, response),
            prompt,
            fits,
            length,
            censored,
            example.weight,
        )

    def _templated(self, turns: Turns) -> list[int]:
        if self.template is None and not getattr(self.tokenizer, "chat_template", None):
            self.counts["untemplated"] += 1
            return self._ids("\n".join(turn["content"] for turn in turns) + "\n")
        try:
            text = self.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True, chat_template=self.template
            )
        except Exception as error:  # whatever a template raises
            raise DataError(f"the chat template refuses these turns: {' '.join(str(error).split())}") from error
        return self._ids(text, special=False)  # the template has put the BOS

    def _ids(self, text: str, *, special: bool = True) -> list[int]:
        if self.tokenizer is None:
            raise DataError("the model's folder has no tokenizer; expected prompt_ids and response_ids")
        return list(self.tokenizer(text, add_special_tokens=special).input_ids)

    def _response_ids(self, example: Example) -> tuple[list[int], bool]:
        """Ids without end tokens, and whether one was there."""
        response = example.response
        if isinstance(response, str):
            ids = self._ids(response, special=False)
        else:
            ids = list(response or [])
            self._check(ids, example.where)
        kept = next((i for i, token in enumerate(ids) if token in self.ends), len(ids))
        return ids[:kept], kept < len(ids)

    def _is_cut(self, example: Example, prompt: int, length: int) -> bool:
        if example.finish_reason is not None:
            return str(example.finish_reason).lower() in CUT
        cap = example.cap if example.cap is not None else self.cap
        if cap is not None and length >= cap:
            self.counts["at the cap"] += 1
            return True
        if prompt + length == self.context:
            self.counts["at the context's end"] += 1
            return True
        self.counts["without finish_reason"] += 1
        return False

    def _check(self, ids: list[int], where: str) -> None:
        size = getattr(self.config, "vocab_size", None)
        if size is not None and max(ids, default=0) >= size:
            raise DataError(f"{where}: token id {max(ids)} is beyond the model's vocabulary of {size}")

    def assumptions(self) -> list[str]:
        """What the user should know about how sequences were made."""
        told = {
            "untemplated": "{} chats were joined as plain text: the tokenizer has no chat template",
            "at the cap": "{} answers without finish_reason have as many tokens as their cap: taken as cut off",
            "at the context's end": "{} answers without finish_reason fill the context: taken as cut off",
            "without finish_reason": "{} answers have no finish_reason: taken as complete",
        }
        return [text.format(self.counts[name]) for name, text in told.items() if self.counts[name]]


def end_tokens(config: Any, generation: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends an answer: of configuration, generation configuration and tokenizer."""
    found: set[int] = set()
    for owner in (config, generation, tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        found |= set(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return frozenset(found)


def sequences(examples: Iterable[Example], encoder: Encoder, fault: Fault) -> Iterator[Sequence]:
    """The sequence of every example; `fault` is told of those that have none."""
    for example in examples:
        try:
            yield encoder.sequence(example)
        except DataError as error:
            text = str(error)
            fault(text if text.startswith(example.where) else f"{example.where}: {text}")
