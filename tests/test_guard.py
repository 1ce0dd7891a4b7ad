"""What a run says when something goes wrong, and the status it ends with."""

import errno
import io
import signal
import sys
from pathlib import Path

import pytest

from nipstool.guard import complain, guarded
from nipstool.kit.errors import BusyError, DataError, ExitStatus, InputMissingError, UsageError
from tests.conformance.dist import installed
from tests.conformance.job import CLOSED
from tests.conformance.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


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


@pytest.mark.parametrize(("error", "status", "line"), ENDS, ids=lambda value: repr(value)[:30])
def test_each_failure_has_its_status_and_one_line(
    error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    assert guarded(fail) == status
    assert capsys.readouterr() == ("", f"nipstool: {line}\n" if line else "")


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


@pytest.mark.parametrize("value", [None, 0, 3])
def test_a_status_is_passed_on(value: int | None) -> None:
    assert guarded(lambda: value) == (value or 0)


def test_the_handlers_of_the_host_program_come_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)

    def ours(number: int, frame: object) -> None: ...

    theirs = [signal.signal(number, ours) for number in numbers]
    try:
        assert guarded(lambda: sum(signal.getsignal(number) is not ours for number in numbers)) == 2
        assert [signal.getsignal(number) for number in numbers] == [ours, ours]
    finally:
        for number, handler in zip(numbers, theirs, strict=True):
            signal.signal(number, handler)


def test_a_background_job_keeps_ignoring_the_keyboard() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert guarded(lambda: int(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)) == 1
    finally:
        signal.signal(signal.SIGINT, before)


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
    running = shell.start("other", env=installed(shell.folder, {"other": "plugin:run"}, modules))
    running.until((shell.work / "begun").exists)
    running.send(number)
    done = running.wait()
    assert (done.status, done.err) == (status, "")
    assert shell.files == {"begun"}


def test_a_second_signal_ends_a_run_that_is_still_cleaning_up(shell: Shell) -> None:
    env = installed(shell.folder, {"other": "plugin:run"}, {"plugin.py": SLOW_CLEANING})
    running = shell.start("other", env=env)
    running.until((shell.work / "begun").exists)
    running.send(signal.SIGINT)
    running.until((shell.work / "cleaning").exists)
    running.send(signal.SIGINT)
    done = running.wait()
    assert (done.status, done.err) == (130, "")
