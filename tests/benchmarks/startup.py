"""How long the command line takes to start: CPU time of whole processes, each against a peer in the same run.

    python tests/benchmarks/startup.py [RUNS]

`nipstool --help` is held against the smallest typer program there can be, one file with two commands, and
`nipstool --version` against a Python that does nothing but import typer. Runs alternate, so that a busy
machine slows both sides; the medians are compared.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

RUNS = 15
EAGER_APP = '''
import typer

app = typer.Typer()


@app.command()
def first(name: str, count: int = 1) -> None:
    """Say a name some times."""


@app.command()
def second(path: str, force: bool = False) -> None:
    """Do something with a file."""


app()
'''


@dataclass(frozen=True)
class Comparison:
    """One of our commands, its peer, and how many times the peer's CPU time it may take."""

    label: str
    ours: Sequence[str]
    peer_label: str
    peer: Sequence[str]
    target: float


def comparisons(folder: Path) -> list[Comparison]:
    """What is measured; the peer program is written into `folder`."""
    python = sys.executable
    program = str(Path(python).with_name("nipstool"))
    app = folder / "eager.py"
    app.write_text(EAGER_APP)
    peer_help = [python, str(app), "--help"]
    import_typer = [python, "-c", "import typer"]
    return [
        Comparison("nipstool --help", [program, "--help"], "two-command typer app --help", peer_help, 1.25),
        Comparison("nipstool --version", [program, "--version"], "python -c 'import typer'", import_typer, 1.2),
    ]


def cpu_seconds(command: Sequence[str]) -> float:
    """User and system time of one process."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def measure(comparison: Comparison, runs: int) -> tuple[float, float]:
    """Median CPU seconds of ours and of the peer, after one warming run of each."""
    pairs = [(cpu_seconds(comparison.ours), cpu_seconds(comparison.peer)) for _ in range(runs + 1)][1:]
    return median(ours for ours, _ in pairs), median(peer for _, peer in pairs)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    print(f"start-up: median CPU time of {runs} runs")
    with tempfile.TemporaryDirectory() as folder:
        for comparison in comparisons(Path(folder)):
            ours, peer = measure(comparison, runs)
            verdict = "met" if ours / peer <= comparison.target else "MISSED"
            print(
                f"{comparison.label} {ours * 1e3:.0f} ms, {comparison.peer_label} {peer * 1e3:.0f} ms:"
                f" ratio {ours / peer:.2f} (target {comparison.target}: {verdict})"
            )


if __name__ == "__main__":
    main()
