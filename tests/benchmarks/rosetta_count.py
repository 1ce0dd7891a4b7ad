"""rosetta-count beside torch.mm, beside loops over tokens, and in how much memory.

    python tests/benchmarks/rosetta_count.py [product] [sketch] [align] [memory] [domains]

Ratios of CPU time, medians of several in one run: this machine may be busy.
"""

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nipstool.rosetta_count.align import align
from nipstool.rosetta_count.correlate import Sums, frame_of, mutual
from nipstool.rosetta_count.dense import Settings, run_dense
from nipstool.rosetta_count.moments import Moments, neurons_of
from nipstool.rosetta_count.sketch import run_sketch
from nipstool.rosetta_count.spool import spool
from nipstool.rosetta_count.stream import Layer, layers_of
from nipstool.rosetta_count.tiles import run_tiles
from nipstool.rosetta_count.tokens import Tokens

ROOT = Path(__file__).resolve().parents[2]


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


@dataclass
class Held:
    """A model whose activations [N, n] are in memory, as it lies on disk elsewhere: reading costs nothing."""

    values: torch.Tensor
    rows: int
    name: str = "held"

    @property
    def layers(self) -> tuple[Layer, ...]:
        """One layer."""
        return layers_of([("all", 0, self.values.shape[1])])

    @property
    def units(self) -> int:
        """How many there are."""
        return -(-len(self.values) // self.rows)

    def unit(self, index: int) -> torch.Tensor:
        """[S, n]."""
        return self.values[index * self.rows : (index + 1) * self.rows]

    def columns(self, index: int, columns: slice) -> torch.Tensor:
        """[S, columns]."""
        return self.unit(index)[:, columns]


def product() -> None:
    """The exact path beside torch.mm on the same numbers: sums of one unit, and a whole pass with all it does."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(32768, 4096, generator=generator) + shift for shift in (3, -2))
    frames, sums = (frame_of(a[:4096]), frame_of(b[:4096])), Sums.zeros(4096, 4096)

    def unit() -> None:
        sums.add(frames[0](a[:4096]), frames[1](b[:4096]))

    models: Any = [Held(a, 2048), Held(b, 2048)]
    settings = Settings(repeats=0, rotate=False, prefixes=False)
    neurons = run_dense(models, 16, settings).neurons

    def tiles() -> None:
        run_tiles(models, frames, neurons, 16, settings, samples=32768, memory=2 << 30)

    def whole() -> None:
        run_dense(models, 16, settings)

    works = {
        "one unit (frame, product, float64 sum)": (unit, 4096),
        "the exact path, reading excluded": (tiles, 32768),
        "a whole pass, with all neurons' moments": (whole, 32768),
    }
    for told, (work, rows) in works.items():

        def plain(rows: int = rows) -> None:
            torch.mm(a[:rows].T, b[:rows])

        cpu(work)
        cpu(plain)
        share = statistics.median(cpu(plain) / cpu(work) for _ in range(5))
        print(f"product: {told}, {rows} samples, 4096 x 4096: {share:.0%} of torch.mm's rate (wanted 75 %)")


def planted(samples: int, n: int, pairs: int) -> list[torch.Tensor]:
    """Heavy-tailed neurons: pairs (i, i) of many r, and beside every third one a rival with r lower by 0.01."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(samples, n, generator=generator) for _ in range(2))
    r = torch.linspace(0.25, 0.95, pairs)
    b[:, :pairs] = r * a[:, :pairs] + (1 - r**2).sqrt() * b[:, :pairs]
    rival, places = r[::3] - 0.01, slice(pairs, pairs + len(r[::3]))
    b[:, places] = rival * a[:, :pairs:3] + (1 - rival**2).sqrt() * b[:, places]
    return [torch.sinh(a), torch.sinh(b)]


def sketch(samples: int = 60_000, n: int = 3000) -> None:
    """Pairs with r >= 0.3 by a sketch, beside the exact path: how much faster, and how many are found."""
    torch.set_num_threads(1)
    models = [Held(values, samples // 16) for values in planted(samples, n, 1000)]
    frames = [frame_of(model.unit(0)) for model in models]
    moments = [Moments.zeros(frame) for frame in frames]
    for model, one in zip(models, moments, strict=True):
        for index in range(model.units):
            one.add(model.unit(index), one.frame(model.unit(index)), index)
    neurons = [neurons_of(one) for one in moments]
    for told, repeats, times in (("no controls", 0, 5), ("5 permuted and the rotated control", 5, 1)):
        settings = Settings(repeats=repeats, rotate=repeats > 0, prefixes=False)
        ratios, found = [], []
        for _ in range(times):
            start = time.process_time()
            spooled: Any = models
            exact = run_tiles(spooled, frames, neurons, 16, settings, samples=samples, memory=2 << 30)
            middle = time.process_time()
            ours = run_sketch(models, neurons, 16, settings, samples=samples, min_r=0.3)
            ratios.append((middle - start) / (time.process_time() - middle))
            found = [mutual(*one.pairs[0].observed, min_r=0.3) for one in (ours, exact)]
        mine, true = (
            {(a, b): r for a, b, r in zip(p.a.tolist(), p.b.tolist(), p.r.tolist(), strict=True)} for p in found
        )
        hits = mine.keys() & true.keys()
        error = max(abs(mine[place] - true[place]) for place in hits)
        recall, wrong = len(hits) / len(true), len(mine) - len(hits)
        print(
            f"sketch: {told}: {statistics.median(ratios):.1f} x faster than exact (wanted 5); recall "
            f"{recall:.4f} of {len(true)} pairs (wanted 0.999), {wrong} wrong, r differ by {error:.1e} at most"
        )


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

    class Random:
        """A model of random activations."""

        name = "random"
        layers = layers_of([(str(at), at, 4096) for at in range(neurons // 4096)])

        def __init__(self, seed: int):
            self.seed = seed

        def unit(self, index: int) -> torch.Tensor:
            generator = torch.Generator().manual_seed(1000 * self.seed + index)
            return torch.randn(256, neurons, generator=generator).bfloat16()

    settings = Settings(k=10, repeats=0, rotate=False, prefixes=False)
    highest, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            highest[0] = max(highest[0], anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    with tempfile.TemporaryDirectory() as place:
        units = samples // 256
        spooled, frames, neurons_, count = spool([Random(0), Random(1)], units, Path(place))
        run_tiles(spooled, frames, neurons_, units, settings, samples=count, memory=1 << 29)
    done.set()
    watcher.join()
    print(f"memory: {highest[0] / 1e9:.2f} GB of anonymous memory, {neurons} x {neurons} top-10 (wanted 1.5)")


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

    def held_out(given: list[str]) -> tuple[int, float]:
        found = labelled(means, given)
        assert found is not None
        code = found.labels.index("code")
        best = int(found.selection[code].argmax())
        return best, float(found.held_out[code, best])

    best, held = held_out(labels)
    print(f"domains: L8N{best}, held-out AUROC {held:.3f} for code against docs (wanted 0.9)")
    random = np.random.default_rng(0)
    shuffled = [held_out(random.permutation(labels).tolist())[1] for _ in range(20)]
    told = f"{statistics.fmean(shuffled):.3f}, sd {statistics.stdev(shuffled):.3f}"
    print(f"domains: labels shuffled before the selection, mean of 20: {told} (wanted 0.4 to 0.6)")


if __name__ == "__main__":
    benches = {"product": product, "sketch": sketch, "align": alignment, "memory": memory, "domains": domains}
    for name in sys.argv[1:] or benches:
        benches[name]()
