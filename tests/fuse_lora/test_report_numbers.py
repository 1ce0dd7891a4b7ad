"""The interference report against dense float64 matrices, on a planted overlap and on real pairs; its warnings."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nipstool.cli import run
from nipstool.fuse_lora import Comparison, ModuleReport, compare, fuse, grid, inspect
from nipstool.fuse_lora.report import SWEEP
from nipstool.fuse_lora.synthetic import write_pair
from nipstool.guard import guarded
from tests.fuse_lora.lora_files import (
    Dense,
    Factors,
    Lora,
    Shapes,
    dense,
    directions,
    dotted,
    kohya,
    kohya_sd15,
    random_lora,
    read,
    save,
    union,
)

POKEMON = "sd15_pokemon_attnprocs.safetensors"
EARLY = "sd15_timohavdk_2100-lora.safetensors"
LATE = "sd15_timohavdk_pytorch_lora_weights.safetensors"
BLOCK = "unet.down_blocks.0.attentions.0.transformer_blocks.0"
SHAPES: Shapes = {
    f"{BLOCK}.attn1.to_q": (48, 32),
    f"{BLOCK}.attn2.to_k": (24, 768),  # the width by which SD1.5 is known
    f"{BLOCK}.ff.net.2": (6, 40),  # fewer rows than two files have ranks
    "unet.down_blocks.0.resnets.0.conv1": (16, 4, 3, 3),
}
ONLY_CONTENT, ONLY_STYLE = f"{BLOCK}.attn1.to_v", f"{BLOCK}.attn1.to_k"


class Pair:
    """A content that leans on its style, module by module to another degree; each has a module of its own."""

    def __init__(self, folder: Path):
        style = random_lora({**SHAPES, ONLY_STYLE: (20, 32)}, 5, 2, size=0.7)
        content = random_lora({**SHAPES, ONLY_CONTENT: (20, 32)}, 4, 1)
        for lean, name in enumerate(SHAPES):
            content[name].A.add_(lean * style[name].A[1:])  # not row by row: that would look like one seed
        self.a = save(folder / "a.safetensors", dotted(content))
        self.b = save(folder / "b.safetensors", kohya(style, kohya_sd15, alpha=2.5))
        self.content: Dense = dense(content)
        self.style: Dense = {name: W / 2 for name, W in dense(style).items()}
        self.V = {name: directions(self.style[name]) for name in SHAPES}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


def energy(matrices: Sequence[np.ndarray]) -> float:
    return sum(float(np.linalg.norm(W)) ** 2 for W in matrices)


# --- what was planted is found --------------------------------------------------------------------

PLANTED = {"down.2.attentions.0", "up.0.attentions.1"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """All 722 modules of SDXL at rank 2, half of the content's energy on the style's directions in two blocks."""
    blocks = ("down_blocks.2.attentions.0", "up_blocks.0.attentions.1")
    return compare(*write_pair(tmp_path_factory.mktemp("planted"), rank=2, overlap=0.5, blocks=blocks))


def test_a_planted_overlap_is_recovered_in_every_module(planted: Comparison) -> None:
    modules = planted.forward.modules
    assert (planted.family, len(modules), planted.forward.totals.projected) == ("sdxl", 722, 722)
    inside = [m for m in modules if m.block in PLANTED]
    assert len(inside) == 2 * (2 + 10 * 10)
    for m in inside:
        assert m.overlap == pytest.approx(0.5, abs=1e-6)
        assert m.retained == pytest.approx(1 - 0.5 * (1 - 1 / 1.5**2), abs=1e-6)
    elsewhere = [m.ratio for m in modules if m.block not in PLANTED and m.ratio is not None]
    assert len(elsewhere) == 722 - len(inside)
    assert np.mean(elsewhere) == pytest.approx(1, abs=0.2)


def test_the_hottest_cells_of_the_picture_are_the_planted_blocks(planted: Comparison) -> None:
    rows, columns, values = grid(planted.forward.modules)
    assert (len(rows), len(columns)) == (11, 12)  # blocks with attention; 10 layers of each and 2 around them
    by_heat = sorted(
        ((value or 0.0, row) for row, line in zip(rows, values, strict=True) for value in line), reverse=True
    )
    assert {row for _, row in by_heat[: 2 * 12]} == PLANTED
    assert all(value == pytest.approx(0.5, abs=1e-6) for value, _ in by_heat[: 2 * 12])
    assert by_heat[2 * 12][0] < 0.1


# --- every number against the dense matrices ------------------------------------------------------


def check_module(m: ModuleReport, W_c: np.ndarray, W_s: np.ndarray, V: np.ndarray, mu: float) -> None:
    c = 1.0 if math.isinf(mu) else mu / (1 + mu)
    left = W_c - c * W_c @ V @ V.T
    size = np.linalg.norm(W_c)
    U, sigma, _ = np.linalg.svd(W_s, full_matrices=False)
    U = U[:, sigma > 1e-7 * sigma[0]]
    _, sigma_c, Vh_c = np.linalg.svd(W_c, full_matrices=False)
    cosines = np.linalg.svd(Vh_c[sigma_c > 1e-7 * sigma_c[0]] @ V, compute_uv=False)
    expected = {
        "norm_content": size,
        "norm_style": np.linalg.norm(W_s),
        "cosine": np.sum(W_c * W_s) / size / np.linalg.norm(W_s),
        "overlap": np.linalg.norm(W_c @ V) ** 2 / size**2,
        "chance": V.shape[1] / W_c.shape[1],
        "overlap_out": np.linalg.norm(U.T @ W_c) ** 2 / size**2,
        "chance_out": U.shape[1] / W_c.shape[0],
        "principal_max": cosines[0],
        "principal_mean": cosines.mean(),
        "retained": np.linalg.norm(left) ** 2 / size**2,
        "leaked": np.linalg.norm(left @ V) ** 2 / size**2,
        "change": np.linalg.norm(left - W_c) / np.linalg.norm(W_c + W_s),
        "top1_content": sigma_c[0] ** 2 / size**2,
        "top1_style": sigma[0] ** 2 / np.sum(sigma**2),
        "stable_rank_content": size**2 / sigma_c[0] ** 2,
        "stable_rank_style": np.sum(sigma**2) / sigma[0] ** 2,
        "mu": mu,
    }
    expected["ratio"] = expected["overlap"] / expected["chance"]
    for key, value in expected.items():
        assert getattr(m, key) == pytest.approx(value, rel=1e-6, abs=1e-9), (m.name, key)
    assert m.k == V.shape[1]


@pytest.mark.parametrize("mu", [0.0, 0.5, 3.0, math.inf])
def test_every_number_of_a_module(tmp_path: Path, pair: Pair, mu: float) -> None:
    fusion = fuse(pair.a, [pair.b], tmp_path / "out.safetensors", mu=mu)
    met = {m.name: m for m in fusion.modules if m.overlap is not None}
    assert met.keys() == SHAPES.keys()
    for name, m in met.items():
        check_module(m, pair.content[name], pair.style[name], pair.V[name], mu)
        rows, columns = pair.content[name].shape
        assert (m.rank_content, m.rank_style, m.rank) == (4, 5, min(9, rows, columns))
        assert (m.files, m.truncation) == ((0, 1), 0)


def test_both_directions_of_a_comparison(pair: Pair) -> None:
    found = compare(pair.a, pair.b, mu=2.0)
    assert (found.forward.content, found.backward.content) == (str(pair.a), str(pair.b))
    for m in found.forward.modules:
        if m.name in SHAPES:
            check_module(m, pair.content[m.name], pair.style[m.name], pair.V[m.name], 2.0)
    for m in found.backward.modules:
        if m.name in SHAPES:
            W = pair.content[m.name]
            check_module(m, pair.style[m.name], W, directions(W), 2.0)
    assert len(found.forward.modules) == len(found.backward.modules) == len(SHAPES) + 2


def test_several_styles_are_measured_as_their_union_and_sum(tmp_path: Path, pair: Pair) -> None:
    third = random_lora(SHAPES, 2, 7)
    c = save(tmp_path / "c.safetensors", dotted(third))
    fusion = fuse(pair.a, [pair.b, c], tmp_path / "out.safetensors", mu=0.5, weights=[1.0, 1.0, -2.0])
    for m in fusion.modules:
        if m.name in SHAPES:
            W_c, styles = pair.content[m.name], [pair.style[m.name], dense(third)[m.name]]
            V = union(styles)
            plain = W_c + styles[0] - 2 * styles[1]
            assert m.k == V.shape[1]
            assert m.overlap == pytest.approx(np.linalg.norm(W_c @ V) ** 2 / np.linalg.norm(W_c) ** 2, rel=1e-6)
            moved = np.linalg.norm(W_c @ V) / 3  # c = 0.5 / 1.5
            assert m.change == pytest.approx(moved / np.linalg.norm(plain), rel=1e-6)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.4, -1.5)])
def test_totals_are_energy_weighted_sums(tmp_path: Path, pair: Pair, weights: tuple[float, float]) -> None:
    totals = fuse(pair.a, [pair.b], tmp_path / "out.safetensors", mu=0.5, weights=weights).totals
    on_V = energy([pair.content[name] @ pair.V[name] for name in SHAPES])
    whole = energy([pair.content[name] for name in SHAPES])
    w_c, w_s = weights
    plain = energy(
        [
            *(w_c * pair.content[name] + w_s * pair.style[name] for name in SHAPES),
            w_c * pair.content[ONLY_CONTENT],
            w_s * pair.style[ONLY_STYLE],
        ]
    )
    chance = sum(energy([pair.content[n]]) * pair.V[n].shape[1] / pair.content[n].shape[1] for n in SHAPES)
    assert (totals.modules, totals.projected) == (len(SHAPES) + 2, len(SHAPES))
    assert totals.overlap == pytest.approx(on_V / whole, rel=1e-6)
    assert totals.chance == pytest.approx(chance / whole, rel=1e-6)
    assert totals.ratio == pytest.approx(on_V / chance, rel=1e-6)
    assert totals.leaked == pytest.approx(on_V / 1.5**2 / whole, rel=1e-6)
    assert totals.retained == pytest.approx(1 - on_V * (1 - 1 / 1.5**2) / whole, rel=1e-6)
    assert totals.change == pytest.approx(abs(w_c) * math.sqrt(on_V / plain) / 3, rel=1e-6)
    assert totals.norm_content == pytest.approx(math.sqrt(whole), rel=1e-6)
    assert totals.norm_style == pytest.approx(math.sqrt(energy([pair.style[n] for n in SHAPES])), rel=1e-6)


def test_the_sweep_is_what_fusing_would_do(tmp_path: Path, pair: Pair) -> None:
    """In closed form from one measurement; here every mu is fused, read back and measured entry by entry."""
    points = compare(pair.a, pair.b).forward.sweep
    assert tuple(p.mu for p in points) == SWEEP
    assert {0.0, 0.5, math.inf} <= set(SWEEP)
    whole = energy([pair.content[n] for n in SHAPES])
    names = pair.content.keys() | pair.style.keys()
    zero = {n: np.zeros_like(pair.content.get(n, pair.style.get(n))) for n in names}
    plain = {n: pair.content.get(n, zero[n]) + pair.style.get(n, zero[n]) for n in names}
    for place, p in enumerate(points):
        out = tmp_path / f"{place}.safetensors"
        fuse(pair.a, [pair.b], out, mu=p.mu)
        fused = read(out)
        assert fused.keys() == names
        kept = {n: fused[n] - pair.style[n] for n in SHAPES}
        assert p.retained == pytest.approx(energy(list(kept.values())) / whole, rel=1e-5)
        assert p.leaked == pytest.approx(energy([kept[n] @ pair.V[n] for n in SHAPES]) / whole, rel=1e-5, abs=1e-9)
        moved = energy([fused[n] - plain[n] for n in names])
        assert p.change == pytest.approx(math.sqrt(moved / energy(list(plain.values()))), rel=1e-5, abs=1e-6)


def test_a_module_of_one_file_is_reported_without_interference(tmp_path: Path, pair: Pair) -> None:
    fusion = fuse(pair.a, [pair.b], tmp_path / "out.safetensors", weights=[-2.0, 0.5])
    assert set(fusion.passed) == {ONLY_CONTENT, ONLY_STYLE}
    by_name = {m.name: m for m in fusion.modules}
    for name, files, W in (
        (ONLY_CONTENT, (0,), -2.0 * pair.content[ONLY_CONTENT]),
        (ONLY_STYLE, (1,), 0.5 * pair.style[ONLY_STYLE]),
    ):
        m = by_name[name]
        assert (m.files, m.overlap, m.ratio, m.leaked, m.retained, m.change) == (files, *[None] * 5)
        assert (m.rank_content is None, m.rank_style is None) == (files == (1,), files == (0,))
        assert m.plain_norm == pytest.approx(np.linalg.norm(W), rel=1e-6)
    assert {m.name for m in fusion.modules if m.overlap is None} == set(fusion.passed)


def test_unrelated_files_meet_at_chance(tmp_path: Path) -> None:
    """The overlap of a module scatters by about a third around k/n; the mean over 40 by a twentieth."""
    shapes = {f"{BLOCK[:-1]}{i}.attn2.to_{x}": (30, 768) for i in range(20) for x in "kv"}
    a, b = (save(tmp_path / f"{s}.safetensors", dotted(random_lora(shapes, s, s))) for s in (4, 5))
    found = compare(a, b)
    assert all(m.chance == pytest.approx(5 / 768) for m in found.forward.modules)
    assert all(m.chance == pytest.approx(4 / 768) for m in found.backward.modules)
    for one in (found.forward, found.backward):
        assert one.totals.chance == pytest.approx(found.forward.modules[0].chance, rel=0.3)
        assert one.totals.ratio == pytest.approx(1, abs=0.2)
    cut = compare(a, b, k=2)
    assert all(m.chance == pytest.approx(2 / 768) and m.k == 2 for m in cut.forward.modules)


# --- warnings -------------------------------------------------------------------------------------


def warned(found: Sequence[str], *starts: str) -> None:
    """Exactly these warnings, by how they begin."""
    assert len(found) == len(starts), found
    for line, start in zip(found, starts, strict=True):
        assert start in line


@pytest.mark.realdata
def test_two_checkpoints_of_one_run_are_told(data_dir: Path) -> None:
    found = compare(data_dir / "fuse-lora" / EARLY, data_dir / "fuse-lora" / LATE, mu=math.inf)
    for one in (found.forward, found.backward):
        warned(one.warnings, "shared lineage")
        assert one.totals.overlap > 0.99
        assert one.totals.retained < 0.01


@pytest.mark.realdata
def test_the_real_pair_hardly_differs_from_a_plain_sum(data_dir: Path) -> None:
    pair = data_dir / "fuse-lora" / POKEMON, data_dir / "fuse-lora" / LATE
    found = compare(*pair)
    for one in (found.forward, found.backward):
        warned(one.warnings, "of a plain sum")
        assert 0 < one.totals.change < 0.02
        assert f"{one.totals.change:.2%}" in one.warnings[0]
        assert one.totals.ratio == pytest.approx(1, abs=0.2)
    assert compare(*pair, mu=0.0).forward.warnings == ()


def two_files(folder: Path, content: Lora, style: Lora, bases: tuple[str, str] = ("", "")) -> tuple[Path, Path]:
    paths = []
    for name, lora, base in (("a", content, bases[0]), ("b", style, bases[1])):
        about = {"ss_base_model_version": base} if base else {"format": "pt"}
        paths.append(save(folder / f"{name}.safetensors", kohya(lora, kohya_sd15), about))
    return paths[0], paths[1]


def test_a_shared_initialisation_is_told(tmp_path: Path) -> None:
    """One A under two B, as two runs from one seed have it: the input sides coincide, the output sides do not."""
    content, style = random_lora(SHAPES, 4, 1), random_lora(SHAPES, 4, 2)
    near = {n: Factors(style[n].B, content[n].A + 0.1 * style[n].A) for n in SHAPES}
    found = compare(*two_files(tmp_path, content, near))
    warned(found.forward.warnings, "shared initialisation")
    assert found.forward.totals.overlap > 0.9
    assert found.forward.totals.overlap_out < 0.5


@pytest.mark.parametrize(("times", "starts"), [(9.0, ()), (11.0, ("times apart",)), (1 / 11, ("times apart",))])
def test_norms_far_apart_are_told(tmp_path: Path, times: float, starts: tuple[str, ...]) -> None:
    content, style = random_lora(SHAPES, 4, 1), random_lora(SHAPES, 4, 2)
    size = math.sqrt(energy(list(dense(content).values())) / energy(list(dense(style).values())))
    scaled = {n: Factors(style[n].B * size * times, style[n].A) for n in SHAPES}
    lines = [w for w in compare(*two_files(tmp_path, content, scaled)).forward.warnings if "plain sum" not in w]
    warned(lines, *starts)
    assert all("11 times" in line for line in lines)


def test_different_base_models_are_told(tmp_path: Path, pair: Pair) -> None:
    content, style = random_lora(SHAPES, 4, 1), random_lora(SHAPES, 4, 2)
    paths = two_files(tmp_path, content, style, ("sd_v1", "dreamshaper_8"))
    fusion = fuse(*paths[:1], [paths[1]], tmp_path / "out.safetensors", mu=math.inf)
    warned(fusion.warnings, "different base models: dreamshaper_8, sd_v1")
    same = two_files(tmp_path / "same", content, style, ("sd_v1", "sd_v1"))
    assert fuse(*same[:1], [same[1]], tmp_path / "same.safetensors", mu=math.inf).warnings == ()
    assert fuse(pair.a, [pair.b], tmp_path / "pair.safetensors").warnings == ()


# --- JSON -----------------------------------------------------------------------------------------

FUSION = {"output", "format", "family", "dtype", "totals", "passed", "left_out", "listed", "warnings", "notes"}
FUSION |= {"inputs", "modules"}
TOTALS = {"modules", "projected", "overlap", "chance", "ratio", "overlap_out", "retained", "leaked", "change"}
TOTALS |= {"truncation", "norm_content", "norm_style", "likeness"}
MODULE = {"name", "block", "kind", "files", "rank_content", "rank_style", "rank", "k", "mu", "truncation"}
MODULE |= {"norm_content", "norm_style", "cosine", "overlap", "chance", "ratio", "overlap_out", "chance_out"}
MODULE |= {"principal_max", "principal_mean", "retained", "leaked", "change", "top1_content", "top1_style"}
MODULE |= {"stable_rank_content", "stable_rank_style", "likeness", "changed_norm", "plain_norm"}
DIRECTION = {"content", "style", "totals", "sweep", "warnings", "modules"}
FACTS = {"path", "sha256", "family", "format", "base_model", "dtype", "bytes", "tensors", "algorithms", "ranks"}
FACTS |= {"modules", "norm", "bad_values", "trigger_words", "saved", "additive", "unknown", "refused"}


def document(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    """The JSON that a command prints, and nothing else; NaN and Infinity are refused."""
    capsys.readouterr()
    assert guarded(lambda: run(["fuse-lora", *map(str, args), "--json"])) == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_a_fusion_as_json(tmp_path: Path, pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.safetensors"
    found = document(capsys, pair.a, pair.b, "-o", out, "--mu", "inf", "--exclude", "conv1")
    assert found.keys() == FUSION
    assert [found[key] for key in ("output", "format", "family")] == [str(out), "diffusers", "sd15"]
    assert found["totals"].keys() == TOTALS
    assert {m["name"] for m in found["modules"]} == read(out).keys()
    assert all(m.keys() == MODULE for m in found["modules"])
    by_name = {m["name"]: m for m in found["modules"]}
    assert by_name[f"{BLOCK}.attn1.to_q"]["mu"] == "inf"
    assert by_name[ONLY_STYLE]["overlap"] is None
    assert set(found["passed"]) == {ONLY_CONTENT, ONLY_STYLE}
    assert found["left_out"] == ["unet.down_blocks.0.resnets.0.conv1"]
    assert found["inputs"].keys() == {str(pair.a), str(pair.b)}


def test_a_comparison_as_json(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "compare", pair.a, pair.b)
    assert found.keys() == {"family", "inputs", "forward", "backward"}
    for side in ("forward", "backward"):
        assert found[side].keys() == DIRECTION
        assert found[side]["totals"].keys() == TOTALS
        assert all(m.keys() == MODULE for m in found[side]["modules"])
        assert all(p.keys() == {"mu", "retained", "leaked", "change"} for p in found[side]["sweep"])
    assert [p["mu"] for p in found["forward"]["sweep"]][-1] == "inf"
    assert (found["forward"]["content"], found["backward"]["content"]) == (str(pair.a), str(pair.b))


def test_facts_as_json(tmp_path: Path, pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    state = kohya(random_lora(SHAPES, 3, 1), kohya_sd15, alpha=1.5)
    stem = kohya_sd15(f"{BLOCK}.attn1.to_q")
    state[f"{stem}.lora_up.weight"][0, :2] = torch.tensor([math.nan, math.inf])
    bad = save(tmp_path / "bad.safetensors", state, {"ss_trigger_words": "sks", "ss_base_model_version": "sd_v1"})
    good, spoilt = document(capsys, "inspect", pair.b, bad)["files"]
    assert good.keys() == spoilt.keys() == FACTS
    assert (good["bad_values"], spoilt["bad_values"]) == (0, 2)
    assert (spoilt["trigger_words"], spoilt["base_model"]) == (["sks"], "sd_v1")
    assert (good["algorithms"], good["ranks"], good["tensors"]) == ({"lora": 5}, {"5": 5}, 15)
    modules = {m["name"]: m for m in good["modules"]}
    for name, W in pair.style.items():
        sigma = np.linalg.svd(W, compute_uv=False)
        assert modules[name]["spectrum"] == pytest.approx(sigma[:5].tolist(), rel=1e-6)
        assert modules[name]["stable_rank"] == pytest.approx(np.sum(sigma**2) / sigma[0] ** 2, rel=1e-6)
        assert modules[name]["alpha"] == 2.5
    broken = next(m for m in spoilt["modules"] if m["stem"] == stem)
    assert (broken["bad_values"], broken["spectrum"], broken["norm"]) == (2, [], None)
    assert good["norm"] == pytest.approx(math.sqrt(energy(list(pair.style.values()))), rel=1e-6)
    assert inspect(pair.b).sha256 == good["sha256"]
