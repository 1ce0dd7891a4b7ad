"""Hidden states of a causal language model as they are computed: nothing is kept that a reader does not keep.

Layer 0 is the input of the first decoder block (token identity), layer l the output of block l, before any final
norm. Batches are padded on either side; positions are given, and padded places never reach a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.files import StrPath
from nipstool.kit.language_models import decoder_blocks, load_model, load_tokenizer, read_config_json, to_config
from nipstool.kit.tensors import open_tensors
from nipstool.probe_length.encoding import Encoder, end_tokens

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
Reader = Callable[[int, "Tensor"], None]
"""Takes (layer, hidden states [batch, places, d]) while the model runs."""


@dataclass(frozen=True)
class Language:
    """A loaded model with what turns text into its ids."""

    folder: str
    model: Any
    encoder: Encoder
    blocks: tuple[str, ...]  # module names of the decoder blocks

    @property
    def width(self) -> int:
        """d, the size of a hidden state."""
        return int(self.model.get_input_embeddings().weight.shape[1])

    @property
    def device(self) -> Any:
        """Where the model is."""
        return self.model.get_input_embeddings().weight.device


def open_language(
    folder: StrPath, *, dtype: str | None, device: Any, template: str | None = None, cap: int | None = None
) -> Language:
    """Load a causal language model folder and its tokenizer.

    Raises InputMissingError where there is no such folder (a hub name is never fetched), DataError where it
    holds no complete decoder-only model.
    """
    config = check_folder(folder)
    if getattr(config, "is_encoder_decoder", False):
        raise DataError(f"{folder}: a {config.model_type} model has an encoder; expected a decoder-only model")
    _check_weights(Path(folder))
    tokenizer = load_tokenizer(folder) if any((Path(folder) / name).exists() for name in _TOKENIZERS) else None
    model = load_model(folder, dtype=_dtype(dtype, config), device=device)
    blocks = tuple(block.name for block in decoder_blocks(model))
    ends = end_tokens(model.config, getattr(model, "generation_config", None), tokenizer)
    return Language(str(folder), model, Encoder(tokenizer, model.config, template, ends, cap), blocks)


def _check_weights(folder: Path) -> None:
    """Raises InputMissingError where there are no weights, DataError where they are no safetensors."""
    if not any(folder.glob("*.safetensors")):
        raise InputMissingError(f"{folder / 'model.safetensors'}: no weights there; expected safetensors")
    open_tensors(folder).close()


def check_folder(folder: StrPath) -> Any:
    """The configuration of a model folder; see open_language for what it raises."""
    path = Path(folder)
    if not path.exists():
        hub = str(folder).count("/") == 1 and not str(folder).startswith((".", "/", "~"))
        hint = "; a hub name is not fetched: download it and name its folder" if hub else ""
        raise InputMissingError(f"{folder}: no such model folder{hint}")
    if not path.is_dir():
        raise DataError(f"{folder}: is a file; expected a model folder, or statistics")
    return to_config(read_config_json(path), str(folder))


def _dtype(name: str | None, config: Any) -> torch.dtype:
    import torch

    if name is not None:
        return getattr(torch, name)
    own = getattr(config, "dtype", None)
    own = getattr(torch, own, None) if isinstance(own, str) else own
    return own if own in (torch.bfloat16, torch.float16) and torch.cuda.is_available() else torch.float32


@dataclass(frozen=True)
class Batch:
    """Padded ids [batch, places], their positions, where each row begins; a mask where padding is on the left."""

    ids: Tensor
    positions: Tensor
    starts: tuple[int, ...]
    mask: Tensor | None


def padded(rows: Sequence[Sequence[int]], device: Any = "cpu", side: str = "right") -> Batch:
    """Rows of ids as one batch. Causal attention never sees padding on the right: no mask is needed."""
    import torch

    places = max(map(len, rows))
    ids = torch.zeros(len(rows), places, dtype=torch.long)
    positions = torch.zeros_like(ids)
    mask = torch.zeros_like(ids)
    starts = tuple(places - len(row) if side == "left" else 0 for row in rows)
    for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
        place = slice(start, start + len(row))
        ids[i, place], mask[i, place] = torch.tensor(row), 1
        positions[i, place] = torch.arange(len(row))
        positions[i, start + len(row) :] = torch.arange(len(row), places - start)  # no jump: the row goes on
    own = mask.to(device) if side == "left" else None
    return Batch(ids.to(device), positions.to(device), starts, own)


class _EnoughError(Exception):
    """Ends a forward pass after the last layer that is read."""


@contextmanager
def reading(language: Language, layers: Sequence[int], reader: Reader, *, stop: bool) -> Iterator[None]:
    """Let `reader` see these layers of every forward pass within; with `stop` it ends after the last one."""
    last = max(layers)

    def see(layer: int, states: Any) -> None:
        reader(layer, states[0] if isinstance(states, tuple) else states)
        if stop and layer == last:
            raise _EnoughError

    def before(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        see(0, args[0] if args else kwargs["hidden_states"])

    def after(layer: int) -> Callable[..., None]:
        return lambda _module, _args, out: see(layer, out)

    with ExitStack() as stack:
        for layer in layers:
            module = language.model.get_submodule(language.blocks[max(layer - 1, 0)])
            if layer == 0:
                handle = module.register_forward_pre_hook(before, with_kwargs=True)
            else:
                handle = module.register_forward_hook(after(layer))
            stack.callback(handle.remove)
        yield


def run(language: Language, batch: Batch, *, logits: bool = False) -> Tensor | None:
    """One forward pass without cache; with `logits` those [batch, places, vocabulary], else none are computed."""
    import torch

    model = language.model if logits else language.model.get_decoder()
    with torch.inference_mode():
        try:
            out = model(
                input_ids=batch.ids,
                attention_mask=batch.mask,
                use_cache=False,
                **({"position_ids": batch.positions} if takes_positions(language.model) else {}),
            )
        except _EnoughError:
            return None
    return out.logits if logits else None


def takes_positions(model: Any) -> bool:
    """Whether the model's forward pass takes position_ids (recurrent models have none)."""
    from inspect import signature

    return "position_ids" in signature(model.forward).parameters


def choose_layers(words: str, count: int) -> tuple[int, ...]:
    """The layers that `--layers` means of blocks 1..count: all, every:K, or a list such as 4,8,12 or 4-8.

    Raises ValueError with what was expected.
    """
    if words == "all":
        return tuple(range(1, count + 1))
    try:
        if words.startswith("every:"):
            step = int(words[6:])
            return tuple(range(count, 0, -step))[::-1] if step > 0 else _no_layers(words, count)
        spans = [word.partition("-") for word in words.split(",")]
        found = sorted({i for low, dash, high in spans for i in range(int(low), int(high if dash else low) + 1)})
    except ValueError:
        return _no_layers(words, count)
    if not found or found[0] < 1 or found[-1] > count:
        return _no_layers(words, count)
    return tuple(found)


def _no_layers(words: str, count: int) -> tuple[int, ...]:
    raise ValueError(f"--layers {words}: expected all, every:K or layers from 1 to {count} such as 2,4-6")
