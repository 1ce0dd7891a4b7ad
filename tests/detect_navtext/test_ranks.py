"""Several processes, as torchrun starts them, share the pictures."""

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def test_two_processes_of_torchrun_write_what_one_writes(tmp_path: Path) -> None:
    folder = tmp_path / "signs"
    folder.mkdir()
    for number, text in enumerate(("EXIT", "Room 204", "Platform 9")):
        picture = np.full((120, 420, 3), 235, np.uint8)
        cv2.putText(picture, text, (20, 80), cv2.FONT_HERSHEY_SIMPLEX, 1.8, (20, 20, 20), 4, cv2.LINE_AA)
        cv2.imwrite(str(folder / f"{number}.png"), picture)
    words = ["-m", "nipstool", "detect-navtext", "signs", "--quiet", "--threads", "1", "-o"]
    subprocess.run([sys.executable, *words, "one.ndjson"], cwd=tmp_path, check=True, timeout=120)
    # The port is chosen by the first process: runs side by side do not meet.
    two = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", *words, "two.ndjson"]
    subprocess.run(two, cwd=tmp_path, check=True, timeout=120)
    one = (tmp_path / "one.ndjson").read_bytes()
    assert [b"EXIT" in one, b"204" in one, b"9" in one] == [True] * 3
    assert (tmp_path / "two.ndjson").read_bytes() == one
    assert not list(tmp_path.glob("*part*"))
