"""A small language model for the demo, trained in half a minute: python -m nipstool.probe_length.synthetic FOLDER

It learns to count, to repeat a word and to spell digits, as often as its prompt says, and leaves FOLDER/model,
a checkpoint as transformers writes it, FOLDER/prompts.jsonl, and FOLDER/restarts.jsonl with FOLDER/markers.jsonl:
answers that are taken back in the middle and begin anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from nipstool.kit.small_models import prepare, save, small_llama, train

WORDS = ("apple", "river", "stone", "cloud", "tiger", "music")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
AGAIN = "no wait"
LONGEST, STEPS, BATCH = 16, 280, 24
SPECIAL = ("<pad>", "<s>", "</s>")


def write_demo(folder: Path) -> None:
    """Trains and writes the model, its prompts and the answers with restarts."""
    prepare()
    random = Random(0)
    tokenizer = _words_tokenizer()
    model = small_llama(tokenizer, width=64, ffn=160, heads=4, positions=128)
    train(model, _batches(tokenizer, random), STEPS, 3e-3)
    save(folder / "model", model, tokenizer)
    _write_rows(folder / "prompts.jsonl", [{"id": f"p{i}", "prompt": _task(random)[0]} for i in range(120)])
    answers, markers = _restarts(random)
    _write_rows(folder / "restarts.jsonl", answers)
    _write_rows(folder / "markers.jsonl", markers)


def _task(random: Random) -> tuple[str, list[str]]:
    """A prompt, and the words of its answer; now and then the answer takes itself back and begins anew."""
    items = random.randint(2, LONGEST)
    kind = random.choice(("count", "repeat", "spell"))
    if kind == "count":
        return f"count to {items} :", [str(i) for i in range(1, items + 1)]
    if kind == "repeat":
        word = random.choice(WORDS)
        return f"repeat {word} {items} times :", [word] * items
    digits = [random.randrange(10) for _ in range(items)]
    return f"spell {' '.join(map(str, digits))} :", [DIGITS[d] for d in digits]


def _taken_back(answer: list[str], random: Random) -> tuple[list[str], int]:
    """The answer begun, taken back after some words, and given whole; with the number of words before that."""
    t = random.randint(max(1, len(answer) // 2), len(answer) - 1)
    return [*answer[:t], *AGAIN.split(), *answer], t


def _restarts(random: Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    answers, markers = [], []
    for i in range(40):
        prompt, answer = _task(random)
        if len(answer) > 8:
            words, t = _taken_back(answer, random)
            answers.append({"id": f"r{i}", "prompt": prompt, "response": " ".join(words), "finish_reason": "stop"})
            markers.append({"id": f"r{i}", "t": t})
    return answers, markers


def _words_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    numbers = [str(i) for i in range(LONGEST + 1)]
    plain = ["count", "to", "repeat", "times", "spell", ":", *AGAIN.split(), *WORDS, *DIGITS, *numbers]
    words = [*SPECIAL, *dict.fromkeys(plain)]
    tokenizer = Tokenizer(models.WordLevel(vocab={word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def _batches(tokenizer: Any, random: Random) -> Iterator[tuple[Any, Any]]:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    for _ in range(STEPS):
        rows = []
        for _ in range(BATCH):
            prompt, answer = _task(random)
            if random.random() < 0.15 and len(answer) > 2:
                answer, _ = _taken_back(answer, random)
            rows.append(torch.tensor([*tokenizer(f"{prompt} {' '.join(answer)}").input_ids, 2]))
        ids = pad_sequence(rows, batch_first=True)
        yield ids, torch.where(ids == 0, -100, ids)


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    write_demo(Path(sys.argv[1]))
