"""The count: mutual nearest neighbours of two or more models beside their controls, and the anchors all share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from nipstool.kit.errors import DataError
from nipstool.rosetta_count.controls import chance_pairs, excess, least_q, q_values
from nipstool.rosetta_count.correlate import Best, Pairs, mutual
from nipstool.rosetta_count.dense import Recorded
from nipstool.rosetta_count.moments import Neurons
from nipstool.rosetta_count.stream import Activations, Layer

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

THRESHOLD = 0.5  # the r that a thresholded count asks for
FDR = 0.01
UNIVERSAL = 0.5  # the excess correlation above which Gurnee et al. call a neuron universal


@dataclass(frozen=True)
class Subject:
    """A model that is counted: what the user called it, its layers, and its size where it is known."""

    name: str
    layers: tuple[Layer, ...]
    parameters: int | None = None  # without embeddings

    @property
    def neurons(self) -> int:
        """All of them, dead ones too."""
        return self.layers[-1].columns.stop


@dataclass(frozen=True)
class Tally:
    """How many anchor neurons are paired: at all (None: not known), with r >= min-r, r >= 0.5; the highest r."""

    raw: float | None
    kept: float
    thresholded: float
    highest: float | None


@dataclass(frozen=True)
class PairCount:
    """What the anchor shares with one other model.

    `raw` counts pairs of any r, `kept` those with r >= min-r, which are `pairs`. A sketch computes neither `raw`
    nor `excess`; both are then None.
    """

    model: str
    pairs: Pairs
    q: np.ndarray
    raw: int | None
    kept: int
    thresholded: int
    fdr: int | None  # None: too few pairs to reach the rate
    least_q: float
    excess: int | None
    chance: float
    permuted: tuple[Tally, ...]
    rotated: Tally | None
    untrained: Tally | None
    prefixes: tuple[tuple[int, int, int], ...]  # samples, raw, thresholded


@dataclass(frozen=True)
class Anchor:
    """A neuron of the first model with a partner in every other: (r, place among the pairs) of each."""

    neuron: int
    r: float
    partners: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class Count:
    """The result. `neurons` holds every model's statistics, `excess` the anchor's excess correlations."""

    subjects: tuple[Subject, ...]
    neurons: tuple[Neurons, ...]
    pairs: tuple[PairCount, ...]
    anchors: tuple[Anchor, ...]
    best: tuple[tuple[Best, Best], ...]
    excess: np.ndarray | None
    samples: int
    documents: int
    untrained: str  # how it was made, or why there is none
    min_r: float = 0.0
    notes: tuple[str, ...] = field(default=())


def tally(both: tuple[Best, Best], min_r: float, *, raw: bool = True) -> Tally:
    """The counts of one pairing; `raw` says whether pairs with a lower r than min_r are known."""
    found = mutual(*both)
    highest = float(found.r[0]) if len(found) else None
    at_all = _distinct(found) if raw else None
    return Tally(at_all, _distinct(found, min_r), _distinct(found, max(min_r, THRESHOLD)), highest)


def _distinct(pairs: Pairs, least: float = 0.0) -> int:
    """Distinct anchor neurons: with k > 1 one may have several partners."""
    return len(pairs.a[pairs.r >= least].unique())


def check_live(subjects: Sequence[Subject], neurons: Sequence[Neurons]) -> None:
    """DataError where a layer has no neuron that could be correlated with anything."""
    for subject, found in zip(subjects, neurons, strict=True):
        for layer in subject.layers:
            if not bool(found.live[layer.columns].any()):
                states = found.state[layer.columns]
                told = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
                raise DataError(f"{subject.name}: layer {layer.name} has no live neuron ({told})")


def assemble(
    subjects: Sequence[Subject],
    recorded: Recorded,
    untrained: Recorded | None,
    *,
    min_r: float,
    documents: int,
    told: str,
    raw: bool = True,
    notes: Sequence[str] = (),
) -> Count:
    """All counts from what the passes found; `raw` says whether they know of pairs with a lower r than min_r."""
    check_live(subjects, recorded.neurons)
    rotated = [found.rotated for found in recorded.pairs]
    best = [found.observed[0] for found in recorded.pairs]
    turned = [both[0] for both in rotated if both is not None]
    surplus = excess(best, turned) if raw and len(turned) == len(best) else None
    pairs = []
    for at, found in enumerate(recorded.pairs):
        own = mutual(*found.observed, min_r=min_r)
        null = [mutual(*both, min_r=min_r) for both in found.permuted]
        q = q_values(own.r.tolist(), [r for one in null for r in one.r.tolist()], len(null))
        floor = least_q(len(own), len(null))
        live = [int(recorded.neurons[m].live.sum()) for m in (0, at + 1)]
        both = rotated[at]
        count = partial(tally, min_r=min_r, raw=raw)
        whole = count(found.observed)
        pairs.append(
            PairCount(
                model=subjects[at + 1].name,
                pairs=own,
                q=q,
                raw=None if whole.raw is None else int(whole.raw),
                kept=int(whole.kept),
                thresholded=int(whole.thresholded),
                fdr=None if floor > FDR else len({int(a) for a, low in zip(own.a, q <= FDR, strict=True) if low}),
                least_q=floor,
                excess=_universal(found.observed[0], both) if raw else None,
                chance=chance_pairs(*live),
                permuted=tuple(map(count, found.permuted)),
                rotated=None if both is None else count(both),
                untrained=None if untrained is None else count(untrained.pairs[at].observed),
                prefixes=_prefixes(found.prefixes, min_r),
            )
        )
    return Count(
        subjects=tuple(subjects),
        neurons=tuple(recorded.neurons),
        pairs=tuple(pairs),
        anchors=tuple(shared([one.pairs for one in pairs])),
        best=tuple(found.observed for found in recorded.pairs),
        excess=surplus,
        samples=recorded.samples,
        documents=documents,
        untrained=told,
        min_r=min_r,
        notes=tuple(notes),
    )


def _universal(best: Best, rotated: tuple[Best, Best] | None) -> int | None:
    return None if rotated is None else int((excess([best], [rotated[0]]) > UNIVERSAL).sum())


def _prefixes(found: dict[int, tuple[Best, Best]], min_r: float) -> tuple[tuple[int, int, int], ...]:
    counts = {samples: tally(both, min_r) for samples, both in sorted(found.items())}
    return tuple((samples, int(one.raw or 0), int(one.thresholded)) for samples, one in counts.items())


def shared(pairs: Sequence[Pairs]) -> list[Anchor]:
    """The official intersection: neurons of the first model with a partner in every other, mean r falling.

    Of several partners in one model (k > 1) the nearest counts. The others need not match each other.
    """
    nearest: list[dict[int, tuple[float, int]]] = []
    for one in pairs:
        places: dict[int, tuple[float, int]] = {}
        for place, (a, r) in enumerate(zip(one.a.tolist(), one.r.tolist(), strict=True)):
            places.setdefault(a, (r, place))
        nearest.append(places)
    common = set(nearest[0]).intersection(*nearest[1:])
    anchors = []
    for neuron in sorted(common):
        partners = tuple(places[neuron] for places in nearest)
        anchors.append(Anchor(neuron, sum(r for r, _ in partners) / len(partners), partners))
    return sorted(anchors, key=lambda anchor: (-anchor.r, anchor.neuron))


@dataclass(frozen=True)
class Inputs:
    """What is counted: activations on the same samples, and how they came about.

    Args:
        untrained: makes the same models with fresh weights, or says in words why that cannot be.
        document_of: unit -> the document of each of its samples, int64 [S].
        labels: of each document, where there are any.
    """

    models: Sequence[Activations]
    subjects: Sequence[Subject]
    units: int
    samples: int  # about how many, for the plan
    documents: int
    untrained: Callable[[], Sequence[Activations]] | str
    document_of: Callable[[int], Tensor] | None = None
    labels: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
