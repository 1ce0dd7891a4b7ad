"""Run the benchmarks and write BENCHMARKS.md: python docs/benchmarks.py [NAME...]

Every script of tests/benchmarks, or those named, runs in a process of its own, on one thread; what it prints
stands in BENCHMARKS.md with its command, its time and the machine. Two scripts run at a time where there are two
cores, the long ones first, but those that read the clock on the wall run alone, at the end. Sections of scripts
that did not run stay as they were.
"""

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tests" / "benchmarks"
OUT = ROOT / "BENCHMARKS.md"
LIMIT_S = 1500
LONG = (
    "detect_navtext_reading",
    "filter_nbf",
    "eeg_pretrain_real",
    "eeg_pretrain_seizures",
    "eeg_pretrain_stream",
)
ALONE = ("filter_nbf_speed", "startup")
PACKAGES = (
    "torch",
    "numpy",
    "scipy",
    "transformers",
    "safetensors",
    "onnxruntime",
    "opencv-python-headless",
    "mne",
)
SECTION = re.compile(r"^## `(\w+)`\n.*?(?=^## `|\Z)", re.MULTILINE | re.DOTALL)
PARTICLES = ROOT / "models" / "peers" / "particles" / "bin" / "python"

INTRODUCTION = """# Benchmarks

What the methods and their speed come to, beside peers measured in the same run. `make bench` runs everything
and writes this file; a part alone: `make bench ARGS=NAME`. Ratios carry over to other machines; times are CPU
seconds of one thread unless a line says otherwise. Where a script names a number that is wanted, the one that was
reached stands beside it, reached or not.
"""


def main(names: list[str]) -> None:
    """Run the scripts and write the file."""
    every = sorted(path.stem for path in SCRIPTS.glob("[a-z]*.py"))
    unknown = [name for name in names if name not in every]
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join(every)}")
    sections = read_sections()
    chosen = names or [*LONG, *(name for name in every if name not in LONG)]
    for name, text in run_all([name for name in chosen if name not in ALONE], min(2, os.cpu_count() or 1)):
        write(sections, name, text)
    for name, text in run_all([name for name in chosen if name in ALONE], 1):
        write(sections, name, text)


def run_all(names: Sequence[str], at_once: int) -> Iterator[tuple[str, str]]:
    """The section of every script, as they end."""
    with ThreadPoolExecutor(at_once) as pool:
        runs = {pool.submit(measured, name): name for name in names}
        for run in as_completed(runs):
            yield runs[run], run.result()


def write(sections: dict[str, str], name: str, text: str) -> None:
    """Put a section into the file at once, so that a broken run keeps what it had."""
    sections[name] = text
    print(text, flush=True)
    whole = "\n".join(sections[key] for key in sorted(sections))
    OUT.write_text(f"{INTRODUCTION}\n{whole}", encoding="utf-8")


def read_sections() -> dict[str, str]:
    """The sections that the file has, by script."""
    text = OUT.read_text(encoding="utf-8") if OUT.exists() else ""
    return {found[1]: found[0].rstrip() + "\n" for found in SECTION.finditer(text)}


def measured(name: str) -> str:
    """Run one script; its section."""
    print(f"== {name}", flush=True)
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
    if PARTICLES.exists():
        environment.setdefault("PARTICLES_PYTHON", str(PARTICLES))
    start = time.monotonic()
    command = ["timeout", str(LIMIT_S), sys.executable, "-u", str(SCRIPTS / f"{name}.py")]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    ended = {0: "", 124: f"; stopped after {LIMIT_S} s"}
    how = ended.get(done.returncode, f"; failed with status {done.returncode}")
    took = f"{time.monotonic() - start:.0f} s at a load of {os.getloadavg()[2]:.0f}{how}"
    return section(name, done.stdout.splitlines(), took)


def section(name: str, lines: list[str], took: str) -> str:
    """A script's output: its tables as tables, the rest as it was printed."""
    command = f"`.venv/bin/python tests/benchmarks/{name}.py`"
    body, block = [], []
    for line in [*lines, "|"]:
        if not line.startswith("|"):
            block.append(line)
            continue
        if any(block):
            body += ["", "```text", *"\n".join(block).strip("\n").splitlines(), "```", ""]
        block = []
        body += [line] if line != "|" else []
    return f"## `{name}`\n\n{command}: {took}, {machine()}.\n" + "\n".join(body).rstrip() + "\n"


def machine() -> str:
    """Processor, memory, versions and day, in one line."""
    cpu = (
        re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        if os.path.exists("/proc/cpuinfo")
        else None
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    processor = " ".join(cpu[1].split()) if cpu else platform.processor()
    day = datetime.now(UTC).date().isoformat()
    return (
        f"{day}, {os.cpu_count()} x {processor}, {memory:.0f} GiB, Python {platform.python_version()}, {versions}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
