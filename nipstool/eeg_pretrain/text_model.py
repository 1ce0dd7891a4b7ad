"""A local Hugging Face encoder for what is told of a person, in place of hashed n-grams. It is not trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from nipstool.kit.errors import DataError
from nipstool.kit.files import StrPath, check_input

MOST_TOKENS = 256
Texts = Sequence[Mapping[str, str]]


def sentence(text: Mapping[str, str]) -> str:
    """Fields as one line: 'age: 11. sex: F.'"""
    return " ".join(f"{field}: {value}." for field, value in sorted(text.items()))


def text_reader(folder: StrPath) -> tuple[Callable[[Texts], Tensor], int]:
    """A function from texts to vectors (B, width), zeros where nothing is told, and the width.

    Raises InputMissingError where there is no folder, DataError where it holds no encoder.
    """
    path = check_input(folder)
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        model = AutoModel.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"--text-model {folder}: holds no model that transformers can load from there") from error
    model = model.eval().requires_grad_(False).float()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    known: dict[str, Tensor] = {}

    @torch.no_grad()
    def vector(line: str) -> Tensor:
        if line not in known:
            inputs = tokenizer(line, return_tensors="pt", truncation=True, max_length=MOST_TOKENS)
            hidden = model(**inputs).last_hidden_state[0].mean(0)
            known[line] = hidden / hidden.norm().clamp(min=1e-6) * hidden.shape[0] ** 0.5
        return known[line]

    width = int(model.config.hidden_size)

    def read(texts: Texts) -> Tensor:
        return torch.stack([vector(sentence(text)) if text else torch.zeros(width) for text in texts])

    return read, width
