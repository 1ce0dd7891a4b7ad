"""A folder to run command lines in, and what they leave behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.job import Job, enter

HERE = Path(__file__).resolve().parent
PLUGINS = HERE.parent / "plugins"
PROGRAM = Path(sys.executable).with_name("nipstool")
TIMEOUT_S = 120.0
# What decides how a run looks or how many threads it takes; nothing else of the tester's environment comes in.
KEPT = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "VIRTUAL_ENV", "TMPDIR")
FIXED = {
    "LC_ALL": "C.UTF-8",
    "COLUMNS": "80",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(map(str, (PLUGINS, HERE / "hooks"))),
}


def environment(**changes: str | None) -> dict[str, str]:
    """The environment of every run, with some variables changed or (None) absent."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {name: value for name, value in {**kept, **FIXED, **changes}.items() if value is not None}


@dataclass(frozen=True)
class Outcome:
    """How a run ended and what it said."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Running:
    """A run that has begun."""

    pid: int
    end: Callable[[], int]
    stdout: Path
    stderr: Path

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the run does."""
        give_up = time.monotonic() + TIMEOUT_S / 2
        while not condition():
            if time.monotonic() > give_up:
                self.send(signal.SIGKILL)
                raise TimeoutError(f"it did not happen: {self.wait()}")
            time.sleep(0.01)

    def wait(self) -> Outcome:
        status = self.end()
        out = self.stdout.read_bytes() if self.stdout.is_file() else b""
        return Outcome(status, out, self.stderr.read_text() if self.stderr.is_file() else "")


class Server:
    """The process that has imported torch; see server.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, HERE / "server.py"],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, job: Job) -> tuple[int, Callable[[], int]]:
        pid = self._ask({"job": asdict(job)})
        return pid, lambda: self._ask({"wait": pid})

    def _ask(self, request: Mapping[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            raise RuntimeError(f"the server has ended with status {self._process.wait()}")
        return int(answer)

    def close(self) -> None:
        self._process.communicate()


def spawn(job: Job, program: list[str]) -> tuple[int, Callable[[], int]]:
    """Carry out a job in a new process."""
    process = subprocess.Popen([*program, *job.args], env=dict(job.env), preexec_fn=lambda: enter(job))

    def end() -> int:
        try:
            return process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    return process.pid, end


@dataclass
class Shell:
    """Runs nipstool in `folder`/work, with an empty home beside it."""

    folder: Path
    server: Server | None = None  # None: each run is a process of its own
    program: list[str] = field(default_factory=lambda: [str(PROGRAM)])
    _runs: int = 0

    def __post_init__(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(exist_ok=True)

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def files(self) -> set[str]:
        """What lies in the folder, by name."""
        return set(os.listdir(self.work))

    def run(self, *args: str, **how: Any) -> Outcome:
        """Run to the end; `how` as for `start`."""
        return self.start(*args, **how).wait()

    def start(
        self,
        *args: str,
        env: Mapping[str, str | None] | None = None,
        stdin: str = os.devnull,
        stdout: str | None = None,
        stderr: str | None = None,
        cwd: Path | None = None,
        **limits: Any,
    ) -> Running:
        """Begin a run. The streams are paths, CLOSED or UNREAD; by default files that the Outcome holds."""
        self._runs += 1
        out, err = (self.folder / f"{self._runs}.{name}" for name in ("out", "err"))
        job = Job(
            args,
            str(cwd or self.work),
            environment(**{"HOME": str(self.home), **(env or {})}),
            stdin,
            stdout or str(out),
            stderr or str(err),
            **limits,
        )
        pid, end = self.server.start(job) if self.server is not None else spawn(job, self.program)
        return Running(pid, end, out, err)

    def start_paused(self, *args: str, at: str, **how: Any) -> Running:
        """Begin a run and return when it stands at a point that hooks/sitecustomize.py knows."""
        paused = self.folder / f"{self._runs}.paused"
        running = self.start(*args, env={"PAUSE_AT": at, "PAUSED": str(paused)}, **how)
        running.until(paused.exists)
        return running
