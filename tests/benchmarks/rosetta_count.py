"""rosetta-count beside torch.mm, beside loops over tokens, and in how much memory.

    python tests/benchmarks/rosetta_count.py [product] [align] [memory] [domains]

Ratios of CPU time, medians of several in one run: this machine may be busy.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from nipstool.rosetta_count.align import align
from nipstool.rosetta_count.correlate import Sums, frame_of
from nipstool.rosetta_count.tokens import Tokens

ROOT = Path(__file__).resolve().parents[2]


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def product() -> None:
    """Our sums of one unit (frame, product, float64 sum) as a share of torch.mm's rate."""
    torch.set_num_threads(1)
    a, b = torch.randn(4096, 4096) + 3, torch.randn(4096, 4096) - 2
    frames, sums = (frame_of(a), frame_of(b)), Sums.zeros(4096, 4096)

    def ours() -> None:
        sums.add(frames[0](a), frames[1](b))

    for warm_up in (ours, lambda: torch.mm(a.T, b)):
        cpu(warm_up)
    shares = [cpu(lambda: torch.mm(a.T, b)) / cpu(ours) for _ in range(5)]
    print(f"product: {statistics.median(shares):.0%} of torch.mm's rate (4096 samples, 4096 x 4096; wanted 75 %)")


def tokens_of(sizes: list[int], mean: float, seed: int) -> list[Tokens]:
    """Random tokens of documents of so many bytes: words that all models know, some of them cut further."""
    random, found = np.random.default_rng(seed), []
    for number, size in enumerate(sizes):
        words = np.random.default_rng(number).integers(0, size, size // 5)
        cuts = np.unique(np.concatenate([[0, size], words, random.integers(0, size, int(size / (5 * mean)))]))
        found.append(Tokens(np.arange(len(cuts) - 1), cuts[:-1], cuts[1:]))
    return found


def by_loops(models: list[list[Tokens]], sizes: list[int]) -> int:
    """The same spans as sets and loops find them, as the official code does."""
    count = 0
    for document, size in enumerate(sizes):
        shared = {0, size}
        sets = []
        for model in models:
            own = {0, size}
            for start, stop in zip(model[document].start.tolist(), model[document].stop.tolist(), strict=True):
                own.add(start)
                own.add(stop)
            sets.append(own)
        shared = sorted(set.intersection(*sets))
        for start, stop in pairwise(shared):
            for model in models:
                one = model[document]
                rows = zip(one.start.tolist(), one.stop.tolist(), strict=True)
                assert [at for at, (s, e) in enumerate(rows) if start <= s and e <= stop]
            count += 1
    return count


def alignment() -> None:
    """Tokens a second, and beside loops on the same documents."""
    sizes = [1200] * 400
    models = [tokens_of(sizes, 4.0, 0), tokens_of(sizes, 4.5, 1)]
    count = sum(len(one.ids) for model in models for one in model)
    fast = statistics.median(cpu(lambda: align(models, sizes)) for _ in range(5))
    few = 20
    slow = cpu(lambda: by_loops([model[:few] for model in models], sizes[:few])) * len(sizes) / few
    rate = count / fast / 1e6
    print(f"align: {rate:.2f}M tokens/s on one core (wanted 3), {slow / fast:.0f} x loops (wanted 50)")


def anonymous() -> int:
    """RssAnon of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def memory(neurons: int = 32768, samples: int = 1024) -> None:
    """The most anonymous memory of a tiled top-10 of two large models."""
    from nipstool.rosetta_count.dense import Settings
    from nipstool.rosetta_count.spool import Spooled, spool
    from nipstool.rosetta_count.stream import layers_of
    from nipstool.rosetta_count.tiles import Tile, run_tiles

    class Random:
        """A model of random activations."""

        name = "random"
        layers = layers_of([(str(at), at, 4096) for at in range(neurons // 4096)])

        def __init__(self, seed: int):
            self.seed = seed

        def unit(self, index: int) -> torch.Tensor:
            generator = torch.Generator().manual_seed(1000 * self.seed + index)
            return torch.randn(256, neurons, generator=generator).bfloat16()

    most = 0
    run = Tile.run

    def watched(self: Tile, *args: object) -> None:
        nonlocal most
        run(self, *args)  # type: ignore[arg-type]
        most = max(most, anonymous())

    Tile.run = watched  # type: ignore[method-assign]
    settings = Settings(k=10, repeats=0, rotate=False, prefixes=False)
    with tempfile.TemporaryDirectory() as place:
        found = spool([Random(0), Random(1)], samples // 256, Path(place))
        spooled, frames, neurons_, count = found
        assert isinstance(spooled[0], Spooled)
        run_tiles(spooled, frames, neurons_, samples // 256, settings, samples=count, memory=1 << 29)
    print(f"memory: {most / 1e9:.2f} GB of anonymous memory for {neurons} x {neurons} top-10 (wanted 1.5)")


def domains() -> None:
    """Library documentation against code with SmolLM2: held-out AUROC of the neuron chosen on the other half."""
    from nipstool.rosetta_count import pydocs
    from nipstool.rosetta_count.selectivity import labelled
    from nipstool.rosetta_count.sources import Reading, load_text_model, reader_of
    from nipstool.rosetta_count.text_model import token_values

    folder = ROOT / "models" / "SmolLM2-135M-Instruct"
    if not folder.exists():
        print("domains: needs models/ (make models)")
        return
    model = load_text_model(str(folder), Reading("-", sites=r"layers\.8\."), "cpu")
    reader = reader_of(model.tokeniser, model.body.config, 256)
    records = list(pydocs.documents())
    chosen = [r for d in ("docs", "code") for r in [x for x in records if x["domain"] == d][:60]]
    rows = []
    for record in chosen:
        (tokens,) = model.tokeniser([record["text"][:600]])
        values = [
            v for _, found in token_values(model.body, reader, model.sites, [tokens]) for v in found.values()
        ]
        rows.append(torch.cat(values).float().mean(0))
    means, labels = torch.stack(rows), [record["domain"] for record in chosen]
    for told, given in (
        ("", labels),
        ("shuffled labels: ", np.random.default_rng(0).permutation(labels).tolist()),
    ):
        found = labelled(means, given)
        assert found is not None
        best = int(found.selection[found.labels.index("code")].argmax())
        held = float(found.held_out[found.labels.index("code"), best])
        print(f"domains: {told}L8N{best}, held-out AUROC {held:.3f} for code against docs")


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["product", "align", "memory", "domains"]
    for name in wanted:
        {"product": product, "align": alignment, "memory": memory, "domains": domains}[name]()
