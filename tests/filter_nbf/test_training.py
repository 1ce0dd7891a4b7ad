"""Training as a run: interrupted and taken up again, on several processes, and what its journal refuses."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from nipstool.filter_nbf.fit import Plan, fit
from nipstool.filter_nbf.load import load_domain
from nipstool.kit.distributed import Group
from nipstool.kit.errors import UsageError
from nipstool.kit.progress import silent

PLAN = "Plan(scenarios=4, steps=12, batch=8)"
RUN = f"""
import os, signal, sys
from contextlib import nullcontext
from nipstool.filter_nbf import journal
from nipstool.filter_nbf.fit import Plan, fit
from nipstool.filter_nbf.load import load_domain
from nipstool.kit.distributed import Group
journal.EVERY_S = 0.0
def show(done, total):
    if total == 12 and done == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
fit(load_domain("nile"), {PLAN}, sys.argv[1], stage=lambda name: nullcontext(show), group=Group())
"""


def trained(output: Path, plan: Plan, *, resume: bool = False) -> bytes:
    fit(
        load_domain("nile"),
        plan,
        str(output),
        resume=resume,
        force=True,
        stage=lambda name: nullcontext(silent),
        group=Group(),
    )
    return output.read_bytes()


def test_a_run_that_was_killed_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    plan = Plan(scenarios=4, steps=12, batch=8)
    output = tmp_path / "cut.safetensors"
    killed = subprocess.run([sys.executable, "-c", RUN, output, "8"], timeout=120)
    journal = tmp_path / ".cut.safetensors.training"
    assert killed.returncode == -9
    assert journal.exists()
    assert not output.exists()
    with pytest.raises(UsageError, match="run with other options"):
        trained(output, Plan(scenarios=4, steps=13, batch=8), resume=True)
    whole = trained(tmp_path / "whole.safetensors", plan)
    assert trained(output, plan, resume=True) == whole
    assert not journal.exists()


def test_a_resumed_run_does_only_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, the test above would also pass if the journal were ignored."""
    monkeypatch.setattr("nipstool.filter_nbf.journal.EVERY_S", 0.0)
    done: list[int] = []

    def stop_at_five(step: int, total: int) -> None:
        done.append(step)
        if len(done) == 5 and total == 12:
            raise KeyboardInterrupt

    def run(resume: bool) -> None:
        fit(
            load_domain("nile"),
            Plan(scenarios=2, steps=12, batch=8),
            str(tmp_path / "x"),
            resume=resume,
            stage=lambda name: nullcontext(stop_at_five if name == "train" else silent),
            group=Group(),
        )

    with pytest.raises(KeyboardInterrupt):
        run(False)
    run(True)
    assert done == [1, 2, 3, 4, 5, *range(5, 13)]


@pytest.mark.slow
def test_two_processes_train_the_same_networks(tmp_path: Path) -> None:
    """Batches are shared and gradients summed: equal but for rounding. Slow: it starts four interpreters."""
    words = ["filter-nbf", "train", "--domain", "nile", "--scenarios", "4", "--steps", "6", "--batch", "9"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    alone, both = tmp_path / "alone", tmp_path / "both"
    common = ["--device", "cpu", "--threads", "1", "-o"]
    subprocess.run([sys.executable, "-m", "nipstool", *words, *common, alone], check=True, timeout=300)
    subprocess.run([*torchrun, "-m", "nipstool", *words, *common, both], check=True, timeout=300)
    one, two = load_file(alone), load_file(both)
    assert one.keys() == two.keys()
    for name in one:
        if not name.startswith("cal."):
            assert two[name].astype(float) == pytest.approx(one[name].astype(float), abs=2e-3), name
