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

from nipstool.kit.language_models import quiet

WORDS = ("apple", "river", "stone", "cloud", "tiger", "music")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
AGAIN = "no wait"
LONGEST, STEPS, BATCH = 16, 280, 24
SPECIAL = ("<pad>", "<s>", "</s>")


def write_demo(folder: Path) -> None:
    """Trains and writes the model, its prompts and the answers with restarts."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(min(2, torch.get_num_threads()))
    random = Random(0)
    tokenizer = _words_tokenizer()
    model = _small_llama(tokenizer)
    _train(model, tokenizer, random)
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
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


def _small_llama(tokenizer: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            tie_word_embeddings=True,
        )
    )


def _train(model: Any, tokenizer: Any, random: Random) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, betas=(0.9, 0.98))
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS, pct_start=0.1)
    for batch in _batches(tokenizer, random):
        labels = torch.where(batch == 0, -100, batch)
        model(input_ids=batch, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rate.step()


def _batches(tokenizer: Any, random: Random) -> Iterator[Any]:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    for _ in range(STEPS):
        rows = []
        for _ in range(BATCH):
            prompt, answer = _task(random)
            if random.random() < 0.15 and len(answer) > 2:
                answer, _ = _taken_back(answer, random)
            rows.append(torch.tensor([*tokenizer(f"{prompt} {' '.join(answer)}").input_ids, 2]))
        yield pad_sequence(rows, batch_first=True)


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    write_demo(Path(sys.argv[1]))
