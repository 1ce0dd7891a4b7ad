"""A day of 23 channels through `embed --stream`'s path: memory after each hour, and seconds of one thread.

    eeg_pretrain_stream.py [HOURS]

The weights are random: what they are changes neither. Wanted: growth from hour 1 to hour 24 within 20 MiB.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nipstool.eeg_pretrain.config import PRESETS
from nipstool.eeg_pretrain.embed import embed
from nipstool.eeg_pretrain.model import Model
from nipstool.eeg_pretrain.opening import open_file
from nipstool.eeg_pretrain.stream import readings
from tests.benchmarks.eeg_pretrain_reader import write_day


def resident_mib() -> float:
    """Memory of this process."""
    (row,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(row.split()[1]) / 1024


def main(hours: int = 24) -> None:
    """Print memory by hour."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model(PRESETS["tiny"]).eval()
    memory: dict[int, float] = {}

    def watch(done: int, total: int) -> None:
        if (hour := done // 3600) >= 1 and hour not in memory:
            memory[hour] = resident_mib()
            print(f"hour {hour}: {memory[hour]:.1f} MiB, {time.process_time() - start:.0f} CPU s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "day.edf")
        write_day(path, hours)
        start = time.process_time()
        made = embed(readings(model, open_file(path).recording, progress=watch), model.config)
    rows = f"{len(made.embeddings)} windows, {made.embeddings.nbytes / 2**20:.1f} MiB"
    growth = max(memory.values()) - memory[1]
    finite = bool(np.isfinite(made.embeddings).all())
    print(f"{hours} h: {rows}, finite: {finite}; growth after hour 1: {growth:.1f} MiB (wanted: at most 20)")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
