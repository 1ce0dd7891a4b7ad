"""prune-nsc in numbers: which channels to keep on a real model, and what slicing a 7B-wide checkpoint costs.

    python tests/benchmarks/prune_nsc.py [MODEL] [TEXT]

MODEL is a SmolLM2-135M folder (`make models`), TEXT is WikiText-2. What is absent is left out with a reason.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from nipstool.kit.language_models import load_model, load_tokenizer
from nipstool.prune_nsc import Budgets, Settings, plan, prune
from nipstool.prune_nsc.check import load_pruned, mask_model
from nipstool.prune_nsc.decoder import Decoder, read_decoder
from nipstool.prune_nsc.measuring import random_scores
from nipstool.prune_nsc.perplexity import perplexity, pieces
from nipstool.prune_nsc.selection import Kept, Scores, select
from nipstool.prune_nsc.slicing import write_slices

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("NIPSTOOL_TEST_DATA", ROOT.parent / "shared" / "data"))
WINDOWS = 6


def main() -> None:
    """Every table; the arguments name another model and text."""
    if sys.argv[1:2] == ["--slice"]:
        slice_in_own_process(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    given = [Path(word) for word in sys.argv[1:]]
    model = given[0] if given else ROOT / "models" / "SmolLM2-135M-Instruct"
    text = given[1] if len(given) > 1 else DATA / "prune-nsc" / "wikitext2-test.txt"
    if model.is_dir() and text.is_file():
        channels(model, text.read_text())
    else:
        print(f"channel table left out: no {model} (make models) or no {text}")
    slicing()


# --- which channels to keep ---


def channels(folder: Path, text: str) -> None:
    """FFN 75 % of every layer by each score, beside dropping six middle layers; one text, one run."""
    decoder = read_decoder(str(folder))
    dense = load_model(folder, dtype=torch.float32)
    sequences = pieces(text[:40_000], load_tokenizer(folder), dense.config)[:WINDOWS]
    base = perplexity(dense, sequences)
    print(f"\n{folder.name}, FFN 75 %, {WINDOWS} x 512 tokens of WikiText-2")
    print("| method | perplexity | x dense |\n|---|---|---|")
    show("dense", base, base)
    _, found = plan(str(folder), Budgets(), Settings(ffn=0.75))
    widths = found.answer.layers
    for name, scores in {
        **weight_scores(decoder, dense),
        "random": random_scores(decoder, "ffn", 0).scores,
    }.items():
        show(name, masked(decoder, folder, select(decoder, widths, scores, None), sequences), base)
    middle = len(decoder.blocks) // 2 - 3
    kept = select(decoder, [decoder.dense] * len(decoder.blocks), {}, None)
    show(
        "six middle layers dropped",
        masked(decoder, folder, [*kept[:middle], *kept[middle + 6 :]], sequences),
        base,
    )
    with tempfile.TemporaryDirectory() as place:
        for source, tokens in (("noise", None), ("self", None)):
            start = time.monotonic()
            out = f"{place}/{source}"
            prune(str(folder), out, Budgets(), Settings(ffn=0.75), channels=source, tokens=tokens)
            seconds = time.monotonic() - start
            value = perplexity(load_pruned(decoder, Path(out), torch.float32), sequences)
            show(f"{source}, repaired ({seconds:.0f} s)", value, base)


def show(name: str, value: float, base: float) -> None:
    """One row."""
    print(f"| {name} | {value:.4g} | {value / base:.3g} |", flush=True)


def weight_scores(decoder: Decoder, dense: torch.nn.Module) -> dict[str, dict[int, Scores]]:
    """Scores from weights alone: no statistics."""
    found: dict[str, dict[int, Scores]] = {"down-column norm": {}, "product of norms": {}}
    for block in decoder.blocks:
        assert block.mlp is not None
        assert block.mlp.gate is not None
        gate, up, down = (
            dense.get_parameter(f"{n}.weight").detach() for n in (block.mlp.gate, block.mlp.up, block.mlp.down)
        )
        column = down.norm(dim=0)
        found["down-column norm"][block.index] = Scores(column)
        found["product of norms"][block.index] = Scores(gate.norm(dim=1) * up.norm(dim=1) * column)
    return found


def masked(decoder: Decoder, folder: Path, kept: Sequence[Kept], sequences: Sequence[Sequence[int]]) -> float:
    """Perplexity of the original with everything else masked."""
    model = load_model(folder, dtype=torch.float32)
    mask_model(decoder, model, kept, {}, lambda layer: False)
    return perplexity(model, sequences)


# --- slicing a large checkpoint ---


def slicing() -> None:
    """7B widths, 4 layers, bf16, 3 shards of dense random bytes: memory, and time against a plain copy."""
    with tempfile.TemporaryDirectory() as place:
        source = make_wide(Path(place, "wide"))
        copy_times, slice_times, growths = [], [], []
        for repeat in range(3):
            out = Path(place, f"out{repeat}")
            out.mkdir()
            done = subprocess.run(
                [sys.executable, __file__, "--slice", source, out], capture_output=True, text=True, check=True
            )
            seconds, growth = done.stdout.split()
            slice_times.append(float(seconds))
            growths.append(int(growth))
            copy_times.append(timed(lambda out=out, n=repeat: copy_bytes(out, Path(place, f"copy{n}"))))
            for file in [*out.iterdir(), *Path(place, f"copy{repeat}").iterdir()]:
                file.unlink()
        cut, copy = sorted(slice_times)[1], sorted(copy_times)[1]
        limit = 2 * 32000 * 4096 * 2 + 300e6
        print(f"\nslicing: {cut:.2f} s, copying its bytes: {copy:.2f} s, ratio {cut / copy:.2f} (wanted <= 1.5)")
        print(f"memory growth {max(growths) / 1e6:.0f} MB (wanted < {limit / 1e6:.0f} MB)")


def make_wide(folder: Path) -> Path:
    """Random bfloat16 bytes without NaN and infinity: LLaMA-7B's widths, four layers, three shards."""
    import json

    from nipstool.kit.tensors import TensorWriter

    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    shapes = read_decoder(str(folder)).shapes
    names, weight_map = list(shapes), {}
    for i in range(3):
        name = f"model-{i + 1:05d}-of-00003.safetensors"
        part = names[i * len(names) // 3 : (i + 1) * len(names) // 3]
        with open(folder / name, "w+b") as file:
            writer = TensorWriter(file, {n: ("BF16", shapes[n]) for n in part}, {"format": "pt"})
            for n in part:
                bits = torch.randint(-(2**15), 2**15, shapes[n], dtype=torch.int16)
                writer.write(n, (bits & ~0x4000).view(torch.bfloat16))
            writer.close()
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def slice_in_own_process(source: Path, out: Path) -> None:
    """Prints seconds and the growth of resident memory over what the imports took."""
    torch.set_num_threads(1)
    decoder, found = plan(str(source), Budgets(), Settings(ffn=0.75))
    kept = select(decoder, found.answer.layers, random_scores(decoder, "ffn", 0).scores, None)
    base = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew

    def work() -> None:
        write_slices(decoder, kept, out)
        for file in out.iterdir():
            sync(file)

    seconds = timed(work)
    print(seconds, memory("VmHWM") - base)


def memory(field: str) -> int:
    """Bytes that the system reports for this process: VmRSS is now, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:"))) * 1024


def timed(work: Callable[[], None]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def copy_bytes(source: Path, target: Path) -> None:
    """The same bytes through user space, synced."""
    target.mkdir()
    for file in source.iterdir():
        with open(file, "rb", buffering=0) as read, open(target / file.name, "wb", buffering=0) as write:
            while data := read.read(16 << 20):
                write.write(data)
        sync(target / file.name)


def sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


if __name__ == "__main__":
    main()
