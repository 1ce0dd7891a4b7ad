"""The learned belief: fresh particles from the generator, and a watch on whether the belief is in its family."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nipstool.filter_nbf.beliefs import Kernel, Sample, possible, resample, unknown
from nipstool.filter_nbf.checkpoint import NETWORKS, Checkpoint
from nipstool.filter_nbf.draws import Draws
from nipstool.filter_nbf.embedding import Frame, embed, scale, unscale
from nipstool.filter_nbf.mixture import Components, draw, draw_from, in_state_space, mixture_of
from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.scores import energy_distance
from nipstool.kit.errors import DataError

WATCHED = 64  # particles of either set that are compared: the distance costs their square
BOUNDARIES = (8.0, 32.0, 128.0)  # of the effective size: what a small set embeds to differs more from it


class Learned:
    """p(. | E(S)) of a checkpoint. Where the belief is out of the family, a kernel around the set stands in."""

    keep, threshold, stage_size = 0.0, 0.7, 0.15

    def __init__(self, checkpoint: Checkpoint, *, watch: bool = True):
        # the networks were rounded to half precision: single is enough, and quicker
        self.params = {
            name: value.astype(np.float32) if name.startswith(NETWORKS) else value
            for name, value in checkpoint.params.items()
        }
        self.generator: str = checkpoint.about.get("generator", "gmm")
        self.angles = tuple(checkpoint.about["angles"])
        self._threshold = self.params.get("cal.threshold") if watch else None
        self._fallback = Kernel()
        self._last: tuple[np.ndarray, np.ndarray, Components] | None = None

    def try_out(self, d: int) -> None:
        """Run the networks once on any set of d numbers each; raises what numpy raises where they do not fit."""
        x, logw = np.random.default_rng(0).standard_normal((1, 8, d)), np.full((1, 8), -np.log(8.0))
        if self.generator != "flow":
            self.mixture(x, logw)
            return
        from nipstool.filter_nbf.flow import flow_of

        flow_of(self.params, self.theta(x, logw)[1], np.zeros((1, 4, d)))

    def sample(self, dynamics: Dynamics, x: np.ndarray, logw: np.ndarray, count: int, draws: Draws) -> Sample:
        """Embed, generate, compare; off-family sets are resampled with a kernel instead."""
        fresh = self.generate(dynamics, x, logw, count, draws)
        if self._threshold is None:
            return Sample(fresh, unknown(x))
        off = self.score(dynamics, x, logw, fresh) / self._threshold[size_bin(logw)]
        rows = np.flatnonzero(off > 1.0)
        if len(rows):
            fresh[rows] = self._fallback.sample(dynamics, x[rows], logw[rows], count, draws.take(rows)).x
        return Sample(fresh, off)

    def generate(
        self, dynamics: Dynamics, x: np.ndarray, logw: np.ndarray, count: int, draws: Draws
    ) -> np.ndarray:
        """(B, count, d) possible states drawn from p(. | theta)."""
        if self.generator == "flow":
            return self._flow(dynamics, x, logw, count, draws)
        mixture = self.mixture(x, logw)
        fresh, which = draw(mixture, count, draws)

        def again(rows: np.ndarray, places: np.ndarray) -> np.ndarray:  # each from its own component
            return draw_from(mixture, rows, which[rows, places], draws.normals_of(rows, x.shape[-1]))

        return possible(dynamics, dynamics.snap(fresh), again, _own(x, logw, count, draws))

    def _flow(self, dynamics: Dynamics, x: np.ndarray, logw: np.ndarray, count: int, draws: Draws) -> np.ndarray:
        from nipstool.filter_nbf.flow import flow_of

        frame, theta = self.theta(x, logw)

        def made(rows: np.ndarray, noise: np.ndarray) -> np.ndarray:
            u = flow_of(self.params, theta[rows], noise)
            return unscale(self.params, frame.mean[rows, None] + u @ np.swapaxes(frame.root[rows], -1, -2))

        def again(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
            return made(rows, draws.normals_of(rows, x.shape[-1])[:, None])[:, 0]

        fresh = made(np.arange(len(x)), draws.standard_normal((len(x), count, x.shape[-1])))
        return possible(dynamics, dynamics.snap(fresh), again, _own(x, logw, count, draws))

    def score(self, dynamics: Dynamics, x: np.ndarray, logw: np.ndarray, fresh: np.ndarray) -> np.ndarray:
        """(B,) energy distance between a set and what was generated from it, positions in units of the set."""
        place = list(dynamics.positions)
        w = np.exp(logw)
        if x.shape[1] > WATCHED:  # neighbours in a set resemble each other: every so many of them
            few = slice(None, None, -(-x.shape[1] // WATCHED))
            x, w = x[:, few], w[:, few] / np.maximum(w[:, few].sum(-1, keepdims=True), 1e-300)
        a, b = x[..., place], fresh[:, :: -(-fresh.shape[1] // WATCHED)][..., place]
        width = np.sqrt(b.var(1).sum(-1))[:, None, None] + 1e-9
        return energy_distance(a / width, b / width, w)

    def mixture(self, x: np.ndarray, logw: np.ndarray) -> Components:
        """The mixtures, in the model's units, that B weighted sets embed to.

        Those of the last sets are kept: what an answer has shown of a belief, the next step regenerates it from.
        """
        last = self._last
        if last is None or not (np.array_equal(last[0], x) and np.array_equal(last[1], logw)):
            frame, theta = self.theta(x, logw)
            found = in_state_space(mixture_of(self.params, theta, x.shape[-1]), frame, self.params)
            if not (np.isfinite(found.mean).all() and np.isfinite(found.root).all()):
                raise DataError("the checkpoint's networks give a belief that is no number; are they damaged?")
            self._last = last = (x.copy(), logw.copy(), found)
        return last[2]

    def theta(self, x: np.ndarray, logw: np.ndarray) -> tuple[Frame, np.ndarray]:
        """The frame and the embedding (B, t) of weighted sets."""
        return embed(self.params, scale(self.params, x), np.exp(logw), self.angles)[:2]


def _own(x: np.ndarray, logw: np.ndarray, count: int, draws: Draws) -> Callable[[np.ndarray], np.ndarray]:
    """Resampled sets of some of the tracks."""
    return lambda rows: resample(x[rows], logw[rows], count, draws.take(rows))


def size_bin(logw: np.ndarray) -> np.ndarray:
    """(B,) which of the calibrated ranges of the effective size a set falls in."""
    return np.searchsorted(BOUNDARIES, 1.0 / np.exp(2.0 * logw).sum(-1))
