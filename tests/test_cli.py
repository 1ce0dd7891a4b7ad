"""The command line: how it starts, finds commands and chooses verbs."""

import sys
from pathlib import Path

import pytest

from tests.conformance.dist import installed
from tests.conformance.expect import assert_one_line, heavy_imports
from tests.conformance.shell import Shell

MARKED = 'from pathlib import Path\nPath("imported").touch()\n'


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


# --- start ---


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["--help"], 0),
        (["--version"], 0),
        ([], 2),
        (["fuse-lor"], 2),
        (["fuse-lora", "--x"], 2),
        (["completion", "bash"], 0),
    ],
    ids=str,
)
def test_nothing_heavy_is_imported(args: list[str], status: int, shell: Shell) -> None:
    shell.program = [sys.executable, "-X", "importtime", "-m", "nipstool"]
    done = shell.run(*args)
    assert done.status == status
    assert heavy_imports(done.err) == set()


def test_what_is_run_without_a_word_explains_itself_on_stderr(shell: Shell) -> None:
    done = shell.run()
    assert (done.status, done.out) == (2, b"")
    assert "fuse-lora" in done.err


def test_the_version_is_the_packages(shell: Shell) -> None:
    from nipstool import __version__

    assert shell.run("--version").text == f"nipstool {__version__}\n"
    shell.program = [sys.executable, "-m", "nipstool"]
    assert shell.run("--version").text == f"nipstool {__version__}\n"


# --- finding commands ---


def test_a_third_partys_command_is_listed_without_being_imported(shell: Shell) -> None:
    marker = shell.folder / "imported"
    env = {"EXAMPLE_IMPORTED": str(marker)}
    assert "example-shout   Say words in capitals.\n" in shell.run("--help", env=env).text
    assert not marker.exists()
    assert shell.run("example-shout", "hello", "there", env=env).text == "HELLO THERE\n"
    assert marker.exists()


def test_a_broken_command_harms_nobody(shell: Shell) -> None:
    assert "example-broken" in shell.run("--help").text
    done = shell.run("example-broken", "file")
    assert_one_line(done, 2)
    assert "example-broken" in done.err
    assert "this module is broken on purpose" in done.err
    assert "Traceback" in shell.run("example-broken", env={"NIPSTOOL_DEBUG": "1"}).err
    assert shell.run("example-shout", "hello").text == "HELLO\n"


BROKEN = {
    "no such module": ("absent.module:run", {}),
    "no such attribute": ("plugin:run", {"plugin.py": "x = 1\n"}),
    "a syntax error": ("plugin:run", {"plugin.py": "def run(:\n"}),
    "not text": ("plugin:run", {"plugin.py": "\0"}),
    "a broken package": (
        "package.plugin:run",
        {"package/__init__.py": "1 / 0", "package/plugin.py": "def run(): ..."},
    ),
    "an exit": ("plugin:run", {"plugin.py": "import sys\nsys.exit(7)\n"}),
    "no function": ("plugin:run", {"plugin.py": "run = 3\n"}),
    "no commands": ("plugin:run", {"plugin.py": "import typer\nrun = typer.Typer()\n"}),
    "a type typer cannot read": ("plugin:run", {"plugin.py": "def run(x: dict[str, int]): ...\n"}),
}


@pytest.mark.parametrize("why", BROKEN)
def test_however_it_is_broken(why: str, shell: Shell) -> None:
    target, modules = BROKEN[why]
    env = installed(shell.folder, {"other": target}, modules)
    listed = shell.run("--help", env=env)
    assert (listed.status, listed.err) == (0, "")
    assert "  other  " in listed.text or "  other\n" in listed.text
    assert_one_line(shell.run("other", "word", env=env), 2)


def test_ours_win_a_clash_of_names(shell: Shell) -> None:
    env = installed(shell.folder, {"fuse-lora": "aaa:run"}, {"aaa.py": MARKED + "def run(): ...\n"})
    done = shell.run("fuse-lora", "--help", env=env)
    assert done.status == 0
    assert "--mu" in done.text
    assert (
        done.err
        == "nipstool: warning: the command fuse-lora of package example-other is hidden by an earlier one\n"
    )
    assert not (shell.work / "imported").exists()


def test_help_of_a_package_that_imports_much_is_read_from_its_source(shell: Shell) -> None:
    modules = {
        "pack/__init__.py": MARKED,
        "pack/sub/__init__.py": MARKED,
        "pack/sub/run.py": 'def go():\n    """Go far."""\n',
    }
    env = installed(shell.folder, {"other": "pack.sub.run:go"}, modules)
    assert "other           Go far.\n" in shell.run("--help", env=env).text
    assert not (shell.work / "imported").exists()


# --- verbs ---


def test_a_near_miss_of_a_command_or_verb_is_named(shell: Shell) -> None:
    for args, near in ((["fuse-lor", "a"], "fuse-lora"), (["fuse-lora", "compar", "a", "b"], "compare")):
        done = shell.run(*args)
        assert_one_line(done, 2)
        assert "did you mean" in done.err.lower()
        assert near in done.err.partition("mean")[2]


def test_a_file_with_a_verbs_name_is_reached_by_a_path(shell: Shell) -> None:
    (shell.work / "count").write_text("one\ntwo\n")
    assert shell.run("example-copy", "./count", "-o", "copy").status == 0
    assert (shell.work / "copy").read_text() == "one\ntwo\n"
    assert shell.run("example-copy", "count", "copy").text == "file\tlines\ncopy\t2\n"


def test_a_file_with_nearly_a_verbs_name_is_a_file(shell: Shell) -> None:
    assert_one_line(shell.run("example-copy", "coumt", "-o", "copy"), 2)
    (shell.work / "coumt").write_text("one\n")
    assert shell.run("example-copy", "coumt", "-o", "copy").status == 0


def test_the_default_verb_may_be_spelled_out(shell: Shell) -> None:
    (shell.work / "notes").write_text("one\n")
    assert shell.run("example-copy", "copy", "notes", "-o", "-").out == b"one\n"
