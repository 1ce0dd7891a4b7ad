"""The contract about files: bad inputs are named, outputs appear whole or not at all."""

import os
import signal
import stat

import pytest

from nipstool.kit.parts import remove_tree
from tests.conformance.cases import Case
from tests.conformance.expect import (
    BAD_DATA,
    BUSY,
    CANNOT_CREATE,
    INTERRUPTED,
    NO_INPUT,
    TERMINATED,
    USAGE,
    Start,
    assert_done,
    assert_one_line,
    content,
    expected_files,
    output_of,
    put_old,
)
from tests.conformance.marks import every, printers, readers, writers

GARBAGE = b"\xff\xfe\x00 this is no file of any kind that a command reads \x00" * 20


# --- inputs ---


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
    if damage is None and not case.halves_are_bad:
        pytest.skip("half of this input is one too")
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
    old = put_old(case, shell)
    assert_one_line(shell.run(*case.valid), CANNOT_CREATE)
    assert content(output_of(case, shell)) == old
    assert_done(shell.run(*case.valid, "--force"))
    assert content(output_of(case, shell)) != old
    assert shell.files == expected_files(case)


@writers
def test_an_output_that_is_an_input_is_refused(case: Case, start: Start) -> None:
    shell = start(case)
    for name in case.inputs:
        before = content(shell.work / name)
        if name == case.inputs[0]:
            assert_one_line(shell.run(*case.with_output(f"./{name}"), "--force"), USAGE)
        assert_one_line(shell.run(*case.with_output(name), "--force"), USAGE)
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
    device = shell.work / "null"
    try:  # our own: a command that fails here, run by root, would replace the machine's
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        device.symlink_to("/dev/null")
    before = shell.files
    if case.folder:
        assert_one_line(shell.run(*case.with_output("null"), "--force"), CANNOT_CREATE)
    else:
        assert_done(shell.run(*case.with_output("null"), "--force"))
    assert stat.S_ISCHR(os.stat(device).st_mode)
    assert shell.files == before  # and no manifest


@writers
def test_a_file_that_may_not_grow_leaves_nothing(case: Case, start: Start) -> None:
    shell = start(case)
    before = shell.files
    assert_done(shell.run(*case.valid))
    made = content(output_of(case, shell))
    size = max(map(len, made.values())) if isinstance(made, dict) else len(made)
    for name in shell.files - before:
        remove_tree(shell.work / name)
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


# --- ended early ---


@writers
@pytest.mark.parametrize(
    ("number", "status", "old"),
    [(signal.SIGINT, INTERRUPTED, False), (signal.SIGTERM, TERMINATED, True)],
    ids=["int-new", "term-replaced"],
)
def test_a_signal_while_the_output_is_written(
    case: Case, number: signal.Signals, status: int, old: bool, start: Start
) -> None:
    shell = start(case)
    there = put_old(case, shell) if old else None
    before = shell.files
    running = shell.start_paused(*case.valid, *(["--force"] if old else []), at="fsync")
    assert shell.files != before  # a part is there
    running.send(number)
    done = running.wait()
    assert done.status == status, done
    assert "Traceback" not in done.err
    assert shell.files == before
    assert there is None or content(output_of(case, shell)) == there


@writers
def test_a_killed_run_leaves_the_old_output_and_the_next_cleans_up(case: Case, start: Start) -> None:
    shell = start(case)
    old = put_old(case, shell)
    before = shell.files
    running = shell.start_paused(*case.valid, "--force", at="fsync")
    assert_one_line(shell.run(*case.valid, "--force"), BUSY)
    running.send(signal.SIGKILL)
    assert running.wait().status == -signal.SIGKILL
    assert content(output_of(case, shell)) == old
    assert shell.files > before
    assert_done(shell.run(*case.valid, "--force"))
    assert shell.files == expected_files(case)


@readers
def test_a_signal_while_an_input_is_read(case: Case, name: str, start: Start) -> None:
    """SIGINT at the first input, SIGTERM at the others and, in a second run, at the first too."""
    kinds = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
    shell = start(case)
    before = shell.files
    for number in kinds if name == case.inputs[0] else [signal.SIGTERM]:
        running = shell.start_paused(*case.valid, at=f"open:{name}")
        running.send(number)
        done = running.wait()
        assert done.status == kinds[number], done
        assert (done.out, "Traceback" in done.err) == (b"", False)
        assert shell.files == before
