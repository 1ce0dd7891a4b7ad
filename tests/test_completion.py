"""Completion, in the shells themselves: what TAB offers, and what the command then receives."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from nipstool import completion, shells
from nipstool.completion import Shell, script
from nipstool.shells import Command, Option, Tree, Verb

FILES = {Shell.bash: "nipstool.bash", Shell.zsh: "_nipstool", Shell.fish: "nipstool.fish"}
WRITERS: dict[Shell, Callable[[Tree], str]] = {
    Shell.bash: shells.bash,
    Shell.zsh: shells.zsh,
    Shell.fish: shells.fish,
}
NASTY = 'it\'s [a] `b`: $HOME \\ "c" @d@ (e) %s;'
HELP = Option(("-h", "--help"), "Show help.")
OUTPUT = Option(("-o", "--output"), NASTY, "OUT", takes_value=True, files=True)
DEVICE = Option(("--device",), NASTY, "auto|cpu|cuda:N", takes_value=True, words=("auto", "cpu", "cuda"))
SEED = Option(("--seed",), "", "N", takes_value=True)
BAKE = Verb("bake", NASTY, (OUTPUT, DEVICE, SEED, Option(("-v", "--verbose"), "", repeats=True), HELP), files=True)
TASTE = Verb("taste", "", (Option(("--spoon",), ""), HELP), files=True)
SAY = Verb("say", "", (HELP,), words=("hello", "ciao"))
TREE = Tree(
    (Option(("--version",), NASTY), HELP),
    (
        Command("bread", NASTY, (BAKE, TASTE)),
        Command("cake", "", (TASTE,)),
        Command("say", "", (SAY,), hidden=True),
    ),
)

# The keys that are typed after `nipstool `, and the arguments that the command then gets.
TYPED = [
    ("br\t\n", ["bread"]),
    ("--v\t\n", ["--version"]),
    ("bread tas\t\n", ["bread", "taste"]),
    ("bread --dev\tcp\t\n", ["bread", "--device", "cpu"]),
    ("bread bake --dev\tcp\t\n", ["bread", "bake", "--device", "cpu"]),
    ("bread taste --sp\t\n", ["bread", "taste", "--spoon"]),
    ("bread --spo\t\n", ["bread", "--spo"]),
    ("cake --sp\t\n", ["cake", "--spoon"]),
    ("bread my\t\n", ["bread", "my loaf.txt"]),
    ("bread tas\tmy\t\n", ["bread", "taste", "my loaf.txt"]),
    ('bread "my\t\n', ["bread", "my loaf.txt"]),
    ("bread my\\ l\t\n", ["bread", "my loaf.txt"]),
    ("bread ~/here/fol\tde\t\n", ["bread", "@/here/folder/deep.txt"]),
    ("bread -o fold\tdee\t\n", ["bread", "-o", "folder/deep.txt"]),
    ("bread --seed my\t\n", ["bread", "--seed", "my"]),
    ("say hel\t\n", ["say", "hello"]),
    ("say my\t\n", ["say", "my"]),
    ("unheard-of my\t\n", ["unheard-of", "my"]),
    ("unheard-of bre\t\n", ["unheard-of", "bre"]),
    ("bread x tas\t\n", ["bread", "x", "tas"]),
    ("bread bake --spo\t\n", ["bread", "bake", "--spo"]),
    ("bread taste --devi\t\n", ["bread", "taste", "--devi"]),
    ("bread --output=fold\tdee\t\n", ["bread", "--output", "folder/deep.txt"]),
    ("bread x --device=cp\t\n", ["bread", "x", "--device", "cpu"]),
]


def needs(shell: Shell) -> str:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    return path


@pytest.fixture
def kitchen(tmp_path: Path) -> Path:
    """A folder with files to complete, and a command nipstool that writes down its arguments."""
    command = tmp_path / "bin" / "nipstool"
    command.parent.mkdir()
    new, got = tmp_path / "arguments.new", tmp_path / "arguments"
    command.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {new}\nmv {new} {got}\n')
    command.chmod(0o755)
    here = tmp_path / "here"
    (here / "folder").mkdir(parents=True)
    for name in ("my loaf.txt", "folder/deep.txt"):
        (here / name).touch()
    return tmp_path


# --- bash, by its COMPREPLY ---


def offers(text: str, *words: str, cwd: Path) -> list[str]:
    """What bash is offered for the last of the words."""
    program = (
        'eval "$1"; shift; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _nipstool; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = [needs(Shell.bash), "--norc", "-c", program, "bash", text, "nipstool", *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    return [line for line in done.stdout.split("\n") if line]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([""], ["bread", "cake"]),
        (["-"], ["--version", "-h", "--help"]),
        (["bread", ""], ["bake", "taste", "folder", "my loaf.txt"]),
        (["bread", "ta"], ["taste"]),
        (["bread", "taste", ""], ["folder", "my loaf.txt"]),
        (["bread", "-"], ["-o", "--output", "--device", "--seed", "-v", "--verbose", "-h", "--help"]),
        (["bread", "taste", "-"], ["--spoon", "-h", "--help"]),
        (["bread", "x", "--device", "c"], ["cpu", "cuda"]),
        (["bread", "--device", "=", "c"], ["cpu", "cuda"]),
        (["bread", "--device", "="], ["auto", "cpu", "cuda"]),
        (["bread", "-o", "my"], ["my loaf.txt"]),
        (["bread", "--seed", ""], []),
        (["cake", ""], ["folder", "my loaf.txt"]),
        (["say", ""], ["hello", "ciao"]),
        (["nothing", ""], []),
    ],
)
def test_bash_offers(words: list[str], expected: list[str], kitchen: Path) -> None:
    assert sorted(offers(shells.bash(TREE), *words, cwd=kitchen / "here")) == sorted(expected)


def test_bash_is_answered_within_ten_milliseconds(kitchen: Path) -> None:
    loop = "for ((i = 0; i < 100; i++)); do COMP_WORDS=(nipstool bread '') COMP_CWORD=2; _nipstool; done"
    program = f'eval "$1"; TIMEFORMAT="%U %S"; time {loop}'
    command = [needs(Shell.bash), "--norc", "-c", program, "bash", shells.bash(TREE)]
    done = subprocess.run(command, cwd=kitchen / "here", capture_output=True, text=True, timeout=60)
    assert sum(map(float, done.stderr.split())) < 1.0  # CPU seconds for the hundred


# --- all three, by typing ---


@contextmanager
def terminal(shell: Shell, text: str, kitchen: Path) -> Iterator[int]:
    """An interactive shell on a terminal of its own, with the script loaded; gives the terminal."""
    script_file = kitchen / FILES[shell]
    script_file.write_text(text)
    starts = {
        Shell.bash: (["--norc", "--noprofile", "-i"], f"source {script_file}"),
        Shell.zsh: (["-f", "-i"], f"fpath=({kitchen} $fpath); autoload -U compinit; compinit -D -u"),
        Shell.fish: (["--private", "-i", "-N"], f"source {script_file}"),
    }
    words, setup = starts[shell]
    path = needs(shell)
    environment = {"PATH": f"{kitchen}/bin:{os.environ['PATH']}", "HOME": str(kitchen), "TERM": "xterm"}
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(kitchen / "here")
        os.execve(path, [shell, *words], environment)
    try:
        os.write(screen, f"{setup}\n".encode())
        yield screen
    finally:
        os.close(screen)
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
        os.waitpid(pid, 0)


def arguments_after(screen: int, keys: str, kitchen: Path) -> list[str] | None:
    """Type a command line, and wait for what the command wrote down; `--option=value` counts as two words."""
    got = kitchen / "arguments"
    got.unlink(missing_ok=True)
    os.write(screen, f"nipstool {keys}".encode())
    deadline = time.monotonic() + 20
    while not got.exists() and time.monotonic() < deadline:
        drain(screen, 0.05)
    if not got.exists():
        return None
    text = got.read_text().replace(str(kitchen), "@")
    return re.sub(r"(?m)^(--\w+)=", r"\1\n", text).splitlines()


def drain(screen: int, seconds: float) -> None:
    """Let the shell write for a while: its terminal must not fill up."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([screen], [], [], left)[0]:
            os.read(screen, 65536)


@pytest.mark.parametrize("shell", list(Shell))
def test_typing_tab_gives_the_arguments(shell: Shell, kitchen: Path) -> None:
    with terminal(shell, WRITERS[shell](TREE), kitchen) as screen:
        for keys, expected in TYPED:
            assert arguments_after(screen, keys, kitchen) == expected, keys


# --- our own commands ---


@pytest.mark.parametrize("shell", list(Shell))
def test_the_committed_script_is_fresh(shell: Shell, root: Path) -> None:
    assert (root / "completions" / FILES[shell]).read_text() == script(shell), "make completions"


def test_bash_offers_our_commands_and_verbs(root: Path, tmp_path: Path) -> None:
    text = (root / "completions" / FILES[Shell.bash]).read_text()
    assert "fuse-lora" in offers(text, "", cwd=tmp_path)
    assert {"fuse", "compare"} <= set(offers(text, "fuse-lora", "", cwd=tmp_path))
    assert offers(text, "fuse-lora", "a", "b", "--device", "c", cwd=tmp_path) == ["cpu", "cuda"]
    assert sorted(offers(text, "completion", "", cwd=tmp_path)) == ["bash", "fish", "zsh"]
    (tmp_path / "my style.safetensors").touch()
    assert offers(text, "fuse-lora", "-o", "my", cwd=tmp_path) == ["my style.safetensors"]
    assert offers(text, "fuse-lora", "my", cwd=tmp_path) == ["my style.safetensors"]


def test_bash_offers_the_options_that_help_names(root: Path, tmp_path: Path) -> None:
    text = (root / "completions" / FILES[Shell.bash]).read_text()
    for command in completion.tree().commands:
        for verb in command.verbs:
            words = [command.name, verb.name]
            helped = subprocess.run(
                [sys.executable, "-m", "nipstool", *words, "--help"],
                env=os.environ | {"COLUMNS": "200", "TERM": "dumb"},
                cwd=root,
                capture_output=True,
                text=True,
                timeout=60,
            )
            named = re.findall(r"(?m)^  (-\w)?(?:, )?(--[\w-]+)(?: / (--[\w-]+))?", helped.stdout)
            expected = {name for spellings in named for name in spellings if name}
            assert "--help" in expected, helped.stderr
            assert set(offers(text, *words, "-", cwd=tmp_path)) == expected, words


def test_a_plug_in_is_completed_and_a_broken_one_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toaster.py").write_text("def toast(slices: int, brown: int = 3) -> None:\n    'Toast.'\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = {"toast": EntryPoint("toast", "toaster:toast", "x"), "burnt": EntryPoint("burnt", "no_such:f", "x")}
    monkeypatch.setattr(completion, "found", lambda: points)
    text = script(Shell.bash)
    assert offers(text, "", cwd=tmp_path) == ["toast"]
    assert sorted(offers(text, "toast", "-", cwd=tmp_path)) == ["--brown", "--help", "-h"]
    assert "burnt cannot be loaded" in capsys.readouterr().err
