"""Odd but valid LoRA files: untrained, doubled, narrow floats, heads, embeddings, bias and full deltas."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nipstool.fuse_lora import compare, convert, fuse
from nipstool.kit.errors import DataError, UsageError
from tests.fuse_lora.lora_files import (
    ATTENTION,
    BLOCK,
    Factors,
    Lora,
    Shapes,
    State,
    dense,
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


@pytest.mark.parametrize("mu", [0.0, 0.5, math.inf, None])
def test_an_untrained_side(tmp_path: Path, mu: float | None) -> None:
    """B of zeros in the style: nothing to protect. In the content: nothing to project. No NaN anywhere."""
    lora = random_lora(ATTENTION, 4, 1)
    zero = {n: Factors(torch.zeros_like(pair.B), pair.A) for n, pair in random_lora(ATTENTION, 4, 2).items()}
    a, b = save(tmp_path / "a.safetensors", dotted(lora)), save(tmp_path / "b.safetensors", dotted(zero))
    for content, style in ((a, b), (b, a)):
        out = tmp_path / f"{content.stem}.safetensors.out.safetensors"
        fusion = fuse(content, [style], out, mu=mu)
        assert worst(read(out), dense(lora)) < 1e-6
        assert fusion.totals.overlap == 0
        assert all(m.change is not None and math.isfinite(m.change) for m in fusion.modules)


def test_equal_duplicates_are_one_module(tmp_path: Path) -> None:
    lora = random_lora(ATTENTION, 4, 1)
    state = dotted(lora) | dotted({n: lora[n] for n in list(lora)[:2]}, (".lora.down.weight", ".lora.up.weight"))
    convert(save(tmp_path / "a.safetensors", state), tmp_path / "out.safetensors", format="diffusers")
    assert worst(read(tmp_path / "out.safetensors"), dense(lora)) < 1e-6


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16])
def test_narrow_floats(tmp_path: Path, stored: torch.dtype) -> None:
    """fp8 comes out as bf16, the others as they are; the error is that of one rounding."""
    a, b = random_lora(ATTENTION, 4, 1), random_lora(ATTENTION, 4, 2)
    paths = [save(tmp_path / f"{n}.safetensors", dotted(x, dtype=stored)) for n, x in (("a", a), ("b", b))]
    fuse(paths[0], [paths[1]], tmp_path / "out.safetensors", mu=0.5)
    exact = [
        dense({n: Factors(p.B.to(stored).float(), p.A.to(stored).float()) for n, p in x.items()}) for x in (a, b)
    ]
    expected = {n: np_lora(exact[0][n], [exact[1][n]], 0.5) for n in ATTENTION}
    written = torch.float16 if stored == torch.float16 else torch.bfloat16
    assert {t.dtype for t in load_file(tmp_path / "out.safetensors").values()} == {written}
    assert worst(read(tmp_path / "out.safetensors"), expected) < (6e-4 if stored == torch.float16 else 5e-3)
    fuse(paths[0], [paths[1]], tmp_path / "wide.safetensors", mu=0.5, dtype="float32")
    assert worst(read(tmp_path / "wide.safetensors"), expected) < 1e-6


@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_half_precision_at_alpha_1_and_rank_128(tmp_path: Path, size: float) -> None:
    """Tiny scales and large factors: only their even spread over both sides is storable."""
    shapes = {f"{BLOCK}.attn1.to_q": (320, 320), f"{BLOCK}.attn2.to_k": (320, 768)}
    a, b = random_lora(shapes, 128, 1, size=size), random_lora(shapes, 128, 2)
    paths = [save(tmp_path / f"{n}.safetensors", kohya(x, kohya_sd15, alpha=1.0)) for n, x in (("a", a), ("b", b))]
    for mu in (0.0, 0.5):
        out = tmp_path / f"{mu}.safetensors"
        fuse(paths[0], [paths[1]], out, mu=mu, dtype="float16")
        expected = {kohya_sd15(n): np_lora(dense(a)[n] / 128, [dense(b)[n] / 128], mu) for n in shapes}
        assert worst(read(out), expected) < 6e-4
    with pytest.raises(DataError, match=r"float32"):
        fuse(paths[0], [paths[1]], tmp_path / "no.safetensors", weights=[1e20, 1.0], dtype="float16")
    assert not (tmp_path / "no.safetensors").exists()


def full(name: str, seed: int, shape: tuple[int, ...] = (3, 8)) -> State:
    return {f"base_model.model.{name}": torch.randn(shape, generator=torch.Generator().manual_seed(seed))}


def test_full_weights_of_a_head(tmp_path: Path) -> None:
    """They cannot be projected: equal ones are kept, of unequal ones the user chooses."""
    shapes: Shapes = {"model.layers.0.self_attn.q_proj": (8, 8)}
    loras = [dotted(random_lora(shapes, 2, n), stem=lambda name: f"base_model.model.{name}") for n in (1, 2)]
    heads = [full("classifier.weight", n) for n in (1, 2)]
    paths = [
        save_peft(tmp_path / f"{n}", lora | head, modules_to_save=["classifier"], task_type=f"TASK_{n}")
        for n, (lora, head) in enumerate(zip(loras, heads, strict=True))
    ]
    same = save_peft(tmp_path / "same", loras[1] | heads[0], modules_to_save=["classifier"])
    with pytest.raises(DataError, match=r"classifier\.weight.*--modules-to-save"):
        fuse(paths[0], [paths[1]], tmp_path / "out")
    fuse(paths[0], [same], tmp_path / "equal")
    fuse(paths[0], [paths[1]], tmp_path / "content", modules_to_save="content")
    fuse(paths[0], [paths[1]], tmp_path / "style", modules_to_save="style")
    (key,) = heads[0]
    for folder, head in (("equal", heads[0]), ("content", heads[0]), ("style", heads[1])):
        written = load_file(tmp_path / folder / "adapter_model.safetensors")
        assert torch.equal(written[key], head[key])
        config = (tmp_path / folder / "adapter_config.json").read_text()
        assert '"classifier"' in config
        assert ("TASK_1" if folder == "style" else "TASK_0") in config
    with pytest.raises(UsageError, match="modules-to-save"):
        fuse(paths[0], [paths[1]], tmp_path / "out", modules_to_save="both")
    with pytest.raises(DataError, match=r"no place.*--allow-unknown"):
        fuse(paths[0], [same], tmp_path / "out.safetensors", format="diffusers")
    fusion = fuse(paths[0], [same], tmp_path / "out.safetensors", format="diffusers", allow_unknown=True)
    assert fusion.listed == (key,)


def test_embeddings(tmp_path: Path) -> None:
    """PEFT's A reads the vocabulary: V lies there, and the keys have no .weight."""
    shapes: Shapes = {"model.embed_tokens": (8, 30), "lm_head": (30, 8)}

    def state(lora: Lora) -> State:
        ends = (".lora_embedding_A", ".lora_embedding_B")
        inner = dotted({"lm_head": lora["lm_head"]}, stem=lambda name: f"base_model.model.{name}")
        embedding = {"model.embed_tokens": lora["model.embed_tokens"]}
        return inner | dotted(embedding, ends, stem=lambda name: f"base_model.model.{name}")

    a, b = random_lora(shapes, 4, 1), random_lora(shapes, 4, 2)
    paths = [save_peft(tmp_path / n, state(x), lora_alpha=8) for n, x in (("a", a), ("b", b))]
    fuse(paths[0], [paths[1]], tmp_path / "out", mu=0.5)
    expected = {f"base_model.model.{n}": np_lora(2 * dense(a)[n], [2 * dense(b)[n]], 0.5) for n in shapes}
    assert worst(read(tmp_path / "out"), expected) < 1e-6
    assert "base_model.model.model.embed_tokens.lora_embedding_A" in load_file(
        tmp_path / "out" / "adapter_model.safetensors"
    )


# --- bias and full deltas -------------------------------------------------------------------------


def with_bias(state: State, stem: str, end: str, seed: int, rows: int) -> tuple[State, Tensor]:
    bias = torch.randn(rows, generator=torch.Generator().manual_seed(seed))
    return state | {stem + end: bias}, bias


def test_bias_deltas_of_peft_are_scaled_and_kohyas_are_not(tmp_path: Path) -> None:
    name = f"{BLOCK}.attn1.to_q"
    a, b = random_lora(ATTENTION, 4, 1), random_lora(ATTENTION, 4, 2)
    state, first = with_bias(dotted(a, stem=peft_name), peft_name(name), ".lora_B.bias", 3, 48)
    content = save_peft(tmp_path / "a", state, r=4, lora_alpha=8, lora_bias=True)
    state, second = with_bias(kohya(b, kohya_sd15, alpha=2.0), kohya_sd15(name), ".diff_b", 4, 48)
    style = save(tmp_path / "b.safetensors", state)
    wanted = 0.5 * 2.0 * first - 3.0 * second
    for format, key in (("kohya", f"{kohya_sd15(name)}.diff_b"), ("diffusers", f"{name}.lora_B.bias")):
        out = tmp_path / f"{format}.safetensors"
        fuse(content, [style], out, format=format, weights=[0.5, -3.0])
        assert torch.allclose(load_file(out)[key], wanted, rtol=1e-6)
    fuse(content, [style], tmp_path / "peft", weights=[0.5, -3.0])
    assert '"lora_bias": true' in (tmp_path / "peft" / "adapter_config.json").read_text()


def test_full_deltas_are_summed_without_projection(tmp_path: Path) -> None:
    a, b = random_lora(ATTENTION, 4, 1), random_lora(ATTENTION, 4, 2)
    key = "lora_unet_down_blocks_0_resnets_0_norm1.diff"
    deltas = [torch.randn(16, generator=torch.Generator().manual_seed(n)) for n in (1, 2)]
    paths = [
        save(tmp_path / f"{n}.safetensors", kohya(x, kohya_sd15) | {key: delta})
        for n, (x, delta) in enumerate(zip((a, b), deltas, strict=True))
    ]
    fusion = fuse(paths[0], [paths[1]], tmp_path / "out.safetensors", weights=[2.0, -1.0], mu=math.inf)
    assert torch.allclose(load_file(tmp_path / "out.safetensors")[key], 2.0 * deltas[0] - deltas[1])
    assert any(key in note for note in fusion.notes)


def test_a_family_in_no_table_keeps_its_names(tmp_path: Path) -> None:
    shapes: Shapes = {f"layers.{n}.mixer.in_proj": (12, 10) for n in range(2)}
    a, b = random_lora(shapes, 3, 1), random_lora(shapes, 3, 2)
    expected = {n: np_lora(dense(a)[n], [dense(b)[n]], 0.5) for n in shapes}
    for prefix in ("", "diffusion_model.", "base_model.model."):
        states = [dotted(x, stem=lambda name, prefix=prefix: prefix + name) for x in (a, b)]
        paths = [tmp_path / f"{prefix}{n}.safetensors" for n in "ab"]
        for path, state in zip(paths, states, strict=True):
            save_file({k: t.contiguous() for k, t in state.items()}, path)
        out = tmp_path / ("folder" if prefix.startswith("base") else f"{prefix}out.safetensors")
        fusion = fuse(paths[0], [paths[1]], out)
        assert fusion.family == "unknown"
        assert worst(read(out), {prefix + n: W for n, W in expected.items()}) < 1e-6


def test_a_module_that_the_format_cannot_name(tmp_path: Path) -> None:
    """PEFT holds one model: with an encoder in the style, files can be compared, and fused in another format."""
    encoder = {"text_encoder.text_model.encoder.layers.0.self_attn.q_proj": (16, 16)}
    content = save_peft(tmp_path / "peft", dotted(random_lora(ATTENTION, 4, 1), stem=peft_name))
    style = save(tmp_path / "style.safetensors", dotted(random_lora({**ATTENTION, **encoder}, 4, 2)))
    assert compare(content, style).forward.totals.projected == len(ATTENTION)
    with pytest.raises(DataError, match=r"text_encoder.*--format"):
        fuse(content, [style], tmp_path / "out")
    assert len(fuse(content, [style], tmp_path / "out.safetensors", format="kohya").modules) == len(ATTENTION) + 1
    assert len(fuse(content, [style], tmp_path / "out", exclude="^text_encoder").left_out) == 1
