"""Perplexity of a model on a text: exp of the mean negative log-likelihood over all predicted tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.files import check_input
from nipstool.kit.language_models import beginning_token, longest_context
from nipstool.kit.parts import reason
from nipstool.kit.progress import Progress, silent

DELIMITER = "<|endoftext|>"
WINDOW = 512


def read_text(path: str) -> str:
    """A UTF-8 text with something in it. Raises InputMissingError or DataError."""
    try:
        text = check_input(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no UTF-8 text: {error}") from error
    except OSError as error:
        raise InputMissingError(f"{path}: cannot be read: {reason(error)}") from error
    if not text.strip():
        raise DataError(f"{path}: is empty; expected a text")
    return text


def pieces(text: str, tokenizer: Any, config: Any) -> list[list[int]]:
    """Token sequences, each after BOS: documents split at the delimiter, else windows of WINDOW tokens.

    A document longer than the model's context is cut into windows of that length.
    """
    documents = [part.strip() for part in text.split(DELIMITER)] if DELIMITER in text else [text]
    whole = longest_context(config) if DELIMITER in text else min(WINDOW, longest_context(config))
    first = beginning_token(config, tokenizer)
    start = [] if first is None else [first]
    found = []
    for document in documents:
        ids = tokenizer(document, add_special_tokens=False).input_ids
        step = whole - len(start)
        found += [start + ids[i : i + step] for i in range(0, len(ids), step)]
    return [ids for ids in found if len(ids) > 1]


def perplexity(model: Any, sequences: Sequence[Sequence[int]], progress: Progress = silent) -> float:
    """exp(mean NLL) of the sequences' tokens after the first. Raises DataError where there is none to predict."""
    import torch

    total, count = 0.0, 0
    with torch.inference_mode():
        for done, ids in enumerate(sequences, 1):
            batch = torch.tensor([ids], device=model.get_input_embeddings().weight.device)
            logits = model(input_ids=batch, use_cache=False).logits[0, :-1].float()
            total += float(torch.nn.functional.cross_entropy(logits, batch[0, 1:], reduction="sum"))
            count += len(ids) - 1
            progress(done, len(sequences))
    if not count:
        raise DataError("the text gives no token to predict")
    mean = total / count
    return math.exp(mean) if mean < 700 else math.inf
