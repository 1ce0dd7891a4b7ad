"""How selective neurons are, and whether those that are shared are more so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

MEASURES = ("kurtosis", "skew", "sparseness", "frequency")
RESAMPLES = 1000
BYTES = 256 << 20  # of document means that are kept


class Profile:
    """Every neuron's mean activation on each document, [documents, n], of at most so many as memory allows."""

    def __init__(self, documents: int, neurons: int):
        import torch

        self.step = max(1, -(-documents * neurons * 4 // BYTES))  # every step-th document
        self.sums = torch.zeros(-(-documents // self.step), neurons)
        self.counts = torch.zeros(len(self.sums), dtype=torch.int64)

    def add(self, values: Tensor, documents: Tensor) -> None:
        """Take in samples [S, n] and the document of each, [S]."""
        kept = documents % self.step == 0
        if bool(kept.any()):
            rows = documents[kept] // self.step
            self.sums.index_add_(0, rows, values[kept.to(values.device)].float().cpu())
            self.counts += rows.bincount(minlength=len(self.counts))

    def means(self) -> tuple[Tensor, Tensor]:
        """(means [d, n] of documents that had samples, their indices [d])."""
        seen = (self.counts > 0).nonzero()[:, 0]
        return self.sums[seen] / self.counts[seen, None], seen * self.step


@dataclass(frozen=True)
class Labelled:
    """Of every neuron, [n] each: what its mean activation tells about the documents' labels.

    `selectivity` is (mu_max - mu_rest) / (|mu_max| + |mu_rest|) over the labels' means; `domain` the label that it
    tells best, chosen on one half of the documents; `auroc` how well, on the other half; `chosen` on the first.
    """

    labels: tuple[str, ...]
    selectivity: Tensor
    domain: Tensor
    auroc: Tensor
    chosen: Tensor
    selection: Tensor  # [labels, n]: AUROC of each label on the first half
    held_out: Tensor  # [labels, n]: on the other half


def labelled(means: Tensor, labels: Sequence[str], seed: int = 0) -> Labelled | None:
    """Selectivity for labels of documents, from means [d, n]; None unless two labels have four documents.

    The halves are drawn label by label, so that both have each.
    """
    import torch

    names = [name for name in sorted(set(labels)) if labels.count(name) >= 4] if labels else []
    if len(names) < 2:
        return None
    code = torch.tensor([names.index(name) if name in names else -1 for name in labels])
    first, second = _halves(code, len(names), seed)
    selection = torch.stack([auroc(means[first], code[first] == at) for at in range(len(names))])
    held_out = torch.stack([auroc(means[second], code[second] == at) for at in range(len(names))])
    domain = selection.argmax(0)
    pick = domain[None]
    per_label = torch.stack([means[code == at].mean(0) for at in range(len(names))])
    highest = per_label.max(0)
    rest = (per_label.sum(0) - highest.values) / (len(names) - 1)
    contrast = (highest.values - rest) / (highest.values.abs() + rest.abs()).clamp_min(1e-30)
    return Labelled(
        tuple(names),
        contrast,
        domain,
        held_out.gather(0, pick)[0],
        selection.gather(0, pick)[0],
        selection,
        held_out,
    )


def _halves(code: Tensor, labels: int, seed: int) -> tuple[Tensor, Tensor]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    halves: tuple[list[Tensor], list[Tensor]] = ([], [])
    for label in range(labels):
        rows = (code == label).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=generator)]
        halves[0].append(rows[: len(rows) // 2])
        halves[1].append(rows[len(rows) // 2 :])
    return torch.cat(halves[0]), torch.cat(halves[1])


def auroc(scores: Tensor, positive: Tensor) -> Tensor:
    """The area under the ROC curve of every column of scores [d, n] for `positive` bool [d]; ties count half."""
    import numpy as np
    import torch
    from scipy.stats import rankdata

    count = int(positive.sum())
    others = len(positive) - count
    mask = positive.numpy()
    found = []
    for at in range(0, scores.shape[1], 4096):
        ranks = rankdata(scores[:, at : at + 4096].numpy(), axis=0)
        found.append((ranks[mask].sum(0) - count * (count + 1) / 2) / (count * others))
    return torch.from_numpy(np.concatenate(found))


@dataclass(frozen=True)
class Gap:
    """Median of the shared neurons minus that of the others, averaged over layers; 95 % interval; Cliff's."""

    measure: str
    shared: float
    others: float
    gap: float
    low: float
    high: float
    delta: float


def gaps(measures: dict[str, np.ndarray], layer: np.ndarray, shared: np.ndarray, seed: int = 0) -> list[Gap]:
    """How the shared neurons of one model differ from its other live ones, compared within layers.

    Args:
        measures: name -> values [n] of live neurons.
        layer: number of each one's layer; layers with fewer than five of a kind are left out.
        shared: bool [n].
    """
    import numpy as np

    groups = [
        (layer == number) & shared if kind else (layer == number) & ~shared
        for number in np.unique(layer)
        for kind in (True, False)
    ]
    both = [pair for pair in zip(groups[::2], groups[1::2], strict=True) if min(p.sum() for p in pair) >= 5]
    if not both:
        return []
    random = np.random.default_rng(seed)
    found = []
    for name, values in measures.items():
        parts = [(values[ours], values[theirs]) for ours, theirs in both]
        weights = np.array([len(ours) for ours, _ in parts], dtype=float)
        draws = np.average([_median_gaps(ours, theirs, random) for ours, theirs in parts], axis=0, weights=weights)
        value = np.average([np.median(o) - np.median(t) for o, t in parts], weights=weights)
        low, high = np.quantile(draws, (0.025, 0.975))
        ours, theirs = values[shared], values[~shared]
        found.append(
            Gap(name, *map(float, (np.median(ours), np.median(theirs), value, low, high, cliff(ours, theirs))))
        )
    return found


def _median_gaps(ours: np.ndarray, theirs: np.ndarray, random: np.random.Generator) -> np.ndarray:
    import numpy as np

    return np.median(_resampled(ours, random), 1) - np.median(_resampled(theirs, random), 1)


def _resampled(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return values[random.integers(len(values), size=(RESAMPLES, len(values)))]


def cliff(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Cliff's delta: P(ours > theirs) - P(ours < theirs)."""
    import numpy as np

    ordered = np.sort(theirs)
    below = np.searchsorted(ordered, ours, side="left")
    above = len(ordered) - np.searchsorted(ordered, ours, side="right")
    return float((below - above).sum() / (len(ours) * len(theirs)))
