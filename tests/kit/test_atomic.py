"""An output is the old one or the whole new one, whatever happens in between."""

import errno
import io
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nipstool.kit import parts
from nipstool.kit.errors import (
    BusyError,
    ExitStatus,
    NipsError,
    OutputError,
)
from nipstool.kit.files import (
    AtomicFile,
    AtomicFolder,
    write_text,
)


class Stream:
    """Stands for sys.stdin or sys.stdout: bytes behind `buffer`, a terminal or not."""

    def __init__(self, data: bytes = b"", *, tty: bool = False):
        self.buffer = io.BytesIO(data)
        self.closed = False
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty

    def flush(self) -> None:
        pass


def run_python(code: str, *args: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def write(path, data: bytes, *, force: bool = False, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Writes `data` to an AtomicFile and calls `meanwhile` before the end of the block."""
    with AtomicFile(path, force=force) as atomic:
        atomic.file.write(data)
        atomic.file.flush()
        meanwhile()


def fill(part: Path, text: str) -> None:
    (part / "sub").mkdir()
    (part / "a").write_text(text)
    (part / "sub" / "b").write_text(text)


def make(path, text: str, *, force: bool = False, meanwhile: Callable[..., object] = lambda: None, **options):
    with AtomicFolder(path, force=force) as part:
        fill(part, text)
        meanwhile(**options)


def fail_with(error: type[BaseException]) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


# AtomicFile


def test_the_file_is_seekable_readable_and_appears_at_the_end_alone(tmp_path):
    out = tmp_path / "out.bin"
    with AtomicFile(out) as atomic:
        atomic.file.write(b"hello world")
        atomic.file.seek(6)
        assert atomic.file.read() == b"world"
        atomic.file.seek(0)
        atomic.file.write(b"J")
        assert names(tmp_path) == {".out.bin.part"}
    assert out.read_bytes() == b"Jello world"
    assert names(tmp_path) == {"out.bin"}


@pytest.mark.parametrize("interrupt", [ValueError, KeyboardInterrupt, SystemExit, OSError])
def test_a_failing_block_leaves_the_old_output(tmp_path, interrupt):
    out = tmp_path / "out"
    out.write_bytes(b"old")
    with pytest.raises(interrupt):
        write(out, b"new" * 100_000, force=True, meanwhile=fail_with(interrupt))
    assert out.read_bytes() == b"old"
    assert names(tmp_path) == {"out"}


def test_without_force_a_file_made_meanwhile_stays(tmp_path, monkeypatch):
    out = tmp_path / "out"
    for able in (True, False):
        if not able:
            monkeypatch.setattr(parts, "_renameat2", lambda *_: False)
        with pytest.raises(OutputError, match="meanwhile"):
            write(out, b"ours", meanwhile=lambda: out.write_bytes(b"theirs"))
        assert out.read_bytes() == b"theirs"
        assert names(tmp_path) == {"out"}
        out.unlink()


@pytest.mark.parametrize("missing", ["renameat2", "renameat2 and link"])
def test_other_systems_rename_too(tmp_path, monkeypatch, missing):
    def no_link(*_):
        raise PermissionError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(parts, "_renameat2", lambda *_: False)
    if "link" in missing:
        monkeypatch.setattr(os, "link", no_link)
    with AtomicFile(tmp_path / "out") as atomic:
        atomic.file.write(b"x")
    assert (tmp_path / "out").read_bytes() == b"x"
    assert names(tmp_path) == {"out"}


def test_the_part_of_a_dead_run_is_removed_even_where_it_shares_its_file_with_the_output(tmp_path):
    out, part = tmp_path / "out", tmp_path / ".out.part"
    out.write_bytes(b"old")
    part.hardlink_to(out)  # what a kill between link and unlink leaves
    with pytest.raises(ValueError):
        write(out, b"half", force=True, meanwhile=fail_with(ValueError))
    assert out.read_bytes() == b"old"
    part.write_bytes(b"a longer stale part")
    with AtomicFile(out, force=True) as atomic:
        atomic.file.write(b"new")
    assert out.read_bytes() == b"new"


def test_a_part_that_is_a_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / ".out.part").symlink_to(victim)
    with pytest.raises(OutputError), AtomicFile(tmp_path / "out"):
        pass
    assert victim.read_bytes() == b"mine"


def test_modes_follow_the_umask_or_the_file_replaced(tmp_path):
    old = os.umask(0o027)
    try:
        with AtomicFile(tmp_path / "new"):
            pass
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o604)
    with AtomicFile(tmp_path / "new", force=True):
        pass
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o604


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    link.symlink_to(target)
    with AtomicFile(link) as atomic:  # a dangling link
        atomic.file.write(b"1")
    with AtomicFile(link, force=True) as atomic:
        atomic.file.write(b"2")
    assert link.is_symlink()
    assert target.read_bytes() == b"2"
    assert names(tmp_path / "elsewhere") == {"target"}


def test_devices_stay_devices_and_fifos_receive(tmp_path):
    before = os.stat("/dev/null")
    with AtomicFile("/dev/null", force=True) as atomic:
        atomic.file.write(b"x" * 100)
    assert os.stat("/dev/null").st_rdev == before.st_rdev
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    fifo, received = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
    reader.start()
    with AtomicFile(fifo) as atomic:
        atomic.file.write(b"through")
    reader.join()
    assert received == [b"through"]
    assert stat.S_ISFIFO(os.stat(fifo).st_mode)
    with pytest.raises(OutputError, match=r"/dev/full.*No space left"), AtomicFile("/dev/full") as atomic:
        atomic.file.write(b"x")


def test_standard_output_gets_all_or_nothing(monkeypatch):
    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(ValueError):
        write("-", b"half", meanwhile=fail_with(ValueError))
    assert stream.buffer.getvalue() == b""
    with AtomicFile("-") as atomic:
        atomic.file.write(b"AAAA")
        atomic.file.seek(1)
        atomic.file.write(b"B")
    assert stream.buffer.getvalue() == b"ABAA"


def test_failures_of_standard_output(monkeypatch):
    class Failing(io.BytesIO):
        code = errno.ENOSPC

        def write(self, data) -> int:
            raise OSError(self.code, os.strerror(self.code))

    stream = Stream()
    stream.buffer = Failing()
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(NipsError, match="standard output: No space left on device") as caught:
        write_text("-", "x", force=False)
    assert caught.value.status == ExitStatus.FAILED
    Failing.code = errno.EPIPE
    with pytest.raises(BrokenPipeError):
        write_text("-", "x", force=False)
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(NipsError, match="closed"):
        write_text("-", "x", force=False)


def test_a_file_that_may_not_grow_is_one_line_and_leaves_nothing(tmp_path):
    code = """
        import resource, sys
        from nipstool.kit.errors import OutputError
        from nipstool.kit.files import AtomicFile
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        for force in (False, True):
            try:
                with AtomicFile(sys.argv[1], force=force) as out:
                    out.file.write(b"x" * 40_000)
                    out.file.write(b"x" * 40_000)
            except OutputError as error:
                print(error)
            open(sys.argv[1], "w").close()
    """
    done = run_python(code, str(tmp_path / "out"))
    assert done.returncode == 0
    assert done.stderr == ""  # closing the file must not try, and fail, once more
    assert done.stdout.splitlines() == [f"{tmp_path / 'out'}: cannot be written: File too large"] * 2
    assert names(tmp_path) == {"out"}


def test_a_failure_of_another_file_is_not_told_as_ours(tmp_path):
    with (
        pytest.raises(OSError, match="No space left") as caught,
        AtomicFile(tmp_path / "out"),
        open("/dev/full", "wb", buffering=0) as other,
    ):
        other.write(b"x")
    assert not isinstance(caught.value, NipsError)


HOLD = """
    import sys
    from nipstool.kit.files import AtomicFile, AtomicFolder
    kind = AtomicFolder if sys.argv[2] == "folder" else AtomicFile
    with kind(sys.argv[1], force=True):
        print("held", flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_two_runs_on_one_output(tmp_path, kind):
    out = tmp_path / "out"
    other = AtomicFolder if kind == "folder" else AtomicFile
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLD), str(out), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BusyError, match="another run"), other(out):
        pass
    with other(tmp_path / "out2"):
        pass
    holder.communicate("")
    assert holder.returncode == 0
    assert out.exists()
    with other(out, force=True):
        pass
    assert names(tmp_path) == {"out", "out2"}


RACE = """
    import sys, time
    from nipstool.kit.errors import BusyError
    from nipstool.kit.files import AtomicFile
    end, mine = time.monotonic() + 1.5, sys.argv[2].encode() * 5000
    done = 0
    while time.monotonic() < end:
        try:
            with AtomicFile(sys.argv[1], force=True) as out:
                for i in range(0, 5000, 500):
                    out.file.write(mine[i : i + 500])
                    out.file.flush()
            done += 1
        except BusyError:
            pass
    print(done)
"""


def test_runs_that_race_never_mix(tmp_path):
    out = tmp_path / "out"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RACE), str(out), letter],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for letter in "abc"
    ]
    seen = set()
    while any(run.poll() is None for run in runs):
        if out.exists():
            seen.add(out.read_bytes())
    assert seen <= {b"a" * 5000, b"b" * 5000, b"c" * 5000}
    ends = [run.communicate() for run in runs]
    assert [error for _, error in ends] == ["", "", ""]
    assert sum(int(done) for done, _ in ends) > 3
    assert names(tmp_path) == {"out"}


KILLED = """
    import sys
    from nipstool.kit.files import AtomicFile
    size = 1 << 16
    for round in range(10**6):
        with AtomicFile(sys.argv[1], force=True) as out:
            for _ in range(16):
                out.file.write(bytes([round % 256]) * size)
                out.file.flush()
        if round == 0:
            print("started", flush=True)
"""


def test_kill_9_leaves_one_whole_output(tmp_path):
    out = tmp_path / "out"
    for delay in (0.0, 0.003, 0.011, 0.02, 0.037):
        run = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(out)], stdout=subprocess.PIPE, text=True
        )
        assert run.stdout is not None
        assert run.stdout.readline() == "started\n"
        threading.Event().wait(delay)
        run.send_signal(signal.SIGKILL)
        run.communicate()
        data = out.read_bytes()
        assert len(data) == 1 << 20
        assert len(set(data)) == 1
    with AtomicFile(out, force=True) as atomic:
        atomic.file.write(b"next run")
    assert names(tmp_path) == {"out"}


def test_a_run_whose_part_was_taken_over_does_not_publish_it(tmp_path):
    def other_run() -> None:  # on a file system without locks
        (tmp_path / ".out.part").unlink()
        (tmp_path / ".out.part").write_bytes(b"theirs")

    with pytest.raises(BusyError, match="took over"):
        write(tmp_path / "out", b"ours", meanwhile=other_run)
    assert names(tmp_path) == {".out.part"}


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(parts.fcntl, "flock", no_locks)
    write_text(tmp_path / "out", "x", force=False)
    assert (tmp_path / "out").read_text() == "x"


def test_a_name_too_long_is_one_line(tmp_path):
    with pytest.raises(OutputError, match="File name too long"):
        write_text(tmp_path / ("n" * 255), "x", force=False)


# AtomicFolder


def test_a_folder_appears_whole(tmp_path):
    out = tmp_path / "out"
    with AtomicFolder(out) as part:
        fill(part, "new")
        assert not out.exists()
        assert part.parent == tmp_path
    assert (out / "sub" / "b").read_text() == "new"
    assert names(tmp_path) == {"out"}


def test_an_empty_folder_is_replaced_and_a_full_one_with_force(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir(mode=0o750)
    with AtomicFolder(out) as part:
        fill(part, "one")
    assert stat.S_IMODE(out.stat().st_mode) == 0o750
    with pytest.raises(OutputError), AtomicFolder(out):
        pass
    (out / "extra").touch()
    for text in ("two", "three"):
        with AtomicFolder(out, force=True) as part:
            fill(part, text)
        assert names(out) == {"a", "sub"}
        assert (out / "a").read_text() == text
        assert names(tmp_path) == {"out"}
        monkeypatch.setattr(parts, "_renameat2", lambda *_: False)


def test_a_failing_block_leaves_the_old_folder(tmp_path):
    out = tmp_path / "out"
    make(out, "old")
    with pytest.raises(KeyboardInterrupt):
        make(out, "new", force=True, meanwhile=fail_with(KeyboardInterrupt))
    assert (out / "sub" / "b").read_text() == "old"
    assert names(tmp_path) == {"out"}


def test_a_folder_filled_meanwhile_stays(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(OutputError, match="meanwhile"):
        make(out, "ours", meanwhile=(out / "theirs").mkdir, parents=True)
    assert names(out) == {"theirs"}
    assert names(tmp_path) == {"out"}


def test_the_old_folder_comes_back_when_the_second_step_fails(tmp_path, monkeypatch):
    out = tmp_path / "out"
    with AtomicFolder(out) as part:
        fill(part, "old")
    rename, calls = os.rename, []

    def failing(source, target):
        calls.append(target)
        if len(calls) == 3:  # the first finds the folder full, the second moves it aside
            raise OSError(errno.EIO, "a broken disk")
        rename(source, target)

    monkeypatch.setattr(parts, "_renameat2", lambda *_: False)
    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OutputError, match="broken disk"), AtomicFolder(out, force=True) as part:
        fill(part, "new")
    assert (out / "a").read_text() == "old"
    assert names(tmp_path) == {"out"}


def test_the_part_folder_of_a_dead_run_is_removed(tmp_path):
    (tmp_path / ".out.part").mkdir()
    fill(tmp_path / ".out.part", "stale")
    (tmp_path / ".out.part.lock").touch()
    with AtomicFolder(tmp_path / "out") as part:
        assert names(part) == set()
        (part / "x").touch()
    assert names(tmp_path / "out") == {"x"}
    assert names(tmp_path) == {"out"}


def test_a_part_that_links_to_a_folder_is_not_emptied(tmp_path):
    (tmp_path / "precious").mkdir()
    fill(tmp_path / "precious", "kept")
    (tmp_path / ".out.part").symlink_to(tmp_path / "precious")
    with AtomicFolder(tmp_path / "out") as part:
        (part / "x").touch()
    assert (tmp_path / "precious" / "a").read_text() == "kept"
