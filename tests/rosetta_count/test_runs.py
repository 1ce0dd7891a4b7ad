"""A run may be killed and taken up, or shared by two processes: the result is the same."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from arrays import numbers, related
from safetensors.torch import load_file

from nipstool.rosetta_count.job import Request, run
from nipstool.rosetta_count.results import NEURONS, PAIRS
from nipstool.rosetta_count.work import Options, Outcome

KILLED = """
import os, signal, sys
from nipstool.rosetta_count.dumps import DumpActivations
from nipstool.rosetta_count.job import Request, run
from nipstool.rosetta_count.work import Options

folder, method, min_r = sys.argv[1:]
read = DumpActivations.unit

def unit(self, index):
    if index == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(self, index)

DumpActivations.unit = unit
run(Request((f"{folder}/a.npy", f"{folder}/b.npy"), f"{folder}/out", acts=True, checkpoint_seconds=0.0,
            options=Options(method=method, min_r=float(min_r))))
"""

SHARED = """
import sys, torch
torch.set_num_threads(1)
from safetensors.torch import save_file
from nipstool.kit.distributed import joined
from nipstool.rosetta_count.job import Request, run
from nipstool.rosetta_count.work import Options

folder, method, min_r, tests = sys.argv[1:]
sys.path.insert(0, tests)
from arrays import numbers

with joined("cpu") as group:
    assert group.size == 2
    models = (f"{folder}/a.npy", f"{folder}/b.npy")
    options = Options(method=method, min_r=float(min_r))
    found = run(Request(models, f"{folder}/two", acts=True, options=options), group=group)
    if group.rank == 0:
        save_file(numbers(found.outcome), f"{folder}/two.safetensors")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    a, b = related(1600, 50, 40)
    a[:, 3] = 0
    np.save(tmp_path / "a.npy", a.numpy())
    np.save(tmp_path / "b.npy", b.numpy())
    return tmp_path


def count(folder: Path, output: str, method: str, min_r: float, **more: object) -> Outcome:
    models = (str(folder / "a.npy"), str(folder / "b.npy"))
    request = Request(models, str(folder / output), acts=True, options=Options(method=method, min_r=min_r), **more)  # type: ignore[arg-type]
    return run(request).outcome


@pytest.mark.parametrize(("method", "min_r"), [("dense", 0.0), ("spool", 0.0), ("sketch", 0.3)])
def test_a_killed_run_is_taken_up_bit_by_bit(folder: Path, method: str, min_r: float):
    count(folder, "whole", method, min_r)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), method, str(min_r)], timeout=300)
    assert killed.returncode == -signal.SIGKILL
    assert (folder / ".out.sums").is_dir()
    count(folder, "out", method, min_r, resume=True)
    for name in (PAIRS, NEURONS, "anchors.json"):
        assert (folder / "out" / name).read_bytes() == (folder / "whole" / name).read_bytes(), name
    assert not (folder / ".out.sums").exists()


@pytest.mark.parametrize(("method", "min_r"), [("dense", 0.0), ("spool", 0.0), ("sketch", 0.3)])
def test_two_processes_find_what_one_finds(folder: Path, method: str, min_r: float):
    torch.set_num_threads(1)  # as in both processes
    one = count(folder, "one", method, min_r)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SHARED, str(folder), method, str(min_r), str(Path(__file__).parent)],
            env={
                **os.environ,
                **{"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29500 + os.getpid() % 2000)},
                "TORCHELASTIC_RUN_ID": "test",
            },
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=300) for process in ranks] == [0, 0]
    ours, theirs = load_file(folder / "two.safetensors"), numbers(one)
    assert ours.keys() == theirs.keys()
    for name, mine in ours.items():
        known = theirs[name].isfinite()
        assert torch.equal(mine.isfinite(), known), name
        assert torch.allclose(mine[known], theirs[name][known], rtol=1e-9, atol=1e-9), name
    for name in (PAIRS, "anchors.json"):
        assert (folder / "two" / name).exists()
