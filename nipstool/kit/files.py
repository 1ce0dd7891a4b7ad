"""Files in and out: '-' for the standard streams, and outputs that appear whole or not at all.

An output is written under the name `.NAME.part` in the folder where it will stand, locked, and renamed when
it is complete and on the disk. Whatever ends a run early, even kill -9, leaves the old output or none.
"""

import errno
import hashlib
import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from nipstool.kit.errors import BusyError, InputMissingError, NipsError, OutputError, UsageError
from nipstool.kit.parts import (
    RawOutput,
    exchange,
    leads_to,
    open_locked,
    part_of,
    reason,
    remove_tree,
    rename_new,
    sync,
    sync_tree,
    told_as,
    unlink_own,
)
from nipstool.kit.signals import uninterrupted

STDIO = "-"
StrPath = str | os.PathLike[str]

_CHUNK = 1 << 20
_SPOOL = "the temporary copy (TMPDIR says where)"


def is_stdio(path: StrPath) -> bool:
    """Whether `path` is '-', which stands for standard input or output."""
    return os.fspath(path) == STDIO


def check_input(path: StrPath) -> Path:
    """`path` as a Path; InputMissingError where it is absent or cannot be read. '-' passes unchecked."""
    if is_stdio(path):
        return Path(path)
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise InputMissingError(f"{os.fspath(path)}: {reason(error)}; expected an input") from error
    needed = os.R_OK | os.X_OK if stat.S_ISDIR(found.st_mode) else os.R_OK
    if not os.access(path, needed):
        raise InputMissingError(f"{os.fspath(path)}: permission to read it is denied")
    return Path(path)


@contextmanager
def spooled_input(path: StrPath) -> Iterator[Path]:
    """A seekable file for an input: standard input ('-') and FIFOs are copied to a temporary file first.

    Raises UsageError where standard input is a terminal, InputMissingError where it is closed.
    """
    if is_stdio(path):
        with _temporary_copy(standard_input(), "standard input") as copy:
            yield copy
    elif stat.S_ISFIFO(os.stat(check_input(path)).st_mode):
        with open(path, "rb") as source, _temporary_copy(source, os.fspath(path)) as copy:
            yield copy
    else:
        yield Path(path)


def standard_input() -> BinaryIO:
    """The bytes of standard input; UsageError where it is a terminal, InputMissingError where it is closed."""
    if sys.stdin is None or sys.stdin.closed:
        raise InputMissingError("standard input is closed; expected data on it")
    if sys.stdin.isatty():
        raise UsageError("standard input is a terminal; pipe data into it or name a file")
    return sys.stdin.buffer


@contextmanager
def _temporary_copy(source: BinaryIO, told: str) -> Iterator[Path]:
    with told_as(_SPOOL):
        copy = tempfile.NamedTemporaryFile(prefix="nipstool-")  # noqa: SIM115
    with copy:
        while data := _chunk(source, told):
            with told_as(_SPOOL):
                copy.write(data)
        with told_as(_SPOOL):
            copy.flush()
        yield Path(copy.name)


def _chunk(source: BinaryIO, told: str) -> bytes:
    try:
        return source.read(_CHUNK)
    except OSError as error:
        raise InputMissingError(f"{told}: cannot be read: {reason(error)}") from error


def check_output(
    path: StrPath,
    *,
    inputs: Iterable[StrPath] = (),
    force: bool,
    folder: bool = False,
    binary: bool = True,
) -> None:
    """Refuses, before any work is done, an output that could not or should not be written.

    UsageError: it is one of `inputs`, lies inside an input folder or holds an input, or is '-' where a folder
    is written or where `binary` data would reach a terminal. OutputError: it exists and `force` is false (an
    empty folder does not count), is a folder where a file is meant or the reverse, or its place cannot be
    written. A device or FIFO needs no `force`: it is written to, never replaced.
    """
    if is_stdio(path):
        return _check_stdout(folder=folder, binary=binary)
    path = os.fspath(path)
    if not path or "\0" in path or (path.endswith(os.sep) and not folder):
        raise OutputError(f"{path!r}: is no file name")
    with told_as(path):
        found = os.stat(path) if os.path.exists(path) else None
        _refuse_inputs(path, found, inputs)
        if found is not None:
            _check_existing(path, found, force=force, folder=folder)
        if found is None or _is_plain(found):
            _check_place(path)


def _check_stdout(*, folder: bool, binary: bool) -> None:
    if folder:
        raise UsageError("a folder cannot be written to standard output; name one")
    if binary and sys.stdout is not None and not sys.stdout.closed and sys.stdout.isatty():
        raise UsageError("standard output is a terminal and the output is binary; redirect it or name a file")


def _refuse_inputs(path: str, found: os.stat_result | None, inputs: Iterable[StrPath]) -> None:
    if found is not None and not _is_plain(found):
        return
    target = Path(os.path.realpath(path))
    for given in inputs:
        source = Path(os.path.realpath(given))
        if is_stdio(given) or not os.path.exists(source):  # Path.exists would raise where a folder is closed
            continue
        if target == source or (found is not None and os.path.samestat(found, source.stat())):
            raise UsageError(f"{path}: the output is the input {os.fspath(given)}")
        if source.is_dir() and (target.is_relative_to(source) or _is_in(found, source)):
            raise UsageError(f"{path}: the output lies in the input folder {os.fspath(given)}")
        if source.is_relative_to(target):
            raise UsageError(f"{path}: the output holds the input {os.fspath(given)}")


def _is_in(found: os.stat_result | None, folder: Path) -> bool:
    """Whether a file of `folder` is, through a link, the file `found`."""
    if found is None:
        return False
    names = (Path(top, name) for top, _, files in os.walk(folder) for name in files)
    return any(name.exists() and os.path.samestat(found, name.stat()) for name in names)


def _is_plain(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)


def _check_existing(path: str, found: os.stat_result, *, force: bool, folder: bool) -> None:
    is_folder = stat.S_ISDIR(found.st_mode)
    if folder and not is_folder:
        raise OutputError(f"{path}: exists and is no folder; a folder is to be written")
    if is_folder and not folder:
        raise OutputError(f"{path}: is a folder; a file is to be written")
    if not _is_plain(found):
        if not os.access(path, os.W_OK):
            raise OutputError(f"{path}: permission to write it is denied")
    elif is_folder and Path(os.path.realpath(".")).is_relative_to(os.path.realpath(path)):
        raise UsageError(f"{path}: is or holds the current folder, which cannot be replaced")
    elif is_folder and os.listdir(path) and not force:
        raise OutputError(f"{path}: exists and is not empty; --force replaces it")
    elif not is_folder and not force:
        raise OutputError(f"{path}: exists; --force replaces it")


def _check_place(path: str) -> None:
    place = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(place):
        raise OutputError(f"{path}: the folder {place} does not exist")
    if not os.access(place, os.W_OK | os.X_OK):
        raise OutputError(f"{path}: the folder {place} cannot be written")


class AtomicFile:
    """`with AtomicFile(path) as out: out.file.write(...)`; at the end the file is there, complete and synced.

    `file` is a seekable binary file, open for reading and writing. If the block raises, the old output stays.
    A symbolic link stays and its target is replaced. '-', devices and FIFOs receive the bytes at the end.

    Raises OutputError (it exists and `force` is false, or cannot be written), BusyError (another run is
    writing it), NipsError (standard output fails). BrokenPipeError passes.
    """

    file: io.BufferedRandom

    def __init__(self, path: StrPath, *, force: bool = False):
        self._path = os.fspath(path)
        self._force = force

    def __enter__(self) -> Self:
        check_output(self._path, force=self._force, binary=False)
        exists = os.path.exists(self._path)
        self._spooled = is_stdio(self._path) or (exists and not os.path.isfile(self._path))
        self._told = _SPOOL if self._spooled else self._path
        is_open = False
        try:
            with uninterrupted(), told_as(self._told):
                self.file = io.BufferedRandom(RawOutput(self._open(), self._told))
                is_open = True
        except BaseException:  # a signal that came meanwhile: nobody calls __exit__
            if is_open:
                self._discard()
            raise
        return self

    def _open(self) -> int:
        if self._spooled:
            descriptor, name = tempfile.mkstemp(prefix="nipstool-")
            os.unlink(name)
            return descriptor
        self._target = Path(os.path.realpath(self._path))
        self._part = part_of(self._target)
        return open_locked(self._part, self._told)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._deliver() if self._spooled else self._publish()
        finally:
            self._discard()

    def _discard(self) -> None:
        if not self._spooled:
            with suppress(OSError):
                unlink_own(self._part, self.file.fileno())
        # the raw file: closing the buffered one would try once more to write what could not be written
        self.file.raw.close()

    def _publish(self) -> None:
        self.file.flush()
        descriptor = self.file.fileno()
        with told_as(self._told):
            with suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(os.stat(self._target).st_mode))
            os.fsync(descriptor)
            if not leads_to(self._part, descriptor):
                raise BusyError(f"{self._path}: another run took over this output")
            try:
                if self._force:
                    os.replace(self._part, self._target)
                else:
                    rename_new(self._part, self._target)
            except FileExistsError as error:
                raise OutputError(f"{self._path}: was made by another program meanwhile") from error
            sync(self._target.parent)

    def _deliver(self) -> None:
        self.file.seek(0)
        if is_stdio(self._path):
            _copy_to_stdout(self.file)
            return
        with told_as(self._path), open(os.open(self._path, os.O_WRONLY), "wb") as sink:
            shutil.copyfileobj(self.file, sink, _CHUNK)


def _copy_to_stdout(source: io.BufferedRandom) -> None:
    if sys.stdout is None or sys.stdout.closed:
        raise NipsError("cannot write to standard output: it is closed")
    try:
        sys.stdout.flush()
        shutil.copyfileobj(source, sys.stdout.buffer, _CHUNK)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise NipsError(f"cannot write to standard output: {reason(error)}") from error


class AtomicFolder:
    """`with AtomicFolder(path) as part:` gives a Path to fill; at the end it stands at `path`, whole, synced.

    If the block raises, what stood at `path` stays. An empty folder is replaced; another only with `force`,
    and then as a whole. Raises OutputError, BusyError as AtomicFile does.
    """

    def __init__(self, path: StrPath, *, force: bool = False):
        self._path = os.fspath(path)
        self._force = force

    def __enter__(self) -> Path:
        check_output(self._path, force=self._force, folder=True)
        self._target = Path(os.path.realpath(self._path))
        self._part = part_of(self._target)
        self._lock_file = self._part.with_name(self._part.name + ".lock")
        locked = False
        try:
            with uninterrupted(), told_as(self._path):
                self._lock = open_locked(self._lock_file, self._path)
                locked = True
            with told_as(self._path):
                self._prepare()
        except BaseException:
            if locked:
                with suppress(OSError):
                    self._part.rmdir()  # only where it is empty: what a run may be resumed from stays
                self._release()
            raise
        return self._part

    def _prepare(self) -> None:
        """An empty part; what a run before left there goes."""
        remove_tree(self._part)
        self._part.mkdir()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with told_as(self._path):
                    self._publish()
        finally:
            # after an exchange the part is the folder that was replaced
            with suppress(OSError):
                remove_tree(self._part)
            self._release()

    def _publish(self) -> None:
        if self._target.is_dir():
            self._part.chmod(stat.S_IMODE(self._target.stat().st_mode))
        sync_tree(self._part)
        try:
            os.rename(self._part, self._target)  # also over an empty folder
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not self._force:
                raise OutputError(f"{self._path}: was filled by another program meanwhile") from error
            if not exchange(self._part, self._target):
                self._replace_in_two_steps()
        sync(self._target.parent)

    def _replace_in_two_steps(self) -> None:
        old = self._target.with_name(f".{self._target.name}.old")
        remove_tree(old)
        os.rename(self._target, old)
        try:
            os.rename(self._part, self._target)
        except BaseException:
            os.rename(old, self._target)
            raise
        remove_tree(old)

    def _release(self) -> None:
        with suppress(OSError):
            unlink_own(self._lock_file, self._lock)
        os.close(self._lock)


def sha256(path: StrPath) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal; InputMissingError where it cannot be read."""
    try:
        with check_input(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputMissingError(f"{os.fspath(path)}: cannot be read: {reason(error)}") from error


def write_text(path: StrPath, text: str, *, force: bool) -> None:
    """Writes `text` as UTF-8 through AtomicFile, with its errors.

    What is no text (a file name that is not UTF-8) comes out as an escape, which JSON allows.
    """
    with AtomicFile(path, force=force) as out:
        out.file.write(text.encode(errors="backslashreplace"))
