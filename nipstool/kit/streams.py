"""Streams that are read as they come: standard input or a file, unbuffered."""

from __future__ import annotations

import os
from typing import BinaryIO

from nipstool.kit.errors import InputMissingError
from nipstool.kit.files import StrPath, check_input, is_stdio, standard_input


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
    return os.fdopen(os.dup(standard_input().fileno()), "rb", buffering=0)
