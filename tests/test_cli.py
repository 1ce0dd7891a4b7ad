"""The shell itself: finding commands, choosing verbs, settings, and what it says when something goes wrong."""

import errno
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import pytest
import typer

from nipstool import cli
from nipstool.guard import complain, guarded, wants_style
from nipstool.kit.errors import BusyError, DataError, ExitStatus, InputMissingError, UsageError
from nipstool.terminal import Terminal
from tests.conformance.dist import write_dist
from tests.conformance.job import CLOSED
from tests.conformance.shell import HERE, Outcome, Shell, environment
from tests.conformance.text import assert_one_line, heavy_imports

MARKED = 'from pathlib import Path\nPath("imported").touch()\n'


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def with_package(shell: Shell, commands: dict[str, str], modules: dict[str, str]) -> dict[str, str]:
    """The environment in which another package is installed too."""
    place = write_dist(shell.folder / "site", "example-other", commands, modules)
    return {"PYTHONPATH": os.pathsep.join([environment()["PYTHONPATH"], str(place)])}


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
    env = with_package(shell, {"other": target}, modules)
    listed = shell.run("--help", env=env)
    assert (listed.status, listed.err) == (0, "")
    assert "  other  " in listed.text or "  other\n" in listed.text
    assert_one_line(shell.run("other", "word", env=env), 2)


def test_ours_win_a_clash_of_names(shell: Shell) -> None:
    env = with_package(shell, {"fuse-lora": "aaa:run"}, {"aaa.py": MARKED + "def run(): ...\n"})
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
    env = with_package(shell, {"other": "pack.sub.run:go"}, modules)
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


# --- settings ---


def parsed(shell: Shell, option: str, *args: str, **env: str) -> object:
    """What an option is set to by a command line, without running it."""
    shell.program = [sys.executable, str(HERE / "parse.py"), option]
    done = shell.run(*args, env=env)
    assert done.status == 0, done
    return json.loads(done.out)


FUSE = ("fuse-lora", "a", "b", "-o", "c")
COMPARE = ("fuse-lora", "compare", "a", "b")


def test_variables_leave_the_default_verb_out(shell: Shell) -> None:
    assert parsed(shell, "--mu", *FUSE, NIPSTOOL_FUSE_LORA_MU="7") == "7"
    assert parsed(shell, "--mu", *COMPARE, NIPSTOOL_FUSE_LORA_MU="7") == "0.5"
    assert parsed(shell, "--mu", *COMPARE, NIPSTOOL_FUSE_LORA_COMPARE_MU="7") == "7"
    assert parsed(shell, "--mu", *FUSE, NIPSTOOL_FUSE_LORA_COMPARE_MU="7") == "0.5"
    assert parsed(shell, "--mu", *FUSE, NIPSTOOL_FUSE_LORA_FUSE_MU="7") == "0.5"
    assert parsed(shell, "--energy-rank", *FUSE, NIPSTOOL_FUSE_LORA_ENERGY_RANK="0.9") == 0.9


def test_tables_leave_the_default_verb_out(shell: Shell) -> None:
    (shell.work / "x.toml").write_text("[fuse-lora]\nmu = 7\nweight = [1, 0.5]\n[fuse-lora.compare]\nmu = inf\n")
    from_file = ("--config", "x.toml")
    assert parsed(shell, "--mu", *FUSE, *from_file) == "7"
    assert parsed(shell, "--weight", *FUSE, *from_file) == [1, 0.5]
    assert parsed(shell, "--mu", *COMPARE, *from_file) == "inf"
    assert parsed(shell, "--mu", *FUSE, NIPSTOOL_FUSE_LORA_CONFIG="x.toml") == "7"


def test_no_settings_file_is_picked_up_unasked(shell: Shell) -> None:
    for place in (shell.work, shell.home, shell.home / ".config"):
        place.mkdir(exist_ok=True)
        for name in ("nipstool.toml", ".nipstool.toml", "pyproject.toml"):
            (place / name).write_text("[fuse-lora]\nmu = 7\n[tool.nipstool.fuse-lora]\nmu = 7\n")
    assert parsed(shell, "--mu", *FUSE) == "0.5"


def test_a_number_and_one_value_of_many_are_taken_as_on_the_command_line(shell: Shell) -> None:
    (shell.work / "x.toml").write_text("[fuse-lora]\nweight = 2\nverbose = 2\njson = true\nenergy_rank = 0.5\n")
    values = [
        parsed(shell, name, *FUSE, "--config", "x.toml")
        for name in ("--weight", "--verbose", "--json", "--energy-rank")
    ]
    assert values == [[2], 2, True, 0.5]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mu = 1", "'mu' stands outside"),
        ("[fuse-lroa]\nmu = 1", "did you mean fuse-lora?"),
        ("[fuse-lora]\nenrgy = 1", "has no option 'enrgy'; did you mean energy?"),
        ("[fuse-lora]\nconfig = 'y.toml'", "has no option 'config'"),
        ("[fuse-lora]\nmu = [1]", "mu takes one value"),
        ("[fuse-lora]\nmu = {a = 1}", "mu takes text"),
        ("[fuse-lora]\nmu = 1979-05-27", "mu takes text"),
        ("[fuse-lora]\nverbose = 'much'", "--verbose"),
        ("[fuse-lora]\ncompare = 1", "has no option 'compare'"),
        ("fuse-lora = 1", "stands outside"),
        ("[fuse-lora", "no TOML file"),
        ("\xff", "no TOML file"),
        (None, "No such file"),
    ],
)
def test_a_settings_file_that_makes_no_sense_is_a_usage_error(text: str | None, found: str, shell: Shell) -> None:
    if text is not None:
        (shell.work / "x.toml").write_bytes(text.encode("latin-1"))
    done = shell.run(*FUSE, "--config", "x.toml")
    assert_one_line(done, 2)
    assert found in done.err
    assert "fuse-lora --help" in done.err


def test_a_variable_with_a_wrong_value_is_a_usage_error(shell: Shell) -> None:
    done = shell.run(*FUSE, env={"NIPSTOOL_FUSE_LORA_THREADS": "many"})
    assert_one_line(done, 2)
    assert "--threads" in done.err


def loaded(function: Callable[..., None]) -> cli.Capability:
    """A function of this file as the one verb of a command called `made-up`."""

    class Entry:
        name = "made-up"
        value = "nowhere"

        def load(self) -> Callable[..., None]:
            return function

    return cli.load(Entry(), None)  # type: ignore[arg-type]


def test_settings_go_by_the_options_name_not_by_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(as_document: Annotated[bool, typer.Option("--json")] = False) -> None: ...

    verb = loaded(run).verbs["run"]
    monkeypatch.setenv("NIPSTOOL_MADE_UP_JSON", "1")
    assert verb.make_context("made-up", []).params == {"as_document": True}
    monkeypatch.delenv("NIPSTOOL_MADE_UP_JSON")
    assert verb.make_context("made-up", []).params == {"as_document": False}


# --- the guard ---


@pytest.fixture
def own_sigterm() -> Iterator[None]:
    """`guarded` sets the handler of the whole process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class OutOfMemoryError(RuntimeError):
    """Named as torch names it."""


ENDS: list[tuple[BaseException, int, str]] = [
    (UsageError("a and b"), 2, "a and b"),
    (DataError("x: found y,\n   expected z"), 65, "x: found y, expected z"),
    (InputMissingError("x"), 66, "x"),
    (BusyError("x"), 75, "x"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (SystemExit(143), 143, ""),
    (SystemExit(None), 0, ""),
    (SystemExit("no\nway"), 1, "no way"),
    (BrokenPipeError(), 0, ""),
    (FileNotFoundError(errno.ENOENT, "-", "some file"), 1, "'some file': No such file or directory"),
    (OSError(errno.ENOSPC, "-"), 1, "standard output: No space left on device"),
    (MemoryError(), 1, "out of memory: no details (use --device cpu, a smaller --dtype or fewer --threads)"),
    (
        OutOfMemoryError("CUDA\nmore"),
        1,
        "out of memory: CUDA (use --device cpu, a smaller --dtype or fewer --threads)",
    ),
]


@pytest.mark.usefixtures("own_sigterm")
@pytest.mark.parametrize(("error", "status", "line"), ENDS, ids=lambda value: repr(value)[:30])
def test_each_failure_has_its_status_and_one_line(
    error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    assert guarded(fail) == status
    assert capsys.readouterr() == ("", f"nipstool: {line}\n" if line else "")


@pytest.mark.usefixtures("own_sigterm")
def test_what_nobody_foresaw_is_a_bug_and_says_how_to_report_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert guarded(lambda: 1 // 0) == ExitStatus.INTERNAL
    said = capsys.readouterr().err
    assert said.startswith("nipstool: internal error: ZeroDivisionError: ")
    assert "NIPSTOOL_DEBUG=1" in said
    assert said.count("\n") == 1
    monkeypatch.setenv("NIPSTOOL_DEBUG", "1")
    guarded(lambda: 1 // 0)
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.usefixtures("own_sigterm")
@pytest.mark.parametrize("value", [None, 0, 3])
def test_a_status_is_passed_on(value: int | None) -> None:
    assert guarded(lambda: value) == (value or 0)


def test_complaints_go_nowhere_when_stderr_is_closed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    complain("lost")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    complain("lost")
    assert capsys.readouterr().out == ""


def test_no_file_takes_the_number_of_a_closed_stream(shell: Shell) -> None:
    code = (
        "import sys; from nipstool.guard import guarded\n"
        "def write(): file = open(sys.argv[1], 'w'); file.write(str(file.fileno()))\n"
        "guarded(write)"
    )
    (shell.work / "numbers").touch()
    shell.program = [sys.executable, "-c", code]
    done = shell.run("numbers", stdin=CLOSED, stdout=CLOSED, stderr=CLOSED)
    assert done.status == 0
    assert int((shell.work / "numbers").read_text()) > 2


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"])
def test_a_signal_in_the_middle_of_slow_work(number: signal.Signals, status: int, shell: Shell) -> None:
    (shell.work / "notes").write_text("line\n" * 60)
    (shell.work / "copy").write_text("old")
    running = shell.start("example-copy", "notes", "-o", "copy", "--force", "--slowly")
    running.until(lambda: shell.files > {"notes", "copy"})
    running.send(number)
    done = running.wait()
    assert done.status == status
    assert "Traceback" not in done.err
    assert shell.files == {"notes", "copy"}
    assert (shell.work / "copy").read_text() == "old"


SLOW_IMPORT = """
import time
from pathlib import Path
try:
    Path("begun").touch()
    time.sleep(60)
except BaseException:
    Path("unwound").touch()
"""
SLOW_CLEANING = """
import time
from pathlib import Path
def run():
    try:
        Path("begun").touch()
        time.sleep(60)
    finally:
        Path("cleaning").touch()
        time.sleep(60)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"])
def test_a_signal_does_not_unwind_an_import(number: signal.Signals, status: int, shell: Shell) -> None:
    modules = {"plugin.py": "def run():\n    import slow\n", "slow.py": SLOW_IMPORT}
    running = shell.start("other", env=with_package(shell, {"other": "plugin:run"}, modules))
    running.until((shell.work / "begun").exists)
    running.send(number)
    done = running.wait()
    assert (done.status, done.err) == (status, "")
    assert shell.files == {"begun"}


def test_a_second_signal_ends_a_run_that_is_still_cleaning_up(shell: Shell) -> None:
    env = with_package(shell, {"other": "plugin:run"}, {"plugin.py": SLOW_CLEANING})
    running = shell.start("other", env=env)
    running.until((shell.work / "begun").exists)
    running.send(signal.SIGINT)
    running.until((shell.work / "cleaning").exists)
    running.send(signal.SIGINT)
    done = running.wait()
    assert (done.status, done.err) == (130, "")


# --- the terminal ---


class Screen(io.StringIO):
    """A stream that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


ROWS: Sequence[Sequence[str | float | int | None]] = [
    ["a\tb", 0.123456, 3, None],
    ["[red]c", float("nan"), 12345, 1.0],
]
COLUMNS = ["name", "share", "count", "rest"]


def test_a_table_in_a_pipe_is_tab_separated_with_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().table("Title", COLUMNS, ROWS)
    assert capsys.readouterr().out == "name\tshare\tcount\trest\na b\t0.1235\t3\t-\n[red]c\tnan\t12345\t1\n"


def test_a_table_on_a_terminal_has_its_title_and_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    Terminal().table("Title", COLUMNS, ROWS)
    for word in ("Title", "0.1235", "[red]c", "12345", "\x1b["):
        assert word in screen.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    Terminal().table("Title", COLUMNS, ROWS)
    assert "12345" in screen.getvalue()
    assert "\x1b" not in screen.getvalue()


@pytest.mark.parametrize(
    ("variables", "style"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_when_style_is_wanted(variables: dict[str, str], style: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    assert wants_style(Screen()) == style
    assert not wants_style(io.StringIO())
    assert not wants_style(None)


def test_json_leaves_stdout_to_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(json=True)
    terminal.text("report")
    terminal.table("Title", COLUMNS, ROWS)
    terminal.warn("careful")
    terminal.document({"value": float("inf"), "path": Path("ä")})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"value": None, "path": "ä"}
    assert err == "nipstool: warning: careful\n"


def test_reports_move_to_stderr_where_the_data_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(data_on_stdout=True).text("report")
    assert capsys.readouterr() == ("", "report\n")
    Terminal(data_on_stdout=True, quiet=True).text("report")
    Terminal(quiet=True).warn("careful")
    Terminal(quiet=True).note("by the way")
    assert capsys.readouterr() == ("", "")
    Terminal(quiet=True).text("report")
    assert capsys.readouterr() == ("report\n", "")


def test_a_document_and_data_cannot_share_stdout() -> None:
    with pytest.raises(UsageError, match="-o -"):
        Terminal(json=True, data_on_stdout=True)


def test_a_lone_surrogate_in_a_file_name_is_shown(capsys: pytest.CaptureFixture[str], own_sigterm: None) -> None:
    name = os.fsdecode(b"caf\xe9")
    assert guarded(lambda: Terminal().document({"path": name})) == 0
    assert json.loads(capsys.readouterr().out) == {"path": name}


def test_outcomes_are_compared_whole() -> None:
    """The helper that all of the above trusts."""
    for bad in (
        Outcome(3, b"", "nipstool: x\n"),
        Outcome(2, b"", ""),
        Outcome(2, b"", "nipstool: x\ny\n"),
        Outcome(2, b"", "x\n"),
    ):
        with pytest.raises(AssertionError):
            assert_one_line(bad, 2)
    assert_one_line(Outcome(2, b"", "nipstool: x\n"), 2)
