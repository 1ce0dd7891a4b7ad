"""Every layout, algorithm and oddity of LoRA files that is read, against dense formulas written here."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nipstool.fuse_lora import convert, fuse
from nipstool.kit.errors import UsageError
from tests.fuse_lora.lora_files import (
    ATTENTION,
    BLOCK,
    Lora,
    Shapes,
    State,
    attention_processors,
    dense,
    deviation,
    dotted,
    kohya,
    kohya_sd15,
    np_lora,
    peft_name,
    random_lora,
    read,
    save,
    save_peft,
    worst,
)

CONV: Shapes = {
    "unet.down_blocks.0.resnets.0.conv1": (16, 8, 3, 3),
    "unet.down_blocks.0.resnets.0.conv_shortcut": (16, 8, 1, 1),
    "unet.down_blocks.0.attentions.0.proj_in": (32, 20, 1, 1),
}
ENCODER: Shapes = {
    f"text_encoder.text_model.encoder.layers.0.{name}": (16, 16)
    for name in ("self_attn.q_proj", "self_attn.out_proj", "mlp.fc1")
}

Maker = Callable[[Path, Lora], Path]


LAYOUTS: dict[str, Maker] = {
    "kohya": lambda path, lora: save(path, kohya(lora, kohya_sd15)),
    "diffusers": lambda path, lora: save(path, dotted(lora)),
    "diffusers-old": lambda path, lora: save(path, dotted(lora, (".lora.down.weight", ".lora.up.weight"))),
    "attn-procs": lambda path, lora: save(path, attention_processors(lora)),
    "peft": lambda path, lora: save_peft(path.with_suffix(""), dotted(lora, stem=peft_name), r=4, lora_alpha=4),
    "named": lambda path, lora: save(path, dotted(lora, (".lora_A.default.weight", ".lora_B.default.weight"))),
    "bare": lambda path, lora: save(path, dotted(lora, (".lora_A", ".lora_B"))),
    "in a folder": lambda path, lora: (
        save(path.with_suffix("") / "pytorch_lora_weights.safetensors", dotted(lora)).parent
    ),
}


# --- layouts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_reads_alike_and_fuses_with_any_other(tmp_path: Path, layout: str) -> None:
    a, b = random_lora(ATTENTION, 4, 1), random_lora(ATTENTION, 4, 2)
    content = LAYOUTS[layout](tmp_path / "a.safetensors", a)
    assert convert(content, tmp_path / "same.safetensors", format="kohya").family == "sd15"
    assert worst(read(tmp_path / "same.safetensors"), {kohya_sd15(n): W for n, W in dense(a).items()}) < 1e-6
    expected = {kohya_sd15(n): np_lora(dense(a)[n], [dense(b)[n]], 0.5) for n in ATTENTION}
    for other in ("kohya", "diffusers"):
        style = LAYOUTS[other](tmp_path / f"{other}.safetensors", b)
        out = tmp_path / f"out-{other}.safetensors"
        fuse(content, [style], out, format="kohya")
        assert worst(read(out), expected) < 1e-6


def test_text_encoders_in_old_and_new_layouts(tmp_path: Path) -> None:
    """diffusers once called the encoder's projections to_q_lora, and later lora_linear_layer."""
    old_names = {"q_proj": "to_q_lora", "out_proj": "to_out_lora", "fc1": "fc1.lora_linear_layer"}
    a, b = random_lora({**ENCODER, **ATTENTION}, 4, 1), random_lora({**ENCODER, **ATTENTION}, 4, 2)
    state = dotted({n: a[n] for n in ATTENTION}, (".lora.down.weight", ".lora.up.weight"))
    for name in ENCODER:
        stem, _, last = name.rpartition(".")
        state[f"{stem}.{old_names[last]}.down.weight"] = a[name].A
        state[f"{stem}.{old_names[last]}.up.weight"] = a[name].B
    content, style = save(tmp_path / "a.safetensors", state), save(tmp_path / "b.safetensors", dotted(b))
    fusion = fuse(content, [style], tmp_path / "out.safetensors", mu=math.inf)
    assert fusion.format == "diffusers"
    assert any("diffusers-old" in note and "diffusers" in note for note in fusion.notes)
    expected = {n: np_lora(dense(a)[n], [dense(b)[n]], math.inf) for n in a}
    assert worst(read(tmp_path / "out.safetensors"), expected) < 1e-6


@pytest.mark.parametrize("container", ["folder", "file"])
def test_torch_files_without_code(tmp_path: Path, container: str) -> None:
    lora = random_lora(ATTENTION, 4, 1)
    folder = save_peft(tmp_path / "peft", dotted(lora, stem=peft_name), r=4, lora_alpha=8)
    (folder / "adapter_model.safetensors").unlink()
    torch.save(dotted(lora, stem=peft_name), folder / "adapter_model.bin")
    source = folder if container == "folder" else folder / "adapter_model.bin"
    convert(source, tmp_path / "out.safetensors", format="diffusers")
    assert worst(read(tmp_path / "out.safetensors"), {n: 2.0 * W for n, W in dense(lora).items()}) < 1e-6


# --- scales ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_alpha_in_any_dtype_and_shape(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a, b = random_lora(ATTENTION, 4, 1), random_lora(ATTENTION, 6, 2)
    state = kohya(a, kohya_sd15, alpha=2.5, alpha_dtype=dtype)
    state = {key: t.reshape(shape) if key.endswith("alpha") else t for key, t in state.items()}
    content = save(tmp_path / "a.safetensors", state)
    style = save(tmp_path / "b.safetensors", kohya(b, kohya_sd15))  # no alpha: scale 1
    fuse(content, [style], tmp_path / "out.safetensors", mu=1.0)
    expected = {kohya_sd15(n): np_lora(dense(a)[n] * 2.5 / 4, [dense(b)[n]], 1.0) for n in ATTENTION}
    assert worst(read(tmp_path / "out.safetensors"), expected) < 1e-6


def test_peft_scales(tmp_path: Path) -> None:
    """r and alpha by pattern, rank-stabilised or not; the tensors' rank wins over what the config says."""
    names = list(ATTENTION)
    lora = random_lora({names[0]: ATTENTION[names[0]]}, 4, 1) | random_lora(
        {n: ATTENTION[n] for n in names[1:]}, 9, 2
    )
    settings: dict[str, Any] = {
        "r": 4,
        "lora_alpha": 12,
        "rank_pattern": {"to_out.0": 9, "attn2.to_k": 9},
        "alpha_pattern": {"^down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k": 6, r"attn\d.to_k": 99},
    }
    for stabilised in (False, True):
        folder = save_peft(
            tmp_path / f"peft-{stabilised}", dotted(lora, stem=peft_name), use_rslora=stabilised, **settings
        )
        convert(folder, tmp_path / f"{stabilised}.safetensors", format="diffusers")
        divisors = [2.0, 3.0, 3.0] if stabilised else [4.0, 9.0, 9.0]
        scales = [alpha / by for alpha, by in zip((12.0, 12.0, 6.0), divisors, strict=True)]
        expected = {n: s * dense(lora)[n] for n, s in zip(names, scales, strict=True)}
        assert worst(read(tmp_path / f"{stabilised}.safetensors"), expected) < 1e-6


def test_the_config_that_diffusers_keeps_in_a_file(tmp_path: Path) -> None:
    lora = random_lora({**ATTENTION, **ENCODER}, 4, 1)
    config = {
        "unet.r": 4,
        "unet.lora_alpha": 2,
        "unet.alpha_pattern": {"down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k": 16},
        "text_encoder.r": 4,
        "text_encoder.lora_alpha": 8,
    }
    source = save(tmp_path / "a.safetensors", dotted(lora), {"lora_adapter_metadata": json.dumps(config)})
    convert(source, tmp_path / "out.safetensors", format="kohya")
    scale = {n: 2.0 if n in ENCODER else 4.0 if n.endswith("attn2.to_k") else 0.5 for n in lora}
    expected = {kohya_sd15(n): scale[n] * W for n, W in dense(lora).items()}
    assert worst(read(tmp_path / "out.safetensors"), expected) < 1e-6


# --- algorithms -----------------------------------------------------------------------------------


def loha(name: str, shape: tuple[int, ...], rank: int, seed: int) -> tuple[State, np.ndarray]:
    """(w1_a w1_b) o (w2_a w2_b) at alpha / r = 1/2; a convolution is stored flattened."""
    draw = torch.Generator().manual_seed(seed)
    m, n = shape[0], math.prod(shape[1:])
    w = {
        f"hada_w{i}_{side}": torch.randn(size, generator=draw)
        for i in (1, 2)
        for side, size in (("a", (m, rank)), ("b", (rank, n)))
    }
    d = {key: t.double().numpy() for key, t in w.items()}
    W = (d["hada_w1_a"] @ d["hada_w1_b"]) * (d["hada_w2_a"] @ d["hada_w2_b"]) / 2
    stem = kohya_sd15(name)
    return {f"{stem}.{key}": t for key, t in w.items()} | {f"{stem}.alpha": torch.tensor(rank / 2)}, W


def lokr(name: str, shape: tuple[int, ...], seed: int, *, full: bool) -> tuple[State, np.ndarray]:
    """kron(w1, w2) with w2 whole (then alpha means nothing) or w2_a w2_b at alpha / r = 2."""
    draw = torch.Generator().manual_seed(seed)
    m, n = shape[0], math.prod(shape[1:])
    w1, w2_a, w2_b = (torch.randn(s, generator=draw) for s in ((4, 2), (m // 4, 3), (3, n // 2)))
    product = w2_a.double() @ w2_b.double()
    stem = kohya_sd15(name)
    state = {f"{stem}.lokr_w1": w1, f"{stem}.alpha": torch.tensor(1e5 if full else 6.0)}
    if full:
        product = product.float().double()
        return state | {f"{stem}.lokr_w2": product.float()}, np.kron(w1.double().numpy(), product.numpy())
    state |= {f"{stem}.lokr_w2_a": w2_a, f"{stem}.lokr_w2_b": w2_b}
    return state, 2.0 * np.kron(w1.double().numpy(), product.numpy())


def tucker(name: str, shape: tuple[int, ...], rank: int, seed: int) -> tuple[State, np.ndarray]:
    """up [m, p], mid [p, q, kh, kw], down [q, in] at alpha / q = 1/2."""
    draw = torch.Generator().manual_seed(seed)
    m, inp, *kernel = shape
    up, mid, down = (
        torch.randn(s, generator=draw) for s in ((m, rank, 1, 1), (rank, rank, *kernel), (rank, inp, 1, 1))
    )
    W = np.einsum(
        "mp,pqkl,qi->mikl",
        up[..., 0, 0].double().numpy(),
        mid.double().numpy(),
        down[..., 0, 0].double().numpy(),
    )
    stem = kohya_sd15(name)
    state = {f"{stem}.lora_up.weight": up, f"{stem}.lora_mid.weight": mid, f"{stem}.lora_down.weight": down}
    return state | {f"{stem}.alpha": torch.tensor(rank / 2)}, W.reshape(m, -1) / 2


def test_other_algorithms_fuse_exactly(tmp_path: Path) -> None:
    """LoHa, LoKr and Tucker modules in one content file, plain ones in the style."""
    (q, out, k), (conv, shortcut, proj) = ATTENTION, CONV
    shapes = {**ATTENTION, **CONV}
    made = {
        q: loha(q, shapes[q], 3, 1),
        out: lokr(out, shapes[out], 2, full=True),
        k: lokr(k, shapes[k], 3, full=False),
        conv: tucker(conv, shapes[conv], 3, 4),
        shortcut: loha(shortcut, shapes[shortcut], 2, 5),
        proj: loha(proj, shapes[proj], 2, 6),
    }
    style = random_lora(shapes, 4, 7)
    a = save(tmp_path / "a.safetensors", {key: t for state, _ in made.values() for key, t in state.items()})
    b = save(tmp_path / "b.safetensors", kohya(style, kohya_sd15, alpha=4.0))
    for mu in (0.5, math.inf):
        fuse(a, [b], tmp_path / f"{mu}.safetensors", mu=mu)
        expected = {kohya_sd15(n): np_lora(W, [dense(style)[n]], mu) for n, (_, W) in made.items()}
        assert worst(read(tmp_path / f"{mu}.safetensors"), expected) < 1e-6
        back = {kohya_sd15(n): np_lora(dense(style)[n], [W], mu) for n, (_, W) in made.items()}
        fuse(b, [a], tmp_path / f"back-{mu}.safetensors", mu=mu)
        assert worst(read(tmp_path / f"back-{mu}.safetensors"), back) < 1e-6


@pytest.mark.parametrize("algorithm", [loha, tucker])
def test_a_convolution_comes_out_as_one(
    tmp_path: Path, algorithm: Callable[..., tuple[State, np.ndarray]]
) -> None:
    """LyCORIS stores a LoHa of a convolution flattened; a loader of plain LoRAs wants its kernel."""
    shapes = {n: s for n, s in CONV.items() if algorithm is loha or s[2:] == (3, 3)}
    made = {n: algorithm(n, shape, 2, seed) for seed, (n, shape) in enumerate(shapes.items())}
    attention = kohya(random_lora(ATTENTION, 2, 9), kohya_sd15)
    state = {key: t for part, _ in made.values() for key, t in part.items()}
    convert(save(tmp_path / "a.safetensors", state | attention), tmp_path / "out.safetensors", format="kohya")
    written, found = load_file(tmp_path / "out.safetensors"), read(tmp_path / "out.safetensors")
    for name, (_, W) in made.items():
        stem = kohya_sd15(name)
        assert written[f"{stem}.lora_down.weight"].shape[1:] == shapes[name][1:]
        assert written[f"{stem}.lora_up.weight"].shape[2:] == (1, 1)
        assert deviation(found[stem], W) < 1e-6


def test_large_loha_and_lokr_need_a_rank(tmp_path: Path) -> None:
    shape = (300, 768)
    for name, (state, W), exact in (
        ("loha", loha(f"{BLOCK}.attn2.to_k", shape, 20, 1), 300),
        ("lokr", whole_lokr(f"{BLOCK}.attn2.to_k", shape, 2), 300),
    ):
        a = save(tmp_path / f"{name}.safetensors", state)
        with pytest.raises(UsageError, match=rf"\b{exact}\b.*--rank") as caught:
            convert(a, tmp_path / "out.safetensors")
        assert name in str(caught.value)
        assert not (tmp_path / "out.safetensors").exists()
        out = tmp_path / f"{name}-20.safetensors"
        convert(a, out, rank=20, format="kohya")
        sigma = np.linalg.svd(W, compute_uv=False)
        best = np.linalg.norm(sigma[20:]) / np.linalg.norm(sigma)
        assert deviation(read(out)[kohya_sd15(f"{BLOCK}.attn2.to_k")], W) == pytest.approx(best, rel=1e-4)


def whole_lokr(name: str, shape: tuple[int, ...], seed: int) -> tuple[State, np.ndarray]:
    draw = torch.Generator().manual_seed(seed)
    w1 = torch.randn(20, 24, generator=draw)
    w2 = torch.randn(shape[0] // 20, shape[1] // 24, generator=draw)
    stem = kohya_sd15(name)
    return {f"{stem}.lokr_w1": w1, f"{stem}.lokr_w2": w2}, np.kron(w1.double().numpy(), w2.double().numpy())
