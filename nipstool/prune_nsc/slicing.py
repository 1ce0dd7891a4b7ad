"""Writes the narrower checkpoint: tensors are cut one by one, shard by shard; the model is never in memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError
from nipstool.kit.language_models import to_config
from nipstool.kit.progress import Progress, silent
from nipstool.kit.tensor_header import nbytes
from nipstool.kit.tensors import INDEX_SUFFIX, TensorInfo, TensorReader, TensorWriter
from nipstool.prune_nsc.decoder import Decoder, Width, open_checkpoint
from nipstool.prune_nsc.selection import Kept

if TYPE_CHECKING:
    from torch import Tensor

Repaired = Callable[[int], "Tensor | None"]
"""Source layer -> its repaired down projection [hidden, kept], or None where it is only cut."""

MODELING = "modeling_nsc"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".index.json")
_PIECE = 16 << 20
_EXPONENTS = {
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
    "F32": ("<u4", 0x7F800000),
    "F64": ("<u8", 0x7FF << 52),
}


def write_slices(
    decoder: Decoder,
    kept: Sequence[Kept],
    folder: Path,
    *,
    repaired: Repaired = lambda layer: None,
    progress: Progress = silent,
) -> None:
    """Writes the kept part of the checkpoint's tensors into `folder`, in as many shards as still hold some.

    Raises DataError where a weight is NaN or infinite.
    """
    place = {layer.source: (index, layer) for index, layer in enumerate(kept)}
    with open_checkpoint(decoder.source) as reader:
        shards = _shards(decoder, reader, place)
        total, done = sum(len(shard) for shard in shards), 0
        weight_map, size = {}, 0
        for number, shard in enumerate(shards, 1):
            name = (
                f"model-{number:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else "model.safetensors"
            )
            specs = {new: (info.dtype, shape) for new, info, shape, _ in shard}
            with open(folder / name, "w+b") as file:
                writer = TensorWriter(file, specs, {"format": "pt"})
                for new, info, _, layer in shard:
                    _write(decoder, reader, writer, new, info, layer, repaired)
                    done += 1
                    progress(done, total)
                writer.close()
            weight_map |= dict.fromkeys(specs, name)
            size += sum(nbytes(info.dtype, shape) for _, info, shape, _ in shard)
    if len(shards) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (folder / f"model{INDEX_SUFFIX}").write_text(text, encoding="utf-8")


Entry = tuple[str, TensorInfo, tuple[int, ...], Kept | None]


def _shards(decoder: Decoder, reader: TensorReader, place: Mapping[int, tuple[int, Kept]]) -> list[list[Entry]]:
    """Each shard's tensors under their new names, with their new shapes; shards that hold none are left out."""
    owner = {name: i for i, names in enumerate(decoder.layer_tensors) for name in names}
    shards: dict[Path, list[Entry]] = {}
    for name, info in reader.infos.items():
        if name not in decoder.shapes:
            continue
        layer, new = None, name
        if name in owner:
            if owner[name] not in place:
                continue
            index, layer = place[owner[name]]
            block = decoder.blocks[owner[name]].name
            new = f"{block.rpartition('.')[0]}.{index}{name[len(block) :]}"
        shape = info.shape if layer is None else decoder.shape(name, layer.width)
        shards.setdefault(info.path, []).append((new, info, shape, layer))
    return list(shards.values())


def _write(
    decoder: Decoder,
    reader: TensorReader,
    writer: TensorWriter,
    new: str,
    info: TensorInfo,
    layer: Kept | None,
    repaired: Repaired,
) -> None:
    cut = decoder.cuts.get(info.name)
    if layer is None or cut is None or decoder.shape(info.name, layer.width) == info.shape:
        writer.write_bytes(new, _checked_pieces(reader, info))
        return
    if cut.axis == 1 and cut.unit == "ffn" and (down := repaired(layer.source)) is not None:
        writer.write(new, down.to(_dtype(info)))
        return
    tensor = reader.read(info.name)
    _check_finite(tensor.view(_bytes()).reshape(-1).numpy().data, info)
    writer.write(new, tensor.index_select(cut.axis, layer.rows(cut.unit, decoder.head_dim)))


def _dtype(info: TensorInfo) -> Any:
    from nipstool.kit.tensors import torch_dtype

    return torch_dtype(info.dtype)


def _bytes() -> Any:
    import torch

    return torch.uint8


def _checked_pieces(reader: TensorReader, info: TensorInfo) -> Iterator[bytearray]:
    buffer = bytearray(min(_PIECE, info.nbytes))
    for start in range(0, info.nbytes, _PIECE):
        piece = buffer if start + len(buffer) <= info.nbytes else bytearray(info.nbytes - start)
        reader.read_into(info.name, memoryview(piece), start)
        _check_finite(memoryview(piece), info)
        yield piece


def _check_finite(data: memoryview, info: TensorInfo) -> None:
    """DataError where a value's exponent is all ones, which NaN and the infinities have and nothing else."""
    import numpy as np

    kind, mask = _EXPONENTS[info.dtype]
    words = np.frombuffer(data, dtype=kind)
    step = 1 << 18  # stays in the processor's cache
    for start in range(0, len(words), step):
        if ((words[start : start + step] & mask) == mask).any():
            raise DataError(f"{info.path}: {info.name!r} holds NaN or infinity")


def write_config(decoder: Decoder, kept: Sequence[Kept], folder: Path, form: str) -> dict[str, Any]:
    """config.json for the kept part, for the stock class, or with every layer's widths and the class for it.

    Returns what was written.
    """
    raw = dict(decoder.raw)
    raw["head_dim"] = decoder.head_dim
    if len(kept) != len(decoder.blocks):
        raw |= _fewer_layers(decoder, [layer.source for layer in kept])
    widths = [layer.width for layer in kept]
    raw |= _widths(widths[0] if form == "hf" else Width(*(max(w) for w in _columns(widths))))
    if form == "custom":
        raw |= _custom(decoder, widths)
        (folder / f"{MODELING}.py").write_text(modeling_source(decoder), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(raw, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return raw


def _columns(widths: Sequence[Width]) -> list[list[int]]:
    return [[w.ffn for w in widths], [w.heads for w in widths], [w.kv for w in widths]]


def _widths(width: Width) -> dict[str, Any]:
    return {
        "intermediate_size": width.ffn,
        "num_attention_heads": width.heads,
        "num_key_value_heads": width.kv,
    }


def _custom(decoder: Decoder, widths: Sequence[Width]) -> dict[str, Any]:
    return {
        "model_type": f"nsc_{decoder.raw['model_type']}",
        "architectures": ["NscForCausalLM"],
        "auto_map": {"AutoConfig": f"{MODELING}.NscConfig", "AutoModelForCausalLM": f"{MODELING}.NscForCausalLM"},
        "nsc_layers": [{"ffn": w.ffn, "heads": w.heads, "kv": w.kv} for w in widths],
    }


def _fewer_layers(decoder: Decoder, kept: Sequence[int]) -> dict[str, Any]:
    """The number of layers and every list that has one entry a layer, those that the class derives included."""
    config = to_config(decoder.raw, decoder.source)
    count, changed = len(decoder.blocks), {}
    for key in {**vars(config), **decoder.raw}:
        value = getattr(config, key, None)
        if isinstance(value, list) and len(value) == count and "layer" in key and not key.startswith("_"):
            changed[key] = [value[i] for i in kept]
    limit = decoder.raw.get("max_window_layers")
    if isinstance(limit, int):
        changed["max_window_layers"] = sum(i < limit for i in kept)
    return {**changed, "num_hidden_layers": len(kept)}


def modeling_source(decoder: Decoder) -> str:
    """The template for this model type: the stock classes that it builds on are named in its imports alone."""
    text = Path(__file__).with_name(f"{MODELING}.py").read_text(encoding="utf-8")
    config, model = stock_classes(decoder)
    return text.replace("LlamaConfig", config.__name__).replace("LlamaForCausalLM", model.__name__)


def stock_classes(decoder: Decoder) -> tuple[Any, Any]:
    """The stock configuration and causal language model classes of the model type."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    config: Any = CONFIG_MAPPING[decoder.raw["model_type"]]
    model: Any = MODEL_FOR_CAUSAL_LM_MAPPING[config]
    return config, model


def copy_others(source: Path, folder: Path) -> None:
    """Tokenizer, generation settings and whatever else lies beside the weights at the top of the folder."""
    for file in sorted(source.iterdir()):
        skip = file.name.startswith(".") or file.name == "config.json" or file.name.endswith(_WEIGHTS)
        if file.is_file() and not skip:
            shutil.copyfile(file, folder / file.name)
