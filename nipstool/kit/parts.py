"""Part files: a locked name beside the final one, the renames that publish it, and what went wrong in one line."""

import errno
import fcntl
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nipstool.kit.errors import BusyError, OutputError

# Network file systems may know no locks; two runs then meet only when one finds its part gone.
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
_AT_FDCWD, _NOREPLACE, _EXCHANGE = -100, 1, 2  # linux/fcntl.h, linux/fs.h


@contextmanager
def told_as(name: str) -> Iterator[None]:
    """Turns a failure of the system into an OutputError of one line about `name`; BrokenPipeError passes."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"{name}: cannot be written: {reason(error)}") from error


def reason(error: Exception) -> str:
    """The system's words for an error, without its number and file name."""
    return getattr(error, "strerror", None) or str(error)


def part_of(target: Path) -> Path:
    """The name under which `target` is written: always the same, so that the next run finds and removes it."""
    return target.with_name(f".{target.name}.part")


def open_locked(part: Path, told: str) -> int:
    """A descriptor of a new file `part` under an exclusive lock; one left by a dead run is removed first.

    Raises BusyError, with the output's name `told`, where another process holds the lock.
    """
    while True:
        try:
            descriptor, fresh = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), True
        except FileExistsError:
            try:
                descriptor, fresh = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), False
            except FileNotFoundError:
                continue
        try:
            _lock(descriptor, told)
            # between open and lock another run may have published or removed the file we hold
            if fresh and leads_to(part, descriptor):
                return descriptor
            unlink_own(part, descriptor)
        except BaseException as error:
            # who locked our file between open and lock took it for a dead run's, and removes it itself
            if fresh and not isinstance(error, BusyError):
                with suppress(OSError):
                    unlink_own(part, descriptor)
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, told: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BusyError(f"{told}: another run is writing this output") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def leads_to(path: Path, descriptor: int) -> bool:
    """Whether the name `path` is, at this moment, that of the open file."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class RawOutput(io.FileIO):
    """A raw file that tells its own failures, so that those of another file in the block stay apart."""

    def __init__(self, descriptor: int, told: str):
        super().__init__(descriptor, "r+b")
        self._told = told

    def write(self, data: Any) -> int:
        with told_as(self._told):
            return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        with told_as(self._told):
            return super().truncate(size)


def unlink_own(path: Path, descriptor: int) -> None:
    """Removes the name `path` if it is still that of the open file."""
    if leads_to(path, descriptor):
        path.unlink(missing_ok=True)


def rename_new(source: Path, target: Path) -> None:
    """Renames, with FileExistsError where `target` exists: in one step where the system can."""
    if _renameat2(source, target, _NOREPLACE):
        return
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        os.rename(source, target)
    else:
        source.unlink()


def exchange(source: Path, target: Path) -> bool:
    """Swaps two names in one step; False, with nothing done, where the system cannot."""
    return _renameat2(source, target, _EXCHANGE)


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    import ctypes

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(target))


def remove_tree(path: Path) -> None:
    """Removes a folder with all in it, or a file or link; nothing happens where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_tree(folder: Path) -> None:
    """Brings every file and folder in `folder` to the disk."""
    for top, _, names in os.walk(folder):
        for name in names:
            if not (file := Path(top, name)).is_symlink():
                sync(file)
        sync(Path(top))


def sync(path: Path) -> None:
    """Brings a file's bytes, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync folders
            raise
    finally:
        os.close(descriptor)
