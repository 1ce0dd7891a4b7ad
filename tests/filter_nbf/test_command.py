"""The command line: streams in real time, states, pictures, exit codes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

NIPSTOOL = [sys.executable, "-m", "nipstool", "filter-nbf"]
MODEL = """
import numpy as np
class Walk:
    names, obs_names = ("a",), ("s",)
    def init_sample(self, n, rng): return rng.standard_normal((n, 1))
    def transition_sample(self, x, u, dt, rng): return x + rng.standard_normal(x.shape)
    def log_likelihood(self, y, x, u):
        if y[0] > 100: raise RuntimeError("too far")
        if y[0] < -100: return np.full(len(x), np.nan)
        return -0.5 * (y[0] - x[:, 0]) ** 2
"""


def run(*args: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*NIPSTOOL, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=120)


def rows(done: subprocess.CompletedProcess[str]) -> list[dict]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_simulated_evader_is_tracked_with_the_shipped_checkpoint(tmp_path: Path) -> None:
    made = run("simulate", "--domain", "arena", "-T", "40", "--seed", "3")
    picture = tmp_path / "belief.png"
    done = run("--domain", "arena", "--plot", picture, stdin=made.stdout)
    assert (done.returncode, made.returncode) == (0, 0)
    assert "no checkpoint" not in done.stderr
    found = rows(done)
    assert len(found) == 40
    assert all(row["modes"] for row in found)
    assert picture.read_bytes().startswith(b"\x89PNG")
    truth = np.array([list(json.loads(line)["truth"].values())[:2] for line in made.stdout.splitlines()])
    apart = [np.hypot(*(np.array(row["mean"][:2]) - t)) for row, t in zip(found, truth, strict=True)]
    spread = [np.sqrt(row["cov"][0][0] + row["cov"][1][1]) for row in found]
    assert np.mean(np.array(apart) < 2.5 * np.array(spread)) > 0.8


def test_a_users_model_that_fails_on_rows_does_not_end_the_stream(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    text = "".join(json.dumps({"s": s}) + "\n" for s in (0.0, 1000.0, 0.5, -1000.0, 1.0))
    done = run("--domain", tmp_path / "model.py", "--belief", "pf", stdin=text)
    assert [row["event"] for row in rows(done)] == [None, "failed", None, "collapsed", None]
    assert done.returncode == 65
    assert "stdin:2: " in done.stderr
    assert "log_likelihood raised RuntimeError: too far" in done.stderr
    assert "no number for 256 particles" in done.stderr
    stopped = run("--domain", tmp_path / "model.py", "--on-error", "stop", "--belief", "pf", stdin=text)
    assert stopped.returncode == 65


def test_one_id_is_the_same_to_the_byte_when_the_stream_is_split(tmp_path: Path) -> None:
    made = run("simulate", "--domain", "nile", "-T", "30").stdout
    lines = made.splitlines(keepends=True)
    common = ("--domain", "nile", "--belief", "gaussian", "-n", "64")
    whole = run(*common, stdin=made).stdout
    state = tmp_path / "s"
    first = run(*common, "--state-out", state, stdin="".join(lines[:13])).stdout
    second = run(*common, "--state-in", state, stdin="".join(lines[13:])).stdout
    assert first + second == whole


def heed_interrupts() -> None:
    """A job that a shell has put in the background ignores SIGINT, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupted_stream_leaves_its_state(tmp_path: Path) -> None:
    state = tmp_path / "s"
    command = [*NIPSTOOL, "--domain", "nile", "--belief", "pf", "--state-out", str(state)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write('{"flow": 1000}\n')
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["event"] is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    process.stdin.close()
    process.stdout.close()
    assert state.exists()


def test_a_particle_filter_needs_no_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "nipstool", "filter-nbf", "--domain", "nile"]
    done = subprocess.run(
        [*command, "--belief", "pf"], input='{"flow": 1}\n', capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert not {name for name in imported if name.split(".")[0] in ("torch", "scipy", "matplotlib")}


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("--domain", "nile", "--belief", "kalman"), 2, "expected one of nbf, gaussian, pf"),
        (("--domain", "nile", "--belief", "pf", "--paper"), 2, "--paper"),
        (("--domain", "nile", "--columns", "flow"), 2, "expected NAME=VALUE"),
        (("--domain", "nile", "--plot", "x.txt"), 2, "ends in .png"),
        (("--domain", "nile", "--state-in", "none"), 66, "none"),
        (("--domain", "nile", "--checkpoint", "none"), 66, "none"),
        (("--domain", "nile", "none.ndjson"), 66, "none.ndjson"),
        (("--domain", "nile"), 65, "has no rows"),
    ],
)
def test_what_makes_no_sense_is_one_line(args: tuple[str, ...], status: int, said: str) -> None:
    done = run(*args)
    assert done.returncode == status
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_papers_loop_runs(tmp_path: Path) -> None:
    made = run("simulate", "--domain", "arena", "-T", "6").stdout
    done = run("--domain", "arena", "--paper", "-n", "32", stdin=made)
    assert done.returncode == 0
    assert {row["stages"] for row in rows(done)} == {1}
