"""One contract for every verb of every command, present and future, a third party's included: its words.

cases/ says how each verb is exercised; a verb that it leaves out fails here.
"""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.conformance.cases import CASES, Case
from tests.conformance.expect import USAGE, Start, assert_done, assert_one_line, heavy_imports
from tests.conformance.job import CLOSED
from tests.conformance.marks import every, with_config
from tests.conformance.parse import parsed
from tests.conformance.registry import Registry, Verb
from tests.conformance.shell import PROGRAM, Shell, environment

WIDTH = 80
PAIRS = {"-o": "--output", "-q": "--quiet", "-v": "--verbose", "-h": "--help", "-w": "--weight"}


def test_every_registered_verb_has_a_case_here(registry: Registry) -> None:
    assert {(v.command, v.verb) for v in registry.verbs} == {(c.command, c.verb) for c in CASES}


def test_every_command_of_ours_can_be_loaded(registry: Registry) -> None:
    assert registry.broken == ["example-broken"]


@every
def test_the_case_uses_what_the_verb_has(case: Case, registry: Registry) -> None:
    verb = verb_of(registry, case)
    outputs = [other.output for other in CASES if other.words == case.words]
    assert any(outputs) == verb.has("--output")  # where -o may be left out, two cases of a verb are in order
    assert case.json == verb.has("--json")
    assert (case.setting is not None) == verb.has("--config")


@every
def test_short_options_mean_the_same_everywhere(case: Case, registry: Registry) -> None:
    for param in verb_of(registry, case).params:
        for short, long in PAIRS.items():
            assert (short in param.spellings) == (long in param.spellings), param


def verb_of(registry: Registry, case: Case) -> Verb:
    return next(verb for verb in registry.verbs if (verb.command, verb.verb) == (case.command, case.verb))


# --- help ---


@every
def test_help_fits_and_has_an_example(case: Case, start: Start) -> None:
    shell = start(case)
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
def test_help_imports_nothing_heavy(case: Case, tmp_path: Path) -> None:
    shell = Shell(tmp_path, program=[sys.executable, "-X", "importtime", "-m", "nipstool"])
    done = shell.run(*case.words, "--help")
    assert done.status == 0
    assert heavy_imports(done.err) == set()


@every
def test_help_in_an_ascii_terminal_without_a_home(case: Case, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
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
    done = start(case).run(*case.valid, "--no-such-option")
    assert_one_line(done, USAGE)
    assert f"see nipstool {' '.join(case.words)} --help" in done.err


@every
def test_no_arguments_at_all_never_wait_for_input(case: Case, start: Start, registry: Registry) -> None:
    if any(param.required for param in verb_of(registry, case).params):
        assert_one_line(start(case).run(*case.words), USAGE)


@with_config
def test_flag_wins_over_variable_over_file_over_default(case: Case, tmp_path: Path) -> None:
    assert case.setting is not None
    option, flag, variable, in_file = case.setting
    key = option.removeprefix("--")
    value = in_file if in_file == "true" else json.dumps(in_file)
    (tmp_path / "settings.toml").write_text(f"[{'.'.join(case.words)}]\n{key} = {value}\n")
    name = "_".join(("NIPSTOOL", *case.words, key)).replace("-", "_").upper()
    with_flag = [option, flag] if flag else [option]
    with_file = ["--config", str(tmp_path / "settings.toml")]

    lines = [
        ({name: variable}, [*case.valid, *with_flag, *with_file]),
        ({name: variable}, [*case.valid, *with_file]),
        ({}, [*case.valid, *with_file]),
        ({}, case.valid),
    ]
    one, two, three, four = map(as_word, parsed(option, lines))
    if flag:
        assert (one, two, three) == (flag, variable, in_file)
        assert four not in (flag, variable, in_file)
    else:  # a flag has no third value
        assert (one, two, three, four) == ("True", "True", "True", "False")


def as_word(value: object) -> str:
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


@with_config
def test_an_unknown_key_in_the_file_is_a_usage_error(case: Case, start: Start) -> None:
    shell = start(case)
    (shell.work / "settings.toml").write_text(f"[{'.'.join(case.words)}]\nno-such-key = 1\n")
    done = shell.run(*case.valid, "--config", "settings.toml")
    assert_one_line(done, USAGE)
    assert "no-such-key" in done.err
