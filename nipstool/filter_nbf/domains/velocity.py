"""Constant velocity over the ground: positions as latitude and longitude, states in metres around a first fix."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nipstool.filter_nbf.arrays import Array, like, namespace, normal_logpdf

EARTH_M = 6_371_008.8  # mean radius


class ConstantVelocity:
    """x is (east, north, ve, vn) in m and m/s from the track's first fix; observed are lat and lon in degrees.

    Args:
        acceleration: spectral density of the acceleration, m^2/s^3.
        position_sd: of a fix, metres.
        start_sd, speed_sd: spread of place (m) and velocity (m/s) before the first fix.
    """

    batched = True
    names = ("east", "north", "ve", "vn")
    obs_names = ("lat", "lon")
    positions = (0, 1)

    def __init__(
        self,
        acceleration: float = 0.05,
        position_sd: float = 15.0,
        start_sd: float = 30.0,
        speed_sd: float = 8.0,
    ):
        self.acceleration, self.position_sd = acceleration, position_sd
        self.start_sd, self.speed_sd = start_sd, speed_sd

    def origin(self, y: np.ndarray) -> np.ndarray:
        """(2,) the fix in degrees that a track's metres are measured from; NaN in a row without one."""
        return y if np.isfinite(y).all() else np.full(2, np.nan)

    def localise(self, y: np.ndarray, origin: np.ndarray) -> np.ndarray:
        """(..., 2) metres east and north of the origin (equirectangular, good to 1e-4 within 50 km)."""
        turned = (y[..., 1] - origin[..., 1] + 180.0) % 360.0 - 180.0
        east = np.radians(turned) * np.cos(np.radians(origin[..., 0])) * EARTH_M
        return np.stack([east, np.radians(y[..., 0] - origin[..., 0]) * EARTH_M], axis=-1)

    def describe(self, mean: np.ndarray, origin: np.ndarray) -> dict[str, float]:
        """The mean as latitude and longitude."""
        east, north = mean[:2].tolist()
        lat, lon = origin.tolist()
        lon += math.degrees(east / (EARTH_M * math.cos(math.radians(lat))))
        return {"lat": lat + math.degrees(north / EARTH_M), "lon": (lon + 180.0) % 360.0 - 180.0}

    def init_sample(self, n: Any, rng: Any) -> Array:
        """(..., n, 4) around the first fix."""
        noise = rng.standard_normal((*(tuple(n) if isinstance(n, tuple) else (n,)), 4))
        return noise * like([self.start_sd, self.start_sd, self.speed_sd, self.speed_sd], noise)

    def transition_sample(self, x: Array, u: Array, dt: Any, rng: Any) -> Array:
        """(..., n, 4) draws of x' given x: white noise as acceleration, exactly integrated over dt."""
        dt = like(dt, x)
        moved = rng.standard_normal(tuple(x.shape))
        for place, speed in ((0, 2), (1, 3)):
            kick = (self.acceleration * dt) ** 0.5 * moved[..., speed]
            slip = (self.acceleration * dt**3 / 12.0) ** 0.5 * moved[..., place]
            moved[..., place] = x[..., place] + (dt * (x[..., speed] + 0.5 * kick) + slip)
            moved[..., speed] = x[..., speed] + kick
        return moved

    def log_likelihood(self, y: Array, x: Array, u: Array) -> Array:
        """(..., n, 2): y is localised, metres east and north."""
        y = like(y, x)
        parts = [normal_logpdf(y[..., j] - x[..., j], self.position_sd) for j in (0, 1)]
        return namespace(x).stack(parts, axis=-1)

    def simulate_obs(self, x: Array, u: Array, rng: Any) -> Array:
        """(..., n, 2) latitude and longitude of tracks that begin at 50.8 N, 1.2 W."""
        place = np.asarray(x[..., :2]) + self.position_sd * np.asarray(rng.standard_normal((*x.shape[:-1], 2)))
        lat = 50.8 + np.degrees(place[..., 1] / EARTH_M)
        lon = -1.2 + np.degrees(place[..., 0] / (EARTH_M * np.cos(np.radians(50.8))))
        return like(np.stack([lat, lon], axis=-1), x)

    def sample_params(self, rng: Any) -> dict[str, float]:
        """A model of the family: acceleration over a decade."""
        return {"acceleration": 10.0 ** (-1.8 + float(rng.random((1,))[0])), "position_sd": self.position_sd}
