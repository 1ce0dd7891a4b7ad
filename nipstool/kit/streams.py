"""Streams that are read as they come: standard input or a file, unbuffered."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

from nipstool.kit.errors import InputMissingError, UsageError
from nipstool.kit.files import StrPath, check_input, is_stdio


def open_stream(path: StrPath) -> BinaryIO:
    """An unbuffered binary file for an input; '-' is standard input.

    Raises UsageError where standard input is a terminal, InputMissingError where the input is absent, closed or a
    folder.
    """
    if not is_stdio(path):
        found = check_input(path)
        if found.is_dir():
            raise InputMissingError(f"{os.fspath(path)}: is a folder; expected a file")
        return open(found, "rb", buffering=0)
    if sys.stdin is None or sys.stdin.closed:
        raise InputMissingError("standard input is closed; expected data on it")
    if sys.stdin.isatty():
        raise UsageError("standard input is a terminal; pipe data into it or name a file")
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
