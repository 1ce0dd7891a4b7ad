"""Refusals on the command line: the exit status, one line on stderr that names the trouble, nothing left behind.

The command runs in this process. What kind of error each bad file raises is tested where the files are made.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nipstool.cli import run
from nipstool.guard import guarded
from tests.fuse_lora.lora_files import State, dotted, kohya, kohya_sd15, random_lora, save, save_peft

MID = "unet.mid_block.attentions.0.transformer_blocks.0"
TO_Q, TO_K = f"{MID}.attn1.to_q", f"{MID}.attn2.to_k"
SHAPES = {TO_K: (20, 768), TO_Q: (24, 24)}  # by 768 SD1.5 is known
STEM = kohya_sd15(TO_K)
UP_PROJ = "base_model.model.model.layers.0.mlp.up_proj"  # of a family in no table


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A file that nothing is wrong with."""
    return save(tmp_path / "good.safetensors", kohya(random_lora(SHAPES, 4, 1), kohya_sd15, alpha=2.0))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another one."""
    return save(tmp_path / "other.safetensors", kohya(random_lora(SHAPES, 3, 2), kohya_sd15))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output in a folder of its own."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "fused.safetensors"


class Refusal:
    """Runs a command line that should be refused."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path):
        self.capsys, self.folder = capsys, folder

    def __call__(self, status: int, *args: object, says: tuple[str, ...]) -> None:
        before = {p: p.is_file() and p.read_bytes() for p in self.folder.rglob("*")}
        found = guarded(lambda: run(["fuse-lora", *map(str, args)]))
        stdout, stderr = self.capsys.readouterr()
        assert (found, stdout) == (status, ""), stderr
        (line,) = stderr.splitlines()
        assert line.startswith("nipstool: ")
        for words in says:
            assert words in line
        assert {p: p.is_file() and p.read_bytes() for p in self.folder.rglob("*")} == before


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Refusal:
    return Refusal(capsys, tmp_path)


def everywhere(refusal: Refusal, status: int, bad: Path, good: Path, out: Path, *says: str) -> None:
    """As content, as style, alone, and compared in either place."""
    out = out.with_suffix("")  # a name that fits a file and a folder
    for args in (
        ("fuse", bad, good, "-o", out),
        (good, bad, "-o", out),
        ("convert", bad, "-o", out, "--format", "diffusers"),
        ("compare", bad, good),
        ("compare", good, bad),
    ):
        refusal(status, *args, says=says)


# --- 65 -------------------------------------------------------------------------------------------

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 134515008\n"
SPOILT: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut in the tensors": (lambda whole: whole[:-10], "bytes"),
    "cut in the header": (lambda whole: whole[:40], "bytes"),
    "two bytes": (lambda _: b"hi", "2 bytes"),
    "longer than its header says": (lambda whole: whole + b"\0" * 8, "bytes"),
    "a web page": (lambda _: b"<!DOCTYPE html>\n<html><body>404</body></html>" * 9, "web page"),
    "a git-lfs pointer": (lambda _: LFS, "git-lfs pointer"),
    "noise": (lambda _: bytes(range(256)) * 9, "safetensors"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_no_safetensors_file(tmp_path: Path, good: Path, out: Path, refusal: Refusal, case: str) -> None:
    spoil, word = SPOILT[case]
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(spoil(good.read_bytes()))
    everywhere(refusal, 65, bad, good, out, str(bad), word)
    refusal(65, "inspect", bad, says=(str(bad), word))


UNUSABLE: dict[str, tuple[Callable[[], State], tuple[str, ...]]] = {
    "a textual inversion of SDXL": (
        lambda: {"clip_l": torch.ones(2, 768), "clip_g": torch.ones(2, 1280)},
        ("textual inversion",),
    ),
    "positional names": (
        lambda: {"unet:0:up": torch.ones(8, 4), "unet:0:down": torch.ones(4, 8)},
        ("cloneofsimo",),
    ),
    "kohya's OFT": (lambda: {f"{STEM}.oft_diag": torch.ones(4, 5, 5)}, ("OFT", "oft_diag")),
    "a LoHa without its second half": (
        lambda: {f"{STEM}.hada_w1_a": torch.ones(20, 2), f"{STEM}.hada_w1_b": torch.ones(2, 768)},
        (STEM,),
    ),
    "a LoKr that meets no fused block": (
        lambda: {
            "lora_unet_double_blocks_0_img_attn_qkv.lokr_w1": torch.ones(2, 2),
            "lora_unet_double_blocks_0_img_attn_qkv.lokr_w2": torch.ones(4, 4),
        },
        ("img_attn_qkv", "8 rows"),
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_tensors(tmp_path: Path, good: Path, out: Path, refusal: Refusal, case: str) -> None:
    make, says = UNUSABLE[case]
    bad = save(tmp_path / "bad.safetensors", make())
    refusal(65, bad, bad, "-o", out, says=says)
    refusal(65, "convert", bad, "-o", out, "--format", "diffusers", says=says)
    refusal(65, "compare", bad, good, says=())


def test_a_convolution_with_another_kernel(tmp_path: Path, out: Path, refusal: Refusal) -> None:
    name = "unet.down_blocks.0.resnets.0.conv1"
    paths = []
    for k in (3, 1):
        lora = random_lora({TO_K: (20, 768), name: (8, 12 // k, k, 1)}, 2, 1)
        paths.append(save(tmp_path / f"{k}.safetensors", kohya(lora, kohya_sd15)))
    refusal(65, *paths, "-o", out, says=(name, "kernels", "[3, 1]", "[1, 1]"))
    refusal(65, "compare", *paths, says=(name, "kernels"))


def test_full_weights_that_differ_or_have_no_place(tmp_path: Path, out: Path, refusal: Refusal) -> None:
    factors, head = dotted(random_lora({UP_PROJ: (24, 20)}, 4, 1)), "base_model.model.score.weight"
    folders = [save_peft(tmp_path / f"peft{i}", factors | {head: torch.full((2, 3), i)}) for i in (1.0, 2.0)]
    refusal(65, *folders, "-o", out.with_suffix(""), says=(head, "--modules-to-save"))
    says = (f"diffusers has no place for {head}", "--allow-unknown")
    refusal(65, "convert", folders[0], "-o", out, "--format", "diffusers", says=says)


def test_a_format_that_has_no_name_for_a_module(tmp_path: Path, out: Path, refusal: Refusal) -> None:
    encoder = "text_encoder.text_model.encoder.layers.0.mlp.fc1"
    lora = random_lora({**SHAPES, encoder: (20, 24)}, 2, 1)
    bad = save(tmp_path / "bad.safetensors", kohya(lora, kohya_sd15))
    refusal(65, "convert", bad, "-o", out.with_suffix(""), "--format", "peft", says=(encoder, "peft"))


CONFIGS: dict[str, tuple[object, tuple[str, ...]]] = {
    "no JSON": ("{'r': 4}", ("JSON",)),
    "a list": ([4], ("list",)),
    "another method": ({"peft_type": "IA3"}, ("IA3",)),
    "alpha is null": ({"lora_alpha": None}, ("lora_alpha", "None")),
    "alpha is no number": ({"lora_alpha": math.nan}, ("nan",)),
    "a pattern that is a list": ({"alpha_pattern": ["to_k"]}, ("alpha_pattern",)),
    "modules_to_save is a number": ({"modules_to_save": 5}, ("modules_to_save", "5")),
    "modules_to_save of numbers": ({"modules_to_save": [5]}, ("modules_to_save", "5")),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_broken_adapter_config(tmp_path: Path, good: Path, out: Path, refusal: Refusal, case: str) -> None:
    config, says = CONFIGS[case]
    folder = save_peft(tmp_path / "peft", dotted(random_lora(SHAPES, 4, 1)))
    given = {"peft_type": "LORA", "r": 4, "lora_alpha": 4}
    text = (
        config if isinstance(config, str) else json.dumps(given | config if isinstance(config, dict) else config)
    )
    (folder / "adapter_config.json").write_text(text)
    everywhere(refusal, 65, folder, good, out, *says)


def test_a_config_that_is_no_text(tmp_path: Path, good: Path, out: Path, refusal: Refusal) -> None:
    folder = save_peft(tmp_path / "peft", dotted(random_lora(SHAPES, 4, 1)))
    (folder / "adapter_config.json").write_bytes(b"\xff\xfe{\x00}\x00")
    everywhere(refusal, 65, folder, good, out, "adapter_config.json")


@pytest.mark.parametrize(
    "text", ["{", "[1]", '"x"', '{"unet.lora_alpha": "x"}', '{"unet.lora_alpha": 4, "unet.alpha_pattern": [1]}']
)
def test_broken_metadata_of_diffusers(tmp_path: Path, good: Path, out: Path, refusal: Refusal, text: str) -> None:
    state = dotted(random_lora(SHAPES, 4, 1))
    bad = save(tmp_path / "bad.safetensors", state, {"format": "pt", "lora_adapter_metadata": text})
    everywhere(refusal, 65, bad, good, out, str(bad), "lora_adapter_metadata")


# --- 66 and 73 ------------------------------------------------------------------------------------


def test_missing_inputs(tmp_path: Path, good: Path, out: Path, refusal: Refusal) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling.safetensors").symlink_to(tmp_path / "nowhere")
    for name in ("missing.safetensors", "empty", "dangling.safetensors", "no/folder/x.safetensors"):
        everywhere(refusal, 66, tmp_path / name, good, out, str(tmp_path / name))
        refusal(66, "inspect", tmp_path / name, says=(str(tmp_path / name),))


def test_an_output_that_exists(good: Path, other: Path, out: Path, refusal: Refusal) -> None:
    out.write_bytes(b"precious")
    refusal(73, good, other, "-o", out, says=(str(out), "--force"))
    refusal(73, "convert", good, "-o", out, says=(str(out), "--force"))


def test_an_output_that_cannot_be_written(good: Path, other: Path, out: Path, refusal: Refusal) -> None:
    for target in (
        out.parent / "absent" / "x.safetensors",
        good / "x.safetensors",
        f"{out.parent}/",
        "/proc/x.st",
    ):
        refusal(73, good, other, "-o", target, says=(str(target),))
        refusal(73, "convert", good, "-o", target, says=(str(target),))


def test_a_picture_that_cannot_be_written_stops_before_the_work(
    good: Path, other: Path, out: Path, refusal: Refusal
) -> None:
    (out.parent / "there.png").write_bytes(b"precious")
    for name in ("there.png", "absent/x.png"):
        refusal(73, good, other, "-o", out, "--plot", out.parent / name, says=(name,))
        refusal(73, "compare", good, other, "--plot", out.parent / name, says=(name,))


# --- 2 --------------------------------------------------------------------------------------------

REQUESTS: dict[str, tuple[str, ...]] = {
    "--mu -1": ("--mu -1", "0 or more"),
    "--mu nan": ("--mu nan",),
    "--mu strong": ("--mu strong",),
    "--mu auto --leak 0": ("leak",),
    "--k 0": ("--k",),
    "--rank 0": ("--rank",),
    "--energy-rank 1.1": ("--energy-rank 1.1",),
    "--rank 2 --energy-rank 0.5": ("--rank", "--energy-rank"),
    "--weight 1": ("1 weights", "2 files"),
    "-w 1 -w 1 -w 1": ("3 weights", "2 files"),
    "-w 1 -w x": ("--weight", "number"),
    "--dtype int8": ("int8",),
    "--dtype float99": ("float99",),
    "--format onnx": ("onnx", "kohya"),
    "--include [": ("--include",),
    "--device abacus": ("abacus",),
    "--threads 0": ("--threads",),
    "--plot x.docx": ("x.docx",),
}


@pytest.mark.parametrize("options", REQUESTS)
def test_requests_that_make_no_sense(good: Path, other: Path, out: Path, refusal: Refusal, options: str) -> None:
    refusal(2, good, other, "-o", out, *options.split(), says=REQUESTS[options])


def test_names_that_do_not_fit_what_is_written(tmp_path: Path, good: Path, out: Path, refusal: Refusal) -> None:
    """Also where nobody named the format: PEFT in, PEFT out."""
    peft = save_peft(tmp_path / "peft", dotted(random_lora({UP_PROJ: (24, 20)}, 4, 1)))
    picture = out.with_name("a.PNG")
    refusal(2, "convert", good, "-o", picture, "--format", "kohya", says=("a.PNG", "kohya", ".safetensors"))
    refusal(2, good, good, "-o", picture, "--force", says=("a.PNG", "safetensors file"))
    refusal(2, "convert", good, "-o", out, "--format", "peft", says=(out.name, "folder"))
    refusal(2, peft, peft, "-o", out, says=(out.name, "folder"))
    refusal(2, "convert", peft, "-o", picture, says=("a.PNG", "folder"))


@pytest.mark.parametrize("name", ["x", "x.bin", "x.v1.5", "x.safetensors"])
def test_names_that_say_nothing_else_are_taken(good: Path, out: Path, name: str) -> None:
    assert guarded(lambda: run(["fuse-lora", "convert", str(good), "-o", str(out.with_name(name))])) == 0
    assert out.with_name(name).is_file()


def test_a_file_fused_with_itself_has_its_table(good: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: run(["fuse-lora", str(good), str(good), "-o", str(out)])) == 0
    shown = capsys.readouterr().out
    assert "highest ratio" in shown
    assert "overlap: 1 of the content's energy" in shown
    assert guarded(lambda: run(["fuse-lora", "convert", str(good), "-o", str(out), "--force"])) == 0
    assert "overlap" not in capsys.readouterr().out


def test_arguments_that_are_missing_or_too_many(good: Path, out: Path, refusal: Refusal) -> None:
    refusal(2, good, "-o", out, says=("STYLE",))
    refusal(2, good, good, says=("--output",))
    refusal(2, "convert", good, good, "-o", out, says=())
    refusal(2, "-", "-", "-o", out, says=("only one input may be -",))
    refusal(2, good, good, "-o", good, "--force", says=(good.name, "input"))
    refusal(2, "convert", good, "-o", good, "--force", says=(good.name, "input"))


def test_a_family_in_no_table_keeps_its_own_names(tmp_path: Path, out: Path, refusal: Refusal) -> None:
    folder = save_peft(tmp_path / "peft", dotted(random_lora({UP_PROJ: (24, 20)}, 4, 1)))
    refusal(2, "convert", folder, "-o", out, "--format", "kohya", says=("kohya", "own names"))


def test_a_loha_of_a_large_exact_rank(tmp_path: Path, out: Path, refusal: Refusal) -> None:
    """17 x 17 = 289 directions in a matrix of 400 rows."""
    paths = []
    for r in (2, 17):
        sides = {"a": (400, r), "b": (r, 768)}
        state = {f"{STEM}.hada_w{i}_{s}": torch.randn(sides[s]) for i in (1, 2) for s in "ab"}
        paths.append(save(tmp_path / f"{r}.safetensors", state))
    small, large = paths
    says = (STEM, "loha", "289", "256", "--rank")
    refusal(2, large, small, "-o", out, says=says)
    refusal(2, small, large, "-o", out, "--energy-rank", "0.9", says=says)
    refusal(2, "convert", large, "-o", out, says=says)
    refusal(2, "compare", large, small, says=says)
