"""The contract of a valid run: what it writes where, alike every time, whatever its streams are."""

import json
import os
from pathlib import Path

import pytest

from nipstool.kit.manifest import manifest_path
from tests.conformance.cases import CASES, Case
from tests.conformance.expect import (
    NO_INPUT,
    USAGE,
    Start,
    assert_done,
    assert_failed_at_the_end,
    assert_one_line,
    content,
    expected_files,
    force,
    output_of,
)
from tests.conformance.job import CLOSED, UNREAD
from tests.conformance.marks import every, stdin_readers, streamers, with_json, writers
from tests.conformance.shell import Server, Shell


@every
def test_the_same_command_twice_gives_the_same(
    case: Case, tmp_path: Path, server: Server, other_server: Server
) -> None:
    """In processes that hash in different orders, and two environments: a usual one, and one as poor as cron's.

    The first case of every command has a process of its own for the first run; of the others both runs are forks.
    """
    poor = {"HOME": "/nonexistent", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1", "PYTHONUTF8": "0"}
    alone = case is next(other for other in CASES if other.command == case.command)
    shells = [Shell(tmp_path / "usual", None if alone else other_server), Shell(tmp_path / "poor", server)]
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
    if not set(case.inputs[:1]) & set(case.args):
        pytest.skip("names no file that could be shown")
    shell = start(case)
    (shell.work / case.inputs[0]).rename(shell.work / "äöü…🎉.safetensors")
    words = case.with_input(case.inputs[0], "äöü…🎉.safetensors")
    done = shell.run(*words, "--json", env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert_done(done)
    assert done.out.isascii()
    assert done.document == json.loads(shell.run(*words, "--json", *force(case)).out)


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


@every
def test_closed_streams(case: Case, start: Start) -> None:
    shell = start(case)
    assert_done(shell.run(*case.valid, stdin=CLOSED))
    usual = shell.run(*case.valid, *force(case))
    silent = shell.run(*case.valid, *force(case), stderr=CLOSED)
    assert (silent.status, silent.out) == (0, usual.out)
    assert_failed_at_the_end(shell.run(*case.valid, *force(case), stdout=CLOSED))
    assert shell.files == expected_files(case)
