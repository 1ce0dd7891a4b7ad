"""What NP-LoRA costs in factor space, against the dense SVD it replaces, and a whole SDXL pair from disk to disk.

    make bench            everything
    .venv/bin/python tests/benchmarks/fuse_lora.py [shapes|files|memory|peft]

Times are CPU seconds of one thread where they are compared; ratios come from one run. Nothing here decides a test.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nipstool.fuse_lora import projection as np_lora

# UNet modules of SDXL, (outputs, inputs) -> how many
SHAPES = {
    (1280, 1280): 372,
    (1280, 2048): 120,
    (640, 640): 70,
    (10240, 1280): 60,
    (1280, 5120): 60,
    (640, 2048): 20,
    (5120, 640): 10,
    (640, 2560): 10,
}
RANK = 32


def cpu_seconds(work: Callable[[], object], runs: int) -> float:
    """Median CPU time of a call, after one that does not count where it is cheap."""
    if runs > 1:
        work()
    times = []
    for _ in range(runs):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def fuse_exact(c: np_lora.Factors, s: np_lora.Factors) -> np_lora.Factors:
    """One module as the product fuses it, soft projection, exact rank."""
    (Bc, Ac), (Bs, As) = ((np_lora.upcast(B), np_lora.upcast(A)) for B, A in (c, s))
    V = np_lora.style_basis(Bs, As).V
    return np_lora.balance(*np_lora.concatenate([(1.0, Bc, np_lora.project(Ac, V, 0.5)), (1.0, Bs, As)]))


def fuse_truncated(c: np_lora.Factors, s: np_lora.Factors) -> np_lora.Factors:
    """The same, truncated to the rank of one file."""
    (Bc, Ac), (Bs, As) = ((np_lora.upcast(B), np_lora.upcast(A)) for B, A in (c, s))
    V = np_lora.style_basis(Bs, As).V
    fused = np_lora.concatenate([(1.0, Bc, np_lora.project(Ac, V, 0.5)), (1.0, Bs, As)])
    return np_lora.truncate(*fused, RANK)[:2]


def bench_shapes() -> None:
    """722 modules by one of each shape, weighted: ours against torch.linalg.svd of the dense sum in float32."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    totals: dict[str, float] = dict.fromkeys(("exact", "truncated", "full SVD", "thin SVD"), 0.0)
    print(f"rank {RANK}, 1 thread, CPU seconds a module")
    print("out x in\tcount\texact\ttruncated\tfull SVD\tthin SVD")
    for (m, n), count in SHAPES.items():
        pair = [(torch.randn(m, RANK) * 0.02, torch.randn(RANK, n) / n**0.5) for _ in range(2)]
        dense = sum(B @ A for B, A in pair)
        runs = 3 if max(m, n) <= 2048 else 1
        times = {
            "exact": cpu_seconds(lambda pair=pair: fuse_exact(*pair), 9),
            "truncated": cpu_seconds(lambda pair=pair: fuse_truncated(*pair), 9),
            "full SVD": cpu_seconds(lambda dense=dense: torch.linalg.svd(dense, full_matrices=True), runs),
            "thin SVD": cpu_seconds(lambda dense=dense: torch.linalg.svd(dense, full_matrices=False), runs),
        }
        for name, seconds in times.items():
            totals[name] += count * seconds
        print(f"{m}x{n}\t{count}\t" + "\t".join(f"{seconds:.4f}" for seconds in times.values()), flush=True)
    print("722 modules\t\t" + "\t".join(f"{totals[name]:.1f}" for name in totals))
    for ours in ("exact", "truncated"):
        for peer in ("full SVD", "thin SVD"):
            print(f"{peer} / {ours}: {totals[peer] / totals[ours]:.0f}x")


def write_pair(folder: Path, rank: int) -> tuple[Path, Path]:
    """An SDXL pair of random float16 factors, one file of kohya's names and one of diffusers'."""
    from nipstool.fuse_lora.synthetic import write_pair

    return write_pair(folder, rank=rank, dtype="F16")


def bench_files() -> None:
    """Read, fuse and write an SDXL pair of rank 32, as a user runs it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content, style = write_pair(folder, RANK)
        size = sum(p.stat().st_size for p in (content, style)) / 1e6
        print(f"SDXL pair, rank {RANK}, {size:.0f} MB in")
        for label, more in (("fuse, exact", []), ("fuse --rank 32", ["--rank", "32"])):
            report(
                label,
                ["fuse-lora", str(content), str(style), "-o", str(folder / "f.safetensors"), "--force", *more],
            )
        report("compare", ["fuse-lora", "compare", str(content), str(style)])


def report(label: str, args: list[str]) -> None:
    """Wall and CPU seconds of a whole command, median of three."""
    walls, cpus = [], []
    for _ in range(3):
        before, start = os.times(), time.monotonic()
        subprocess.run([sys.executable, "-m", "nipstool", *args], check=True, capture_output=True)
        after = os.times()
        walls.append(time.monotonic() - start)
        cpus.append(after.children_user + after.children_system - before.children_user - before.children_system)
    load = os.getloadavg()[0]
    print(
        f"{label}\twall {statistics.median(walls):.1f} s\tCPU {statistics.median(cpus):.1f} s\t(load {load:.1f})",
        flush=True,
    )


PEAK = """
import json, sys
from nipstool.fuse_lora import fuse
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) / 1024
import torch; torch.zeros(1)
before = peak()
fuse(sys.argv[1], [sys.argv[2]], sys.argv[3], force=True)
print(json.dumps([before, peak()]))
"""


def bench_memory() -> None:
    """Peak resident memory of fusing an SDXL pair of rank 128, above that of the imports."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content, style = write_pair(folder, 128)
        args = [sys.executable, "-c", PEAK, str(content), str(style), str(folder / "f.safetensors")]
        before, after = json.loads(subprocess.run(args, check=True, capture_output=True, text=True).stdout)
        size = sum(p.stat().st_size for p in (content, style)) / 1e6
        print(
            f"SDXL pair, rank 128, {size:.0f} MB in: {after - before:.0f} MB above the imports ({before:.0f} MB)"
        )


def bench_peft() -> None:
    """A GPT-2-shaped pair of rank 8 against PEFT's add_weighted_adapter, in one process."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(1)
    config = LoraConfig(r=8, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    model = get_peft_model(GPT2LMHeadModel(GPT2Config()), config, adapter_name="c")
    model.add_adapter("s", config)
    layers: list[Any] = [m for m in model.modules() if getattr(m, "lora_A", None)]
    pairs = [[(m.lora_B[a].weight.detach(), m.lora_A[a].weight.detach()) for a in "cs"] for m in layers]
    ours = cpu_seconds(lambda: [fuse_exact(*pair) for pair in pairs], 5)
    for kind in ("cat", "svd"):
        more: dict[str, Any] = {"svd_rank": 8} if kind == "svd" else {}
        start = time.process_time()
        model.add_weighted_adapter(["c", "s"], [1.0, 1.0], f"m{kind}", combination_type=kind, **more)
        spent = time.process_time() - start
        print(
            f"GPT-2 pair, 12 modules: PEFT {kind} {spent:.3f} s, ours {ours:.4f} s: {spent / ours:.0f}x",
            flush=True,
        )


PARTS = {"shapes": bench_shapes, "files": bench_files, "memory": bench_memory, "peft": bench_peft}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        print(f"-- {part}")
        PARTS[part]()
