"""An evader that walks from cell to cell of a 20 x 20 grid with walls: small enough for the exact answer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nipstool.filter_nbf.arrays import Array, like, namespace, normal_logpdf

SIZE = 20
WALLS = ((4, 4, 3, 12), (8, 17, 6, 6), (14, 14, 10, 19))  # first and last column, first and last row
REACH, SEEN, FALSE, PLACE_SD = 5.0, 0.8, 0.02, 1.0
MOVES = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)])


class Grid:
    """x is (column, row); observed are seen (0 or 1) and, where it is 1, a noisy column and row; controls px, py.

    Args:
        stay: the chance of no move in a step. The four moves share the rest; a blocked one is no move.
    """

    batched = True
    names = ("column", "row")
    obs_names = ("seen", "column", "row")
    control_names = ("px", "py")
    max_dt = 1.0

    def __init__(self, stay: float = 0.2):
        if not 0.0 <= stay < 1.0:
            raise ValueError(f"stay is {stay}: expected a chance below 1")
        self.stay = stay
        self.free = np.ones((SIZE, SIZE), dtype=bool)  # [column, row]
        for first, last, low, high in WALLS:
            self.free[first : last + 1, low : high + 1] = False
        self.cells = np.argwhere(self.free).astype(float)

    def init_sample(self, n: Any, rng: Any) -> Array:
        """(..., n, 2): any free cell."""
        pick = rng.random(tuple(n) if isinstance(n, tuple) else (n,))
        xp = namespace(pick)
        index = pick * len(self.cells)
        return like(self.cells, pick)[index.astype(int) if xp is np else index.long()]

    def transition_sample(self, x: Array, u: Array, dt: Any, rng: Any) -> Array:
        """(..., n, 2) draws of x' given x, over a whole number of steps."""
        steps = like(dt, x) + 0.0 * x[..., 0]
        for k in range(math.ceil(float(steps.max()))):
            x = namespace(x).where((steps > k)[..., None], self._move(x, rng), x)
        return x

    def _move(self, x: Array, rng: Any) -> Array:
        xp = namespace(x)
        pick = rng.random(tuple(x.shape[:-1]))
        raised = (pick - self.stay) / (1.0 - self.stay) * 4.0 + 1.0
        which = xp.clip(xp.where(pick < self.stay, xp.zeros_like(pick), raised), 0.0, 4.0)
        goal = x + like(MOVES, x)[which.astype(int) if xp is np else which.long()]
        return xp.where(self.valid(goal)[..., None], goal, x)

    def log_likelihood(self, y: Array, x: Array, u: Array) -> Array:
        """(..., n, 3) of seen, column and row; the latter two are 0 where nothing was seen."""
        xp = namespace(x)
        y, u = like(y, x), like(u, x)
        chance = self._chance(x, u)
        seen = y[..., 0] > 0.5
        columns = [xp.where(seen, xp.log(chance), xp.log1p(-chance)) + 0.0 * y[..., 0]]
        for j in (0, 1):
            near = normal_logpdf(y[..., 1 + j] - x[..., j], PLACE_SD)
            columns.append(xp.where(seen, near, xp.zeros_like(chance)))
        return xp.stack(columns, axis=-1)

    def simulate_obs(self, x: Array, u: Array, rng: Any) -> Array:
        """(..., n, 3) observations; the cell is NaN where nothing is seen."""
        xp = namespace(x)
        chance = self._chance(x, like(u, x))
        seen = rng.random(tuple(chance.shape)) < chance
        place = x + PLACE_SD * rng.standard_normal(tuple(x.shape))
        place = xp.where(seen[..., None], place, xp.full_like(place, float("nan")))
        return xp.concatenate(
            [xp.where(seen, xp.ones_like(chance), xp.zeros_like(chance))[..., None], place], axis=-1
        )

    def simulate_controls(self, steps: int, rng: Any) -> np.ndarray:
        """(steps, 2) places of a pursuer that circles the grid's middle from a random start."""
        turn = 2.0 * math.pi * (float(rng.random((1,))[0]) + np.arange(steps) / 25.0)
        return 9.5 + 6.0 * np.stack([np.cos(turn), np.sin(turn)], axis=-1)

    def valid(self, x: Array) -> Array:
        """(..., n) whether a state is a free cell."""
        xp = namespace(x)
        column, row = xp.round(x[..., 0]), xp.round(x[..., 1])
        on = (column >= 0) & (column < SIZE) & (row >= 0) & (row < SIZE)
        for first, last, low, high in WALLS:
            on = on & ~((column >= first) & (column <= last) & (row >= low) & (row <= high))
        return on

    def snap(self, x: Array) -> Array:
        """The centre of a state's cell."""
        return namespace(x).round(x)

    def sample_params(self, rng: Any) -> dict[str, float]:
        """A model of the family: stay from 0 to 0.6."""
        return {"stay": 0.6 * float(rng.random((1,))[0])}

    def _chance(self, x: Array, u: Array) -> Array:
        distance = namespace(x).sqrt((x[..., 0] - u[..., 0]) ** 2 + (x[..., 1] - u[..., 1]) ** 2)
        return FALSE + (SEEN - FALSE) / (1.0 + namespace(x).exp(2.0 * (distance - REACH)))
