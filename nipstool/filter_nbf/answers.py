"""The line that answers a row: moments, quantiles, modes, evidence, and what happened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nipstool.filter_nbf.beliefs import Gaussian, cholesky
from nipstool.filter_nbf.draws import FORECAST, Draws
from nipstool.filter_nbf.modes import Mode, mixture_modes, particle_modes
from nipstool.filter_nbf.tracks import Answer, Tracks
from nipstool.filter_nbf.weights import LEVELS, deviations, effective_size, moments, quantiles
from nipstool.kit.records import to_json


@dataclass(frozen=True)
class Contents:
    """What a line holds beyond the usual. forecast: steps ahead. particles: the weighted set itself."""

    forecast: int = 0
    particles: bool = False


def lines_of(tracks: Tracks, answers: Sequence[Answer], contents: Contents) -> list[str]:
    """One JSON text for each of the answers to a wave."""
    shown = [answer for answer in answers if answer.track is not None]
    told: dict[int, dict[str, Any]] = {}
    if shown:
        x = np.stack([answer.track.x for answer in shown])  # type: ignore[union-attr]
        logw = np.stack([answer.track.logw for answer in shown])  # type: ignore[union-attr]
        beliefs = describe(tracks, x, logw, with_modes=True)
        ahead = forecasts(tracks, shown, x, contents.forecast) if contents.forecast else None
        for b, answer in enumerate(shown):
            told[id(answer)] = beliefs[b]
            if ahead is not None:
                told[id(answer)]["forecast"] = ahead[b]
            if contents.particles:
                told[id(answer)] |= {"particles": x[b].tolist(), "weights": np.exp(logw[b]).tolist()}
    return [_line(tracks, answer, told.get(id(answer))) for answer in answers]


def _line(tracks: Tracks, answer: Answer, belief: dict[str, Any] | None) -> str:
    told_t = answer.row.told_t if answer.row.told_t is not None else answer.t
    line: dict[str, Any] = {"t": told_t, "id": answer.row.told_id}
    track = answer.track
    if belief is not None and track is not None:
        line |= {"names": tracks.dynamics.names, **belief}
        if tracks.dynamics.has("describe") and len(track.origin) and np.isfinite(track.origin).all():
            line["place"] = tracks.dynamics.model.describe(np.array(belief["mean"]), track.origin)
        line |= {"loglik_inc": answer.loglik_inc, "loglik": answer.loglik, "stages": answer.stages}
    off = answer.off_family
    line |= {"off_family": off if off == off else None, "event": answer.event}
    if answer.error:
        line["error"] = answer.error
    return as_line(line)


def as_line(value: dict[str, Any]) -> str:
    """One line of strict JSON; what JSON cannot say is null."""
    try:
        return json.dumps(value, allow_nan=False)
    except (ValueError, TypeError):
        return to_json(value)


def describe(tracks: Tracks, x: np.ndarray, logw: np.ndarray, *, with_modes: bool) -> list[dict[str, Any]]:
    """mean, cov, quantiles, modes and ess of B weighted sets (B, n, d), (B, n)."""
    angles = tracks.dynamics.angles
    w = np.exp(logw)
    mean, cov = moments(x, w, angles)
    cuts = quantiles(x, w, mean, angles)
    means, covs, levels = mean.tolist(), cov.tolist(), cuts.tolist()
    sizes = effective_size(logw).tolist()
    tops = modes_of(tracks, x, logw, mean, cov) if with_modes else None
    found = []
    for b in range(len(x)):
        one: dict[str, Any] = {"mean": means[b], "cov": covs[b]}
        one["quantiles"] = {str(level): levels[b][i] for i, level in enumerate(LEVELS)}
        if tops is not None:
            one["modes"] = tops[b]
        one["ess"] = sizes[b]
        found.append(one)
    return found


def modes_of(
    tracks: Tracks, x: np.ndarray, logw: np.ndarray, mean: np.ndarray, cov: np.ndarray
) -> list[list[dict[str, Any]]]:
    """Modes by the belief's own form: the Gaussian's one, the mixture's, or those of the particles."""
    if isinstance(tracks.belief, Gaussian):
        whole = zip(mean.tolist(), cov.tolist(), strict=True)
        return [[{"mass": 1.0, "mean": m, "cov": c}] for m, c in whole]
    mixture = getattr(tracks.belief, "mixture", None)
    if mixture is not None and getattr(tracks.belief, "generator", "") == "gmm":
        w, means, covs = mixture(x, logw)
        return [_plain(mixture_modes(w[b], means[b], covs[b])) for b in range(len(x))]
    centred = deviations(x, mean, tracks.dynamics.angles)
    roots = cholesky(cov, x)
    w = np.exp(logw)
    found = [particle_modes(centred[b], w[b], mean[b], roots[b]) for b in range(len(x))]
    # the only mode is the whole set: its moments need not be those of a thinned one
    return [_plain(tops if len(tops) > 1 else [Mode(1.0, mean[b], cov[b])]) for b, tops in enumerate(found)]


def _plain(modes: list[Mode]) -> list[dict[str, Any]]:
    return [{"mass": mode.mass, "mean": mode.mean.tolist(), "cov": mode.cov.tolist()} for mode in modes]


def forecasts(tracks: Tracks, answers: Sequence[Answer], x: np.ndarray, steps: int) -> list[list[dict[str, Any]]]:
    """Beliefs 1 to `steps` steps ahead: particles are propagated and never weighted.

    A step is as long as the track's last one. Draws are keyed apart: the filter goes on as if nobody had asked.
    """
    known = [answer.track for answer in answers if answer.track is not None]
    draws = Draws([track.key.at(track.step, FORECAST) for track in known])
    dt = np.array([track.dt for track in known])
    u = np.stack([track.control for track in known])
    logw = np.stack([track.logw for track in known])
    ahead: list[list[dict[str, Any]]] = [[] for _ in known]
    for h in range(1, steps + 1):
        x = tracks.dynamics.transition_sample(x, u, dt, draws, tracks.settings.max_dt)
        for b, belief in enumerate(describe(tracks, x, logw, with_modes=False)):
            ahead[b].append({"t": known[b].t + h * float(dt[b]), **belief})
    return ahead
