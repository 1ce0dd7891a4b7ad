"""What cannot be done is refused with the right error, in one line that names the input, and leaves nothing."""

import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nipstool.cli import run
from nipstool.fuse_lora import compare, convert, fuse, inspect
from nipstool.guard import guarded
from nipstool.kit.errors import DataError, InputMissingError, NipsError, OutputError, UsageError
from tests.fuse_lora.key_lists import tiny_state
from tests.fuse_lora.lora_files import (
    ATTENTION,
    BLOCK,
    State,
    dotted,
    kohya,
    kohya_sd15,
    kohya_sdxl,
    peft_name,
    random_lora,
    save,
    save_peft,
)

Q = f"{BLOCK}.attn1.to_q"
GOOD = dotted(random_lora(ATTENTION, 4, 1))
KOHYA = kohya(random_lora(ATTENTION, 4, 1), kohya_sd15, alpha=4.0)
STEM = kohya_sd15(Q)


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(folder: Path, kind: type[NipsError], *words: str, call: Callable[[], Any]) -> None:
    """The call raises exactly this, in one line with these words, and every file is as it was before."""
    before = files_below(folder)
    with pytest.raises(NipsError) as caught:
        call()
    assert type(caught.value) is kind, caught.value
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    for word in words:
        assert word in text, text
    assert files_below(folder) == before


# --- files that are no LoRA at all ----------------------------------------------------------------


def raw(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


def tensors(state: State) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        save(path, state)

    return write


def changed(**tensors: torch.Tensor | None) -> State:
    """The good kohya file with tensors of one module replaced or (None) taken away."""
    names = {"down": "lora_down.weight", "up": "lora_up.weight", "alpha": "alpha"}
    state = dict(KOHYA)
    for role, tensor in tensors.items():
        key = f"{STEM}.{names[role]}"
        if tensor is None:
            del state[key]
        else:
            state[key] = tensor
    return state


def spoiled(value: float, role: str) -> State:
    tensor = KOHYA[f"{STEM}.lora_{role}.weight"].clone()
    tensor[1, 2] = value
    return changed(**{role: tensor})


def truncated(path: Path) -> None:
    save(path, KOHYA)
    path.write_bytes(path.read_bytes()[:-100])


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 3226184\n"
FILES: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "truncated": (truncated, ("truncated",)),
    "empty": (raw(b""), ()),
    "two bytes": (raw(b"{}"), ()),
    "HTML": (raw(b"<!DOCTYPE html><html><body>404: not found</body></html>"), ("web page",)),
    "git-lfs pointer": (raw(LFS), ("git-lfs pointer",)),
    "pickle": (raw(pickle.dumps({"a": [1.0] * 50})), ()),
    "zip of torch.save": (lambda path: torch.save({"a": torch.zeros(3)}, path), ()),
    "no tensors": (tensors({}), ()),
    "NaN": (tensors(spoiled(math.nan, "down")), ("NaN", STEM)),
    "infinity": (tensors(spoiled(math.inf, "up")), ("infinite", STEM)),
    "A and B that do not meet": (tensors(changed(down=torch.ones(5, 32))), ("meet", STEM)),
    "a factor of one axis": (tensors(changed(down=torch.ones(32))), (STEM,)),
    "no second factor": (tensors(changed(up=None)), (STEM,)),
    "alpha NaN": (tensors(changed(alpha=torch.tensor(math.nan))), ("alpha", STEM)),
    "alpha of two numbers": (tensors(changed(alpha=torch.ones(2))), ("alpha", STEM)),
    "integers": (tensors(changed(down=torch.ones(4, 32, dtype=torch.int8))), (STEM,)),
    "a stray tensor": (tensors(KOHYA | {"foo.bar": torch.ones(3)}), ("foo.bar", "--allow-unknown")),
    "OFT": (tensors(KOHYA | {"lora_unet_mid_block_x.oft_blocks": torch.ones(2, 4, 4)}), ("OFT",)),
    "BOFT": (tensors(KOHYA | {"lora_unet_mid_block_x.oft_blocks": torch.ones(2, 2, 4, 4)}), ("BOFT",)),
    "GLoRA": (tensors(KOHYA | {"lora_unet_mid_block_x.a1.weight": torch.ones(4, 4)}), ("GLoRA",)),
    "DoRA": (tensors(KOHYA | {f"{STEM}.dora_scale": torch.ones(48, 1)}), ("DoRA", "--drop-dora")),
    "PEFT's DoRA": (tensors(GOOD | {f"{Q}.lora_magnitude_vector": torch.ones(48)}), ("DoRA",)),
    "AdaLoRA": (tensors(GOOD | {f"{Q}.lora_E": torch.ones(4, 1)}), ("AdaLoRA",)),
    "a VAE": (tensors({"encoder.conv_in.weight": torch.ones(4, 3, 3, 3)}), ("VAE",)),
    "a checkpoint": (tensors({"model.layers.0.mlp.weight": torch.ones(4, 4)}), ("checkpoint",)),
    "a textual inversion": (tensors({"emb_params": torch.ones(2, 768)}), ("textual inversion",)),
}


@pytest.mark.parametrize("what", FILES)
def test_a_bad_file_as_content_and_as_style(tmp_path: Path, what: str) -> None:
    write, words = FILES[what]
    bad, good = tmp_path / "bad.safetensors", save(tmp_path / "good.safetensors", GOOD)
    write(bad)
    out = tmp_path / "out.safetensors"
    for call in (
        lambda: fuse(bad, [good], out),
        lambda: fuse(good, [bad], tmp_path / "out", format="peft"),
        lambda: convert(bad, out, format="diffusers"),
        lambda: compare(good, bad),
    ):
        refused(tmp_path, DataError, "bad.safetensors", *words, call=call)


def test_a_stray_tensor_may_be_left_out(tmp_path: Path) -> None:
    bad = save(tmp_path / "bad.safetensors", KOHYA | {"foo.bar": torch.ones(3)})
    fusion = convert(bad, tmp_path / "out.safetensors", allow_unknown=True)
    assert fusion.listed == ("foo.bar",)


def test_unequal_duplicates(tmp_path: Path) -> None:
    """Two spellings of one module that do not say the same."""
    other = dotted({Q: random_lora(ATTENTION, 4, 2)[Q]}, (".lora.down.weight", ".lora.up.weight"))
    bad = save(tmp_path / "bad.safetensors", GOOD | other)
    refused(tmp_path, DataError, "bad.safetensors", Q, call=lambda: convert(bad, tmp_path / "out.safetensors"))


class Boom:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize("content", ["code", "text", "list", "nested"])
def test_bad_torch_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.chdir(tmp_path)
    bad = tmp_path / "adapter_model.bin"
    if content == "text":
        bad.write_text("not a pickle at all")
    else:
        torch.save({"code": Boom(), "list": [torch.ones(2)], "nested": {"a": {"b": torch.ones(2)}}}[content], bad)
    refused(tmp_path, DataError, "adapter_model.bin", call=lambda: convert(bad, tmp_path / "out.safetensors"))
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "JSON"),
        ("[]", "JSON"),
        ('{"peft_type": "LOHA"}', "LOHA"),
        ('{"r": "four"}', "r should"),
        ('{"rank_pattern": []}', None),
        ('{"lora_alpha": 4, "alpha_pattern": {"to_q": "much"}}', "alpha"),
        ('{"lora_alpha": 4, "alpha_pattern": {"(": 3}}', "("),
        ('{"lora_alpha": 4, "use_dora": true}', "DoRA"),
        ('{"lora_alpha": 4, "rank_pattern": [1]}', "rank_pattern"),
    ],
)
def test_bad_configs(tmp_path: Path, text: str, word: str | None) -> None:
    folder = save_peft(tmp_path / "bad", dotted(random_lora(ATTENTION, 4, 1), stem=peft_name))
    (folder / "adapter_config.json").write_text(text)
    if word is None:
        convert(folder, tmp_path / "out")
        return
    refused(tmp_path, DataError, word, call=lambda: convert(folder, tmp_path / "out"))


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("flux_control_lora_format", "control LoRA"),
        ("flux_dora_onetrainer_format", "DoRA"),
        ("anima_lora_lokr_format", "DoRA"),
    ],
)
def test_refused_by_name(data_dir: Path, tmp_path: Path, name: str, what: str) -> None:
    bad = save(tmp_path / "bad.safetensors", tiny_state(data_dir, name))
    out = tmp_path / "out.safetensors"
    refused(tmp_path, DataError, "bad.safetensors", what, call=lambda: convert(bad, out))
    refused(tmp_path, DataError, "bad.safetensors", what, call=lambda: fuse(bad, [bad], out, allow_unknown=True))
    assert what in {reason for reason, _ in inspect(bad, spectra=False).refused}


# --- two files that do not belong together --------------------------------------------------------


def test_pairs_that_cannot_be_fused(tmp_path: Path) -> None:
    sd15 = save(tmp_path / "sd15.safetensors", KOHYA)
    k = f"{BLOCK}.attn2.to_k".replace("down_blocks.0", "down_blocks.1")
    sdxl = save(tmp_path / "sdxl.safetensors", kohya(random_lora({k: (24, 2048)}, 2, 1), kohya_sdxl))
    wide = save(tmp_path / "wide.safetensors", GOOD | {f"{Q}.lora_B.weight": torch.ones(64, 4)})
    other = {name.replace("down_blocks.0", "down_blocks.1"): shape for name, shape in ATTENTION.items()}
    apart = save(tmp_path / "apart.safetensors", dotted(random_lora(other, 2, 1)))
    unknown = save(tmp_path / "unknown.safetensors", dotted(random_lora({"layers.0.x": (4, 4)}, 2, 1)))
    for style, words in (
        (sdxl, ("sd15", "sdxl")),
        (wide, ("[48, 32]", "[64, 32]", Q)),
        (apart, ("no module in common",)),
        (unknown, ("no module in common",)),
    ):
        told = ("sd15.safetensors", style.name, *words)
        refused(tmp_path, DataError, *told, call=lambda s=style: fuse(sd15, [s], tmp_path / "out.safetensors"))
        refused(tmp_path, DataError, *told, call=lambda s=style: compare(sd15, s))


# --- requests that make no sense ------------------------------------------------------------------

OPTIONS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"weights": [1.0]}, ("weight", "2 files")),
    ({"weights": [1.0, math.nan]}, ("finite",)),
    ({"mu": -1.0}, ("mu",)),
    ({"mu": math.nan}, ("mu",)),
    ({"mu": None, "leak": 0.0}, ("leak",)),
    ({"mu": None, "leak": 2.0}, ("leak",)),
    ({"k": 0}, ("k is 0",)),
    ({"k": 2, "energy": 0.5}, ("energy",)),
    ({"energy": 0.0}, ("energy",)),
    ({"energy": 1.5}, ("energy",)),
    ({"rank": 0}, ("rank",)),
    ({"rank": 4, "energy_rank": 0.9}, ("--rank", "--energy-rank")),
    ({"energy_rank": 1.5}, ("energy-rank",)),
    ({"include": "("}, ("--include",)),
    ({"exclude": "["}, ("--exclude",)),
    ({"exclude": "."}, ("no module",)),
    ({"format": "bfl"}, ("bfl", "sd15")),
    ({"format": "comfy"}, ("comfy",)),
    ({"modules_to_save": "both"}, ("modules-to-save",)),
    ({"device": "tpu"}, ("tpu",)),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS)
def test_bad_requests(tmp_path: Path, options: dict[str, Any], words: tuple[str, ...]) -> None:
    a, b = save(tmp_path / "a.safetensors", GOOD), save(tmp_path / "b.safetensors", KOHYA)
    out = tmp_path / "out.safetensors"
    refused(tmp_path, UsageError, *words, call=lambda: fuse(a, [b], out, **options))


def test_standard_input_twice(tmp_path: Path) -> None:
    refused(tmp_path, UsageError, "standard input", call=lambda: fuse("-", ["-"], tmp_path / "out.safetensors"))


# --- places ---------------------------------------------------------------------------------------


def test_missing_inputs(tmp_path: Path) -> None:
    a, out = save(tmp_path / "a.safetensors", GOOD), tmp_path / "out.safetensors"
    (tmp_path / "empty").mkdir()
    for name in ("nowhere.safetensors", "no/where.safetensors", "empty", "a.safetensors/inside"):
        missing = tmp_path / name
        refused(tmp_path, InputMissingError, name, call=lambda m=missing: fuse(a, [m], out))
        refused(tmp_path, InputMissingError, name, call=lambda m=missing: inspect(m))


def test_the_output_is_an_input(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a.safetensors", GOOD), save(tmp_path / "b.safetensors", KOHYA)
    folder = save_peft(tmp_path / "peft", dotted(random_lora(ATTENTION, 4, 1), stem=peft_name))
    (tmp_path / "link.safetensors").symlink_to(a)
    os.link(b, tmp_path / "hard.safetensors")
    for content, out, options in (
        (a, a, {}),
        (a, b, {}),
        (a, tmp_path / "link.safetensors", {}),
        (a, tmp_path / "hard.safetensors", {}),
        (folder, folder, {}),
        (folder, folder / "adapter_model.safetensors", {"format": "kohya"}),
        (folder / "adapter_model.safetensors", folder, {"format": "peft"}),
    ):
        for force in (False, True):
            call = lambda c=content, o=out, f=force, kw=options: fuse(c, [b], o, force=f, **kw)  # noqa: E731
            refused(tmp_path, UsageError, "input", out.name, call=call)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a.safetensors", GOOD), save(tmp_path / "b.safetensors", KOHYA)
    old = save(tmp_path / "old.safetensors", KOHYA)
    plain = save(tmp_path / "plain", KOHYA)
    save(tmp_path / "full" / "x.safetensors", KOHYA)
    for out, options, word in (
        (old, {}, "--force"),
        (tmp_path / "none" / "out.safetensors", {}, "does not exist"),
        (tmp_path / "full", {}, "folder"),
        (tmp_path / "full", {"format": "peft"}, "--force"),
        (plain, {"format": "peft"}, "folder"),
        (a / "out.safetensors", {}, "a.safetensors"),
    ):
        call = lambda o=out, kw=options: fuse(a, [b], o, **kw)  # noqa: E731
        refused(tmp_path, OutputError, out.name, word, call=call)
    assert fuse(a, [b], old, force=True).output == str(old)


def test_a_failure_in_mid_write_leaves_the_old_output(tmp_path: Path) -> None:
    """The NaN is met when half of the file is written."""
    last = list(ATTENTION)[-1]
    state = dict(GOOD)
    state[f"{last}.lora_A.weight"] = torch.full((4, 768), math.nan)
    bad, good = save(tmp_path / "bad.safetensors", state), save(tmp_path / "good.safetensors", KOHYA)
    old = save(tmp_path / "old.safetensors", KOHYA)
    call = lambda format=None, out=old: fuse(good, [bad], out, force=True, format=format)  # noqa: E731
    refused(tmp_path, DataError, "bad.safetensors", last, call=call)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").write_text("old")
    refused(tmp_path, DataError, last, call=lambda: call("peft", tmp_path / "folder"))


# --- the same through the command line ------------------------------------------------------------


COMMANDS = [
    (("stray.safetensors", "b.safetensors", "-o", "out.safetensors"), 65, "foo.bar"),
    (("gone.safetensors", "b.safetensors", "-o", "out.safetensors"), 66, "gone.safetensors"),
    (("b.safetensors", "b.safetensors", "-o", "b.safetensors", "--force"), 2, "b.safetensors"),
    (("b.safetensors", "b.safetensors", "-o", "stray.safetensors"), 73, "stray.safetensors"),
]


@pytest.mark.parametrize(("args", "status", "word"), COMMANDS)
def test_exit_statuses(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    status: int,
    word: str,
) -> None:
    save(tmp_path / "stray.safetensors", KOHYA | {"foo.bar": torch.ones(3)})
    save(tmp_path / "b.safetensors", KOHYA)
    before = files_below(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert guarded(lambda: run(["fuse-lora", *args])) == status
    shown = capfd.readouterr()
    (line,) = shown.err.splitlines()
    assert word in line
    assert shown.out == ""
    assert files_below(tmp_path) == before


def test_the_process_ends_with_the_status(tmp_path: Path) -> None:
    save(tmp_path / "stray.safetensors", KOHYA | {"foo.bar": torch.ones(3)})
    command = [sys.executable, "-m", "nipstool", "fuse-lora", "convert", "stray.safetensors", "-o", "out"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (65, "", 1)


def test_json_of_a_config_is_read_as_utf8(tmp_path: Path) -> None:
    folder = save_peft(tmp_path / "peft", dotted(random_lora(ATTENTION, 4, 1), stem=peft_name), note="größer")
    convert(folder, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text(encoding="utf-8"))["note"] == "größer"
