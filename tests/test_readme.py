"""README's commands do what README shows."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest


def blocks(text: str, language: str) -> list[str]:
    """The fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def nipstool(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a README line that begins with nipstool, in `folder`."""
    program, *words = shlex.split(command, comments=True)
    assert program == "nipstool"
    words = [str(path) for word in words for path in (sorted(folder.glob(word)) if "*" in word else [word])]
    return subprocess.run(
        [sys.executable, "-m", "nipstool", *words], cwd=folder, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="session")
def readme(root: Path) -> str:
    return (root / "README.md").read_text(encoding="utf-8")


def test_the_worked_example_prints_what_is_shown(readme: str, tmp_path: Path):
    from nipstool.fuse_lora.synthetic import write_pair

    (example,) = (b for b in blocks(readme, "console") if b.startswith("$ nipstool fuse-lora"))
    command, _, shown = example.removeprefix("$ ").partition("\n")
    write_pair(tmp_path / "demo" / "fuse-lora")
    run = nipstool(command, tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == shown
    assert (tmp_path / "demo/fuse-lora/interference.png").read_bytes().startswith(b"\x89PNG")


def test_the_other_commands_run(readme: str, tmp_path: Path):
    from nipstool.fuse_lora.synthetic import write_pair

    content, style = write_pair(tmp_path, rank=1)
    (tmp_path / "subject.safetensors").symlink_to(content)
    (tmp_path / "kohya.safetensors").symlink_to(content)
    lines = [
        line
        for block in blocks(readme, "sh")
        for line in block.splitlines()
        if line.startswith("nipstool fuse-lora")
    ]
    assert len(lines) >= 5
    assert style.exists()
    for line in lines:
        (tmp_path / "fused.safetensors").unlink(missing_ok=True)
        run = nipstool(line, tmp_path)
        assert run.returncode == 0, f"{line}\n{run.stderr}"


def test_the_stream_example_runs(readme: str, tmp_path: Path):
    lines = [
        line
        for block in blocks(readme, "sh")
        for line in block.splitlines()
        if line.startswith("nipstool filter-nbf")
    ]
    assert len(lines) == 2
    for line in lines:
        command = line.replace("nipstool", f"{shlex.quote(sys.executable)} -m nipstool", 1)
        run = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, f"{line}\n{run.stderr}"
    rows = (tmp_path / "evader.ndjson").read_text().splitlines()
    beliefs = (tmp_path / "beliefs.ndjson").read_text().splitlines()
    assert len(rows) == len(beliefs) == 60
    assert (tmp_path / "belief.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_pruning_example_prints_what_is_shown(readme: str, tmp_path: Path):
    (example,) = (b for b in blocks(readme, "console") if b.startswith("$ nipstool prune-nsc"))
    command, _, shown = example.removeprefix("$ ").partition("\n")
    folder = tmp_path / "demo" / "prune-nsc"
    folder.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "nipstool.prune_nsc.synthetic", str(folder)], check=True)
    run = nipstool(command, tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == shown


def test_the_exit_codes_are_those_of_the_program(readme: str):
    from nipstool.kit.errors import ExitStatus

    listed = {
        int(code) for row in re.findall(r"^\| ([\d, ]+) \|", readme, re.MULTILINE) for code in row.split(",")
    }
    assert listed == {status.value for status in ExitStatus}


def test_the_make_targets_exist(readme: str, root: Path):
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", "\n".join(blocks(readme, "sh")), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_registered_command_is_in_the_table(readme: str):
    from importlib.metadata import entry_points

    for entry in entry_points(group="nipstool.commands"):
        if entry.dist is not None and entry.dist.name == "nipstool":
            assert f"`{entry.name}`" in readme, entry.name
