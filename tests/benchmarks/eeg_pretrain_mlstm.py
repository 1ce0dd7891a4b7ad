"""The chunkwise mLSTM, forward and backward, against chunkwise_simple of xlstm 2.0.6: one thread, CPU time.

    pip install --no-deps --target models/peers xlstm==2.0.6
    eeg_pretrain_mlstm.py [models/peers]

The peer's file is loaded alone: its package needs more than is installed here.
"""

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from nipstool.eeg_pretrain.mlstm import chunkwise

B, H, D, T, CHUNK, ROUNDS = 1, 4, 64, 4096, 64, 5


def peer(folder: Path) -> ModuleType | None:
    """xlstm's file of mLSTM forms; None where the package is not there."""
    path = folder / "xlstm" / "blocks" / "mlstm" / "backends.py"
    spec = importlib.util.spec_from_file_location("backends", path)
    if not path.is_file() or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seconds(step: Callable[[], Tensor]) -> float:
    """Median CPU time of forward and backward."""
    step().sum().backward()
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        step().sum().backward()
        found.append(time.process_time() - start)
    return statistics.median(found)


def main(folder: Path) -> None:
    """Print both times, their ratio, and the largest difference of the outputs."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, H, T, D, requires_grad=True) for _ in range(3))
    i = torch.randn(B, H, T, requires_grad=True)
    f = (torch.randn(B, H, T) + 3.0).requires_grad_()
    ours = seconds(lambda: chunkwise(q, k, v, i, f, chunk=CHUNK)[0])
    module = peer(folder)
    if module is None:
        print(f"ours {1e3 * ours:.0f} ms; xlstm is not in {folder}")
        return

    def theirs() -> Tensor:
        found = module.chunkwise_simple(q, k, v, i, f, chunk_size=CHUNK, eps=0.0)
        return found[0] if isinstance(found, tuple) else found

    other = seconds(theirs)
    difference = float((chunkwise(q, k, v, i, f, chunk=CHUNK)[0] - theirs()).detach().abs().max())
    print(f"ours {1e3 * ours:.0f} ms, chunkwise_simple {1e3 * other:.0f} ms, ratio {ours / other:.2f} (at most 1)")
    print(f"largest difference of outputs {difference:.1e} of {float(theirs().detach().abs().max()):.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "models/peers"))
