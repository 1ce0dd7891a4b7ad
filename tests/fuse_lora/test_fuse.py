"""Fusing whole files: every module against NP-LoRA on dense float64 matrices, on real pairs and made ones."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from safetensors.torch import load_file

from nipstool.fuse_lora import fuse
from nipstool.kit.errors import UsageError
from tests.fuse_lora.lora_files import (
    Dense,
    Shapes,
    dense,
    deviation,
    directions,
    dotted,
    kohya,
    kohya_sd15,
    np_lora,
    random_lora,
    ranks,
    read,
    read_factors,
    save,
    union,
    worst,
)

MUS = (0.0, 0.5, math.inf, None)  # None: chosen by module
POKEMON = "sd15_pokemon_attnprocs.safetensors"
EARLY = "sd15_timohavdk_2100-lora.safetensors"
LATE = "sd15_timohavdk_pytorch_lora_weights.safetensors"
BLOCK = "unet.down_blocks.0.attentions.0.transformer_blocks.0"
SHAPES: Shapes = {
    f"{BLOCK}.attn1.to_q": (48, 32),
    f"{BLOCK}.attn1.to_out.0": (32, 40),
    f"{BLOCK}.attn2.to_k": (24, 768),  # the width by which SD1.5 is known
    f"{BLOCK}.ff.net.2": (6, 80),  # fewer rows than two files have ranks
    "unet.down_blocks.0.attentions.0.proj_in": (32, 20, 1, 1),
    "unet.down_blocks.0.resnets.0.conv1": (16, 8, 3, 3),
}


Pair = tuple[np.ndarray, np.ndarray]


def canonical(stem: str) -> str:
    """diffusers' name of a module of SD1.5 in any of its three dotted spellings."""
    name = re.sub(r"\.processor\.(to_\w+)$", r".\1", stem)
    if "blocks" not in name:
        return name
    name = re.sub(r"\.to_out$", ".to_out.0", name)
    return name if name.startswith("unet.") else f"unet.{name}"


def damped(content: np.ndarray, V: np.ndarray, mu: float | None) -> np.ndarray:
    """Rows (of an update, or of its A alone) with less of the span of V; mu None: 0.001 of the energy stays."""
    on_V = (content @ V) @ V.T
    if mu is None:
        mu = max(0.0, math.sqrt(np.linalg.norm(on_V) ** 2 / np.linalg.norm(content) ** 2 / 0.001) - 1.0)
    return content - on_V * (1.0 if math.isinf(mu) else mu / (1.0 + mu))


def size(terms: list[Pair]) -> float:
    """|sum B A| without making it, by the orthogonal factors of the stacked B and A."""
    B = torch.from_numpy(np.concatenate([B for B, _ in terms], axis=1))
    A = torch.from_numpy(np.concatenate([A for _, A in terms]).T)
    return float((torch.linalg.qr(B, mode="r").R @ torch.linalg.qr(A, mode="r").R.mT).norm())


def terms_of(content: Pair | None, style: Pair | None, mu: float | None) -> list[Pair]:
    """What the fused update should be the sum of. A real style B A has the row space of A: its V is orth(A^T)."""
    if content is None or style is None:
        return [pair for pair in (content, style) if pair is not None]
    V = scipy.linalg.orth(style[1].T)
    if mu is None:
        rows = np.linalg.qr(content[0], mode="r") @ content[1]  # as long as the whole update
        on_V = np.linalg.norm(rows @ V) ** 2 / np.linalg.norm(rows) ** 2
        mu = max(0.0, math.sqrt(on_V / 0.001) - 1.0)
    return [(content[0], damped(content[1], V, mu)), style]


def check_real_pair(a: Path, b: Path, outputs: dict[float | None, Path]) -> int:
    """Every module of the outputs, one a mu, against the sum that it should be; returns the number of modules."""
    content, style, *fused = (
        {canonical(stem): pair for stem, pair in read_factors(path).items()} for path in (a, b, *outputs.values())
    )
    for mu, found in zip(outputs, fused, strict=True):
        assert found.keys() == content.keys() | style.keys()
        for name, (B, A) in found.items():
            terms = terms_of(content.get(name), style.get(name), mu)
            assert size([(-B, A), *terms]) < 1e-6 * size(terms), (name, mu)
    check_dense(content, style, dict(zip(outputs, fused, strict=True)))
    return len(fused[0])


def check_dense(
    content: dict[str, Pair], style: dict[str, Pair], fused: dict[float | None, dict[str, Pair]]
) -> None:
    """One module of each shape, entry by entry, with V from LAPACK's SVD of the whole matrix."""
    seen = set()
    for name in sorted(content.keys() & style.keys()):
        shape = len(style[name][0]), style[name][1].shape[1]
        if shape in seen or math.prod(shape) > 2304 * 768:
            continue
        seen.add(shape)
        W_c, W_s = (side[name][0] @ side[name][1] for side in (content, style))
        V = directions(W_s)
        for mu, found in fused.items():
            B, A = found[name]
            assert deviation(B @ A, damped(W_c, V, mu) + W_s) < 1e-6, (name, mu)
    assert seen


# --- real files -----------------------------------------------------------------------------------


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("first", "second", "mus"), [(POKEMON, LATE, MUS), (LATE, POKEMON, (0.5,)), (EARLY, LATE, (0.0, math.inf))]
)
def test_real_sd15_pairs(
    data_dir: Path, tmp_path: Path, first: str, second: str, mus: tuple[float | None, ...]
) -> None:
    a, b = data_dir / "fuse-lora" / first, data_dir / "fuse-lora" / second
    outputs = {mu: tmp_path / f"{mu}.safetensors" for mu in mus}
    for mu, output in outputs.items():
        fusion = fuse(a, [b], output, mu=mu)
        assert fusion.totals.projected == fusion.totals.modules == 128
    assert check_real_pair(a, b, outputs) == 128


@pytest.mark.realdata
@pytest.mark.parametrize("order", [("peft_gpt2", "peft_gpt2_tigrinya"), ("peft_gpt2_tigrinya", "peft_gpt2")])
def test_real_gpt2_pair(data_dir: Path, tmp_path: Path, order: tuple[str, str]) -> None:
    """alpha / r is 1 in one file and 4 in the other, and one adapts 12 modules, the other 36."""
    a, b = (data_dir / "fuse-lora" / name for name in order)
    outputs = {mu: tmp_path / f"{mu}" for mu in MUS}
    for mu, output in outputs.items():
        fusion = fuse(a, [b], output, mu=mu)
        assert (fusion.totals.projected, len(fusion.passed)) == (12, 24)
    assert check_real_pair(a, b, outputs) == 36


@pytest.mark.realdata
def test_real_full_weights_are_the_same_bytes(data_dir: Path, tmp_path: Path) -> None:
    a, b = (data_dir / "fuse-lora" / name for name in ("peft_gpt2", "peft_gpt2_tigrinya"))
    fuse(b, [a], tmp_path / "out", mu=0.5, weights=[1.0, 2.0])
    fuse(a, [a], tmp_path / "same", mu=0)
    score = load_file(a / "adapter_model.safetensors")["base_model.model.score.weight"]
    for folder in ("out", "same"):
        written = load_file(tmp_path / folder / "adapter_model.safetensors")
        assert torch.equal(written["base_model.model.score.weight"], score)


# --- made files -----------------------------------------------------------------------------------


@pytest.fixture
def trio(tmp_path: Path) -> tuple[list[Path], list[Dense]]:
    """Three SD1.5 files of ranks 4, 5 and 3 with every kind of layer, and their dense updates."""
    paths, updates = [], []
    for seed, rank in ((1, 4), (2, 5), (3, 3)):
        lora = random_lora(SHAPES, rank, seed)
        paths.append(save(tmp_path / f"{seed}.safetensors", kohya(lora, kohya_sd15, alpha=2.0 * seed)))
        updates.append({kohya_sd15(name): W * 2.0 * seed / rank for name, W in dense(lora).items()})
    return paths, updates


@pytest.mark.parametrize("mu", MUS)
def test_two_files(tmp_path: Path, trio: tuple[list[Path], list[Dense]], mu: float | None) -> None:
    (a, b, _), (content, style, _) = trio
    fuse(a, [b], tmp_path / "out.safetensors", mu=mu)
    expected = {name: np_lora(content[name], [style[name]], mu) for name in content}
    assert worst(read(tmp_path / "out.safetensors"), expected) < 1e-6


@pytest.mark.parametrize("mu", MUS)
def test_several_styles_are_protected_as_a_union(
    tmp_path: Path, trio: tuple[list[Path], list[Dense]], mu: float | None
) -> None:
    paths, updates = trio
    weights = (0.7, 1.3, -0.4)
    fuse(paths[0], paths[1:], tmp_path / "out.safetensors", mu=mu, weights=weights)
    expected = {
        name: np_lora(updates[0][name], [u[name] for u in updates[1:]], mu, weights=weights) for name in updates[0]
    }
    assert worst(read(tmp_path / "out.safetensors"), expected) < 1e-6


@pytest.mark.parametrize("options", [{"k": 1}, {"k": 3}, {"k": 99}, {"energy": 0.5}, {"energy": 0.9}])
def test_a_cut_of_the_styles_subspace(
    tmp_path: Path, trio: tuple[list[Path], list[Dense]], options: dict[str, float]
) -> None:
    (a, b, c), updates = trio
    for mu, styles in ((0.5, [b]), (math.inf, [b, c])):
        out = tmp_path / f"with-{len(styles)}.safetensors"
        fusion = fuse(a, styles, out, mu=mu, **options)  # type: ignore[arg-type]
        used = updates[1 : 1 + len(styles)]
        expected = {
            name: np_lora(
                updates[0][name],
                [u[name] for u in used],
                mu,
                V=union([u[name] for u in used], **options),  # type: ignore[arg-type]
            )
            for name in updates[0]
        }
        assert worst(read(out), expected) < 1e-6
        if "k" in options and options["k"] < 5:
            assert {m.k for m in fusion.modules} == {
                min(options["k"], 5) if len(styles) == 1 else 2 * options["k"]
            }


def test_mu_chosen_by_leak(tmp_path: Path, trio: tuple[list[Path], list[Dense]]) -> None:
    """On every module where the styles meet more than the leak, exactly the leak stays."""
    (a, b, _), (content, style, _) = trio
    fusion = fuse(a, [b], tmp_path / "out.safetensors", mu=None, leak=0.02)
    found = read(tmp_path / "out.safetensors")
    by_name = {kohya_sd15(m.name): m for m in fusion.modules}
    assert any(m.overlap is not None and m.overlap > 0.02 for m in fusion.modules)
    for name, W in content.items():
        V = directions(style[name])
        before = np.linalg.norm(W @ V) ** 2 / np.linalg.norm(W) ** 2
        after = np.linalg.norm((found[name] - style[name]) @ V) ** 2 / np.linalg.norm(W) ** 2
        assert after == pytest.approx(min(before, 0.02), rel=1e-5)
        assert by_name[name].leaked == pytest.approx(after, rel=1e-5)


@pytest.mark.parametrize("weights", [(2.0, 1.0), (-1.0, 1.0), (1.0, -0.5), (0.0, 1.0), (0.3, 0.0)])
def test_weights_scale_the_output_and_not_the_subspace(
    tmp_path: Path, trio: tuple[list[Path], list[Dense]], weights: tuple[float, float]
) -> None:
    (a, b, _), (content, style, _) = trio
    fuse(a, [b], tmp_path / "out.safetensors", mu=0.5, weights=weights)
    expected = {name: np_lora(content[name], [style[name]], 0.5, weights=weights) for name in content}
    assert worst(read(tmp_path / "out.safetensors"), expected) < 1e-6


def test_a_module_in_one_file_only_passes_times_its_weight(tmp_path: Path) -> None:
    first, second, third = list(SHAPES)[:3]
    a = random_lora({n: SHAPES[n] for n in (first, third)}, 4, 1)
    b = random_lora({n: SHAPES[n] for n in (second, third)}, 4, 2)
    paths = [save(tmp_path / f"{n}.safetensors", dotted(lora)) for n, lora in (("a", a), ("b", b))]
    fuse(paths[0], [paths[1]], tmp_path / "one.safetensors", mu=math.inf)
    fuse(paths[0], [paths[1]], tmp_path / "two.safetensors", mu=math.inf, weights=[-2.0, 0.5])
    one, two = load_file(tmp_path / "one.safetensors"), read(tmp_path / "two.safetensors")
    for name, lora in ((first, a), (second, b)):
        assert torch.equal(one[f"{name}.lora_A.weight"], lora[name].A)
        assert torch.equal(one[f"{name}.lora_B.weight"], lora[name].B)
    assert deviation(two[first], -2.0 * dense(a)[first]) < 1e-6
    assert deviation(two[second], 0.5 * dense(b)[second]) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_passes_keeps_its_bytes_alpha_and_all(tmp_path: Path, dtype: torch.dtype) -> None:
    names = list(SHAPES)
    a = kohya(random_lora({n: SHAPES[n] for n in names[:4]}, 3, 1), kohya_sd15, alpha=1.5, dtype=dtype)
    b = kohya(random_lora({names[0]: SHAPES[names[0]]}, 3, 2), kohya_sd15, alpha=1.5, dtype=dtype)
    paths = [save(tmp_path / f"{n}.safetensors", state) for n, state in (("a", a), ("b", b))]
    fuse(paths[0], [paths[1]], tmp_path / "out.safetensors")
    out = load_file(tmp_path / "out.safetensors")
    assert out.keys() == a.keys()
    for key, tensor in a.items():
        if not key.startswith(kohya_sd15(names[0])):
            assert out[key].dtype == tensor.dtype
            assert torch.equal(out[key], tensor)


def test_include_and_exclude_leave_modules_out(tmp_path: Path, trio: tuple[list[Path], list[Dense]]) -> None:
    (a, b, _), (content, style, _) = trio
    fusion = fuse(a, [b], tmp_path / "out.safetensors", mu=0.5, include=r"attn\d|conv", exclude="to_out")
    left = {kohya_sd15(name) for name in SHAPES if name.endswith(("to_q", "to_k", "conv1"))}
    expected = {name: np_lora(content[name], [style[name]], 0.5) for name in left}
    assert worst(read(tmp_path / "out.safetensors"), expected) < 1e-6
    assert {kohya_sd15(name) for name in fusion.left_out} == content.keys() - left
    with pytest.raises(UsageError, match="leave no module"):
        fuse(a, [b], tmp_path / "none.safetensors", include="nowhere")


def test_rank_limits_are_optimal_and_their_error_is_told(
    tmp_path: Path, trio: tuple[list[Path], list[Dense]]
) -> None:
    (a, b, _), (content, style, _) = trio
    fusions = {
        "rank": fuse(a, [b], tmp_path / "rank.safetensors", rank=3),
        "energy": fuse(a, [b], tmp_path / "energy.safetensors", energy_rank=0.9),
    }
    assert set(ranks(tmp_path / "rank.safetensors").values()) == {3}
    for kind, fusion in fusions.items():
        found, rank = read(tmp_path / f"{kind}.safetensors"), ranks(tmp_path / f"{kind}.safetensors")
        told = {kohya_sd15(m.name): m.truncation for m in fusion.modules}
        for name in content:
            whole = np_lora(content[name], [style[name]], 0.5)
            sigma = np.linalg.svd(whole, compute_uv=False)
            if kind == "energy":
                share = np.cumsum(sigma**2) / np.sum(sigma**2)
                assert rank[name] == int(np.argmax(share >= 0.9)) + 1
            best = np.linalg.norm(sigma[rank[name] :]) / np.linalg.norm(sigma)
            assert deviation(found[name], whole) == pytest.approx(best, rel=1e-4)
            assert told[name] == pytest.approx(best, rel=1e-6)


def test_ranks_add_up_to_what_a_matrix_can_have(tmp_path: Path, trio: tuple[list[Path], list[Dense]]) -> None:
    (a, b, c), _ = trio
    fuse(a, [b, c], tmp_path / "out.safetensors")
    expected = {kohya_sd15(name): min(12, shape[0], math.prod(shape[1:])) for name, shape in SHAPES.items()}
    assert ranks(tmp_path / "out.safetensors") == expected
    assert min(expected.values()) == 6


def test_the_layers_keep_their_shapes(tmp_path: Path, trio: tuple[list[Path], list[Dense]]) -> None:
    (a, b, _), _ = trio
    fuse(a, [b], tmp_path / "out.safetensors")
    written, given = load_file(tmp_path / "out.safetensors"), load_file(a)
    assert written.keys() == given.keys()
    for key, tensor in given.items():
        rank_axis = 1 if key.endswith("up.weight") else 0
        kept = [size for axis, size in enumerate(tensor.shape) if axis != rank_axis]
        assert [size for axis, size in enumerate(written[key].shape) if axis != rank_axis] == kept
