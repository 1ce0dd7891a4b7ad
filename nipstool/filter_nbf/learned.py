"""The learned belief: fresh particles from the generator, and a watch on whether the belief is in its family."""

from __future__ import annotations

import numpy as np

from nipstool.filter_nbf.beliefs import Kernel, Sample, possible, resample, unknown
from nipstool.filter_nbf.checkpoint import Checkpoint
from nipstool.filter_nbf.draws import Draws
from nipstool.filter_nbf.embedding import Frame, embed, scale, unscale
from nipstool.filter_nbf.mixture import Mixture, draw, in_state_space, mixture_of
from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.scores import energy_distance

WATCHED = 64  # particles of either set that are compared: the distance costs their square
BOUNDARIES = (8.0, 32.0, 128.0)  # of the effective size: what a small set embeds to differs more from it


class Learned:
    """p(. | E(S)) of a checkpoint. Where the belief is out of the family, a kernel around the set stands in."""

    keep, threshold = 0.0, 0.7

    def __init__(self, checkpoint: Checkpoint, *, watch: bool = True):
        single = ("enc.", "gen.")  # the networks were rounded to half precision: single is enough, and quicker
        self.params = {
            name: value.astype(np.float32) if name.startswith(single) else value
            for name, value in checkpoint.params.items()
        }
        self.generator: str = checkpoint.about.get("generator", "gmm")
        self.angles = tuple(checkpoint.about["angles"])
        self._threshold = self.params.get("cal.threshold") if watch else None
        self._fallback = Kernel()
        self._last: tuple[np.ndarray, np.ndarray, Frame, np.ndarray] | None = None

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
        frame, theta = self.theta(x, logw)
        if self.generator == "flow":
            from nipstool.filter_nbf.flow import flow_draw as generate_flow

        mixture = mixture_of(self.params, theta, x.shape[-1]) if self.generator == "gmm" else None

        def propose(rows: np.ndarray) -> np.ndarray:
            some = draws.take(rows)
            if mixture is None:
                u = generate_flow(self.params, theta[rows], count, some)
            else:
                u = draw(Mixture(mixture.logw[rows], mixture.mean[rows], mixture.root[rows]), count, some)
            there = frame.mean[rows, None] + u @ np.swapaxes(frame.root[rows], -1, -2)
            return dynamics.snap(unscale(self.params, there))

        base = resample(x, logw, count, draws) if dynamics.has("valid") else x[:, :0]
        return possible(dynamics, propose, base)

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

    def mixture(self, x: np.ndarray, logw: np.ndarray) -> tuple[np.ndarray, ...]:
        """Weights, means and covariances, in the model's units, of the mixtures that B sets embed to."""
        frame, theta = self.theta(x, logw)
        return in_state_space(mixture_of(self.params, theta, x.shape[-1]), frame, self.params)

    def theta(self, x: np.ndarray, logw: np.ndarray) -> tuple[Frame, np.ndarray]:
        """The frame and the embedding (B, t) of weighted sets.

        That of the last sets is kept: what an answer has shown of a belief, the next step regenerates it from.
        """
        last = self._last
        if last is None or not (np.array_equal(last[0], x) and np.array_equal(last[1], logw)):
            frame, theta, _ = embed(self.params, scale(self.params, x), np.exp(logw), self.angles)
            self._last = last = (x.copy(), logw.copy(), frame, theta)
        return last[2], last[3]


def size_bin(logw: np.ndarray) -> np.ndarray:
    """(B,) which of the calibrated ranges of the effective size a set falls in."""
    return np.searchsorted(BOUNDARIES, 1.0 / np.exp(2.0 * logw).sum(-1))
