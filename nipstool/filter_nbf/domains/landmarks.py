"""A robot with odometry that measures ranges and bearings to known landmarks (global localisation)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from nipstool.filter_nbf.arrays import Array, like, namespace, normal_logpdf, wrap

SQUARE = {"1": (-4.0, -4.0), "2": (4.0, -4.0), "3": (4.0, 4.0), "4": (-4.0, 4.0), "5": (0.0, 5.0)}


class Landmarks:
    """x is (x, y, heading) in metres and radians; one landmark a row; controls are speed and turn (rad/s).

    Args:
        landmarks: name (a number) -> (x, y), or a file of lines `name x y ...` (# begins a comment).
        range_sd, bearing_sd: noise of the sensor, metres and radians. range_bias, range_share, bearing_bias: how
            wrong it is; a range by range_bias + range_share * range.
        outliers: share of measurements that say nothing.
        speed_sd, speed_share: noise of the speed, per root second: speed_sd + speed_share * |speed|.
        turn_sd, turn_share: the same for the turn.
        speed_scale, turn_scale: what the wheels say is multiplied by. turn_bias: turn beyond that (rad/s).
        margin: metres around the landmarks where the robot may start.
    """

    batched = True
    names = ("x", "y", "heading")
    angles = (2,)
    obs_names = ("landmark", "range", "bearing")
    control_names = ("speed", "turn")
    positions = (0, 1)
    max_dt = 1.0

    def __init__(
        self,
        landmarks: Any = None,
        range_sd: float = 0.2,
        bearing_sd: float = 0.1,
        range_bias: float = 0.0,
        outliers: float = 0.01,
        speed_sd: float = 0.02,
        speed_share: float = 0.1,
        turn_sd: float = 0.02,
        turn_share: float = 0.1,
        margin: float = 1.0,
        range_share: float = 0.0,
        bearing_bias: float = 0.0,
        speed_scale: float = 1.0,
        turn_scale: float = 1.0,
        turn_bias: float = 0.0,
    ):
        known = _read(landmarks) if isinstance(landmarks, str) else landmarks or SQUARE
        self.ids = np.array([float(name) for name in known])
        self.places = np.array(list(known.values()), dtype=float)[:, :2]
        self.range_sd, self.bearing_sd, self.range_bias, self.outliers = range_sd, bearing_sd, range_bias, outliers
        self.speed_sd, self.speed_share, self.turn_sd, self.turn_share = speed_sd, speed_share, turn_sd, turn_share
        self.range_share, self.bearing_bias = range_share, bearing_bias
        self.speed_scale, self.turn_scale, self.turn_bias = speed_scale, turn_scale, turn_bias
        self.low, self.high = self.places.min(0) - margin, self.places.max(0) + margin

    def init_sample(self, n: Any, rng: Any) -> Array:
        """(..., n, 3): anywhere among the landmarks, facing anywhere."""
        draw = rng.random((*(tuple(n) if isinstance(n, tuple) else (n,)), 3))
        low, high = like([*self.low, -math.pi], draw), like([*self.high, math.pi], draw)
        return low + (high - low) * draw

    def transition_sample(self, x: Array, u: Array, dt: Any, rng: Any) -> Array:
        """(..., n, 3) draws of x' given x: half a turn, a step, half a turn."""
        xp = namespace(x)
        u, dt = like(u, x), like(dt, x)
        noise = rng.standard_normal((*x.shape[:-1], 2)) * (dt**0.5)[..., None]
        step = (
            self.speed_scale * u[..., 0] * dt + (self.speed_sd + self.speed_share * abs(u[..., 0])) * noise[..., 0]
        )
        turn = (self.turn_scale * u[..., 1] + self.turn_bias) * dt
        turn = turn + (self.turn_sd + self.turn_share * abs(u[..., 1])) * noise[..., 1]
        middle = x[..., 2] + 0.5 * turn
        px, py = x[..., 0] + step * xp.cos(middle), x[..., 1] + step * xp.sin(middle)
        return xp.stack([px, py, wrap(x[..., 2] + turn)], axis=-1)

    def log_likelihood(self, y: Array, x: Array, u: Array) -> Array:
        """(..., n, 3); the landmark's own column is 0, and every one where no landmark is named.

        Raises ValueError for a landmark nobody knows.
        """
        xp = namespace(x)
        y = like(y, x)
        reach, bearing = self._expected(x, self._places(y))
        nothing, named = xp.zeros_like(x[..., 0]), ~xp.isnan(y[..., 0])
        columns = [nothing]
        for residual, sd, width in (
            (y[..., 1] - reach, self.range_sd, 10.0),
            (wrap(y[..., 2] - bearing), self.bearing_sd, 2.0 * math.pi),
        ):
            good = (1.0 - self.outliers) * xp.exp(normal_logpdf(residual, sd))
            columns.append(xp.where(named, xp.log(good + self.outliers / width), nothing))
        return xp.stack(columns, axis=-1)

    def simulate_obs(self, x: Array, u: Array, rng: Any) -> Array:
        """(..., n, 3): one landmark, taken at random, with its range and bearing."""
        xp = namespace(x)
        pick = rng.random(tuple(x.shape[:-1])) * len(self.ids)
        index = pick.astype(int) if xp is np else pick.long()
        reach, bearing = self._expected(x, like(self.places, x)[index])
        noise = rng.standard_normal((*x.shape[:-1], 2))
        reach = reach + self.range_sd * noise[..., 0]
        bearing = wrap(bearing + self.bearing_sd * noise[..., 1])
        return xp.stack([like(self.ids, x)[index], reach, bearing], axis=-1)

    def simulate_controls(self, steps: int, rng: Any) -> np.ndarray:
        """(steps, 2) a steady speed and slowly changing turns."""
        turn = 0.3 * np.sin(np.arange(steps) / 7.0 + 6.0 * float(rng.random((1,))[0]))
        return np.stack([np.full(steps, 0.3), turn], axis=-1)

    def sample_params(self, rng: Any) -> dict[str, Any]:
        """A robot of the family: the same landmarks, other noise of its odometry."""
        a, b = (float(v) for v in rng.random((2,)))
        known = {f"{name:g}": tuple(place) for name, place in zip(self.ids, self.places, strict=True)}
        return {"landmarks": known, "speed_sd": 0.01 + 0.05 * a, "turn_sd": 0.01 + 0.05 * b}

    def _places(self, y: Array) -> Array:
        """(..., 2) places of the landmarks named in y; a missing one stands at NaN."""
        named = np.asarray(y[..., 0])
        found = named[..., None] == self.ids
        if (~found.any(-1) & ~np.isnan(named)).any():
            unknown = named[~found.any(-1) & ~np.isnan(named)].flat[0]
            raise ValueError(f"landmark {unknown:g} is not among the {len(self.ids)} known ones")
        places = np.where(np.isnan(named)[..., None], np.nan, self.places[found.argmax(-1)])
        return like(places, y)

    def _expected(self, x: Array, places: Array) -> tuple[Array, Array]:
        """Range and bearing that the sensor gives, but for its noise."""
        xp = namespace(x)
        dx, dy = places[..., 0] - x[..., 0], places[..., 1] - x[..., 1]
        reach = (1.0 + self.range_share) * xp.sqrt(dx * dx + dy * dy) + self.range_bias
        return reach, wrap(xp.arctan2(dy, dx) - x[..., 2] + self.bearing_bias)


def _read(path: str) -> dict[str, tuple[float, float]]:
    lines = Path(path).read_text().splitlines()
    rows = [line.split("#")[0].replace(",", " ").split() for line in lines]
    known = {row[0]: (float(row[1]), float(row[2])) for row in rows if len(row) >= 3}
    if not known:
        raise ValueError(f"{path} has no line `name x y`")
    return known
