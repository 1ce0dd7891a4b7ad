"""filter-nbf in time and memory: the core beside the particles library, lines a second, latency, first line.

    filter_nbf_speed.py [core|ships|latency|first|memory]

`core` also runs the particles library where PARTICLES_PYTHON names a Python that has it (particles 0.4, numpy
1.26), both in turns, by CPU time and, as the command does, with one thread. `ships` needs the real inputs.
"""

import io
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is loaded
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import numpy as np

from nipstool.filter_nbf import (
    Bootstrap,
    Gaussian,
    Kernel,
    RowReader,
    Settings,
    Tracks,
    choose_belief,
    filter_stream,
    load_domain,
)
from nipstool.filter_nbf.arguments import settings_of
from nipstool.filter_nbf.draws import KeyedGenerator
from nipstool.filter_nbf.evaluate import Method, filtered
from nipstool.filter_nbf.simulate import Scenario, rows_of

DATA = Path(os.environ.get("NIPSTOOL_TEST_DATA", Path(__file__).parents[3] / "shared" / "data")) / "filter-nbf"


def say(*words: object) -> None:
    print(*words, flush=True)


PEER = """
import sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np, particles
from particles import state_space_models as ssm, distributions as dists
class Level(ssm.StateSpaceModel):
    def PX0(self): return dists.Normal(1000.0, 500.0)
    def PX(self, t, xp): return dists.Normal(xp, 1469.1 ** 0.5)
    def PY(self, t, xp, x): return dists.Normal(x, 15099.0 ** 0.5)
y = np.array(eval(sys.stdin.readline()))
def once(N):
    pf = particles.SMC(fk=ssm.Bootstrap(ssm=Level(), data=y), N=N, ESSrmin=0.5)
    began = time.process_time(); pf.run(); return time.process_time() - began
once(100)
print("ready", flush=True)
for line in sys.stdin:
    print(once(int(line)), flush=True)
"""


def core(turns: int = 300) -> None:
    """The core alone, particle-steps a CPU second, in turns with the particles library; fewer where n is large."""
    y = 1000.0 + 120.0 * np.random.default_rng(0).standard_normal((100, 1))
    scenario = Scenario(np.empty((100, 0)), y, np.zeros((100, 0)))
    domain = load_domain("nile")

    def once(n: int) -> float:
        began = time.process_time()
        for _ in filtered(domain, Method(Bootstrap(), Settings(n, temper=False)), scenario, KeyedGenerator(0, "")):
            pass
        return time.process_time() - began

    python, peer = os.environ.get("PARTICLES_PYTHON"), None
    if python:
        peer = subprocess.Popen([python, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert peer.stdin is not None
        assert peer.stdout is not None
        peer.stdin.write(f"{y[:, 0].tolist()}\n")
        peer.stdin.flush()
        peer.stdout.readline()
    for n in (1_000, 10_000, 100_000):
        ours, theirs = [], []
        for _ in range(max(15, turns * 1_000 // n)):
            ours.append(once(n))
            if peer is not None and peer.stdin is not None and peer.stdout is not None:
                peer.stdin.write(f"{n}\n")
                peer.stdin.flush()
                theirs.append(float(peer.stdout.readline()))
        line = f"n = {n}: {100 * n / np.median(ours) / 1e6:.2f} million particle-steps a CPU second"
        say(line + (f", {np.median(theirs) / np.median(ours):.2f} times the particles library" if theirs else ""))
    if peer is not None:
        peer.kill()
        peer.wait()


def ships() -> None:
    """91 ships in one stream: lines a CPU second, all of it (reading, filtering, writing)."""
    names = {"t": "Time", "id": "MMSI", "lat": "Latitude_degrees", "lon": "Longitude_degrees"}
    for _ in range(2):
        domain = load_domain("constant-velocity")
        tracks = Tracks(domain, Gaussian(), Settings(256))
        reader, count = RowReader(domain.obs_names, (), names), 0
        began, wall = time.process_time(), time.monotonic()
        with (
            open(DATA / "SolentAIS_20160112_130211.csv", "rb", buffering=0) as source,
            open(os.devnull, "w") as sink,
        ):
            count = filter_stream(
                source, reader, tracks, lambda text, sink=sink: print(text, end="", file=sink)
            ).rows
        spent = time.process_time() - began
        say(
            f"{count} lines, {len(tracks.tracks)} ids: {count / spent:.0f} a CPU second,"
            f" {count / (time.monotonic() - wall):.0f} a second"
        )


def latency(lines: int = 300, passes: int = 5) -> None:
    """CPU time of single lines at n = 256: of all of them, and of each line's best of some passes."""
    for belief in ("pf", "gaussian", "nbf"):
        domain = load_domain("arena")
        rows = [f"{line}\n".encode() for line in rows_of(domain, lines, 1, 1.0, seed=3)]
        spent = np.empty((passes, lines))
        for turn in range(passes):
            tracks = Tracks(domain, choose_belief(belief, domain).belief, settings_of(256, belief=belief))
            reader = RowReader(domain.obs_names, domain.control_names)
            for k, row in enumerate(rows):
                began = time.process_time()
                filter_stream(io.BytesIO(row), reader, tracks, lambda text: None)
                spent[turn, k] = 1e3 * (time.process_time() - began)
        middle, last = np.quantile(spent, 0.5), np.quantile(spent, 0.99)
        best = np.quantile(spent.min(0), 0.99)
        say(f"arena, {belief}: median {middle:.2f} ms, p99 {last:.2f} ms, of the best of {passes} {best:.2f} ms")


def first(turns: int = 5) -> None:
    """From the start of the program to its first line, --belief pf: seconds, and CPU seconds."""
    command = [sys.executable, "-m", "nipstool", "filter-nbf", "--domain", "nile", "--belief", "pf"]
    walls, spent = [], []
    for _ in range(turns):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"flow": 1120}\n')
        process.stdin.flush()
        process.stdout.readline()
        walls.append(time.monotonic() - began)
        process.communicate()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    say(f"first line, pf: best {min(walls):.2f} s, median {np.median(walls):.2f} s; CPU {min(spent):.2f} s")


def memory(lines: int = 100_000) -> None:
    """The resident size along a long stream."""
    tracks = Tracks(load_domain("nile"), Kernel(), Settings(64))
    reader, sizes, some = RowReader(("flow",), ()), [], lines // 10
    for start in range(0, lines, some):
        text = b"".join(b'{"flow": %d}\n' % (900 + k % 200) for k in range(start, start + some))
        filter_stream(io.BytesIO(text), reader, tracks, lambda text: None)
        pages = Path("/proc/self/statm").read_text().split()
        sizes.append(int(pages[1]) * resource.getpagesize() / 1e6)
    say(f"{lines} lines: resident {sizes[0]:.1f} MB after {some}, {sizes[-1]:.1f} MB at the end")


if __name__ == "__main__":
    every = {f.__name__: f for f in (core, ships, latency, first, memory)}
    for name in sys.argv[1:] or every:
        say(f"-- {name}")
        every[name]()
