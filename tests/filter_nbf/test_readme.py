"""The method's README does what it shows: its commands run, and its model finds a walker."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    return (root / "nipstool" / "filter_nbf" / "README.md").read_text(encoding="utf-8")


def block(text: str, language: str, begins: str = "") -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return next(code for code in found if code.startswith(begins))


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = line.replace("nipstool", f"{shlex.quote(sys.executable)} -m nipstool", 1)
    return subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_first_commands_run(text: str, tmp_path: Path) -> None:
    lines = [line.removeprefix("$ ") for line in block(text, "console").splitlines() if "tail -f" not in line]
    assert len(lines) == 2
    for line in lines:
        done = run(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert (tmp_path / "belief.png").read_bytes().startswith(b"\x89PNG")
    answer = json.loads((tmp_path / "beliefs.ndjson").read_text().splitlines()[-1])
    named = re.search(r"^An answer has (.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert named is not None
    promised = set(re.findall(r"`(\w+)`", named[1])) - {"mass", "cov"}
    assert promised <= answer.keys()
    assert set(re.findall(r"^\| (\w+) \|", text[: text.index("## A model")], re.MULTILINE)) >= {
        *("missing", "collapsed", "off_family", "late", "failed", "skipped")
    }


def test_the_comparison_is_as_shown(text: str, tmp_path: Path) -> None:
    """The command of the transcript on less; its rows and columns."""
    command, *shown = block(text, "console", "$ nipstool filter-nbf evaluate").splitlines()
    less = "--scenarios 2 -T 3 --reference 200"
    done = run(command.removeprefix("$ ").replace("--scenarios 8 --reference 5000", less), tmp_path)
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    assert [line.split("\t")[0] for line in found[:-1]] == [line.split("\t")[0] for line in shown[:-1]]
    assert [found[0], found[4]] == [shown[0], shown[4]]
    assert re.sub(r"[\d.]+", "", found[-1]) == re.sub(r"[\d.]+", "", shown[-1])


def test_the_model_finds_a_walker(text: str, tmp_path: Path) -> None:
    """A walker at (3, 2) that goes 0.2 a step to the right, heard without noise; one bearing is missing."""
    (tmp_path / "model.py").write_text(block(text, "python", "import numpy as np\n\nSTATIONS"))
    stations = np.array([[0.0, 0.0], [10.0, 0.0], [5.0, 8.0]])
    rows = []
    for k in range(12):
        away = np.array([3.0 + 0.2 * k, 2.0]) - stations
        b1, b2, b3 = np.arctan2(away[:, 1], away[:, 0]).tolist()
        rows.append(json.dumps({"t": k, "obs": {"b1": b1, "b2": b2, "b3": b3 if k % 2 else None}}))
    (tmp_path / "rows.ndjson").write_text("\n".join(rows))
    done = run("nipstool filter-nbf --domain model.py rows.ndjson -n 1000", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tempered, regularised particle filter" in done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["event"] is None
    assert last["mean"][:2] == pytest.approx([5.2, 2.0], abs=0.5)
    assert last["quantiles"]["0.05"][0] < 5.2 < last["quantiles"]["0.95"][0]
    refused = run("nipstool filter-nbf simulate --domain model.py", tmp_path)
    assert refused.returncode == 65
    assert "simulate needs the method simulate_obs" in refused.stderr
