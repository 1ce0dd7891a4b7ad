"""A small language model for the demo, made in half a minute: python -m nipstool.prune_nsc.synthetic FOLDER

It learns, byte by byte, from the manual pages that come with every Python, and leaves FOLDER/model, a checkpoint
as transformers writes it, and FOLDER/text.txt, pages that it has not seen.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nipstool.kit.language_models import quiet

HELD_OUT, STEPS, BATCH, LENGTH = 12_000, 150, 8, 128
BEGIN = "<s>"


def write_model(folder: Path) -> None:
    """Trains and writes the model and the text."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(min(2, torch.get_num_threads()))
    text = _manual()
    tokenizer = _bytes_tokenizer()
    ids = torch.tensor(tokenizer(text[:-HELD_OUT], add_special_tokens=False).input_ids)
    model = _small_llama(tokenizer)
    _train(model, ids, tokenizer.bos_token_id)
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "text.txt").write_text(text[-HELD_OUT:], encoding="utf-8")


def _manual() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore").decode()


def _bytes_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [BEGIN, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN)


def _small_llama(tokenizer: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=512,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=None,
            tie_word_embeddings=True,
        )
    )


def _train(model: Any, ids: Any, begin: int) -> None:
    import torch

    schedule = {"lr": 4e-3, "weight_decay": 0.01, "betas": (0.9, 0.98)}
    optimizer = torch.optim.AdamW(model.parameters(), **schedule)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, schedule["lr"], total_steps=STEPS, pct_start=0.1)
    for _ in range(STEPS):
        starts = torch.randint(len(ids) - LENGTH, (BATCH, 1))
        batch = ids[starts + torch.arange(LENGTH)]
        batch[:, 0] = begin
        model(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rate.step()


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
