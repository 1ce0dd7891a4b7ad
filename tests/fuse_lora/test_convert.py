"""Conversion there and back, and FLUX, whose q, k and v are one matrix in some files and three in others."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nipstool.fuse_lora import convert, fuse
from tests.fuse_lora.lora_files import (
    Dense,
    Factors,
    Lora,
    State,
    dense,
    deviation,
    dotted,
    flux_shapes,
    flux_split,
    kohya,
    kohya_flux,
    metadata,
    np_lora,
    random_lora,
    ranks,
    read,
    save,
    worst,
)

WIDTH = 24
FLUX = flux_shapes(WIDTH, 2, 2)
ROWS = {"to_qkv": 3, "linear1": 4}


def bfl(lora: Lora) -> State:
    return dotted(lora, stem=lambda name: f"diffusion_model.{name}")


def joined(split: Dense) -> Dense:
    """Updates under diffusers' names -> under BFL's, parts stacked; what no file has is zero."""
    found = {}
    for name, (rows, columns) in FLUX.items():
        parts = list(flux_split({name: np.zeros((rows, columns))}))
        if any(part in split for part in parts):
            heights = [flux_split({name: np.zeros((rows, columns))})[part].shape[0] for part in parts]
            zeros = (np.zeros((height, columns)) for height in heights)
            found[name] = np.concatenate([split.get(p, zero) for p, zero in zip(parts, zeros, strict=True)])
    return found


def by_kohya(found: Dense) -> Dense:
    return {kohya_flux(name): W for name, W in found.items()}


# --- there and back -------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.float16, 6e-4)])
def test_flux_kohya_to_diffusers_and_back(tmp_path: Path, dtype: torch.dtype, most: float) -> None:
    """The updates and the ranks of every module, fused ones too: their parts share one A."""
    lora = random_lora(FLUX, 5, 1)
    a = save(tmp_path / "a.safetensors", kohya(lora, kohya_flux, alpha=2.0, dtype=dtype))
    stored = {n: Factors(p.B.to(dtype).float(), p.A.to(dtype).float()) for n, p in lora.items()}
    expected = {n: W * 2.0 / 5 for n, W in dense(stored).items()}
    for step, (origin, format) in enumerate(
        [("a", "diffusers"), ("0", "kohya"), ("0", "bfl"), ("2", "diffusers")]
    ):
        convert(tmp_path / f"{origin}.safetensors", tmp_path / f"{step}.safetensors", format=format)
    split, back, native, again = (tmp_path / f"{step}.safetensors" for step in range(4))
    assert worst(read(split), flux_split(expected)) < most
    assert worst(read(back), by_kohya(expected)) < most
    assert worst(read(native), {f"diffusion_model.{n}": W for n, W in expected.items()}) < most
    assert worst(read(again), flux_split(expected)) < most
    for path in (a, split, back, native, again):
        assert set(ranks(path).values()) == {5}, path
        assert {t.dtype for key, t in load_file(path).items() if not key.endswith(".alpha")} == {dtype}


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.float16, 6e-4)])
@pytest.mark.realdata
def test_sdxl_kohya_to_diffusers_and_back(data_dir: Path, tmp_path: Path, dtype: torch.dtype, most: float) -> None:
    """All 722 modules; both lists of names are in one order."""
    lists = json.loads((data_dir / "fuse-lora" / "keylists" / "sdxl_unet_attn_modules.json").read_text())
    narrow = {name: (out // 40, inp if inp == 2048 else inp // 40) for name, (out, inp) in lists["kohya"].items()}
    lora = random_lora(narrow, 3, 1)
    save(tmp_path / "a.safetensors", kohya(lora, str, alpha=1.5, dtype=dtype))
    there = convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", format="diffusers")
    back = convert(tmp_path / "b.safetensors", tmp_path / "c.safetensors", format="kohya")
    assert there.family == back.family == "sdxl"
    stored = {n: Factors(B.to(dtype), A.to(dtype)) for n, (B, A) in lora.items()}
    expected = {n: W / 2 for n, W in dense(stored).items()}
    renamed = dict(zip(lists["kohya"], (f"unet.{n}" for n in lists["diffusers"]), strict=True))
    assert worst(read(tmp_path / "b.safetensors"), {renamed[n]: W for n, W in expected.items()}) < most
    assert worst(read(tmp_path / "c.safetensors"), expected) < most
    assert set(ranks(tmp_path / "c.safetensors").values()) == {3}


@pytest.mark.realdata
def test_a_real_file_through_every_format(data_dir: Path, tmp_path: Path) -> None:
    source = data_dir / "fuse-lora" / "sd15_timohavdk_2100-lora.safetensors"
    convert(source, tmp_path / "1.safetensors", format="kohya")
    convert(tmp_path / "1.safetensors", tmp_path / "2", format="peft")
    convert(tmp_path / "2", tmp_path / "3.safetensors", format="diffusers")
    before, after = load_file(source), load_file(tmp_path / "3.safetensors")
    assert len(after) == len(before) == 256
    for key, tensor in before.items():
        renamed = key.replace(".lora.down.weight", ".lora_A.weight").replace(".lora.up.weight", ".lora_B.weight")
        if renamed.endswith("A.weight"):
            up = before[key.replace(".lora.down.", ".lora.up.")].double() @ tensor.double()
            found = after[renamed.replace("lora_A", "lora_B")].double() @ after[renamed].double()
            assert deviation(found.numpy(), up.numpy()) < 1e-6, key


def test_a_conversion_in_the_same_format_copies_the_bytes(tmp_path: Path) -> None:
    lora = random_lora(FLUX, 4, 1)
    for name, state in (("kohya", kohya(lora, kohya_flux, alpha=1.0)), ("diffusers", dotted(split_lora(lora)))):
        source = save(tmp_path / f"{name}.safetensors", state)
        convert(source, tmp_path / f"{name}-out.safetensors")
        after = load_file(tmp_path / f"{name}-out.safetensors")
        assert after.keys() == state.keys()
        assert all(torch.equal(after[key], tensor) for key, tensor in state.items())


def split_lora(lora: Lora) -> Lora:
    """BFL's factors under diffusers' names: the parts of a block share its A."""
    found: Lora = {}
    for name, (B, A) in lora.items():
        parts = flux_split({name: np.zeros(FLUX[name])})
        cuts = B.split([W.shape[0] for W in parts.values()])
        found |= {part: Factors(cut, A) for part, cut in zip(parts, cuts, strict=True)}
    return found


# --- mixed FLUX pairs -----------------------------------------------------------------------------


def split_reference(content: Dense, style: Dense, mu: float) -> Dense:
    """Part by part; what one of them lacks passes."""
    both = content.keys() & style.keys()
    return {**content, **style, **{n: np_lora(content[n], [style[n]], mu) for n in both}}


@pytest.mark.parametrize("mu", [0.0, 0.5, math.inf])
def test_fused_content_and_split_style_meet_part_by_part(tmp_path: Path, mu: float) -> None:
    content = random_lora(FLUX, 4, 1)
    style_split = random_lora({n: W.shape for n, W in flux_split(dense(content)).items()}, 3, 2)
    a = save(tmp_path / "a.safetensors", kohya(content, kohya_flux, alpha=8.0))
    b = save(tmp_path / "b.safetensors", dotted(style_split))
    c, s = {n: 2.0 * W for n, W in flux_split(dense(content)).items()}, dense(style_split)
    for first, second, expected in ((a, b, split_reference(c, s, mu)), (b, a, split_reference(s, c, mu))):
        for format in ("diffusers", "kohya", "bfl"):
            out = tmp_path / f"{first.stem}-{format}.safetensors"
            fusion = fuse(first, [second], out, mu=mu, format=format)
            assert fusion.totals.projected == len(expected)
            found = read(out)
            if format == "diffusers":
                assert worst(found, expected) < 1e-6
            else:
                stem = kohya_flux if format == "kohya" else "diffusion_model.{}".format
                assert worst(found, {stem(n): W for n, W in joined(expected).items()}) < 1e-6


@pytest.mark.parametrize("mu", [0.5, math.inf])
def test_two_fused_files_are_projected_whole(tmp_path: Path, mu: float) -> None:
    """The style's directions of a block are those of all its parts together, which is more than each part's."""
    a, b = random_lora(FLUX, 4, 1), random_lora(FLUX, 3, 2)
    content = save(tmp_path / "a.safetensors", kohya(a, kohya_flux))
    style = save(tmp_path / "b.safetensors", bfl(b))
    whole = {n: np_lora(dense(a)[n], [dense(b)[n]], mu) for n in FLUX}
    fuse(content, [style], tmp_path / "k.safetensors", mu=mu)
    fuse(content, [style], tmp_path / "d.safetensors", mu=mu, format="diffusers")
    assert worst(read(tmp_path / "k.safetensors"), by_kohya(whole)) < 1e-6
    assert worst(read(tmp_path / "d.safetensors"), flux_split(whole)) < 1e-6


XLABS = {
    "double_blocks.{}.img_attn.qkv": "double_blocks.{}.processor.qkv_lora1",
    "double_blocks.{}.txt_attn.qkv": "double_blocks.{}.processor.qkv_lora2",
    "double_blocks.{}.img_attn.proj": "double_blocks.{}.processor.proj_lora1",
    "double_blocks.{}.txt_attn.proj": "double_blocks.{}.processor.proj_lora2",
    "single_blocks.{}.qkv": "single_blocks.{}.processor.qkv_lora",
    "single_blocks.{}.linear2": "single_blocks.{}.processor.proj_lora",
}


def xlabs(rank: int, seed: int) -> tuple[State, Dense]:
    """A file of block 0 in xlabs' names, whose single blocks have q, k and v alone; its updates in diffusers'."""
    shapes = {name.format(0): FLUX.get(name.format(0), (3 * WIDTH, WIDTH)) for name in XLABS}
    lora = random_lora(shapes, rank, seed)
    state = dotted(
        lora,
        (".down.weight", ".up.weight"),
        stem=lambda name: XLABS[name.replace("blocks.0", "blocks.{}")].format(0),
    )
    updates = dense(lora)
    qkv = np.split(updates.pop("single_blocks.0.qkv"), 3)
    split = flux_split(updates)
    return state, split | {
        f"transformer.single_transformer_blocks.0.attn.to_{x}": W for x, W in zip("qkv", qkv, strict=True)
    }


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_xlabs_with_bfl(tmp_path: Path, mu: float) -> None:
    """Their single blocks are cut differently (q, k, v; and q, k, v, MLP): everything goes part by part."""
    state, c = xlabs(4, 1)
    names = {n: shape for n, shape in FLUX.items() if "linear" in n or "qkv" in n}
    style = random_lora(names, 3, 2)
    a, b = save(tmp_path / "a.safetensors", state), save(tmp_path / "b.safetensors", bfl(style))
    fusion = fuse(a, [b], tmp_path / "out.safetensors", mu=mu)
    assert fusion.format == "diffusers"
    assert any("xlabs" in note for note in fusion.notes)
    s = flux_split(dense(style))
    singles = {n for n in s if ".single_transformer_blocks.0." in n}
    # both have their double blocks' q, k and v in one piece
    whole = {}
    for side in ("to_{}", "add_{}_proj"):
        parts = [f"transformer.transformer_blocks.0.attn.{side.format(x)}" for x in "qkv"]
        block = np_lora(np.concatenate([c[p] for p in parts]), [np.concatenate([s[p] for p in parts])], mu)
        whole |= dict(zip(parts, np.split(block, 3), strict=True))
    expected = {**split_reference(c, s, mu), **whole}
    assert len(singles & c.keys()) == 4
    assert worst(read(tmp_path / "out.safetensors"), expected) < 1e-6


def test_xlabs_alone_as_kohya(tmp_path: Path) -> None:
    """q, k and v of a single block become the first rows of linear1; the MLP's stay zero."""
    state, split = xlabs(4, 1)
    source = save(tmp_path / "a.safetensors", state)
    for format, stem in (("kohya", kohya_flux), ("bfl", "diffusion_model.{}".format)):
        out = tmp_path / f"{format}.safetensors"
        convert(source, out, format=format)
        assert worst(read(out), {stem(n): W for n, W in joined(split).items()}) < 1e-6
        assert set(ranks(out).values()) == {4}


def test_split_parts_that_share_nothing_are_stacked(tmp_path: Path) -> None:
    """Three files' worth of A under a block-diagonal B: exact, of the ranks' sum."""
    shapes = {n: W.shape for n, W in flux_split({name: np.zeros(shape) for name, shape in FLUX.items()}).items()}
    split = random_lora(shapes, 2, 1)
    convert(save(tmp_path / "a.safetensors", dotted(split)), tmp_path / "b.safetensors", format="kohya")
    assert worst(read(tmp_path / "b.safetensors"), by_kohya(joined(dense(split)))) < 1e-6
    found = ranks(tmp_path / "b.safetensors")
    assert {found[kohya_flux(n)] for n in FLUX if "qkv" in n} == {6}
    assert {found[kohya_flux(n)] for n in FLUX if "linear1" in n} == {8}


@pytest.mark.realdata
def test_a_file_without_the_single_blocks_mlp(data_dir: Path, tmp_path: Path) -> None:
    """The real list of such a file, narrow: its linear1 has rows of zeros for the MLP."""
    keys = json.loads(
        (data_dir / "fuse-lora" / "keylists" / "flux_lora_diffusers_no_proj_mlp_format.json").read_text()
    )
    shapes: dict[str, tuple[int, int]] = {}
    for key, shape in keys.items():
        name, _, side = key.removesuffix(".weight").rpartition(".lora_")
        out, inp = shapes.get(name, (0, 0))
        shapes[name] = (shape[0] // 128, inp) if side == "B" else (out, shape[1] // 128)
    lora = random_lora(shapes, 2, 1)
    source = save(tmp_path / "a.safetensors", dotted(lora))
    convert(source, tmp_path / "b.safetensors", format="kohya")
    found = read(tmp_path / "b.safetensors")
    singles = [W for name, W in found.items() if name.endswith("linear1")]
    assert len(singles) == len({n for n in shapes if re.search(r"single_.*to_q$", n)}) > 0
    assert all(W.shape == (7 * 24, 24) and not W[3 * 24 :].any() and W[: 3 * 24].any() for W in singles)
    convert(tmp_path / "b.safetensors", tmp_path / "c.safetensors", format="diffusers")
    again = read(tmp_path / "c.safetensors")
    assert not any(W.any() for name, W in again.items() if name.endswith("proj_mlp"))
    assert worst({n: W for n, W in again.items() if not n.endswith("proj_mlp")}, dense(lora)) < 1e-6


# --- halves and biases ----------------------------------------------------------------------------


def test_the_last_modulations_halves_are_exchanged(tmp_path: Path) -> None:
    """BFL has shift before scale, diffusers scale before shift; a bias delta goes with its rows."""
    last = "final_layer.adaLN_modulation.1"
    shapes = {**FLUX, last: (2 * WIDTH, WIDTH)}
    a = random_lora(shapes, 3, 1)
    bias = torch.arange(2.0 * WIDTH)
    state = bfl(a) | {f"diffusion_model.{last}.diff_b": bias}
    convert(save(tmp_path / "a.safetensors", state), tmp_path / "d.safetensors", format="diffusers")
    convert(tmp_path / "d.safetensors", tmp_path / "k.safetensors", format="kohya")
    W, name = dense(a)[last], "transformer.norm_out.linear"
    assert deviation(read(tmp_path / "d.safetensors")[name], np.roll(W, WIDTH, axis=0)) < 1e-6
    assert deviation(read(tmp_path / "k.safetensors")[kohya_flux(last)], W) < 1e-6
    written = load_file(tmp_path / "d.safetensors")[f"{name}.lora_B.bias"]
    assert torch.equal(written, torch.cat([bias[WIDTH:], bias[:WIDTH]]))
    assert torch.equal(load_file(tmp_path / "k.safetensors")[f"{kohya_flux(last)}.diff_b"], bias)


def test_bias_deltas_are_cut_and_joined_with_their_rows(tmp_path: Path) -> None:
    name = "double_blocks.0.img_attn.qkv"
    bias = torch.arange(3.0 * WIDTH)
    a = kohya(random_lora(FLUX, 3, 1), kohya_flux, alpha=6.0) | {f"{kohya_flux(name)}.diff_b": bias}
    parts = [f"transformer.transformer_blocks.0.attn.to_{x}" for x in "qkv"]
    convert(save(tmp_path / "a.safetensors", a), tmp_path / "d.safetensors", format="diffusers")
    written = load_file(tmp_path / "d.safetensors")
    assert torch.equal(torch.cat([written[f"{part}.lora_B.bias"] for part in parts]), bias)
    only_v = {key: t for key, t in written.items() if key not in {f"{part}.lora_B.bias" for part in parts[:2]}}
    convert(save(tmp_path / "v.safetensors", only_v), tmp_path / "k.safetensors", format="kohya")
    found = load_file(tmp_path / "k.safetensors")[f"{kohya_flux(name)}.diff_b"]
    assert torch.equal(found, torch.cat([torch.zeros(2 * WIDTH), bias[2 * WIDTH :]]))


@pytest.mark.realdata
def test_the_real_sd15_pair_meets_everywhere(data_dir: Path, tmp_path: Path) -> None:
    """attn-procs against unet.….lora.down, and both against the same modules under kohya's names."""
    a, b = (data_dir / "fuse-lora" / f"sd15_{n}.safetensors" for n in ("pokemon_attnprocs", "timohavdk_2100-lora"))
    convert(a, tmp_path / "k.safetensors", format="kohya")
    for content in (a, tmp_path / "k.safetensors"):
        fusion = fuse(content, [b], tmp_path / "out.safetensors", force=True)
        assert (fusion.totals.modules, fusion.totals.projected) == (128, 128)
    assert metadata(tmp_path / "out.safetensors")["ss_network_dim"] == "8"
    outputs = [name for name in ranks(tmp_path / "k.safetensors") if name.endswith("_to_out_0")]
    assert len(outputs) == 32  # the ones that a first layout calls to_out_lora
