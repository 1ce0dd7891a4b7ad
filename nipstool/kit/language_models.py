"""Local Hugging Face language models: read, build, load, and find the decoder blocks by structure.

Nothing is downloaded and no code that comes with a model is run. A model is described by its transformers class
alone: `skeleton` builds it without memory for weights, and the blocks, attention and MLP inside are found by what
they hold, not by the names that one family gives them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.files import StrPath, check_input
from nipstool.kit.parts import reason
from nipstool.kit.records import parse_json
from nipstool.kit.tensors import open_tensors

if TYPE_CHECKING:
    import torch
    from torch import nn

CONFIG = "config.json"
MOST_BYTES = 16 << 20
MOST_LAYERS = 2000  # transformers would build a billion of them, one after the other


@dataclass(frozen=True)
class Attention:
    """Full names of an attention's linear modules; `o` writes to the residual stream."""

    name: str
    q: str
    k: str
    v: str
    o: str


@dataclass(frozen=True)
class Mlp:
    """Full names of an MLP's linear modules; `gate` is None where it has none."""

    name: str
    gate: str | None
    up: str
    down: str


@dataclass(frozen=True)
class Block:
    """A decoder block: its place in the stack and its parts (None where the structure is another one)."""

    index: int
    name: str
    attention: Attention | None
    mlp: Mlp | None


def read_config_json(path: StrPath) -> dict[str, Any]:
    """The config.json of a folder, or the named file, as it is written.

    Raises InputMissingError where there is none and DataError where it is no JSON object with a model_type.
    """
    path = check_input(path)
    file = path / CONFIG if path.is_dir() else path
    try:
        with open(file, "rb") as opened:
            text = opened.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise DataError(f"{file}: is longer than {MOST_BYTES} bytes; expected a configuration")
        config = parse_json(text)
    except OSError as error:
        raise InputMissingError(f"{file}: cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise DataError(f"{file}: is no JSON: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise DataError(f"{file}: expected a JSON object with a model_type, as transformers writes it")
    for key, value in config.items():
        if isinstance(value, int) and abs(value) >= 1 << 63:
            raise DataError(f"{file}: {key} is {value}; expected a number of 64 bits")
    return config


def to_config(raw: Mapping[str, Any], told: str) -> Any:
    """The transformers configuration of a config.json's content; DataError, about `told`, where it takes none."""
    from transformers import CONFIG_MAPPING

    kind = raw["model_type"]
    if kind not in CONFIG_MAPPING:
        raise DataError(f"{told}: model_type {kind!r} is not one that this transformers knows")
    for key, value in raw.items():
        if key.endswith(("layer", "layers")) and isinstance(value, int | float) and not value <= MOST_LAYERS:
            raise DataError(f"{told}: {key} is {value}; expected at most {MOST_LAYERS}")
    try:
        with quiet():
            return CONFIG_MAPPING[kind].from_dict(dict(raw))
    except Exception as error:  # whatever a validator of one family raises
        raise DataError(f"{told}: transformers refuses this {kind} configuration: {_brief(error)}") from error


def skeleton(config: Any, told: str) -> Any:
    """The model of a configuration on torch's meta device: every module and shape, no weights."""
    import torch
    import transformers

    named = (config.architectures or [None])[0]
    kind = getattr(transformers, named, None) if named else None
    builders = [kind._from_config] if kind is not None else []
    builders += [transformers.AutoModelForCausalLM.from_config, transformers.AutoModel.from_config]
    failure: Exception | None = None
    for build in builders:
        try:
            with quiet(), torch.device("meta"):
                return build(config).eval()
        except Exception as error:  # another class may take it
            failure = failure or error
    raise DataError(f"{told}: transformers builds no model of it: {_brief(failure)}") from failure


def load_model(folder: StrPath, *, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
    """A causal language model with its weights, in evaluation mode.

    Raises InputMissingError or DataError where the folder holds no complete model in safetensors files.
    """
    from transformers import AutoModelForCausalLM

    check_input(folder)
    model, report = _loaded(AutoModelForCausalLM, folder, dtype)
    odd = [*report["missing_keys"], *report["mismatched_keys"]]
    if odd:
        raise DataError(f"{folder}: no weights for {odd[0]}; expected a complete checkpoint")
    return model.to(device).eval()


def load_body(folder: StrPath, *, dtype: str = "auto", device: torch.device | str = "cpu") -> Any:
    """A model without its head, decoder or encoder, in evaluation mode; "auto" keeps the dtype of the files.

    Raises InputMissingError or DataError where the folder holds no complete stack of blocks in safetensors files.
    """
    from transformers import AutoModel

    model, report = _loaded(AutoModel, folder, dtype)
    stack = decoder_blocks(model)[0].name.rpartition(".")[0]  # a pooler may be missing, a block may not
    odd = [key for key in (*report["missing_keys"], *report["mismatched_keys"]) if f"{stack}." in str(key)]
    if odd:
        raise DataError(f"{folder}: no weights for {odd[0]}; expected a complete checkpoint")
    return model.to(device).eval()


def _loaded(kind: Any, folder: StrPath, dtype: torch.dtype | str) -> tuple[Any, dict[str, Any]]:
    """The model that an Auto class of transformers makes of a local folder, and its report on the weights."""
    _check_size(folder)
    try:
        with quiet():
            return kind.from_pretrained(
                str(folder),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=dtype,
                output_loading_info=True,
            )
    except Exception as error:  # transformers raises OSError, ValueError, RuntimeError and its own
        raise DataError(f"{folder}: transformers cannot load it: {_brief(error)}") from error


def _check_size(folder: StrPath) -> None:
    """DataError where the configuration asks for far larger tensors than the files hold: they would be made."""
    told = f"{folder}/{CONFIG}"
    config = to_config(read_config_json(folder), told)
    with open_tensors(folder) as tensors:
        held = sum(math.prod(info.shape) for info in tensors.infos.values())
    hidden = getattr(config, "hidden_size", 0)
    for key in ("vocab_size", "intermediate_size"):
        size = getattr(config, key, 0)
        if isinstance(size, int) and isinstance(hidden, int) and size * hidden > held:
            raise DataError(
                f"{told}: {key} {size} x hidden_size {hidden}, but the files hold {held} numbers in all"
            )


def fresh_body(model: Any, seed: int) -> Any:
    """The same class and configuration, dtype and device, with weights as before any training."""
    import torch

    parameter = next(model.parameters())
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = type(model)._from_config(model.config, dtype=parameter.dtype)
    return fresh.to(parameter.device).eval()


def down_projections(model: nn.Module) -> list[tuple[int, str, int]]:
    """(block, full name, inputs) of the linear module that ends each block's MLP; its inputs are the neurons.

    It is the last linear module outside attention that writes the hidden size, after one that reads it. Blocks
    without such a module (mixtures of experts) are left out. Raises DataError where there is no stack of blocks.
    """
    hidden = getattr(model.config, "hidden_size", None)
    found = []
    for block in decoder_blocks(model):
        linear = list(_outside_attention(model.get_submodule(block.name), block.name))
        reads = [at for at, (_, sizes) in enumerate(linear) if sizes[0] == hidden]
        writes = [at for at, (_, sizes) in enumerate(linear) if sizes[1] == hidden]
        if reads and writes and writes[-1] > reads[0]:
            name, sizes = linear[writes[-1]]
            found.append((block.index, name, sizes[0]))
    return found


def _outside_attention(module: nn.Module, name: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Linear modules with their (inputs, outputs), in the order of definition."""
    for child, part in module.named_children():
        sizes = _in_out(part)
        if sizes is not None:
            yield f"{name}.{child}", sizes
        elif "attention" not in type(part).__name__.lower():
            yield from _outside_attention(part, f"{name}.{child}")


def load_tokenizer(folder: StrPath) -> Any:
    """The tokenizer that lies in the folder; DataError where there is none."""
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(
                str(check_input(folder)), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # as above
        raise DataError(f"{folder}: transformers finds no tokenizer in it: {_brief(error)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, advice or warnings from transformers and torch: stderr is ours."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def decoder_blocks(model: nn.Module) -> list[Block]:
    """The stack of decoder blocks: the list of num_hidden_layers modules that hold the most parameters.

    Works on a skeleton and on a loaded model. Raises DataError where there is no such list.
    """
    from torch import nn

    config: Any = model.config
    count = getattr(config, "num_hidden_layers", None)
    stacks = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if not count or not stacks:
        raise DataError(f"a {config.model_type} model: no list of {count} decoder blocks in it")
    name, stack = max(stacks, key=lambda item: sum(p.numel() for p in item[1].parameters()))
    return [_block(i, f"{name}.{i}", module) for i, module in enumerate(stack)]


def _block(index: int, name: str, block: nn.Module) -> Block:
    attention, mlp = None, None
    for child, module in block.named_children():
        linear = {n: _in_out(m) for n, m in module.named_children() if _in_out(m) is not None}
        full = f"{name}.{child}"
        if "attention" in type(module).__name__.lower():
            attention = attention or _attention(full, list(linear))
        elif len(linear) in (2, 3):
            mlp = mlp or _mlp(full, linear)
    return Block(index, name, attention, mlp)


def _attention(name: str, linear: list[str]) -> Attention | None:
    """q, k, v, o in the order in which all families define them; None for fused projections."""
    if len(linear) != 4:
        return None
    q, k, v, o = (f"{name}.{part}" for part in linear)
    return Attention(name, q, k, v, o)


def _mlp(name: str, linear: dict[str, tuple[int, int] | None]) -> Mlp | None:
    """[gate,] up, down: the last one brings back the width of the first one's input."""
    *firsts, down = linear
    sizes = [linear[first] for first in firsts]
    back = linear[down]
    if back is None or any(size is None or size != back[::-1] for size in sizes):
        return None
    gates = [first for first in firsts if "gate" in first or first == "w1"]
    gate = f"{name}.{gates[0]}" if len(firsts) == 2 and gates else None
    ups = [first for first in firsts if f"{name}.{first}" != gate]
    return Mlp(name, gate, f"{name}.{ups[-1]}", f"{name}.{down}") if len(ups) == 1 else None


def _in_out(module: nn.Module) -> tuple[int, int] | None:
    """(inputs, outputs) of a linear module, GPT-2's transposed one included; None for another."""
    from torch import nn

    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if type(module).__name__ == "Conv1D":
        weight = module.get_parameter("weight")
        return weight.shape[0], weight.shape[1]
    return None


def beginning_token(config: Any, tokenizer: Any = None) -> int | None:
    """The id that texts begin with: the tokenizer's BOS, else the configuration's; None where there is none."""
    found = getattr(tokenizer, "bos_token_id", None)
    if found is None:
        found = config.bos_token_id
    return found[0] if isinstance(found, list) else found


def cache_word(model: Any) -> str:
    """The argument and the output's field that hold the key and value cache; transformers 5 renamed them."""
    return "cache" if "cache" in signature(model.forward).parameters else "past_key_values"


def longest_context(config: Any) -> int:
    """How many tokens the model takes at once; a large number where the configuration does not say."""
    return int(getattr(config, "max_position_embeddings", None) or math.pow(2, 20))


def _brief(error: Exception | None) -> str:
    """The first line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
