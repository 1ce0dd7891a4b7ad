"""The line that answers a row: moments, quantiles, modes, evidence, and what happened.

Numbers are put into templates, ten digits each: for a stream that is several times as fast as a JSON encoder.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np

from nipstool.filter_nbf.beliefs import Gaussian, cholesky
from nipstool.filter_nbf.draws import FORECAST, Draws
from nipstool.filter_nbf.modes import Mode, mixture_modes, particle_modes
from nipstool.filter_nbf.tracks import Answer, Tracks
from nipstool.filter_nbf.weights import LEVELS, deviations, effective_size, moments, quantiles
from nipstool.kit.records import to_json

NUMBER = "%.10g"


@dataclass(frozen=True)
class Contents:
    """What a line holds beyond the usual. forecast: steps ahead. particles: the weighted set itself."""

    forecast: int = 0
    particles: bool = False


def lines_of(tracks: Tracks, answers: Sequence[Answer], contents: Contents) -> list[str]:
    """One JSON text for each of the answers to a wave."""
    shown = [answer for answer in answers if answer.track is not None]
    told: dict[int, str] = {}
    if shown:
        x, logw = _sets(tracks, shown)
        mean, texts = describe(tracks, x, logw, with_modes=True)
        ahead = forecasts(tracks, shown, x, contents.forecast) if contents.forecast else None
        for b, answer in enumerate(shown):
            text = texts[b]
            if ahead is not None:
                text += f', "forecast": [{ahead[b]}]'
            if contents.particles:
                text += f', "particles": {to_json(x[b].tolist())}, "weights": {to_json(np.exp(logw[b]).tolist())}'
            told[id(answer)] = text + _place(tracks, answer, mean[b])
    names = f'"names": {json.dumps(tracks.dynamics.names)}, '
    return [_line(names, answer, told.get(id(answer))) for answer in answers]


def _sets(tracks: Tracks, answers: Sequence[Answer]) -> tuple[np.ndarray, np.ndarray]:
    """(B, n, d) particles and (B, n) log weights of these answers' tracks."""
    if tracks.latest is not None and all(map(operator.is_, answers, tracks.latest[0])):
        cloud = tracks.latest[1]
        if len(cloud.x) == len(answers):
            return cloud.x, cloud.logw
    known = [answer.track for answer in answers if answer.track is not None]
    return np.stack([track.x for track in known]), np.stack([track.logw for track in known])


def _place(tracks: Tracks, answer: Answer, mean: np.ndarray) -> str:
    """The mean in the units of the input, where the domain has such and knows how to get there."""
    track = answer.track
    if track is None or not (tracks.dynamics.has("describe") and all(map(isfinite, track.origin.tolist()))):
        return ""
    place = tracks.dynamics.model.describe(mean, track.origin)
    return ', "place": {' + ", ".join(f'"{name}": {value:.10g}' for name, value in place.items()) + "}"


def _line(names: str, answer: Answer, belief: str | None) -> str:
    row = answer.row
    head = f'{{"t": {as_line(row.told_t if row.told_t is not None else answer.t)}, "id": {as_line(row.told_id)}, '
    if belief is not None:
        gain, total = as_line(answer.loglik_inc), as_line(answer.loglik)
        head += f'{names}{belief}, "loglik_inc": {gain}, "loglik": {total}, "stages": {answer.stages}, '
    off = answer.off_family
    tail = f'"off_family": {f"{off:.10g}" if off == off else "null"}, "event": {as_line(answer.event)}'
    return head + tail + (f', "error": {as_line(answer.error)}}}' if answer.error else "}")


def as_line(value: Any) -> str:
    """One line of strict JSON; what JSON cannot say is null."""
    if value is None:
        return "null"
    if type(value) is float and isfinite(value):
        return repr(value)
    if type(value) is str:
        return _quoted(value)
    try:
        return json.dumps(value, allow_nan=False)
    except (ValueError, TypeError):
        return to_json(value)


@lru_cache(1 << 12)  # a stream says the same few ids again and again
def _quoted(text: str) -> str:
    return json.dumps(text)


@lru_cache(64)
def _template(d: int, modes: int | None) -> str:
    """The text of a belief of d coordinates, with a place for every number; modes None leaves them out."""
    vector = "[" + ", ".join([NUMBER] * d) + "]"
    matrix = "[" + ", ".join([vector] * d) + "]"
    cuts = ", ".join(f'"{level}": {vector}' for level in LEVELS)
    text = f'"mean": {vector}, "cov": {matrix}, "quantiles": {{{cuts}}}, '
    if modes is not None:
        mode = f'{{"mass": {NUMBER}, "mean": {vector}, "cov": {matrix}}}'
        text += f'"modes": [{", ".join([mode] * modes)}], '
    return text + f'"ess": {NUMBER}'


def _filled(template: str, numbers: Iterable[float]) -> str:
    """The template with its numbers; null for what is none."""
    values = tuple(numbers)
    if isfinite(sum(values)):
        return template % values
    return template.replace(NUMBER, "%s") % tuple(NUMBER % v if isfinite(v) else "null" for v in values)


def describe(tracks: Tracks, x: np.ndarray, logw: np.ndarray, *, with_modes: bool) -> tuple[np.ndarray, list[str]]:
    """(B, d) means of B weighted sets (B, n, d), (B, n), and all that is told of each set, as text."""
    angles = tracks.dynamics.angles
    w = np.exp(logw)
    mean, cov = moments(x, w, angles)
    cuts = quantiles(x, w, mean, angles)
    size, d = mean.shape
    usual = np.concatenate([mean, cov.reshape(size, -1), cuts.reshape(size, -1)], axis=1).tolist()
    sizes = effective_size(logw).tolist()
    if not with_modes:
        template = _template(d, None)
        return mean, [_filled(template, (*row, ess)) for row, ess in zip(usual, sizes, strict=True)]
    if isinstance(tracks.belief, Gaussian):  # its one mode is itself
        template, own = _template(d, 1), d + d * d
        rows = zip(usual, sizes, strict=True)
        return mean, [_filled(template, (*row, 1.0, *row[:own], ess)) for row, ess in rows]
    tops = _modes(tracks, x, logw, mean, cov)
    rows = zip(usual, tops, sizes, strict=True)
    return mean, [_filled(_template(d, len(top)), (*row, *_flat(top), ess)) for row, top, ess in rows]


def _modes(tracks: Tracks, x: np.ndarray, logw: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> list[list[Mode]]:
    """Modes by the belief's own form: the mixture's, or those of the particles."""
    mixture = getattr(tracks.belief, "mixture", None)
    if mixture is not None and getattr(tracks.belief, "generator", "") == "gmm":
        found = mixture(x, logw)
        return [mixture_modes(found.w[b], found.mean[b], found.root[b]) for b in range(len(x))]
    centred = deviations(x, mean, tracks.dynamics.angles)
    roots = cholesky(cov, x)
    w = np.exp(logw)
    found = [particle_modes(centred[b], w[b], mean[b], roots[b]) for b in range(len(x))]
    # the only mode is the whole set: its moments need not be those of a thinned one
    return [tops if len(tops) > 1 else [Mode(1.0, mean[b], cov[b])] for b, tops in enumerate(found)]


def _flat(modes: list[Mode]) -> list[float]:
    """The numbers of modes, in the order of the template."""
    return [number for mode in modes for number in (mode.mass, *mode.mean.tolist(), *mode.cov.ravel().tolist())]


def forecasts(tracks: Tracks, answers: Sequence[Answer], x: np.ndarray, steps: int) -> list[str]:
    """Beliefs 1 to `steps` steps ahead, as text: particles are propagated and never weighted.

    A step is as long as the track's last one. Draws are keyed apart: the filter goes on as if nobody had asked.
    """
    known = [answer.track for answer in answers if answer.track is not None]
    draws = Draws([track.key.at(track.step, FORECAST) for track in known])
    dt = np.array([track.dt for track in known])
    u = np.stack([track.control for track in known])
    logw = np.stack([track.logw for track in known])
    ahead: list[list[str]] = [[] for _ in known]
    for h in range(1, steps + 1):
        x = tracks.dynamics.transition_sample(x, u, dt, draws, tracks.settings.max_dt)
        for b, text in enumerate(describe(tracks, x, logw, with_modes=False)[1]):
            ahead[b].append(f'{{"t": {as_line(known[b].t + h * float(dt[b]))}, {text}}}')
    return [", ".join(some) for some in ahead]
