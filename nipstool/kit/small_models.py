"""Small language models made and trained on the spot, for demos: nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.language_models import quiet

if TYPE_CHECKING:
    from torch import Tensor


def prepare() -> None:
    """The same draws every time, and no more than two threads: such models are slower on many."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(min(2, torch.get_num_threads()))


def small_llama(tokenizer: Any, *, width: int, ffn: int, heads: int, positions: int) -> Any:
    """An untrained Llama of four layers with the tokenizer's vocabulary, its embeddings tied."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=ffn,
            num_hidden_layers=4,
            num_attention_heads=heads,
            num_key_value_heads=2,
            max_position_embeddings=positions,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
    )


def train(model: Any, batches: Iterable[tuple[Tensor, Tensor]], steps: int, rate: float) -> None:
    """`steps` batches of (ids, labels), int64 [rows, length]; AdamW under a one-cycle schedule up to `rate`."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    for ids, labels in batches:
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def save(folder: Path, model: Any, tokenizer: Any) -> None:
    """Model and tokenizer in one folder, as transformers writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
