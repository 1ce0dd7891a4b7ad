"""Runs jobs in forks of a process that has imported torch: a run then takes 0.1 s rather than 3.

Everything else is as in a new process: arguments, environment, descriptors, signals, the flush at the end.
Reads JSON lines from stdin: {"job": ...} is answered with the process id, {"wait": id} with the exit status.
"""

import atexit
import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, NoReturn, TextIO

from job import Job, enter

# What commands import and takes long: a command that is slow here adds its own.
PRELOADED = (
    "numpy",
    "torch",
    "safetensors",
    "pydantic.type_adapter",
    "typer._adapters",
    "tomllib",
    "importlib.metadata",
    "importlib.resources",
    "nipstool.cli",
    "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama",
    "transformers.tokenization_utils_tokenizers",
    "matplotlib.font_manager",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "scipy.signal",
    "rapidfuzz.process",
    "pyclipper",
    "torch.profiler",
    "cv2",
    "onnx",
    "torch.onnx",
)
LIMIT_S = 120  # a run that hangs dies of SIGALRM


def serve() -> None:
    """Answer until stdin ends. A fork leaves this loop and becomes the job."""
    for name in PRELOADED:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.freeze()  # a collection in a fork would copy every page it looks at
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        elif (answer := os.fork()) == 0:
            become(Job(**request["job"]))
        print(answer, flush=True)


def become(job: Job) -> None:
    """Carry out `job` in this process, and end it as the interpreter does."""
    os.environ.clear()
    os.environ.update(job.env)
    sys.argv = ["nipstool", *job.args]
    enter(job)
    encoding = job.env.get("PYTHONIOENCODING", "utf-8")
    sys.stdin, sys.stdout, sys.stderr = (
        _stream(0, "r", encoding, "strict"),
        _stream(1, "w", encoding, "strict"),
        _stream(2, "w", encoding, "backslashreplace"),
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(LIMIT_S)
    importlib.import_module("sitecustomize").install()
    end(status_of(importlib.import_module("nipstool.cli").main))


def status_of(main: Callable[[], None]) -> int:
    """The exit status that a program with this main function has."""
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def end(status: int) -> NoReturn:
    """End as the interpreter does, but leave its memory to the system: torch's takes longer to tidy than a run."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            os.write(2, f"Exception ignored: {error}\n".encode())
            status = 120
    os._exit(status)


def _stream(number: int, mode: Literal["r", "w"], encoding: str, errors: str) -> TextIO | None:
    try:
        os.fstat(number)
    except OSError:
        return None
    return open(number, mode, encoding=encoding, errors=errors, closefd=False)


if __name__ == "__main__":
    serve()
