"""A decoder to prune: its tensors, which axis of which tensor each width cuts, and what every width costs.

Shapes are those of the safetensors headers, or of the transformers class on torch's meta device; no family has a
formula of its own. Of the families only those are taken whose layers are known to be cut by these rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from nipstool.kit.errors import DataError, UsageError
from nipstool.kit.language_models import Block, decoder_blocks, read_config_json, skeleton, to_config
from nipstool.kit.records import parse_json
from nipstool.kit.tensors import INDEX_SUFFIX, TensorReader, open_tensors
from nipstool.prune_nsc.inventory import Architecture, Layer, Matrix, bytes_a_value

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")
LARGEST = 10**7  # of any size: products of them stay exact in 64 bits
_NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_READ_UNNAMED = ("head_dim", "rope_theta", "rope_scaling", "torch_dtype")  # read, though no class names them all
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
Unit = Literal["ffn", "query", "kv"]


@dataclass(frozen=True)
class Cut:
    """An axis of a tensor that shrinks with a width."""

    axis: int
    unit: Unit


@dataclass(frozen=True)
class Width:
    """What a layer keeps: FFN channels, query heads, key and value heads."""

    ffn: int
    heads: int
    kv: int


@dataclass(frozen=True)
class Decoder:
    """A decoder as it is stored. `shapes` holds every stored tensor once; tied ones under the embedding's name."""

    source: str
    raw: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    blocks: tuple[Block, ...]
    dense: Width
    head_dim: int
    tied: bool
    embedding: str
    lm_head: str

    @cached_property
    def cuts(self) -> dict[str, Cut]:
        """Tensor name -> the axis that a width cuts; tensors without one are kept whole."""
        cuts: dict[str, Cut] = {}
        for block in self.blocks:
            attention, mlp = block.attention, block.mlp
            assert attention is not None
            assert mlp is not None
            into: dict[str | None, Unit] = {mlp.gate: "ffn", mlp.up: "ffn"}
            into |= {attention.q: "query", attention.k: "kv", attention.v: "kv"}
            for name, unit in into.items():
                cuts |= {f"{name}.weight": Cut(0, unit), f"{name}.bias": Cut(0, unit)}
            cuts |= {f"{mlp.down}.weight": Cut(1, "ffn"), f"{attention.o}.weight": Cut(1, "query")}
        return {name: cut for name, cut in cuts.items() if name in self.shapes}

    @cached_property
    def layer_tensors(self) -> tuple[tuple[str, ...], ...]:
        """The names of each layer's tensors."""
        return tuple(tuple(n for n in self.shapes if n.startswith(f"{b.name}.")) for b in self.blocks)

    @property
    def ratio(self) -> int:
        """Query heads a key and value head."""
        return self.dense.heads // self.dense.kv

    def rows(self, unit: Unit, width: Width) -> int:
        """How long an axis cut by `unit` is at a width."""
        return {"ffn": width.ffn, "query": width.heads * self.head_dim, "kv": width.kv * self.head_dim}[unit]

    def shape(self, name: str, width: Width) -> tuple[int, ...]:
        """A tensor's shape at a width."""
        cut, shape = self.cuts.get(name), list(self.shapes[name])
        if cut is not None:
            shape[cut.axis] = self.rows(cut.unit, width)
        return tuple(shape)

    def layer(self, index: int, width: Width) -> Layer:
        """A layer's matrices and parameters at a width."""
        shapes = [(name, self.shape(name, width)) for name in self.layer_tensors[index]]
        matrices = tuple(Matrix(name, *shape) for name, shape in shapes if len(shape) == 2)
        vectors = sum(math.prod(shape) for _, shape in shapes if len(shape) != 2)
        return Layer(matrices, vectors, kv_values=2 * width.kv * self.head_dim)

    def architecture(self, widths: Sequence[Width | None] | None = None) -> Architecture:
        """The whole model with these widths (None: a layer dropped); the dense one by default."""
        widths = widths or [self.dense] * len(self.blocks)
        kept = [(i, width) for i, width in enumerate(widths) if width is not None]
        inside = {name for names in self.layer_tensors for name in names}
        return Architecture(
            self.source,
            (),
            tuple(self.layer(i, width) for i, width in kept),
            sum(math.prod(shape) for name, shape in self.shapes.items() if name not in inside),
            tuple(width.heads * self.head_dim for _, width in kept),
            head_size=math.prod(self.shapes[self.embedding if self.tied else self.lm_head]),
            kv_bytes_a_value=self.kv_bytes_a_value,
        )

    @property
    def kv_bytes_a_value(self) -> int:
        """Bytes of a cached number in the model's own dtype."""
        return bytes_a_value(self.raw)


def read_decoder(path: str) -> Decoder:
    """The decoder of a checkpoint folder, or of a config.json alone. No weights are read.

    Raises DataError for what cannot be pruned, by name: another family, quantised or pickled weights, a missing
    field of the configuration, tensors that the transformers class does not have or the reverse.
    """
    raw = read_config_json(path)
    check_prunable(raw, path)
    decoder = decoder_of(raw, path)
    if not has_weights(path):
        return decoder
    with open_checkpoint(path) as reader:
        return _with_stored_shapes(decoder, reader)


def check_prunable(raw: Mapping[str, Any], told: str) -> None:
    """DataError where the configuration is of no model that these rules cut."""
    quantised = raw.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method", "unknown") if isinstance(quantised, dict) else "unknown"
        raise DataError(f"{told}: its weights are quantised ({method}); expected float weights")
    experts = [key for key in raw if "expert" in key and raw[key]]
    if experts:
        raise DataError(f"{told}: is a mixture of experts ({experts[0]}); expected one MLP a layer")
    if raw["model_type"] not in FAMILIES:
        raise DataError(f"{told}: model_type {raw['model_type']!r}; expected one of {', '.join(FAMILIES)}")
    for key in _NEEDED:
        value = raw.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= LARGEST:
            raise DataError(
                f"{told}: the configuration has {key} {value!r}; expected a number from 1 to {LARGEST}"
            )


def config_keys(family: str) -> set[str]:
    """Every key that a configuration of the family may have, whether or not one has it."""
    config = to_config({"model_type": family}, family)
    return {*config.to_dict(), *config.attribute_map, *_READ_UNNAMED}


def decoder_of(raw: Mapping[str, Any], told: str) -> Decoder:
    """The decoder of a configuration, with the shapes of its transformers class."""
    config = to_config({**raw, "architectures": None}, told)
    model = skeleton(config, told)
    heads, kv = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    kv = kv or heads
    if heads % kv:
        raise DataError(f"{told}: {heads} attention heads do not divide among {kv} key and value heads")
    blocks = decoder_blocks(model)
    if any(block.attention is None or block.mlp is None or block.mlp.gate is None for block in blocks):
        raise DataError(f"{told}: its layers have another structure than q, k, v, o and gate, up, down")
    names = {id(module): name for name, module in model.named_modules()}
    tied = bool(config.tie_word_embeddings)
    embedding = f"{names[id(model.get_input_embeddings())]}.weight"
    lm_head = f"{names[id(model.get_output_embeddings())]}.weight"
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}
    if tied:
        del shapes[lm_head]
    attention = blocks[0].attention
    assert attention is not None
    head_dim = shapes[f"{attention.q}.weight"][0] // heads
    dense = Width(config.intermediate_size, heads, kv)
    return Decoder(told, raw, shapes, tuple(blocks), dense, head_dim, tied, embedding, lm_head)


def has_weights(path: str) -> bool:
    """Whether the folder holds safetensors files; DataError where it holds other weights alone."""
    folder = Path(path)
    if not folder.is_dir():
        return False
    if any(folder.glob("*.safetensors")) or any(folder.glob(f"*{INDEX_SUFFIX}")):
        return True
    if any(folder.glob("*.gguf")):
        raise DataError(f"{path}: its weights are quantised (GGUF); expected safetensors files")
    for pattern in _PICKLES:
        if found := sorted(folder.glob(pattern)):
            raise DataError(f"{path}: its weights are pickled ({found[0].name}); expected safetensors files")
    return False


def open_checkpoint(path: str) -> TensorReader:
    """The tensors that the index names, or those of the one file. Raises as kit.tensors.open_tensors does."""
    folder = Path(path)
    indices = sorted(folder.glob(f"*{INDEX_SUFFIX}"))
    if indices and (folder / "model.safetensors").exists():
        raise DataError(f"{path}: holds model.safetensors and {indices[0].name}; which of them counts is not said")
    reader = open_tensors(path)
    if indices:
        named = parse_json(indices[0].read_bytes())["weight_map"]
        for stale in reader.infos.keys() - named:
            del reader.infos[stale]
    return reader


def _with_stored_shapes(decoder: Decoder, reader: TensorReader) -> Decoder:
    """The decoder with the headers' shapes, once they agree with its class about which tensors there are."""
    told, kind, shapes = decoder.source, decoder.raw["model_type"], {}
    for name, shape in decoder.shapes.items():
        if name not in reader.infos:
            raise DataError(f"{told}: no tensor {name!r} in its files, which a {kind} model needs")
        shapes[name] = reader.infos[name].shape
        if shapes[name] != shape:
            raise DataError(f"{told}: {name!r} is {list(shapes[name])}; its configuration says {list(shape)}")
    for name, info in reader.infos.items():
        known = name in shapes or name == decoder.lm_head or name.endswith("rotary_emb.inv_freq")
        if not known:
            raise DataError(f"{told}: unsupported tensor {name!r}; a {kind} model has none such")
        if info.dtype not in ("F32", "F16", "BF16", "F64"):
            raise DataError(f"{told}: {name!r} is {info.dtype}; expected float32, float16 or bfloat16 weights")
    if decoder.tied and decoder.lm_head in reader.infos:
        _check_tied(decoder, reader)
    return decoder


def _check_tied(decoder: Decoder, reader: TensorReader) -> None:
    """A tied LM head may be stored as well, but then it is the embedding."""
    ours, theirs = reader.infos[decoder.embedding], reader.infos[decoder.lm_head]
    piece, same = 16 << 20, ours.nbytes == theirs.nbytes and ours.dtype == theirs.dtype
    for start in range(0, ours.nbytes, piece):
        if not same:
            break
        a, b = (bytearray(min(piece, ours.nbytes - start)) for _ in range(2))
        reader.read_into(decoder.embedding, memoryview(a), start)
        reader.read_into(decoder.lm_head, memoryview(b), start)
        same = a == b
    if not same:
        told = f"{decoder.source}: the configuration ties {decoder.lm_head}"
        raise DataError(f"{told} to the embedding; its files hold a different one")


def check_width(decoder: Decoder, ffn: int, multiple: int) -> None:
    """UsageError where a width is none that the layers can have."""
    if not 1 <= ffn <= decoder.dense.ffn or (ffn % multiple and ffn != decoder.dense.ffn):
        raise UsageError(
            f"width {ffn}: expected 1 to {decoder.dense.ffn}, a multiple of {multiple} (--multiple-of sets it)"
        )
