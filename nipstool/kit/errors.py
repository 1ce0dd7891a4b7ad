"""Exit statuses, and the few exceptions that carry one line for the user."""

from enum import IntEnum


class ExitStatus(IntEnum):
    """What the process says when it ends. The numbers from 65 on are those of sysexits.h."""

    OK = 0
    FAILED = 1
    USAGE = 2
    BAD_DATA = 65
    NO_INPUT = 66
    UNAVAILABLE = 69
    INTERNAL = 70
    CANNOT_CREATE = 73
    BUSY = 75
    INTERRUPTED = 130
    TERMINATED = 143


class NipsError(Exception):
    """A failure that is no bug. Its text is one line: what, where, what was expected."""

    status = ExitStatus.FAILED

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


class UsageError(NipsError):
    """The request itself makes no sense: options that exclude each other, an output that is an input."""

    status = ExitStatus.USAGE


class DataError(NipsError):
    """An input was read and is not what it should be."""

    status = ExitStatus.BAD_DATA


class InputMissingError(NipsError):
    """An input is not there or cannot be opened."""

    status = ExitStatus.NO_INPUT


class UnavailableError(NipsError):
    """A device or an optional part is missing."""

    status = ExitStatus.UNAVAILABLE


class OutputError(NipsError):
    """The output cannot be made: it exists, or its place cannot be written."""

    status = ExitStatus.CANNOT_CREATE


class BusyError(NipsError):
    """Another run is writing the same output."""

    status = ExitStatus.BUSY


def worse(seen: NipsError | None, error: NipsError) -> NipsError:
    """Of the failures of several inputs the one to end with: bad data outranks a missing input."""
    return error if seen is None or error.status == ExitStatus.BAD_DATA else seen
