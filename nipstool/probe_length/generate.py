"""Answers sampled from a model, with their token ids and why they ended: what probes are fitted on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError
from nipstool.kit.language_models import quiet
from nipstool.kit.progress import Progress, silent
from nipstool.probe_length.encoding import hash64
from nipstool.probe_length.formats import Example, Fault
from nipstool.probe_length.hidden import Language, padded

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE = 256  # prompts that are sorted by length together


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn: n a prompt, at most max_new tokens each; temperature 0: the likeliest, once."""

    n: int = 4
    max_new: int = 512
    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 0
    batch_tokens: int = 32768


def generate(
    language: Language,
    examples: Iterable[Example],
    how: Sampling,
    fault: Fault,
    *,
    progress: Progress = silent,
) -> Iterator[dict[str, Any]]:
    """Records with prompt and response, ids and finish_reason ("stop" or "length"), in the order of the prompts.

    The same seed gives the same answers for the same prompts in the same order. An answer that meets the end of
    the context ends with "length" too.
    """
    done = 0
    examples = iter(examples)
    while chunk := list(islice(examples, AT_ONCE)):
        prompts = list(_prompts(language, chunk, fault))
        answers: dict[int, list[tuple[list[int], bool]]] = {}
        for batch in _batches(prompts, how, language.encoder.context):
            answers |= dict(zip(batch, _sample(language, [prompts[i][1] for i in batch], how), strict=True))
            progress(done + len(answers), 0)
        done += len(prompts)
        for i, (example, ids) in enumerate(prompts):
            for number, (response, stopped) in enumerate(answers[i]):
                yield _record(language, example, ids, response, stopped, number, how)


def _prompts(language: Language, examples: list[Example], fault: Fault) -> Iterator[tuple[Example, list[int]]]:
    for example in examples:
        try:
            ids = language.encoder.prompt_ids(example)
        except DataError as error:
            fault(str(error))
            continue
        yield example, ids


def _batches(prompts: list[tuple[Example, list[int]]], how: Sampling, context: int) -> Iterator[list[int]]:
    """Prompts of like length together, at most batch_tokens places with the answers'."""
    held: list[int] = []
    for i in sorted(range(len(prompts)), key=lambda i: (len(prompts[i][1]), i)):
        size = min(len(prompts[i][1]) + how.max_new, context) * how.n
        if held and (len(held) + 1) * size > how.batch_tokens:
            yield held
            held = []
        held.append(i)
    if held:
        yield held


def _sample(language: Language, prompts: list[list[int]], how: Sampling) -> list[list[tuple[list[int], bool]]]:
    """For each prompt its answers, each with whether the model ended it itself."""
    import torch
    from transformers import LogitsProcessorList

    def checked(ids: Tensor, scores: Tensor) -> Tensor:
        if scores.isnan().any() or scores.isposinf().any():
            raise DataError(f"{language.folder}: its logits are NaN or infinite; are its weights damaged?")
        return scores

    batch = padded(prompts, language.device, "left")
    places = batch.ids.shape[1]
    ends = sorted(language.encoder.ends)
    torch.manual_seed(hash64(how.seed, prompts) & 0xFFFFFFFF)
    drawn = {"do_sample": True, "temperature": how.temperature, "top_p": how.top_p, "top_k": 0}
    with torch.inference_mode(), quiet():
        out = language.model.generate(
            input_ids=batch.ids,
            attention_mask=batch.mask,
            max_new_tokens=min(how.max_new, language.encoder.context - places),
            num_return_sequences=how.n if how.temperature > 0 else 1,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,
            logits_processor=LogitsProcessorList([checked]),
            **(drawn if how.temperature > 0 else {"do_sample": False}),
        )
    rows = [_ended(row, language.encoder.ends) for row in out[:, places:].tolist()]
    if how.temperature > 0:
        return [rows[i * how.n : (i + 1) * how.n] for i in range(len(prompts))]
    return [[row] for row in rows]


def _ended(ids: list[int], ends: frozenset[int]) -> tuple[list[int], bool]:
    place = next((i for i, token in enumerate(ids) if token in ends), len(ids))
    return ids[:place], place < len(ids)


def _record(
    language: Language,
    example: Example,
    prompt: list[int],
    response: list[int],
    stopped: bool,
    number: int,
    how: Sampling,
) -> dict[str, Any]:
    tokenizer = language.encoder.tokenizer
    name = example.id if example.id is not None else f"{hash64(prompt):016x}"
    record: dict[str, Any] = {"id": f"{name}-s{number}", "group": example.group or str(name)}
    if isinstance(example.prompt, str):
        record["prompt"] = example.prompt
    if tokenizer is not None:
        record["response"] = tokenizer.decode(response)
    return {
        **record,
        "prompt_ids": prompt,
        "response_ids": response,
        "n_response": len(response),
        "finish_reason": "stop" if stopped else "length",
        "cap": min(how.max_new, language.encoder.context - len(prompt)),
    }
