"""Nothing goes missing unsaid: every tensor is used, passed or listed, and every truncation tells what it lost."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nipstool.fuse_lora import Fusion, convert, fuse
from nipstool.kit.errors import DataError
from nipstool.kit.tensors import TensorReader
from tests.fuse_lora.key_lists import tiny_state
from tests.fuse_lora.lora_files import (
    State,
    dense,
    deviation,
    flux_shapes,
    flux_split,
    kohya,
    kohya_flux,
    kohya_sd15,
    random_lora,
    ranks,
    read,
    save,
)

TO_K = "unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_k"

# the format to write, and how many full weights the file has
REAL = {
    "sd15_pokemon_attnprocs.safetensors": ("kohya", 0),
    "sd15_timohavdk_2100-lora.safetensors": ("diffusers", 0),
    "sd15_timohavdk_pytorch_lora_weights.safetensors": ("peft", 0),
    "peft_gpt2": ("peft", 1),
    "peft_gpt2_tigrinya": ("diffusers", 0),
    "peft_distilbert_imdb": ("peft", 4),
}
KEYLISTS = {
    "anima_lora_kohya_format": None,
    "flux_lokr_bfl_format": "kohya",
    "flux_lora_aitoolkit_format": "diffusers",
    "flux_lora_diffusers_format": "kohya",
    "flux_lora_diffusers_no_proj_mlp_format": "bfl",
    "flux_lora_kohya_format": "diffusers",
    "flux_lora_kohya_with_te1_format": "diffusers",
    "flux_lora_xlabs_format": None,
    "qwen_image_lora_kohya_format": "diffusers",
}
DORA = {"anima_lora_lokr_format": 2, "flux_dora_onetrainer_format": 506}  # how many scales


@pytest.fixture
def keys_read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The keys whose bytes were read."""
    seen: set[str] = set()
    original = TensorReader.read_into

    def spy(self: TensorReader, name: str, buffer: memoryview, begin: int = 0) -> None:
        seen.add(name)
        original(self, name, buffer, begin)

    monkeypatch.setattr(TensorReader, "read_into", spy)
    return seen


def account(source: Path, keys: set[str], seen: set[str], out: Path, **options: Any) -> Fusion:
    """Convert; every key of the file is either read or listed, never both."""
    seen.clear()
    fusion = convert(source, out, **options)
    assert seen | set(fusion.listed) == keys
    assert not seen & set(fusion.listed)
    return fusion


def with_a_stray(source: Path, state: State, folder: Path) -> Path:
    """A copy with one tensor more, that belongs nowhere."""
    stray = folder / "stray" / ("adapter_model.safetensors" if source.is_dir() else "stray.safetensors")
    save(stray, state | {"foo.bar": torch.ones(3)})
    if not source.is_dir():
        return stray
    (stray.parent / "adapter_config.json").write_text((source / "adapter_config.json").read_text())
    return stray.parent


def check_accounts(source: Path, state: State, tmp_path: Path, seen: set[str], format: str | None) -> None:
    keys = set(state)
    fusion = account(source, keys, seen, tmp_path / "out", format=format)
    assert fusion.listed == ()
    stray = with_a_stray(source, state, tmp_path)
    with pytest.raises(DataError, match=r"foo\.bar") as error:
        convert(stray, tmp_path / "never", format=format)
    assert error.value.status == 65
    assert not list(tmp_path.glob("*never*"))
    allowed = account(stray, keys | {"foo.bar"}, seen, tmp_path / "allowed", format=format, allow_unknown=True)
    assert allowed.listed == ("foo.bar",)
    assert len(allowed.modules) == len(fusion.modules)


@pytest.mark.realdata
@pytest.mark.parametrize("name", REAL)
def test_every_tensor_of_real_files(data_dir: Path, tmp_path: Path, keys_read: set[str], name: str) -> None:
    format, full = REAL[name]
    source = data_dir / "fuse-lora" / name
    state = load_file(source / "adapter_model.safetensors" if source.is_dir() else source)
    check_accounts(source, state, tmp_path, keys_read, format)
    saved = [key for key in state if "lora_" not in key and "_lora" not in key and ".lora." not in key]
    assert len(saved) == full
    if full:
        written = load_file(tmp_path / "out" / "adapter_model.safetensors")
        assert all(torch.equal(written[key], state[key]) for key in saved)


@pytest.mark.realdata
@pytest.mark.parametrize("name", KEYLISTS)
def test_every_tensor_of_the_key_lists(data_dir: Path, tmp_path: Path, keys_read: set[str], name: str) -> None:
    state = tiny_state(data_dir, name)
    source = save(tmp_path / "in.safetensors", state)
    check_accounts(source, state, tmp_path, keys_read, KEYLISTS[name])


@pytest.mark.realdata
@pytest.mark.parametrize("name", DORA)
def test_scales_that_are_dropped_are_listed(
    data_dir: Path, tmp_path: Path, keys_read: set[str], name: str
) -> None:
    state = tiny_state(data_dir, name)
    source = save(tmp_path / "in.safetensors", state)
    fusion = account(source, set(state), keys_read, tmp_path / "out", drop_dora=True)
    assert set(fusion.listed) == {key for key in state if key.endswith(".dora_scale")}
    assert len(fusion.listed) == DORA[name]


@pytest.mark.realdata
def test_passed_and_left_out_add_up(data_dir: Path, tmp_path: Path, keys_read: set[str]) -> None:
    """12 modules of one GPT-2 adapter meet 36 of the other: 24 pass, and a pattern leaves some out by name."""
    folders = [data_dir / "fuse-lora" / name for name in ("peft_gpt2", "peft_gpt2_tigrinya")]
    keys: set[str] = set().union(*(load_file(folder / "adapter_model.safetensors") for folder in folders))
    fusion = fuse(folders[0], [folders[1]], tmp_path / "out")
    assert keys_read == keys
    assert (len(fusion.modules), fusion.totals.projected, len(fusion.passed)) == (36, 12, 24)
    part = fuse(folders[0], [folders[1]], tmp_path / "part", exclude=r"mlp\.c_proj")
    assert (len(part.modules), len(part.left_out)) == (24, 12)
    assert all("mlp.c_proj" in name for name in part.left_out)


# --- what a rank limit loses ----------------------------------------------------------------------


def loha(seed: int, shape: tuple[int, int], r: int) -> tuple[State, np.ndarray]:
    """A LoHa without alpha (scale 1) under SD1.5's name of TO_K, and its dense update."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"a": (shape[0], r), "b": (r, shape[1])}
    w = {f"hada_w{i}_{s}": torch.randn(*sizes[s], generator=generator) / 9 for i in (1, 2) for s in "ab"}
    d = {role: t.double().numpy() for role, t in w.items()}
    W = (d["hada_w1_a"] @ d["hada_w1_b"]) * (d["hada_w2_a"] @ d["hada_w2_b"])
    return {f"{kohya_sd15(TO_K)}.{role}": t for role, t in w.items()}, W


def tail(W: np.ndarray, rank: int) -> tuple[float, float]:
    """(what the best approximation of that rank lacks, the norm of the whole)."""
    sigma = np.linalg.svd(W, compute_uv=False)
    return float(np.linalg.norm(sigma[rank:])), float(np.linalg.norm(sigma))


def test_a_large_loha_cut_to_a_rank_tells_what_it_lost(tmp_path: Path) -> None:
    """Of exact rank 17 x 17 it is only approximated, where it stands alone and where it meets a style."""
    state, W = loha(5, (300, 768), 17)
    other = random_lora({TO_K.replace("mid_block", "down_blocks.0"): (20, 768)}, 2, 1)
    plain = next(iter(dense(other).values()))
    a = save(tmp_path / "a.safetensors", state | kohya(other, kohya_sd15))
    fusion = convert(a, tmp_path / "out.safetensors", rank=20)
    lost, norm = tail(W, 20)
    assert 0.5 < lost / norm < 1
    found = read(tmp_path / "out.safetensors")[kohya_sd15(TO_K)]
    assert deviation(found, W) == pytest.approx(lost / norm, rel=1e-6)
    told = {m.name: m.truncation for m in fusion.modules}
    assert told[TO_K] == pytest.approx(lost / norm, rel=1e-6)
    assert sorted(told.values())[0] == 0
    assert fusion.totals.truncation == pytest.approx(lost / math.hypot(norm, np.linalg.norm(plain)), rel=1e-6)
    b = save(tmp_path / "b.safetensors", kohya(random_lora({TO_K: (300, 768)}, 2, 3, size=1e-6), kohya_sd15))
    faint = fuse(a, [b], tmp_path / "fused.safetensors", rank=22, mu=0.0)
    assert {m.name: m.truncation for m in faint.modules}[TO_K] == pytest.approx(tail(W, 22)[0] / norm, rel=1e-4)


@pytest.mark.parametrize("format", ["kohya", "diffusers"])
@pytest.mark.parametrize("limit", [{"rank": 2}, {"energy_rank": 0.8}])
def test_rank_limits_lose_the_tail_of_the_dense_spectrum(
    tmp_path: Path, format: str, limit: dict[str, Any]
) -> None:
    """A fused block stays one matrix in kohya's format and becomes three in diffusers'."""
    shapes = flux_shapes(32)
    names = ["double_blocks.0.img_attn.qkv", "single_blocks.0.linear2"]
    lora = random_lora({name: shapes[name] for name in names}, 6, 1)
    out = tmp_path / "out.safetensors"
    fusion = convert(
        save(tmp_path / "a.safetensors", kohya(lora, kohya_flux, alpha=3.0)), out, format=format, **limit
    )
    errors, all_lost = [], []
    for name in names:
        block = {name: dense(lora)[name] / 2}
        parts = {kohya_flux(name): block[name]} if format == "kohya" else flux_split(block)
        lost = [check_limited(stem, W, out, limit.get("rank")) for stem, W in parts.items()]
        errors.append(math.hypot(*lost) / np.linalg.norm(block[name]))
        all_lost += lost
    assert [m.truncation for m in fusion.modules] == pytest.approx(errors, rel=1e-6)
    whole = math.hypot(*(np.linalg.norm(W) / 2 for W in dense(lora).values()))
    assert fusion.totals.truncation == pytest.approx(math.hypot(*all_lost) / whole, rel=1e-6)


def check_limited(stem: str, W: np.ndarray, out: Path, rank: int | None) -> float:
    """A module of the output has the rank asked for (None: of 0.8 of the energy) and lacks the tail; its norm."""
    if rank is None:
        energy = np.cumsum(np.linalg.svd(W, compute_uv=False) ** 2)
        rank = int(np.argmax(energy >= 0.8 * energy[-1])) + 1
    assert ranks(out)[stem] == rank
    lost, _ = tail(W, rank)
    assert np.linalg.norm(read(out)[stem] - W) == pytest.approx(lost, rel=1e-4)
    return lost
