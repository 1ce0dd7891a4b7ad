"""The self-check: a pruned checkpoint computes what the original computes with the dropped parts masked.

Block by block in float32: both blocks get the same input, and the outputs differ by at most TOLERANCE of the
largest one. Of each model one block is in memory. Where both models fit, the logits are compared too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import NipsError
from nipstool.kit.language_models import load_model, quiet, read_config_json, to_config
from nipstool.kit.progress import Progress, silent
from nipstool.kit.tensors import TensorReader, open_tensors
from nipstool.prune_nsc.decoder import Decoder, open_checkpoint
from nipstool.prune_nsc.selection import Kept
from nipstool.prune_nsc.slicing import stock_classes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TOKENS = 256
TOLERANCE = 1e-4


class CheckError(NipsError):
    """What was written is not what it should be."""


def check_blocks(
    decoder: Decoder,
    kept: Sequence[Kept],
    folder: Path,
    *,
    repaired: Callable[[int], bool],
    seed: int = 0,
    progress: Progress = silent,
) -> float:
    """The largest difference of a block's outputs, relative to the largest output; CheckError above TOLERANCE.

    Args:
        folder: the pruned checkpoint.
        repaired: whether a source layer's down projection was repaired: its masked original then uses the same.
    """
    import torch

    ids = torch.randint(decoder.raw["vocab_size"], (TOKENS,), generator=torch.Generator().manual_seed(seed))
    place = {layer.source: (index, layer) for index, layer in enumerate(kept)}
    worst = 0.0
    with open_checkpoint(decoder.source) as ours, open_tensors(folder) as theirs, torch.inference_mode():
        model, blocks = _shell(decoder, ours, ids)
        narrow = _meta_layers(_class_and_config(folder, decoder))

        def run(index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal worst
            progress(index + 1, len(blocks))
            if index not in place:
                return kwargs.get("hidden_states", args[0] if args else None)
            new, layer = place[index]
            wide = _filled(blocks[index], decoder.blocks[index].name, ours)
            own = _filled(narrow[new], f"{decoder.blocks[0].name.rpartition('.')[0]}.{new}", theirs)
            down = own.mlp.down_proj.weight if repaired(index) else None
            mask_block(decoder, wide, layer, down)
            expected, found = _first(wide(*args, **kwargs)), _first(own(*args, **kwargs))
            worst = max(worst, _difference(expected, found, f"layer {index}"))
            return found

        for index, stub in enumerate(model.model.layers):
            stub.runs(index, run)
        model.model(input_ids=torch.arange(TOKENS)[None], use_cache=False)
    return worst


def _first(out: Any) -> Tensor:
    return out[0] if isinstance(out, tuple) else out


def _difference(expected: Tensor, found: Tensor, where: str) -> float:
    difference = float((expected - found).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not difference <= TOLERANCE:  # NaN too
        raise CheckError(
            f"self-check failed at {where}: the pruned output differs from the masked original's by"
            f" {difference:.2g} of its maximum, expected at most {TOLERANCE:g}"
        )
    return difference


def _shell(decoder: Decoder, reader: TensorReader, ids: Tensor) -> tuple[Any, list[Any]]:
    """The original's inner model with stubs for blocks and an embedding of the tokens `ids` alone.

    Returns it and the blocks on the meta device.
    """
    import torch

    config = to_config({**decoder.raw, "architectures": None}, decoder.source)
    blocks = _meta_layers((stock_classes(decoder)[1], config))
    small = copy.deepcopy(config)
    small.num_hidden_layers, small.vocab_size, small.pad_token_id = 0, len(ids), None
    with quiet():
        model = stock_classes(decoder)[1]._from_config(small, dtype=torch.float32).eval()
    model.model.layers = torch.nn.ModuleList(_stub_class()(block) for block in blocks)
    model.config.num_hidden_layers = model.model.config.num_hidden_layers = len(blocks)
    model.model.get_input_embeddings().weight.copy_(_rows(reader, decoder.embedding, ids))
    return model, blocks


def _rows(reader: TensorReader, name: str, ids: Tensor) -> Tensor:
    """Rows of a matrix, read one by one."""
    import torch

    from nipstool.kit.tensors import torch_dtype

    info = reader.infos[name]
    width = info.nbytes // info.shape[0]
    data = torch.empty(len(ids), width, dtype=torch.uint8)
    for row, at in zip(data, ids.tolist(), strict=True):
        reader.read_into(name, row.numpy().data, at * width)
    return data.view(torch_dtype(info.dtype)).float()


def _stub_class() -> Any:
    """A module in a block's place that calls a function; it answers for the block's attributes."""
    from torch import nn

    class Stub(nn.Module):
        def __init__(self, block: nn.Module):
            super().__init__()
            self.__dict__["block"] = block

        def runs(self, index: int, run: Callable[..., Any]) -> None:
            self.__dict__["index"], self.__dict__["run"] = index, run

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["block"], name)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.__dict__["run"](self.__dict__["index"], args, kwargs)

    return Stub


def _class_and_config(folder: Path, decoder: Decoder) -> tuple[Any, Any]:
    """The class that reads the folder, and its configuration; for per-layer widths ours, not the code in it."""
    raw = read_config_json(folder)
    if "nsc_layers" not in raw:
        return stock_classes(decoder)[1], to_config(raw, str(folder))
    from nipstool.prune_nsc.modeling_nsc import per_layer

    config_class, model_class = per_layer(*stock_classes(decoder))
    with quiet():
        return model_class, config_class.from_dict(raw)


def _meta_layers(kind: tuple[Any, Any]) -> list[Any]:
    import torch

    model_class, config = kind
    with quiet(), torch.device("meta"):
        return list(model_class._from_config(config, dtype=torch.float32).eval().model.layers)


def _filled(block: Any, name: str, reader: TensorReader) -> Any:
    """A copy of a block on the meta device, in memory, with the weights of the block `name`."""
    filled = copy.deepcopy(block).to_empty(device="cpu")
    for key, parameter in filled.named_parameters():
        parameter.data.copy_(reader.read(f"{name}.{key}"))
    return filled


def mask_block(decoder: Decoder, block: Any, layer: Kept, down: Tensor | None) -> None:
    """Zeroes, in place, what dropped channels and heads of a stock block write; `down` [hidden, kept] replaces it.

    The kept parts stay where they were, so that the block differs from the pruned one in its layout alone.
    """
    import torch

    def only(weight: Tensor, unit: Any, values: Tensor | None) -> None:
        rows = layer.rows(unit, decoder.head_dim)
        masked = torch.zeros_like(weight)
        masked[:, rows] = weight[:, rows] if values is None else values
        weight.copy_(masked)

    with torch.no_grad():
        only(block.self_attn.o_proj.weight, "query", None)
        only(block.mlp.down_proj.weight, "ffn", down)


def check_counts(decoder: Decoder, folder: Path, expected: int) -> None:
    """CheckError unless the class has exactly the tensors of the files, and as many parameters as planned."""
    import torch

    model_class, config = _class_and_config(folder, decoder)
    with quiet(), torch.device("meta"):
        model = model_class._from_config(config)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}
    if decoder.tied:
        shapes.pop(decoder.lm_head, None)
    with open_tensors(folder) as reader:
        stored = {name: info.shape for name, info in reader.infos.items()}
    if stored != shapes:
        odd = sorted(stored.items() ^ shapes.items())[0]
        raise CheckError(f"self-check failed: {odd[0]} {list(odd[1])} is in the files or the class alone")
    count = sum(math.prod(shape) for shape in stored.values())
    if count != expected:
        raise CheckError(f"self-check failed: the files hold {count} parameters, planned were {expected}")


def check_logits(
    decoder: Decoder, kept: Sequence[Kept], folder: Path, *, repaired: Callable[[int], bool]
) -> float:
    """As check_blocks, for the logits of whole models; both are loaded in float32."""
    import torch

    ids = torch.randint(decoder.raw["vocab_size"], (1, 64), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        narrow = load_pruned(decoder, folder, torch.float32)
        found = narrow(input_ids=ids, use_cache=False).logits
        wide = load_model(decoder.source, dtype=torch.float32)
        mask_model(decoder, wide, kept, {k.source: narrow.model.layers[i] for i, k in enumerate(kept)}, repaired)
        expected = wide(input_ids=ids, use_cache=False).logits
    return _difference(expected, found, "the logits")


def mask_model(
    decoder: Decoder, model: Any, kept: Sequence[Kept], narrow: Mapping[int, Any], repaired: Callable[[int], bool]
) -> None:
    """Masks every block of the original; a dropped layer writes nothing, so that its input passes unchanged."""
    import torch

    place = {layer.source: layer for layer in kept}
    for index, block in enumerate(model.model.layers):
        if index in place:
            down = narrow[index].mlp.down_proj.weight if repaired(index) else None
            mask_block(decoder, block, place[index], down)
            continue
        with torch.no_grad():
            for linear in (block.self_attn.o_proj, block.mlp.down_proj):
                for parameter in linear.parameters():
                    parameter.zero_()


def load_pruned(decoder: Decoder, folder: Path, dtype: torch.dtype) -> Any:
    """A pruned checkpoint's model; one with per-layer widths through our own class."""
    if "nsc_layers" not in read_config_json(folder):
        return load_model(folder, dtype=dtype)
    model_class, config = _class_and_config(folder, decoder)
    with quiet():
        return model_class.from_pretrained(
            str(folder), config=config, local_files_only=True, use_safetensors=True, dtype=dtype
        ).eval()


def two_fit(decoder: Decoder) -> bool:
    """Whether two copies of the original in float32 fit into half of the free memory."""
    return 2 * 4 * decoder.architecture().params < _free_memory() / 2


def _free_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
