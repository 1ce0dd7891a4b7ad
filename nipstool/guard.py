"""What may go wrong around a command, and the one line and exit status it ends with."""

import contextlib
import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TextIO

from nipstool.kit.errors import ExitStatus, NipsError

REPORT = "this is a bug: please report it with the traceback that NIPSTOOL_DEBUG=1 shows"
# A closed stdout refuses what is written to it with EBADF; the others are full in one way or another.
STDOUT_FAILS = (errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def guarded(action: Callable[[], int | None]) -> int:
    """Run `action` and return the exit status; whatever it raised has become one line on stderr."""
    _prepare_streams()
    with _unwinding_on_signals():
        try:
            status = int(action() or 0)
            _flush(sys.stdout)
        except BaseException as error:
            status = _status_of(error)
            if debugging() and status != ExitStatus.OK:
                traceback.print_exc()
        _settle_streams()
    return status


def debugging() -> bool:
    """Whether errors show their traceback."""
    return os.environ.get("NIPSTOOL_DEBUG") == "1"


def wants_style(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal whose user has not turned colours and boxes off (no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream is not None and stream.isatty() and not plain


def _prepare_streams() -> None:
    """Make the standard streams safe to use: a closed one is refused or swallowed, no character is fatal.

    The numbers 0 to 2 are occupied, or the next file to be opened would become stdout. A closed stdout refuses
    what is written to it (its descriptor is open for reading only); sys.stdin stays None.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _unwinding_on_signals() -> Iterator[None]:
    """SIGINT and SIGTERM unwind the stack, so that parts of outputs are removed and records are whole.

    An import cannot be unwound: torch aborts, numpy stays half loaded. No output is open by then, so the process
    ends at once; so it does when a second signal comes while the first is being dealt with.
    """
    seen: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if seen or _is_importing(frame):
            os._exit(128 + number)
        seen.append(number)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(ExitStatus.TERMINATED)

    before = {}
    with contextlib.suppress(ValueError):  # not the main thread: the host program keeps its own handling
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:  # as in a background job of a script
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _status_of(error: BaseException) -> int:
    """The exit status of an exception; says its one line on the way."""
    if isinstance(error, SystemExit):
        return _status_of_exit(error)
    if isinstance(error, BrokenPipeError):
        return ExitStatus.OK
    if isinstance(error, KeyboardInterrupt):
        complain("interrupted")
        return ExitStatus.INTERRUPTED
    if isinstance(error, NipsError):
        complain(str(error))
        return error.status
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        complain(f"out of memory: {_first_line(error)} (use --device cpu, a smaller --dtype or fewer --threads)")
        return ExitStatus.FAILED
    if isinstance(error, OSError):
        complain(_os_error(error))
        return ExitStatus.FAILED
    complain(f"internal error: {type(error).__name__}: {_first_line(error)}; {REPORT}")
    return ExitStatus.INTERNAL


def _status_of_exit(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or ExitStatus.OK
    complain(str(error.code))
    return ExitStatus.FAILED


def _os_error(error: OSError) -> str:
    reason = os.strerror(error.errno) if error.errno else _first_line(error)
    if error.filename is not None:
        return f"{error.filename!r}: {reason}"
    return f"standard output: {reason}" if error.errno in STDOUT_FAILS else reason


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or "no details").splitlines()[0]


def complain(message: str) -> None:
    """Say one line on stderr; a stderr that is closed or full must not hide the exit status."""
    if sys.stderr is None:  # print would take stdout instead
        return
    with contextlib.suppress(OSError, ValueError):
        print("nipstool:", *message.split(), file=sys.stderr, flush=True)


def _flush(stream: TextIO | None) -> None:
    if stream is not None and not stream.closed:
        stream.flush()


def _settle_streams() -> None:
    """Point a stream that cannot be flushed at nothing: the flush at exit would complain of it once more."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            _flush(stream)
        except (OSError, ValueError):
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
