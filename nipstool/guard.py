"""What may go wrong around a command, and the one line and exit status it ends with."""

import contextlib
import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable

from nipstool.kit.errors import ExitStatus, NipsError

REPORT = "this is a bug: please report it with the traceback that NIPSTOOL_DEBUG=1 shows"


def guarded(action: Callable[[], int | None]) -> int:
    """Run `action` and return the exit status; whatever it raised has become one line on stderr."""
    _terminate_by_unwinding()
    try:
        status = int(action() or 0)
        _flush_stdout()
    except BaseException as error:
        status = _status_of(error)
        if status == ExitStatus.OK:
            _silence_stdout()
        elif os.environ.get("NIPSTOOL_DEBUG") == "1":
            traceback.print_exc()
    _flush_stderr()
    return status


def _terminate_by_unwinding() -> None:
    """Let SIGTERM unwind the stack, so that parts of outputs are removed and records are whole."""

    def stop(_signum: int, _frame: object) -> None:
        raise SystemExit(ExitStatus.TERMINATED)

    with contextlib.suppress(ValueError):  # not the main thread: the host program keeps its own handling
        signal.signal(signal.SIGTERM, stop)


def _status_of(error: BaseException) -> int:
    """The exit status of an exception; says its one line on the way."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
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


def _os_error(error: OSError) -> str:
    reason = os.strerror(error.errno) if error.errno else _first_line(error)
    where = error.filename if error.filename is not None else "standard output" if _is_full(error) else None
    return f"{where}: {reason}" if where is not None else reason


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or "no details").splitlines()[0]


def complain(message: str) -> None:
    """Say one line on stderr; a stderr that is closed or full must not hide the exit status."""
    try:
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        text = f"nipstool: {message}".encode(encoding, "backslashreplace").decode(encoding)
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        pass


def _flush_stdout() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _flush_stderr() -> None:
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        pass


def _silence_stdout() -> None:
    """After a broken pipe: point stdout at nothing, so that the flush at exit has nothing to complain of."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
