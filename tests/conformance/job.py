"""One run of a command line, described so that either a new process or a fork can carry it out."""

import ctypes
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CLOSED = "closed"  # the stream is not open at all
UNREAD = "unread"  # a pipe whose reader has gone


@dataclass(frozen=True)
class Job:
    """Arguments, folder and environment; what each standard stream is: a path, CLOSED or UNREAD."""

    args: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    stdin: str
    stdout: str
    stderr: str
    file_limit: int | None = None  # bytes that a file may have (RLIMIT_FSIZE)
    bound: bool = False  # the modes of files and folders bind, even if root runs it


def enter(job: Job) -> None:
    """Make the process that calls this the one that `job` describes, all but arguments and environment."""
    os.chdir(job.cwd)
    for number, name in enumerate((job.stdin, job.stdout, job.stderr)):
        _connect(number, name)
    if job.file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job.file_limit, job.file_limit))
    if job.bound:
        _give_up_passing_over_modes()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test run in the background was started with it ignored


def _connect(number: int, name: str) -> None:
    if name == CLOSED:
        os.close(number)
        return
    if name == UNREAD:
        reader, opened = os.pipe()
        os.close(reader)
    else:
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(name, flags, 0o666)
    os.dup2(opened, number)
    os.close(opened)


def _give_up_passing_over_modes() -> None:
    """Drop CAP_DAC_OVERRIDE (bit 1) from this process and from what it executes; others than root have it not."""
    if os.getuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # linux/capability.h: version 3, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then their upper halves
    drop_from_bounding_set = 24
    failed = libc.prctl(drop_from_bounding_set, 1, 0, 0, 0) or libc.capget(header, sets)
    for i in range(3):
        sets[i] &= ~0b10
    if failed or libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "CAP_DAC_OVERRIDE cannot be dropped")
