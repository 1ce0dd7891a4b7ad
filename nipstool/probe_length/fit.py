"""From statistics to a probe and an honest report: layers and penalties by cross-validation, baselines beside all.

R2 along the answer (t = 0..T) and at t = 0, and every penalty, come from the sums, exactly. Rank correlations,
errors in tokens, positions, bootstrap, residuals and Tobit come from the sample; all of it out of fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nipstool.kit.errors import DataError
from nipstool.kit.progress import Progress, silent
from nipstool.probe_length.censored import Cut, FirstFit, fit_first
from nipstool.probe_length.collected import POSITION as POSITION_COLUMNS
from nipstool.probe_length.collected import Collected
from nipstool.probe_length.comparison import (
    BOTH,
    CONSTANT,
    LENGTH,
    POSITION,
    POSITION_ENDED,
    PROBE,
    PROMPT,
    PROMPT_TOKEN,
    TOBIT,
    TOKEN,
    Line,
    lines_of,
    position_features,
)
from nipstool.probe_length.intervals import Residuals, spread
from nipstool.probe_length.lengths import lookup
from nipstool.probe_length.metrics import Bucket, by_position, ceiling
from nipstool.probe_length.probe import Linear, Probe
from nipstool.probe_length.ridge import ALPHAS, Fit, cross_validate
from nipstool.probe_length.sample import Sample
from nipstool.probe_length.statistics import Sums, squared_deviation

Array = np.ndarray


@dataclass(frozen=True)
class LayerFit:
    """What cross-validation gives at one layer: R2, with the penalties behind them."""

    layer: int
    probe: float
    both: float
    first: float
    alphas: tuple[float, float, float]


@dataclass(frozen=True)
class Report:
    """What was fitted, how good it is and beside what."""

    layers: tuple[LayerFit, ...]
    along: tuple[Line, ...]
    first: tuple[Line, ...]
    buckets: tuple[Bucket, ...]
    ceiling: float | None
    sequences: int
    censored: int
    skipped: int
    tokens: float
    sampled: int
    groups: int
    datasets: dict[str, int]
    tobit: bool
    warnings: tuple[str, ...]
    verdict: tuple[str, ...]


@dataclass(frozen=True)
class _Fits:
    probe: dict[int, Fit]
    both: dict[int, Fit]
    ended: dict[int, FirstFit]  # at t = 0, from answers that ended: what baselines are compared with
    first: dict[int, FirstFit]  # at t = 0, with cut answers as bounds: what predicts

    def best(self, kind: str) -> int:
        """The layer with the best cross-validation; layer 0, token identity, is no candidate."""
        if kind in ("first", "ended"):
            firsts: dict[int, FirstFit] = getattr(self, kind)
            return max((i for i in firsts if i), key=lambda i: firsts[i].score)
        fits: dict[int, Fit] = getattr(self, kind)
        return min((i for i in fits if i), key=lambda i: fits[i].mse)


def fit(
    found: Collected,
    *,
    censored: str = "tobit",
    alphas: Sequence[float] = ALPHAS,
    coverage: float = 0.9,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[Probe, Report]:
    """Fit both probes along the answer, and the one at t = 0 that predicts.

    Args:
        censored: "tobit" takes cut answers at t = 0 as lower bounds, "drop" leaves them out.
        coverage: of the interval that predictions carry.

    Raises DataError where there is nothing to fit: all answers cut, one group, one length.
    """
    _check(found)
    fits = _all_layers(found, alphas, censored == "tobit", progress)
    sample = found.sample
    along, buckets = _along(found, fits, seed)
    first, residuals = _first(found, fits, seed)
    probe = _probe(found, fits, residuals, coverage)
    ended = sample.take(~sample.censored)
    report = Report(
        tuple(_layer_fit(fits, layer) for layer in found.origin.layers),
        tuple(along),
        tuple(first),
        tuple(buckets),
        ceiling(np.log1p(ended.length), ended.group),
        found.sequences,
        found.censored,
        found.skipped,
        found.tokens,
        len(sample),
        len(np.unique(sample.group)),
        found.datasets,
        fits.first[fits.best("first")].censored,
        tuple(_warnings(found, fits)),
        (),
    )
    from nipstool.probe_length.verdict import verdict

    return probe, Report(**{**vars(report), "verdict": tuple(verdict(report))})


def _check(found: Collected) -> None:
    ended = found.lengths.ended
    if not ended.any():
        raise DataError(f"all {found.sequences} answers were cut off; expected some that ended")
    if int((ended.sum(1) > 0).sum()) < 2:
        raise DataError("the answers that ended fall in one fold of groups; expected several groups (see --group)")
    if np.count_nonzero(ended.sum(0)) < 2:
        length = int(np.flatnonzero(ended.sum(0))[0])
        raise DataError(f"every answer that ended has {length} tokens; there is nothing to predict")
    sample = found.sample
    if not len(sample) or sample.censored.all():
        raise DataError("the sample holds no answer that ended; raise --rows")


def _all_layers(found: Collected, alphas: Sequence[float], tobit: bool, progress: Progress) -> _Fits:
    fits = _Fits({}, {}, {}, {})
    width, layers = found.origin.width, found.origin.layers
    for done, layer in enumerate(layers):
        sums = found.along[layer]
        fits.probe[layer] = cross_validate(sums.columns(slice(0, width)), alphas)
        fits.both[layer] = cross_validate(sums, alphas)
        fits.ended[layer] = fit_first(found.first[layer], None, alphas)
        cut = _cut(found, done) if tobit else None
        fits.first[layer] = fits.ended[layer] if cut is None else fit_first(found.first[layer], cut, alphas)
        progress(done + 1, len(layers))
    return fits


def _cut(found: Collected, place: int) -> Cut | None:
    """The sampled rows of cut answers at t = 0, weighted up to the number there is."""
    import torch

    sample = found.sample.take(found.sample.censored)
    if not len(sample):
        return None
    weight = sample.weight * (found.lengths.cut.sum() / sample.weight.sum())
    bound = np.log1p(sample.length)
    x = torch.from_numpy(np.ascontiguousarray(sample.first[:, place])).double()
    return Cut(x, torch.from_numpy(bound), torch.from_numpy(weight), torch.from_numpy(sample.fold))


def _layer_fit(fits: _Fits, layer: int) -> LayerFit:
    probe, both, first = fits.probe[layer], fits.both[layer], fits.ended[layer]
    return LayerFit(layer, probe.r2, both.r2, first.r2, (probe.alpha, both.alpha, first.alpha))


def _along(found: Collected, fits: _Fits, seed: int) -> tuple[list[Line], list[Bucket]]:
    """Every predictor at t = 0..T of answers that ended."""
    layers = found.origin.layers
    probe, both = fits.best(PROBE), fits.best("both")
    length = cross_validate(found.position)
    errors = {
        CONSTANT: _mean_error(found.position),
        POSITION: _table_error(found, True),
        POSITION_ENDED: _table_error(found, False),
        LENGTH: length.sse,
        TOKEN: fits.probe[0].sse,
        PROBE: fits.probe[probe].sse,
        BOTH: fits.both[both].sse,
    }
    if not found.lengths.cut.any():
        del errors[POSITION_ENDED]
    sample = found.sample.take(~found.sample.censored)
    t = position_features(sample.t)
    x_length = np.concatenate([t, sample.prompt[:, None], np.log1p(sample.prompt)[:, None]], 1)
    h = {layer: sample.drawn[:, layers.index(layer)].astype(np.float64) for layer in {0, probe, both}}
    predicted = {
        CONSTANT: np.full(len(sample), float(found.position.sy.sum() / found.position.n.sum())),
        POSITION: _table_predictions(found, sample, True),
        POSITION_ENDED: _table_predictions(found, sample, False),
        LENGTH: _predicted(length, x_length, sample),
        TOKEN: _predicted(fits.probe[0], h[0], sample),
        PROBE: _predicted(fits.probe[probe], h[probe], sample),
        BOTH: _predicted(fits.both[both], np.concatenate([h[both], t], 1), sample),
    }
    predicted = {name: predicted[name] for name in errors}
    target = np.log1p(sample.length - sample.t)
    weight = sample.weight * (sample.seen + 1)  # one row drawn of seen + 1
    own = {PROBE: probe, BOTH: both, TOKEN: 0}
    lines = lines_of(errors, squared_deviation(found.position), predicted, target, weight, sample.group, own, seed)
    shown = {name: predicted[name] for name in (POSITION, PROBE, BOTH)}
    return lines, by_position(sample.t, target, shown, weight)


def _predicted(fit: Fit | FirstFit, x: Array, sample: Sample) -> Array:
    import torch

    return fit.predict(torch.from_numpy(x), torch.from_numpy(sample.fold)).numpy()


def _mean_error(sums: Sums) -> float:
    """Held-out squared error of the other folds' mean."""
    n, sy, yy = (x.numpy() for x in (sums.n, sums.sy, sums.yy))
    used = n > 0
    others = (sy.sum() - sy[used]) / (n.sum() - n[used])
    return float((yy[used] - 2 * others * sy[used] + others**2 * n[used]).sum())


def _table_error(found: Collected, censored: bool) -> float:
    squares = found.position.yy.numpy()
    lengths = found.lengths
    used = [k for k in range(len(squares)) if lengths.ended[k].any()]
    return sum(lengths.error(lengths.table(k, censored=censored), float(squares[k]), k) for k in used)


def _table_predictions(found: Collected, sample: Sample, censored: bool) -> Array:
    predicted = np.full(len(sample), np.nan)
    for fold in np.unique(sample.fold):
        here = sample.fold == fold
        predicted[here] = lookup(found.lengths.table(int(fold), censored=censored), sample.t[here])
    return predicted


def _first(found: Collected, fits: _Fits, seed: int) -> tuple[list[Line], Residuals]:
    """Every predictor at t = 0, and the residuals of the probe there, those of cut answers included."""
    sample, layers = found.sample, found.origin.layers
    prompt = cross_validate(found.prompt)
    own = {PROMPT_TOKEN: 0, PROBE: fits.best("ended"), TOBIT: fits.best("first")}
    fitted = {PROMPT_TOKEN: fits.ended[0], PROBE: fits.ended[own[PROBE]], TOBIT: fits.first[own[TOBIT]]}
    x = {layer: sample.first[:, layers.index(layer)].astype(np.float64) for layer in set(own.values())}
    x_prompt = np.stack([sample.prompt, np.log1p(sample.prompt)], 1)
    mean = float(found.prompt.sy.sum() / found.prompt.n.sum())
    predicted = {CONSTANT: np.full(len(sample), mean), PROMPT: _predicted(prompt, x_prompt, sample)}
    predicted |= {name: _predicted(one, x[own[name]], sample) for name, one in fitted.items()}
    chosen = fitted[TOBIT]
    ended = ~sample.censored
    sure = np.isfinite(predicted[TOBIT]) & (ended | chosen.censored)
    value = np.log1p(sample.length) - predicted[TOBIT]
    weight = np.where(ended, _share(found, False), _share(found, True)) * sample.weight
    residuals = Residuals(value[sure], sample.censored[sure], weight[sure], sample.group[sure])
    deviation = squared_deviation(found.prompt)
    errors = {CONSTANT: _mean_error(found.prompt), PROMPT: prompt.sse}
    errors |= {name: deviation * (1 - one.r2) for name, one in fitted.items()}
    if not chosen.censored:
        del errors[TOBIT]
    held = {name: predicted[name][ended] for name in errors}
    facts = (np.log1p(sample.length[ended]), sample.weight[ended], sample.group[ended])
    return lines_of(errors, deviation, held, *facts, own, seed), residuals


def _share(found: Collected, censored: bool) -> float:
    """Answers of one kind for each sampled one."""
    chosen = found.sample.censored == censored
    held = float(found.sample.weight[chosen].sum())
    counts = found.lengths.cut if censored else found.lengths.ended
    return float(counts.sum()) / held if held else 1.0


def _probe(found: Collected, fits: _Fits, residuals: Residuals, coverage: float) -> Probe:
    kinds = {PROBE: fits.probe[fits.best(PROBE)], BOTH: fits.both[fits.best("both")], TOKEN: fits.probe[0]}
    layers = {PROBE: fits.best(PROBE), BOTH: fits.best("both"), TOKEN: 0}
    lines = {name: Linear(layers[name], one.w.numpy(), one.b0) for name, one in kinds.items()}
    first = fits.first[fits.best("first")]
    length = cross_validate(found.position)
    prompt = cross_validate(found.prompt)
    smooth = cross_validate(found.position.columns(slice(0, POSITION_COLUMNS)))
    return Probe(
        origin=found.origin,
        lines=lines,
        first=Linear(fits.best("first"), first.w.numpy(), first.b0),
        length=Linear(0, length.w.numpy(), length.b0),
        smooth=Linear(0, smooth.w.numpy(), smooth.b0),
        prompt=Linear(0, prompt.w.numpy(), prompt.b0),
        table=found.lengths.table(),
        table_ended=found.lengths.table(censored=False),
        mean=float(found.position.sy.sum() / found.position.n.sum()),
        mean_first=float(found.prompt.sy.sum() / found.prompt.n.sum()),
        residuals=residuals,
        spread=spread(residuals, coverage),
        coverage=coverage,
        censored=first.censored,
        card={},
    )


def _warnings(found: Collected, fits: _Fits) -> list[str]:
    edges = {
        PROBE: fits.probe[fits.best(PROBE)],
        BOTH: fits.both[fits.best("both")],
        "probe at t = 0": fits.first[fits.best("first")],
    }
    told = [
        f"{name}: the penalty {one.alpha:g} is at the edge of its grid"
        for name, one in edges.items()
        if one.at_edge
    ]
    if (found.lengths.ended.sum(1) == 0).any():
        empty = int((found.lengths.ended.sum(1) == 0).sum())
        told.append(f"{empty} of {found.origin.folds} folds hold no groups; cross-validation used the others")
    return told
