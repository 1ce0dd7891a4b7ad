"""Pursuit and evasion in a walled arena: most steps tell only where the evader is not.

The evader's velocity is an Ornstein-Uhlenbeck process with a drift; it bounces off the walls of [-1, 1]^2 and of
six rectangles. A drone sees it, up to a distance and where no rectangle is in between, as a range and a bearing.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from nipstool.filter_nbf.arrays import Array, like, namespace, normal_logpdf, wrap

WALLS = (  # left, right, bottom, top
    (-0.75, -0.45, 0.20, 0.75),
    (-0.20, 0.10, 0.45, 0.65),
    (0.40, 0.80, 0.15, 0.40),
    (-0.65, -0.15, -0.45, -0.25),
    (0.05, 0.25, -0.80, -0.10),
    (0.50, 0.85, -0.65, -0.45),
)
RANGE_SD, BEARING_SD = 0.03, 0.08
REACH, FADE, SEEN, FALSE = 0.7, 0.05, 0.9, 1e-4  # detection: distance, its softness, the most and the least of it
DRONE_STEP = 0.07


class Arena:
    """x is (x, y, vx, vy); observed are det (0 or 1) and, where it is 1, range and bearing; controls px, py.

    Args:
        rho, sigma: memory and noise of the velocity, a step.
        drift, direction: speed a step of the mean velocity, and where it points (radians).
    """

    batched = True
    names = ("x", "y", "vx", "vy")
    obs_names = ("det", "range", "bearing")
    control_names = ("px", "py")
    positions = (0, 1)
    max_dt = 1.0
    walls = WALLS

    def __init__(self, rho: float = 0.9, sigma: float = 0.02, drift: float = 0.005, direction: float = 0.0):
        if not 0.0 < rho < 1.0 or sigma <= 0.0:
            raise ValueError(f"rho is {rho} and sigma {sigma}: expected 0 < rho < 1 and sigma > 0")
        self.rho, self.sigma, self.drift, self.direction = rho, sigma, drift, direction
        self._mean = (drift * math.cos(direction), drift * math.sin(direction))
        self._spread = sigma / math.sqrt(1.0 - rho * rho)

    def init_sample(self, n: Any, rng: Any) -> Array:
        """(..., n, 4): anywhere outside the rectangles, with the stationary velocity."""
        size = tuple(n) if isinstance(n, tuple) else (n,)
        place = 2.0 * rng.random((*size, 2)) - 1.0
        for _ in range(6):  # what is left inside after that has weight 1e-5
            again = 2.0 * rng.random((*size, 2)) - 1.0
            xp = namespace(place)
            place = xp.where(_inside(place[..., 0], place[..., 1])[..., None], again, place)
        speed = self._spread * rng.standard_normal((*size, 2))
        return xp.concatenate([place, speed + like(self._mean, speed)], axis=-1)

    def transition_sample(self, x: Array, u: Array, dt: Any, rng: Any) -> Array:
        """(..., n, 4) draws of x' given x."""
        xp = namespace(x)
        dt = like(dt, x)
        keep = self.rho**dt
        spread = self._spread * (1.0 - keep * keep) ** 0.5
        noise = rng.standard_normal((*x.shape[:-1], 2))
        vx = self._mean[0] + keep * (x[..., 2] - self._mean[0]) + spread * noise[..., 0]
        vy = self._mean[1] + keep * (x[..., 3] - self._mean[1]) + spread * noise[..., 1]
        px, vx = _bounce(x[..., 0] + dt * vx, vx)
        hit = _inside(px, x[..., 1])
        px, vx = xp.where(hit, x[..., 0], px), xp.where(hit, -vx, vx)
        py, vy = _bounce(x[..., 1] + dt * vy, vy)
        hit = _inside(px, py)
        py, vy = xp.where(hit, x[..., 1], py), xp.where(hit, -vy, vy)
        return xp.stack([px, py, vx, vy], axis=-1)

    def log_likelihood(self, y: Array, x: Array, u: Array) -> Array:
        """(..., n, 3) of det, range and bearing; the latter two are 0 where nothing was seen."""
        xp = namespace(x)
        y, u = like(y, x), like(u, x)
        dx, dy = x[..., 0] - u[..., 0], x[..., 1] - u[..., 1]
        distance = xp.sqrt(dx * dx + dy * dy) + 1e-9
        chance = detection(x, u, distance)
        seen = y[..., 0] > 0.5
        columns = [xp.where(seen, xp.log(chance), xp.log1p(-chance)) + 0.0 * y[..., 0]]
        for residual, sd in (
            (y[..., 1] - distance, RANGE_SD),
            (wrap(y[..., 2] - xp.arctan2(dy, dx)), BEARING_SD),
        ):
            columns.append(xp.where(seen, normal_logpdf(residual, sd), xp.zeros_like(distance)))
        return xp.stack(columns, axis=-1)

    def simulate_obs(self, x: Array, u: Array, rng: Any) -> Array:
        """(..., n, 3) observations; range and bearing are NaN where nothing is seen."""
        xp = namespace(x)
        u = like(u, x)
        dx, dy = x[..., 0] - u[..., 0], x[..., 1] - u[..., 1]
        distance = xp.sqrt(dx * dx + dy * dy) + 1e-9
        seen = rng.random(tuple(distance.shape)) < detection(x, u, distance)
        noise = rng.standard_normal((*distance.shape, 2))
        nothing = xp.full_like(distance, float("nan"))
        reach = xp.where(seen, distance + RANGE_SD * noise[..., 0], nothing)
        bearing = xp.where(seen, wrap(xp.arctan2(dy, dx) + BEARING_SD * noise[..., 1]), nothing)
        return xp.stack([xp.where(seen, xp.ones_like(dx), xp.zeros_like(dx)), reach, bearing], axis=-1)

    def simulate_controls(self, steps: int, rng: Any) -> np.ndarray:
        """(steps, 2) places of a drone that flies from one random place to the next."""
        place, goal = (1.8 * np.asarray(rng.random((2,))) - 0.9 for _ in range(2))
        path = np.empty((steps, 2))
        for k in range(steps):
            path[k] = place
            way = goal - place
            left = float(np.hypot(*way))
            if left <= DRONE_STEP:
                place, goal = goal, 1.8 * np.asarray(rng.random((2,))) - 0.9
            else:
                place = place + way * (DRONE_STEP / left)
        return path

    def valid(self, x: Array) -> Array:
        """(..., n) whether a state lies in the free part of the arena."""
        inside = (abs(x[..., 0]) <= 1.0) & (abs(x[..., 1]) <= 1.0)
        return inside & ~_inside(x[..., 0], x[..., 1])

    def sample_params(self, rng: Any) -> dict[str, float]:
        """A model of the family that the shipped checkpoint was trained on."""
        a, b, c, e = (float(v) for v in rng.random((4,)))
        return {
            "rho": 0.80 + 0.17 * a,
            "sigma": 0.012 + 0.020 * b,
            "drift": 0.010 * c,
            "direction": 2.0 * math.pi * e,
        }

    def held_out_params(self, rng: Any) -> dict[str, float]:
        """Dynamics outside the training family: more drift than any of it, and longer memory."""
        a, b, c, e = (float(v) for v in rng.random((4,)))
        return {
            "rho": 0.97 + 0.025 * a,
            "sigma": 0.012 + 0.008 * b,
            "drift": 0.014 + 0.008 * c,
            "direction": 2.0 * math.pi * e,
        }


def detection(x: Array, u: Array, distance: Array) -> Array:
    """(..., n) probability that the drone at u sees the evader at x."""
    xp = namespace(x)
    near = SEEN / (1.0 + xp.exp((distance - REACH) / FADE))
    blocked = _blocked(u[..., 0], u[..., 1], x[..., 0], x[..., 1])
    return xp.where(blocked, FALSE + 0.0 * near, xp.clip(near, FALSE, 1.0))


def _bounce(place: Array, speed: Array) -> tuple[Array, Array]:
    xp = namespace(place)
    out = abs(place) > 1.0
    back = xp.clip(2.0 * xp.sign(place) - place, -1.0, 1.0)
    return xp.where(out, back, place), xp.where(out, -speed, speed)


def _inside(x: Array, y: Array) -> Array:
    left, right, bottom, top = _sides(x)
    return ((x > left) & (x < right) & (y > bottom) & (y < top)).any(0)


def _sides(x: Array) -> list[Array]:
    """The four sides of all rectangles, so that (W, ...) is a number for each of them and each of x."""
    return [like(side, x) for side in _arrays(x.ndim)]


@cache
def _arrays(dims: int) -> list[np.ndarray]:
    return [side.reshape((-1, *(1,) * dims)) for side in np.array(WALLS).T]


def _blocked(px: Array, py: Array, x: Array, y: Array) -> Array:
    """Whether the segment from p to (x, y) meets a rectangle: where it is between both pairs of sides at once."""
    xp = namespace(x)
    dx, dy = 1.0 / (x - px + 1e-12), 1.0 / (y - py + 1e-12)
    left, right, bottom, top = _sides(x)
    a, b = (left - px) * dx, (right - px) * dx
    c, e = (bottom - py) * dy, (top - py) * dy
    enter = xp.maximum(xp.minimum(a, b), xp.minimum(c, e))
    leave = xp.minimum(xp.maximum(a, b), xp.maximum(c, e))
    return ((enter < leave) & (leave > 0.0) & (enter < 1.0)).any(0)
