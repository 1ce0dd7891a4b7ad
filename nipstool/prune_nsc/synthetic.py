"""A small language model for the demo, made in half a minute: python -m nipstool.prune_nsc.synthetic FOLDER

It learns, byte by byte, from the manual pages that come with every Python, and leaves FOLDER/model, a checkpoint
as transformers writes it, and FOLDER/text.txt, pages that it has not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nipstool.kit.small_models import prepare, save, small_llama, train

HELD_OUT, STEPS, BATCH, LENGTH = 12_000, 150, 8, 128
BEGIN = "<s>"


def write_model(folder: Path) -> None:
    """Trains and writes the model and the text."""
    import torch

    prepare()
    text = _manual()
    tokenizer = _bytes_tokenizer()
    ids = torch.tensor(tokenizer(text[:-HELD_OUT], add_special_tokens=False).input_ids)
    model = small_llama(tokenizer, width=96, ffn=256, heads=6, positions=512)
    train(model, _batches(ids, tokenizer.bos_token_id), STEPS, 4e-3)
    save(folder / "model", model, tokenizer)
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


def _batches(ids: Any, begin: int) -> Iterator[tuple[Any, Any]]:
    import torch

    for _ in range(STEPS):
        starts = torch.randint(len(ids) - LENGTH, (BATCH, 1))
        batch = ids[starts + torch.arange(LENGTH)]
        batch[:, 0] = begin
        yield batch, batch


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
