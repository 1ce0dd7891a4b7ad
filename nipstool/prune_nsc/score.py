"""Scores of architectures, and how well they rank networks whose quality is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from nipstool.kit.errors import InputMissingError, UsageError
from nipstool.prune_nsc.architectures import Candidate, read_architectures, truth_of
from nipstool.prune_nsc.capacity import DEGENERATE_BELOW, Scale
from nipstool.prune_nsc.inventory import Architecture
from nipstool.prune_nsc.ranking import Tau, kendall


@dataclass(frozen=True)
class Score:
    """An architecture's score and costs. `truth` is the known quality, where asked for."""

    id: str
    nsc: float
    params: int
    flops: int
    kv_bytes: int
    frobenius: float
    per_layer: tuple[float, ...]
    mean_snr: float
    init: str
    snr: float
    spectra: str
    seq: int
    truth: float | None = None

    @property
    def degenerate(self) -> bool:
        """Whether the score is nearly a multiple of the parameter count."""
        return self.mean_snr < DEGENERATE_BELOW


@dataclass(frozen=True)
class Ranked:
    """How one score ranks the architectures: over all pairs, and over pairs of nearly equal parameter counts."""

    score: str
    all: Tau
    near: Tau


def score(words: Iterable[str], scale: Scale, *, seq: int, spectra: str, truth: str | None) -> Iterator[Score]:
    """Scores, one an architecture, in the order of `words`."""
    if spectra not in ("init", "weights"):
        raise UsageError(f"--spectra {spectra}: expected init or weights")
    for word in words:
        for candidate in read_architectures(word):
            known = None if truth is None else truth_of(candidate, truth)
            layers = _per_layer(candidate, scale, spectra)
            yield _score(candidate.architecture, layers, scale, seq, spectra, known)


def _per_layer(candidate: Candidate, scale: Scale, spectra: str) -> tuple[float, ...]:
    architecture = candidate.architecture
    if spectra == "init":
        return tuple(layer.nsc(scale) for layer in architecture.layers)
    if candidate.folder is None:
        raise InputMissingError(f"{architecture.id}: holds no weights, which --spectra weights reads")
    return _of_weights(candidate.folder, scale)


def _of_weights(folder: str, scale: Scale) -> tuple[float, ...]:
    from nipstool.prune_nsc.choices import choices_of, of_weights
    from nipstool.prune_nsc.decoder import has_weights, open_checkpoint, read_decoder

    decoder = read_decoder(folder)
    if not has_weights(folder):
        raise InputMissingError(f"{folder}: holds no weights, which --spectra weights reads")
    choices = choices_of(decoder, "layers", widths=None, multiple=None, ends=(0, 0))
    with open_checkpoint(folder) as reader:
        measure = of_weights(decoder, reader, choices, scale, 0)
    return tuple(sum(map(measure, layer.matrices)) for layer in decoder.architecture().layers)


def _score(
    architecture: Architecture, layers: Sequence[float], scale: Scale, seq: int, spectra: str, truth: float | None
) -> Score:
    outside = fsum(matrix.nsc(scale) for matrix in architecture.outside)
    nsc = architecture.nsc(scale) if spectra == "init" else outside + fsum(layers)
    return Score(
        id=architecture.id,
        nsc=nsc,
        params=architecture.params,
        flops=architecture.flops(seq),
        kv_bytes=architecture.kv_bytes,
        frobenius=architecture.frobenius(scale),
        per_layer=tuple(layers),
        mean_snr=architecture.mean_snr(scale),
        init=scale.init,
        snr=scale.snr,
        spectra=spectra,
        seq=seq,
        truth=truth,
    )


def rank(scores: Sequence[Score]) -> list[Ranked]:
    """Kendall's tau against the known quality: NSC beside parameters, FLOPs and a plain Frobenius sum."""
    if len(scores) < 2:
        raise UsageError(f"--truth ranks architectures and found {len(scores)}; expected two or more")
    truth: list[Any] = [s.truth for s in scores]
    params = [s.params for s in scores]
    columns = {
        "NSC": [s.nsc for s in scores],
        "#Params": params,
        "#FLOPs": [s.flops for s in scores],
        "Frobenius": [s.frobenius for s in scores],
    }
    return [Ranked(name, kendall(c, truth), kendall(c, truth, params)) for name, c in columns.items()]
