"""Small LoRA files in every layout, their dense updates read by code of its own, and NP-LoRA on dense matrices.

A LoRA is a mapping from diffusers' module names ('unet.….attn1.to_q') to factors B [out, r] and
A [r, in, *kernel] in float32. Everything dense is numpy float64, [out, in * kernel].
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

State = dict[str, Tensor]
Dense = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]  # module name -> (out, in, *kernel)


class Factors(NamedTuple):
    """B [out, r] and A [r, in, *kernel]."""

    B: Tensor
    A: Tensor


Lora = dict[str, Factors]


# modules of SD1.5, made narrow; the width of attn2 is how the family is known
BLOCK = "unet.down_blocks.0.attentions.0.transformer_blocks.0"
ATTENTION: Shapes = {
    f"{BLOCK}.attn1.to_q": (48, 32),
    f"{BLOCK}.attn1.to_out.0": (32, 40),
    f"{BLOCK}.attn2.to_k": (24, 768),
}


def random_lora(shapes: Shapes, rank: int, seed: int, *, size: float = 1.0) -> Lora:
    """Gaussian factors; each update has Frobenius norm of about `size` * sqrt(rank)."""
    draw = torch.Generator().manual_seed(seed)
    lora = {}
    for name, (out, *inputs) in shapes.items():
        B = torch.randn(out, rank, generator=draw) * size / math.sqrt(out)
        A = torch.randn(rank, *inputs, generator=draw) / math.sqrt(math.prod(inputs))
        lora[name] = Factors(B, A)
    return lora


def dense(lora: Lora) -> Dense:
    """The updates of a LoRA at scale 1."""
    return {name: B.double().numpy() @ A.double().flatten(1).numpy() for name, (B, A) in lora.items()}


# --- writing --------------------------------------------------------------------------------------


def save(path: Path, state: State, metadata: dict[str, str] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    own = {key: tensor.contiguous().clone() for key, tensor in state.items()}  # no two share memory
    save_file(own, path, metadata or {"format": "pt"})
    return path


def up_of(pair: Factors) -> Tensor:
    """B in the shape that belongs to A's: a 1 x 1 convolution where A is one."""
    return pair.B.reshape(*pair.B.shape, *(1 for _ in pair.A.shape[2:]))


def kohya(
    lora: Lora,
    stem: Callable[[str], str],
    *,
    alpha: float | None = None,
    alpha_dtype: torch.dtype = torch.float32,
    dtype: torch.dtype = torch.float32,
) -> State:
    """lora_down, lora_up, and alpha where one is given; `stem` spells a module's name."""
    state: State = {}
    for name, pair in lora.items():
        state[f"{stem(name)}.lora_down.weight"] = pair.A.to(dtype)
        state[f"{stem(name)}.lora_up.weight"] = up_of(pair).to(dtype)
        if alpha is not None:
            state[f"{stem(name)}.alpha"] = torch.tensor(alpha, dtype=alpha_dtype)
    return state


def dotted(
    lora: Lora,
    ends: tuple[str, str] = (".lora_A.weight", ".lora_B.weight"),
    stem: Callable[[str], str] = str,
    dtype: torch.dtype = torch.float32,
) -> State:
    """A and B under a stem and two endings: diffusers, PEFT, BFL, and diffusers' older layouts."""
    state: State = {}
    for name, pair in lora.items():
        state[stem(name) + ends[0]] = pair.A.to(dtype)
        state[stem(name) + ends[1]] = up_of(pair).to(dtype)
    return state


def attention_processors(lora: Lora) -> State:
    """diffusers' first layout, for attention layers alone."""

    def stem(name: str) -> str:
        return re.sub(r"\.(to_\w+)(?:\.0)?$", r".processor.\1_lora", name.removeprefix("unet."))

    return dotted(lora, (".down.weight", ".up.weight"), stem)


def save_peft(folder: Path, state: State, **config: Any) -> Path:
    """A PEFT folder; the config's target_modules are taken from the state where none are given."""
    save(folder / "adapter_model.safetensors", state)
    ends = re.compile(r"\.lora_(?:embedding_)?[AB](?:\.weight|\.bias)?$")
    names = {ends.sub("", key).removeprefix("base_model.model.") for key in state if ends.search(key)}
    given: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": sorted(names)}
    (folder / "adapter_config.json").write_text(json.dumps(given | config))
    return folder


def peft_name(name: str) -> str:
    """'unet.….to_q' as PEFT spells it."""
    return "base_model.model." + name.partition(".")[2]


# --- names ----------------------------------------------------------------------------------------


def kohya_sd15(name: str) -> str:
    """kohya spells SD1.5 with diffusers' names, flat."""
    component, _, rest = name.partition(".")
    return {"unet": "lora_unet_", "text_encoder": "lora_te_"}[component] + rest.replace(".", "_")


def kohya_sdxl(name: str) -> str:
    """kohya spells SDXL with the names of Stability's own code: blocks counted through, in and out."""
    component, _, rest = name.partition(".")
    if component != "unet":
        return {"text_encoder": "lora_te1_", "text_encoder_2": "lora_te2_"}[component] + rest.replace(".", "_")
    return "lora_unet_" + _sgm(rest).replace(".", "_")


_RESNET = {"conv1": "in_layers.2", "conv2": "out_layers.3", "time_emb_proj": "emb_layers.1"}
_RESNET["conv_shortcut"] = "skip_connection"


_TOP = {
    "conv_in": "input_blocks.0.0",
    "conv_out": "out.2",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
}


def _sgm(name: str) -> str:
    """Two layers a block: i = 3 b + l + 1 on the way down, i = 3 b + l on the way up."""
    if match := re.fullmatch(r"(down|up)_blocks\.(\d+)\.(attentions|resnets)\.(\d+)\.(.+)", name):
        side, block, kind, layer, inner = match.groups()
        number = 3 * int(block) + int(layer) + (side == "down")
        return f"{'input' if side == 'down' else 'output'}_blocks.{number}." + _inner(kind, inner)
    if match := re.fullmatch(r"mid_block\.(attentions|resnets)\.(\d+)\.(.+)", name):
        kind, layer, inner = match.groups()
        number = 1 if kind == "attentions" else 2 * int(layer)
        return f"middle_block.{number}." + _inner(kind, inner).partition(".")[2]
    if name in _TOP:
        return _TOP[name]
    block = int(name.split(".")[1])
    if "downsamplers" in name:
        return f"input_blocks.{3 * block + 3}.0.op"
    return f"output_blocks.{3 * block + 2}.2.conv"


def _inner(kind: str, inner: str) -> str:
    return f"1.{inner}" if kind == "attentions" else f"0.{_RESNET[inner]}"


# FLUX: what BFL's code calls a module, for one double and one single block; a fused one has its parts in row order
FLUX_FUSED = {
    "double_blocks.{}.img_attn.qkv": [f"transformer_blocks.{{}}.attn.to_{x}" for x in "qkv"],
    "double_blocks.{}.txt_attn.qkv": [f"transformer_blocks.{{}}.attn.add_{x}_proj" for x in "qkv"],
    "single_blocks.{}.linear1": [
        *(f"single_transformer_blocks.{{}}.attn.to_{x}" for x in "qkv"),
        "single_transformer_blocks.{}.proj_mlp",
    ],
}
FLUX_PLAIN = {
    "double_blocks.{}.img_attn.proj": "transformer_blocks.{}.attn.to_out.0",
    "double_blocks.{}.txt_attn.proj": "transformer_blocks.{}.attn.to_add_out",
    "double_blocks.{}.img_mlp.0": "transformer_blocks.{}.ff.net.0.proj",
    "double_blocks.{}.img_mlp.2": "transformer_blocks.{}.ff.net.2",
    "double_blocks.{}.txt_mlp.0": "transformer_blocks.{}.ff_context.net.0.proj",
    "double_blocks.{}.txt_mlp.2": "transformer_blocks.{}.ff_context.net.2",
    "double_blocks.{}.img_mod.lin": "transformer_blocks.{}.norm1.linear",
    "double_blocks.{}.txt_mod.lin": "transformer_blocks.{}.norm1_context.linear",
    "single_blocks.{}.linear2": "single_transformer_blocks.{}.proj_out",
    "single_blocks.{}.modulation.lin": "single_transformer_blocks.{}.norm.linear",
}


def flux_shapes(width: int, doubles: int = 1, singles: int = 1) -> dict[str, tuple[int, int]]:
    """BFL's modules of a FLUX of `width` channels: name -> (out, in)."""
    rows = {"qkv": 3, "linear1": 7, "img_mod.lin": 6, "txt_mod.lin": 6, "modulation.lin": 3, "mlp.0": 4}
    columns = {"mlp.2": 4, "linear2": 5}
    shapes = {}
    for pattern in [*FLUX_FUSED, *FLUX_PLAIN]:
        out = next((n for end, n in rows.items() if pattern.endswith(end)), 1)
        inp = next((n for end, n in columns.items() if pattern.endswith(end)), 1)
        for number in range(doubles if pattern.startswith("double") else singles):
            shapes[pattern.format(number)] = (out * width, inp * width)
    return shapes


def flux_split(dense_bfl: Dense) -> Dense:
    """Dense updates under BFL's names -> under diffusers': q, k and v equally tall, the rest the MLP's."""
    found: Dense = {}
    for name, W in dense_bfl.items():
        pattern = re.sub(r"blocks\.\d+", "blocks.{}", name)
        number = "".join(re.findall(r"blocks\.(\d+)", name))
        if pattern in FLUX_PLAIN:
            found[f"transformer.{FLUX_PLAIN[pattern].format(number)}"] = W
            continue
        parts = FLUX_FUSED[pattern]
        width = W.shape[1] if len(parts) == 4 else W.shape[0] // 3
        cuts = np.split(W, [width, 2 * width, 3 * width][: len(parts) - 1])
        found |= {f"transformer.{part.format(number)}": cut for part, cut in zip(parts, cuts, strict=True)}
    return found


def kohya_flux(name: str) -> str:
    return "lora_unet_" + name.replace(".", "_")


# --- reading --------------------------------------------------------------------------------------

_ENDS = re.compile(
    r"\.lora_(?P<flat>down|up)\.weight$|\.lora_(?P<peft>A|B)\.weight$|\.lora\.(?P<old>down|up)\.weight$"
    r"|_lora\.(?P<proc>down|up)\.weight$|\.lora_embedding_(?P<embedding>A|B)$"
)


def read(path: Path) -> Dense:
    """Stem -> dense update of a plain LoRA file, or of a PEFT folder with the scale its config gives."""
    return {stem: B @ A for stem, (B, A) in read_factors(path).items()}


def read_factors(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Stem -> (B [out, r] with the scale, A [r, in * kernel]) in float64."""
    config: dict[str, Any] = {}
    if path.is_dir():
        config = json.loads((path / "adapter_config.json").read_text())
        path = path / "adapter_model.safetensors"
    state = load_file(path)
    sides: dict[str, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        if match := _ENDS.search(key):
            side = next(value for value in match.groupdict().values() if value)
            sides.setdefault(key[: match.start()], {})["A" if side in ("A", "down") else "B"] = tensor.double()
    return {
        stem: (_scale(stem, pair, state, config) * pair["B"].flatten(1).numpy(), pair["A"].flatten(1).numpy())
        for stem, pair in sides.items()
    }


def _scale(stem: str, pair: dict[str, Tensor], state: State, config: dict[str, Any]) -> float:
    r = pair["A"].shape[0]
    if f"{stem}.alpha" in state:
        return float(state[f"{stem}.alpha"]) / r
    if not config:
        return 1.0
    name = stem.removeprefix("base_model.model.")
    patterns = (config.get("alpha_pattern") or {}).items()
    matches = (value for key, value in patterns if re.match(rf"(.*\.)?({key})$", name))
    alpha = next(matches, config["lora_alpha"])
    return alpha / (math.sqrt(r) if config.get("use_rslora") else r)


def ranks(path: Path) -> dict[str, int]:
    """Stem -> rank."""
    with safe_open(path, "np") as file:
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    downs = re.compile(r"\.lora_(?:down|A)\.weight$")
    return {downs.sub("", key): shape[0] for key, shape in shapes.items() if downs.search(key)}


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "np") as file:
        return file.metadata() or {}


# --- the dense reference --------------------------------------------------------------------------


def directions(W: np.ndarray, k: int | None = None, energy: float | None = None) -> np.ndarray:
    """The right singular vectors [in, k] of a dense update, from LAPACK's decomposition of the whole matrix."""
    _, sigma, Vh = np.linalg.svd(W, full_matrices=False)
    kept = int((sigma > 1e-7 * sigma[0]).sum())
    if energy is not None:
        share = np.cumsum(sigma**2) / np.sum(sigma**2)
        kept = min(kept, int(np.argmax(share >= energy - 1e-12)) + 1)
    return Vh[: kept if k is None else min(kept, k)].T


def union(styles: Iterable[np.ndarray], k: int | None = None, energy: float | None = None) -> np.ndarray:
    """An orthonormal basis [in, K] of the directions of several styles."""
    return scipy.linalg.orth(np.concatenate([directions(W, k, energy) for W in styles], axis=1))


def np_lora(
    content: np.ndarray,
    styles: Sequence[np.ndarray],
    mu: float | None,
    *,
    weights: Sequence[float] | None = None,
    leak: float = 0.001,
    V: np.ndarray | None = None,
) -> np.ndarray:
    """w_c W_c (I - c V V^T) + sum w_s W_s with c = mu / (1 + mu), or by `leak`; V is all styles' directions."""
    given = weights or [1.0] * (1 + len(styles))
    V = union(styles) if V is None else V
    on_V = content @ V @ V.T
    if mu is None:
        overlap = np.linalg.norm(on_V) ** 2 / np.linalg.norm(content) ** 2
        mu = max(0.0, math.sqrt(overlap / leak) - 1.0)
    damped = content - on_V * (1.0 if math.isinf(mu) else mu / (1.0 + mu))
    return given[0] * damped + sum(w * W for w, W in zip(given[1:], styles, strict=True))


def deviation(found: np.ndarray, expected: np.ndarray) -> float:
    """Relative Frobenius distance, entry by entry."""
    assert found.shape == expected.shape
    norm = np.linalg.norm(expected)
    return float(np.linalg.norm(found - expected) / norm) if norm else float(np.linalg.norm(found))


def worst(found: Dense, expected: Dense) -> float:
    """The largest relative distance of any module; both must have the same ones."""
    assert found.keys() == expected.keys()
    return max(deviation(found[name], expected[name]) for name in expected)
