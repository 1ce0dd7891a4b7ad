"""A run may be killed and taken up, or shared by two processes: the result is the same."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from arrays import related

from nipstool.rosetta_count.job import Request, run
from nipstool.rosetta_count.results import NEURONS, PAIRS
from nipstool.rosetta_count.work import Options

KILLED = """
import os, signal, sys
from nipstool.rosetta_count.dumps import DumpActivations
from nipstool.rosetta_count.job import Request, run
from nipstool.rosetta_count.work import Options

folder, method = sys.argv[1:]
read = DumpActivations.unit

def unit(self, index):
    if index == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(self, index)

DumpActivations.unit = unit
run(Request((f"{folder}/a.npy", f"{folder}/b.npy"), f"{folder}/out", acts=True, checkpoint_seconds=0.0,
            options=Options(method=method)))
"""

SHARED = """
import sys, torch
torch.set_num_threads(1)
from nipstool.kit.distributed import joined
from nipstool.rosetta_count.job import Request, run
from nipstool.rosetta_count.work import Options

folder, method = sys.argv[1:]
with joined("cpu") as group:
    assert group.size == 2
    models = (f"{folder}/a.npy", f"{folder}/b.npy")
    run(Request(models, f"{folder}/two", acts=True, options=Options(method=method)), group=group)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    a, b = related(1600, 50, 40)
    a[:, 3] = 0
    np.save(tmp_path / "a.npy", a.numpy())
    np.save(tmp_path / "b.npy", b.numpy())
    return tmp_path


def count(folder: Path, output: str, method: str = "dense", **more: object) -> Path:
    models = (str(folder / "a.npy"), str(folder / "b.npy"))
    options = Options(method=method)
    run(Request(models, str(folder / output), acts=True, options=options, **more))  # type: ignore[arg-type]
    return folder / output


@pytest.mark.parametrize("method", ["dense", "spool"])
def test_a_killed_run_is_taken_up_bit_by_bit(folder: Path, method: str):
    whole = count(folder, "whole", method)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), method], timeout=300)
    assert killed.returncode == -signal.SIGKILL
    assert (folder / ".out.sums").is_dir()
    resumed = count(folder, "out", method, resume=True)
    for name in (PAIRS, NEURONS, "anchors.json"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes(), name
    assert not (folder / ".out.sums").exists()


@pytest.mark.parametrize("method", ["dense", "spool"])
def test_two_processes_find_what_one_finds(folder: Path, method: str):
    one = count(folder, "one", method)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SHARED, str(folder), method],
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
    for name, most in ((PAIRS, 2e-9), (NEURONS, 1e-6)):  # of what the files show: nine and seven digits
        ours, theirs = ((place / name).read_text().splitlines() for place in (folder / "two", one))
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            for left, right in zip(mine.split(","), other.split(","), strict=True):
                assert left == right or abs(float(left) - float(right)) <= most * max(1.0, abs(float(right)))
