"""Many tracks filtered at once: rows of different ids go through the model together, rows of one id in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nipstool.filter_nbf.beliefs import Belief
from nipstool.filter_nbf.draws import Draws, KeyedGenerator
from nipstool.filter_nbf.filter import Cloud, Outcome, Settings, prior, step
from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.rows import Row
from nipstool.kit.errors import DataError

AT_ONCE = 1 << 20  # particles that are moved in one call


@dataclass
class Track:
    """One id's belief and what else must be remembered of it."""

    key: KeyedGenerator
    x: np.ndarray  # (n, d)
    logw: np.ndarray  # (n,)
    ess: float
    t: float
    control: np.ndarray  # (k,)
    origin: np.ndarray  # where local coordinates begin; empty for most domains
    step: int = 0
    dt: float = 1.0
    loglik: float = 0.0
    collapses: int = 0


@dataclass
class Answer:
    """What a row did to its track. `event` is None, missing, collapsed, off_family, surprise, late or failed."""

    row: Row
    track: Track | None = None
    t: float | None = None
    loglik_inc: float = 0.0
    loglik: float = 0.0
    stages: int = 0
    off_family: float = float("nan")
    event: str | None = None
    error: str = ""


@dataclass
class Tracks:
    """All ids of a stream, filtered independently: draws are keyed by (seed, id, step)."""

    dynamics: Dynamics
    belief: Belief
    settings: Settings
    seed: int = 0
    tracks: dict[str, Track] = field(default_factory=dict)
    latest: tuple[Sequence[Answer], Cloud] | None = None
    """The answers of the last step, and their beliefs in one piece."""

    def waves(self, rows: Sequence[Row]) -> Iterator[list[tuple[int, Answer]]]:
        """Answers with the places of their rows, one wave of different ids after the other."""
        queues: dict[str, list[int]] = {}
        for place, row in enumerate(rows):
            queues.setdefault(row.track, []).append(place)
        most = max(1, AT_ONCE // self.settings.n)
        depth = 0
        while queues:
            places = [queue[depth] for queue in queues.values()]
            for start in range(0, len(places), most):
                some = places[start : start + most]
                yield list(zip(some, self.advance([rows[place] for place in some]), strict=True))
            depth += 1
            queues = {track: queue for track, queue in queues.items() if len(queue) > depth}

    def advance(self, rows: Sequence[Row]) -> list[Answer]:
        """Answers to one row each of different ids. Where the model fails on one, the others are answered."""
        answers = [self._begin(row) for row in rows]
        going = [answer for answer in answers if answer.event is None]
        try:
            self._step(going)
        except DataError as error:
            if len(going) == 1:
                self._fail(going[0], error)
            for answer in going if len(going) > 1 else ():
                try:
                    self._step([answer])
                except DataError as own:
                    self._fail(answer, own)
        return answers

    def _fail(self, answer: Answer, error: DataError) -> None:
        answer.event, answer.error = "failed", str(error)
        answer.track = self.tracks.get(answer.row.track)

    def _begin(self, row: Row) -> Answer:
        track = self.tracks.get(row.track)
        if track is None:
            return Answer(row, t=0.0 if row.t is None else row.t)
        t = track.t + 1.0 if row.t is None else row.t
        if t < track.t:
            return Answer(row, track, track.t, event="late", loglik=track.loglik)
        return Answer(row, track, t)

    def _step(self, answers: Sequence[Answer]) -> None:
        """One step of the tracks of these answers; nothing is changed where the model fails."""
        if not answers:
            return
        draws = Draws([self._key(answer).at(answer.track.step if answer.track else 0) for answer in answers])
        cloud = self._clouds(answers, draws)
        y = np.array([answer.row.y for answer in answers], dtype=float).reshape(len(answers), -1)
        held, u = self._controls(answers)
        dt = np.array([answer.t - answer.track.t if answer.track else np.nan for answer in answers])  # type: ignore[operator]
        origins = self._origins(answers, y)
        if self.dynamics.has("localise"):
            y = self.dynamics.model.localise(y, origins)
        collapses = np.array([answer.track.collapses if answer.track else 0 for answer in answers])
        cloud, outcome = step(self.dynamics, self.belief, self.settings, cloud, dt, held, y, u, draws, collapses)
        for b, answer in enumerate(answers):
            self._settle(answer, b, cloud, outcome, dt[b], u[b], origins[b])
        self.latest = (answers, cloud)

    def _key(self, answer: Answer) -> KeyedGenerator:
        return answer.track.key if answer.track else KeyedGenerator(self.seed, answer.row.track)

    def _clouds(self, answers: Sequence[Answer], draws: Draws) -> Cloud:
        n = self.settings.n
        new = [b for b, answer in enumerate(answers) if answer.track is None]
        fresh = prior(self.dynamics, n, draws.take(new)) if new else None
        if fresh is not None and len(new) == len(answers):
            return fresh
        x = np.empty((len(answers), n, self.dynamics.dim))
        logw, ess = np.empty(x.shape[:2]), np.empty(len(answers))
        if fresh is not None:
            x[new], logw[new], ess[new] = fresh.x, fresh.logw, fresh.ess
        for b, answer in enumerate(answers):
            if answer.track is not None:
                x[b], logw[b], ess[b] = answer.track.x, answer.track.logw, answer.track.ess
        return Cloud(x, logw, ess)

    def _controls(self, answers: Sequence[Answer]) -> tuple[np.ndarray, np.ndarray]:
        """(B, k) controls held until these rows, and those in force from them on. Before any they are zero."""
        nothing = np.zeros(len(self.dynamics.control_names))
        held = np.stack([answer.track.control if answer.track else nothing for answer in answers])
        u = held.copy()
        for b, answer in enumerate(answers):
            if answer.row.u is not None:
                given = np.array(answer.row.u, dtype=float)
                u[b] = np.where(np.isnan(given), u[b], given)
        return held, u

    def _origins(self, answers: Sequence[Answer], y: np.ndarray) -> np.ndarray:
        if not self.dynamics.has("origin"):
            return np.empty((len(answers), 0))
        nowhere = np.full(y.shape[1], np.nan)
        origins = np.stack([answer.track.origin if answer.track else nowhere for answer in answers])
        for b in np.flatnonzero(~np.isfinite(origins).all(-1)):
            origins[b] = self.dynamics.model.origin(y[b])
        return origins

    def _settle(
        self,
        answer: Answer,
        b: int,
        cloud: Cloud,
        outcome: Outcome,
        dt: float,
        u: np.ndarray,
        origin: np.ndarray,
    ) -> None:
        """Store the new belief and say what happened."""
        key = self._key(answer)
        t = answer.t if answer.t is not None else 0.0
        x, logw = cloud.x[b].copy(), cloud.logw[b].copy()  # a view would keep the whole wave in memory
        track = answer.track or Track(key, x, logw, 0.0, t, u, origin)
        track.x, track.logw, track.ess = x, logw, float(cloud.ess[b])
        track.t, track.control, track.origin = t, u, origin
        track.step += 1
        track.dt = dt if dt > 0.0 else track.dt
        dead = bool(outcome.collapsed[b])
        track.collapses = track.collapses + 1 if dead else 0 if not outcome.missing[b] else track.collapses
        answer.loglik_inc = float(outcome.loglik[b])
        track.loglik += 0.0 if dead else answer.loglik_inc
        answer.track, answer.loglik = track, track.loglik
        answer.stages, answer.off_family = int(outcome.stages[b]), float(outcome.off_family[b])
        if outcome.missing[b]:
            answer.event = "missing"
        elif dead:
            answer.event = "collapsed"
        elif answer.off_family > 1.0:
            answer.event = "off_family"
        elif outcome.surprised[b]:
            answer.event = "surprise"
        self.tracks[answer.row.track] = track
