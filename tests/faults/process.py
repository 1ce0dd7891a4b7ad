"""Runs of the command line inside this process, and what they leave on the standard streams."""

import importlib
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent


def arguments(default: int, known: Collection[str]) -> tuple[int, list[str]]:
    """[N [CASE...]] of the command line: how many, and the cases' names, all of them `known`.

    No run leaves a core file.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    words = sys.argv[1:]
    count, names = (int(words[0]), words[1:]) if words and words[0].isdigit() else (default, words)
    if unknown := set(names) - set(known):
        sys.exit(f"no case {', '.join(sorted(unknown))}; there are {', '.join(sorted(set(known)))}")
    return count, names


@contextmanager
def in_a_child() -> Iterator[Callable[[int], NoReturn]]:
    """What a fork does: it ends with the block, and never goes on with the code of its parent."""
    try:
        yield os._exit
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def preload() -> None:
    """Import what commands import, once, before forks; no user setting of this shell comes in.

    torch with several threads could not go on in a fork: their number is set before it is imported.
    """
    assert "torch" not in sys.modules
    os.environ.update(LC_ALL="C.UTF-8", COLUMNS="80", OMP_NUM_THREADS="1", NO_COLOR="1")
    sys.path.insert(0, str(HERE.parent / "conformance"))
    for name in importlib.import_module("server").PRELOADED:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for name in [name for name in os.environ if name.startswith("NIPSTOOL_")]:
        del os.environ[name]


def run_main(words: Sequence[str]) -> int:
    """The exit status of one command line."""
    from nipstool.cli import main

    sys.argv = ["nipstool", *words]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def quietly(action: Callable[[], int], folder: Path) -> tuple[int, str]:
    """The action's status, run in `folder` with streams of its own, and what stood on stderr."""
    os.chdir(folder)
    saved = [os.dup(number) for number in (0, 1, 2)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as nothing:
        for number, file in enumerate((nothing, out, err)):
            os.dup2(file.fileno(), number)
        streams = sys.stdin, sys.stdout, sys.stderr
        sys.stdin, sys.stdout, sys.stderr = (
            open(0, encoding="utf-8", closefd=False),  # noqa: SIM115
            open(1, "w", encoding="utf-8", closefd=False),  # noqa: SIM115
            open(2, "w", encoding="utf-8", closefd=False),  # noqa: SIM115
        )
        try:
            status = action()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            sys.stdin, sys.stdout, sys.stderr = streams
            for number, copy in enumerate(saved):
                os.dup2(copy, number)
                os.close(copy)
        err.seek(0)
        return status, err.read().decode("utf-8", "replace")
