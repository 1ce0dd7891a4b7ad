"""One contract for every verb of every command, present and future, a third party's included.

tests/conformance/cases.py says how each verb is exercised; a verb that it leaves out fails here.
"""

import json
import os
import pty
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nipstool.kit.manifest import manifest_path
from tests.conformance.cases import CASES, Case
from tests.conformance.job import CLOSED, UNREAD
from tests.conformance.registry import Registry, Verb, registered
from tests.conformance.shell import HERE, PROGRAM, Outcome, Server, Shell, environment
from tests.conformance.text import assert_done, assert_one_line, heavy_imports

USAGE, BAD_DATA, NO_INPUT, CANNOT_CREATE, BUSY, INTERRUPTED, TERMINATED = 2, 65, 66, 73, 75, 130, 143
WIDTH = 80
PAIRS = {"-o": "--output", "-q": "--quiet", "-v": "--verbose", "-h": "--help", "-w": "--weight"}
GARBAGE = b"\xff\xfe\x00 this is no file of any kind that a command reads \x00" * 20

every = pytest.mark.parametrize("case", CASES, ids=str)
with_json = pytest.mark.parametrize("case", [case for case in CASES if case.json], ids=str)
with_config = pytest.mark.parametrize("case", [case for case in CASES if case.setting], ids=str)
writers = pytest.mark.parametrize("case", [case for case in CASES if case.output], ids=str)
printers = pytest.mark.parametrize("case", [case for case in CASES if not case.output], ids=str)
streamers = pytest.mark.parametrize("case", [case for case in CASES if case.writes_stdout], ids=str)
stdin_readers = pytest.mark.parametrize("case", [case for case in CASES if case.reads_stdin], ids=str)
readers = pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case in CASES for name in case.inputs], ids=str
)
Start = Callable[[Case], Shell]


# --- ground ---


@pytest.fixture(scope="session")
def registry() -> Registry:
    return registered(tuple(sorted(environment().items())))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Start:
    """A folder with a case's inputs; heavy verbs run in forks of the server."""

    def start(case: Case) -> Shell:
        shell = Shell(tmp_path, request.getfixturevalue("server") if case.heavy else None)
        case.make(shell.work)
        return shell

    return start


def new_processes(shell: Shell) -> Shell:
    """The same folder, and an interpreter of its own for each run."""
    return Shell(shell.folder / "own", program=shell.program)


def verb_of(registry: Registry, case: Case) -> Verb:
    return next(verb for verb in registry.verbs if (verb.command, verb.verb) == (case.command, case.verb))


def content(path: Path) -> bytes | dict[str, bytes]:
    """A file's bytes, or those of every file of a folder."""
    if path.is_dir():
        return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return path.read_bytes()


def expected_files(case: Case) -> set[str]:
    """What lies in the folder after a valid run: nothing but inputs, output and its manifest."""
    with tempfile.TemporaryDirectory() as folder:
        case.make(Path(folder))
        inputs = set(os.listdir(folder))
    outputs = {case.output, manifest_path(Path(case.output)).name} if case.output else set()
    return inputs | outputs


def output_of(case: Case, shell: Shell) -> Path:
    assert case.output is not None
    return shell.work / case.output


# --- the table and the registry ---


def test_every_registered_verb_has_a_case_here(registry: Registry) -> None:
    assert [(verb.command, verb.verb) for verb in registry.verbs if not verb.params] == []
    assert {(v.command, v.verb) for v in registry.verbs} == {(c.command, c.verb) for c in CASES}


def test_every_command_of_ours_can_be_loaded(registry: Registry) -> None:
    assert registry.broken == ["example-broken"]


@every
def test_the_case_uses_what_the_verb_has(case: Case, registry: Registry) -> None:
    verb = verb_of(registry, case)
    assert (case.output is not None) == verb.has("--output")
    assert case.json == verb.has("--json")
    assert (case.setting is not None) == verb.has("--config")


@every
def test_short_options_mean_the_same_everywhere(case: Case, registry: Registry) -> None:
    for param in verb_of(registry, case).params:
        for short, long in PAIRS.items():
            assert (short in param.spellings) == (long in param.spellings), param


# --- help ---


@every
def test_help_fits_and_has_an_example(case: Case, start: Start, registry: Registry) -> None:
    shell = new_processes(start(case))
    done = shell.run(*case.words, "--help")
    assert_done(done)
    assert done.err == ""
    assert [line for line in done.text.splitlines() if len(line) > WIDTH] == []
    _, _, examples = done.text.partition("Example")
    assert any(line.split()[: 1 + len(case.words)] == ["nipstool", *case.words] for line in examples.splitlines())
    assert shell.run(*case.words, "-h").out == done.out


@every
def test_every_option_and_argument_is_explained(case: Case, registry: Registry) -> None:
    assert [param.name for param in verb_of(registry, case).params if not param.help.strip()] == []


@every
def test_help_imports_nothing_heavy(case: Case, start: Start) -> None:
    shell = new_processes(start(case))
    shell.program = [sys.executable, "-X", "importtime", "-m", "nipstool"]
    done = shell.run(*case.words, "--help")
    assert done.status == 0
    assert heavy_imports(done.err) == set()


@every
def test_help_in_an_ascii_terminal_without_a_home(case: Case, start: Start) -> None:
    shell = new_processes(start(case))
    plain = {"HOME": None, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = shell.run(*case.words, "--help", env=plain, stdin=CLOSED)
    assert_done(done)
    assert done.out.isascii()


@every
def test_help_piped_into_head_ends_quietly(case: Case) -> None:
    words = " ".join(case.words)
    line = f"set -o pipefail; {PROGRAM} {words} --help | head -1"
    done = subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: nipstool")


@every
def test_help_on_a_terminal_has_colours_unless_they_are_unwanted(case: Case) -> None:
    assert b"\x1b[" in on_a_terminal(*case.words, "--help")
    assert b"\x1b" not in on_a_terminal(*case.words, "--help", NO_COLOR="1")


def on_a_terminal(*args: str, **variables: str) -> bytes:
    """What a run shows whose stdout is a terminal."""
    ours, theirs = pty.openpty()
    env = environment(TERM="xterm", **variables)
    process = subprocess.Popen([PROGRAM, *args], stdout=theirs, env=env)
    os.close(theirs)
    shown = b""
    try:
        while block := os.read(ours, 65536):
            shown += block
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    return shown


# --- usage ---


@every
def test_an_unknown_option_is_a_usage_error(case: Case, start: Start) -> None:
    shell = new_processes(start(case))
    done = shell.run(*case.valid, "--no-such-option")
    assert_one_line(done, USAGE)
    assert f"see nipstool {' '.join(case.words)} --help" in done.err


@every
def test_no_arguments_at_all_never_wait_for_input(case: Case, start: Start, registry: Registry) -> None:
    if any(param.required for param in verb_of(registry, case).params):
        assert_one_line(new_processes(start(case)).run(*case.words), USAGE)


@with_config
def test_flag_wins_over_variable_over_file_over_default(case: Case, start: Start) -> None:
    assert case.setting is not None
    option, flag, variable, in_file = case.setting
    shell = new_processes(start(case))
    shell.program = [sys.executable, str(HERE / "parse.py"), option]
    section, key = ".".join(case.words), option.removeprefix("--")
    value = in_file if in_file in ("true", "false") else json.dumps(in_file)
    (shell.work / "settings.toml").write_text(f"[{section}]\n{key} = {value}\n")
    name = "_".join(("NIPSTOOL", *case.words, key)).replace("-", "_").upper()
    with_flag = [option, flag] if flag else [option]
    with_file = ["--config", "settings.toml"]

    def parsed(*more: str, **env: str) -> str:
        return shell.run(*case.valid, *more, env=env).text.strip().strip('"')

    assert parsed(*with_flag, *with_file, **{name: variable}) in (flag, "true")
    assert parsed(*with_file, **{name: variable}) in (variable, "true")
    assert parsed(*with_file) == in_file
    assert parsed() not in (flag, variable, in_file)


@with_config
def test_an_unknown_key_in_the_file_is_a_usage_error(case: Case, start: Start) -> None:
    shell = new_processes(start(case))
    (shell.work / "settings.toml").write_text(f"[{'.'.join(case.words)}]\nno-such-key = 1\n")
    done = shell.run(*case.valid, "--config", "settings.toml")
    assert_one_line(done, USAGE)
    assert "no-such-key" in done.err


# --- a valid run ---


@every
def test_the_same_command_twice_gives_the_same(case: Case, start: Start) -> None:
    """In two new processes and two environments: a usual one, and one as poor as cron's."""
    poor = {"HOME": "/nonexistent", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1", "PYTHONUTF8": "0"}
    shells = [Shell(start(case).folder / name) for name in ("usual", "poor")]
    for shell in shells:
        case.make(shell.work)
    ends = [shell.run(*case.valid, env=env) for shell, env in zip(shells, ({}, poor), strict=True)]
    for shell, end in zip(shells, ends, strict=True):
        assert_done(end)
        assert shell.files == expected_files(case)
        assert os.listdir(shell.home) == []  # nothing is left in the user's home
    assert ends[0].out == ends[1].out
    if case.output is not None:
        first, second = (output_of(case, shell) for shell in shells)
        assert content(first) == content(second)
        assert len(content(first)) > 0


@with_json
def test_json_is_one_document_and_nothing_else(case: Case, start: Start) -> None:
    done = start(case).run(*case.valid, "--json")
    assert_done(done)
    assert isinstance(done.document, dict)
    assert done.out.endswith(b"\n")


@with_json
def test_json_stays_json_in_an_ascii_terminal(case: Case, start: Start) -> None:
    if not case.inputs:
        pytest.skip("reads no file whose name could be shown")
    shell = start(case)
    (shell.work / case.inputs[0]).rename(shell.work / "äöü…🎉.safetensors")
    words = case.with_input(case.inputs[0], "äöü…🎉.safetensors")
    done = shell.run(*words, "--json", env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert_done(done)
    assert done.out.isascii()
    assert done.document == json.loads(shell.run(*words, "--json", *force(case)).out)


def force(case: Case) -> list[str]:
    return ["--force"] if case.output is not None else []


@writers
def test_an_output_has_a_manifest_beside_it(case: Case, start: Start) -> None:
    shell = start(case)
    assert_done(shell.run(*case.valid))
    manifest = json.loads(manifest_path(output_of(case, shell)).read_text())
    assert manifest["argv"][1:] == list(case.valid)
    assert sorted(manifest["inputs"]) == sorted(case.inputs)
    assert manifest["nipstool"]


@stdin_readers
def test_an_input_may_come_from_stdin(case: Case, start: Start) -> None:
    shell = start(case)
    assert_done(shell.run(*case.valid))
    named = case.essence(output_of(case, shell)) if case.output else None
    words = case.with_input(case.inputs[0], "-")
    assert_done(shell.run(*words, *force(case), stdin=str(shell.work / case.inputs[0])))
    if case.output:
        assert case.essence(output_of(case, shell)) == named
    assert_one_line(shell.run(*words, *force(case), stdin=CLOSED), NO_INPUT)


@streamers
def test_an_output_may_go_to_stdout(case: Case, start: Start) -> None:
    shell = start(case)
    assert_done(shell.run(*case.valid))
    before = shell.files
    done = shell.run(*case.with_output("-"))
    assert done.status == 0, done
    assert done.out == content(output_of(case, shell))
    assert "Traceback" not in done.err
    assert shell.files == before
    if case.json:
        assert_one_line(shell.run(*case.with_output("-"), "--json"), USAGE)


@every
def test_a_reader_that_goes_away_ends_the_run_quietly(case: Case, start: Start) -> None:
    shell = start(case)
    done = shell.run(*case.valid, stdout=UNREAD)
    assert_done(done)
    if case.output is not None:
        assert shell.files == expected_files(case)
    if case.writes_stdout:
        assert_done(shell.run(*case.with_output("-"), stdout=UNREAD))


@every
def test_a_full_disk_under_stdout(case: Case, start: Start) -> None:
    shell = start(case)
    as_json = ["--json"] if case.json else []
    assert_failed_at_the_end(shell.run(*case.valid, *as_json, stdout="/dev/full"))
    if case.writes_stdout:
        assert_failed_at_the_end(shell.run(*case.with_output("-"), stdout="/dev/full"))


def assert_failed_at_the_end(done: Outcome) -> None:
    """Status 1; after warnings and notes about the result, one line that says what failed."""
    assert done.status == 1, done
    assert all(line.startswith("nipstool: ") for line in done.err.splitlines()), done
    assert done.err.count("standard output") == 1, done


@every
def test_closed_streams(case: Case, start: Start) -> None:
    shell = start(case)
    assert_done(shell.run(*case.valid, stdin=CLOSED))
    usual = shell.run(*case.valid, *force(case))
    silent = shell.run(*case.valid, *force(case), stderr=CLOSED)
    assert (silent.status, silent.out) == (0, usual.out)
    assert_failed_at_the_end(shell.run(*case.valid, *force(case), stdout=CLOSED))
    assert shell.files == expected_files(case)


# --- bad inputs ---


@readers
def test_a_missing_input(case: Case, name: str, start: Start) -> None:
    shell = start(case)
    (shell.work / name).unlink()
    before = shell.files
    done = shell.run(*case.valid)
    assert_one_line(done, NO_INPUT)
    assert name in done.err
    assert shell.files == before


@readers
@pytest.mark.parametrize("damage", [b"", GARBAGE, None], ids=["empty", "garbage", "truncated"])
def test_a_damaged_input(case: Case, name: str, damage: bytes | None, start: Start) -> None:
    shell = start(case)
    path = shell.work / name
    if damage is None and not case.heavy:
        pytest.skip("half a text is a text")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if damage is None else damage)
    before = shell.files
    done = shell.run(*case.valid)
    assert_one_line(done, BAD_DATA)
    assert name in done.err
    assert shell.files == before


@readers
def test_an_error_shows_its_traceback_when_asked(case: Case, name: str, start: Start) -> None:
    shell = start(case)
    (shell.work / name).unlink()
    done = shell.run(*case.valid, env={"NIPSTOOL_DEBUG": "1"})
    assert done.status == NO_INPUT
    assert "Traceback (most recent call last)" in done.err


# --- outputs ---


@writers
def test_an_output_that_exists_is_replaced_only_when_told(case: Case, start: Start) -> None:
    shell = start(case)
    output_of(case, shell).write_bytes(b"old")
    assert_one_line(shell.run(*case.valid), CANNOT_CREATE)
    assert output_of(case, shell).read_bytes() == b"old"
    assert_done(shell.run(*case.valid, "--force"))
    assert content(output_of(case, shell)) != b"old"
    assert shell.files == expected_files(case)


@writers
def test_an_output_that_is_an_input_is_refused(case: Case, start: Start) -> None:
    shell = start(case)
    for name in case.inputs:
        before = content(shell.work / name)
        for spelling in (name, f"./{name}"):
            assert_one_line(shell.run(*case.with_output(spelling), "--force"), USAGE)
        (shell.work / "link").symlink_to(name)
        assert_one_line(shell.run(*case.with_output("link"), "--force"), USAGE)
        (shell.work / "link").unlink()
        assert content(shell.work / name) == before


@writers
def test_an_output_in_a_folder_that_is_not_there(case: Case, start: Start) -> None:
    assert_one_line(start(case).run(*case.with_output("no/such/folder")), CANNOT_CREATE)


@writers
def test_a_device_stays_a_device(case: Case, start: Start) -> None:
    shell = start(case)
    before = shell.files
    assert_done(shell.run(*case.with_output("/dev/null"), "--force"))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert not os.path.exists("/dev/null.run.json")
    assert shell.files == before


@writers
def test_a_file_that_may_not_grow_leaves_nothing(case: Case, start: Start) -> None:
    shell = start(case)
    before = shell.files
    assert_done(shell.run(*case.valid))
    size = output_of(case, shell).stat().st_size
    for name in shell.files - before:
        (shell.work / name).unlink()
    assert_one_line(shell.run(*case.valid, file_limit=size // 2), 1, CANNOT_CREATE)
    assert shell.files == before


@printers
def test_a_result_that_may_not_grow_fails(case: Case, start: Start) -> None:
    shell = start(case)
    whole = shell.run(*case.valid)
    assert_done(whole)
    done = shell.run(*case.valid, file_limit=len(whole.out) // 2)
    assert done.status == 1, done


@every
def test_a_working_folder_that_cannot_be_written(case: Case, start: Start) -> None:
    shell = start(case)
    shell.work.chmod(0o555)
    before = shell.files
    if case.output is None:
        assert_done(shell.run(*case.valid, bound=True))
    else:
        assert_one_line(shell.run(*case.valid, bound=True), CANNOT_CREATE)
        assert_done(shell.run(*case.with_output(str(shell.home / case.output)), bound=True))
        assert case.output in os.listdir(shell.home)
    assert shell.files == before
    shell.work.chmod(0o755)


# --- signals ---


@writers
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)], ids=["int", "term"]
)
@pytest.mark.parametrize("old", [None, b"old"], ids=["new", "replaced"])
def test_a_signal_while_the_output_is_written(
    case: Case, number: signal.Signals, status: int, old: bytes | None, start: Start
) -> None:
    shell = start(case)
    if old is not None:
        output_of(case, shell).write_bytes(old)
    before = shell.files
    running = shell.start_paused(*case.valid, *([] if old is None else ["--force"]), at="fsync")
    assert shell.files != before  # a part is there
    running.send(number)
    done = running.wait()
    assert done.status == status, done
    assert "Traceback" not in done.err
    assert shell.files == before
    assert old is None or output_of(case, shell).read_bytes() == old


@writers
def test_a_killed_run_leaves_the_old_output_and_the_next_cleans_up(case: Case, start: Start) -> None:
    shell = start(case)
    output_of(case, shell).write_bytes(b"old")
    before = shell.files
    running = shell.start_paused(*case.valid, "--force", at="fsync")
    assert_one_line(shell.run(*case.valid, "--force"), BUSY)
    running.send(signal.SIGKILL)
    assert running.wait().status == -signal.SIGKILL
    assert output_of(case, shell).read_bytes() == b"old"
    assert shell.files > before
    assert_done(shell.run(*case.valid, "--force"))
    assert shell.files == expected_files(case)


@readers
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)], ids=["int", "term"]
)
def test_a_signal_while_an_input_is_read(
    case: Case, name: str, number: signal.Signals, status: int, start: Start
) -> None:
    shell = start(case)
    before = shell.files
    running = shell.start_paused(*case.valid, at=f"open:{name}")
    running.send(number)
    done = running.wait()
    assert done.status == status, done
    assert (done.out, "Traceback" in done.err) == (b"", False)
    assert shell.files == before
