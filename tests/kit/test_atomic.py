"""An output file is the old one or the whole new one, whatever happens in between."""

import errno
import io
import os
import stat
import sys
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
    write_text,
)


class Stream:
    """Stands for sys.stdout: bytes behind `buffer`."""

    def __init__(self) -> None:
        self.buffer = io.BytesIO()
        self.closed = False

    def flush(self) -> None:
        pass


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def write(path, data: bytes, *, force: bool = False, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Writes `data` to an AtomicFile and calls `meanwhile` before the end of the block."""
    with AtomicFile(path, force=force) as atomic:
        atomic.file.write(data)
        atomic.file.flush()
        meanwhile()


def fail_with(error: type[BaseException]) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


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


def test_a_failure_of_another_file_is_not_told_as_ours(tmp_path):
    with (
        pytest.raises(OSError, match="No space left") as caught,
        AtomicFile(tmp_path / "out"),
        open("/dev/full", "wb", buffering=0) as other,
    ):
        other.write(b"x")
    assert not isinstance(caught.value, NipsError)


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
