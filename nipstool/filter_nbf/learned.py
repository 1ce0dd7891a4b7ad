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

WATCHED = 128  # particles of either set that are compared: the distance costs their square
BOUNDARIES = (8.0, 32.0, 128.0)  # of the effective size: what a small set embeds to differs more from it


class Learned:
    """p(. | E(S)) of a checkpoint. Where the belief is out of the family, a kernel around the set stands in."""

    keep = 0.5

    def __init__(self, checkpoint: Checkpoint, *, watch: bool = True):
        self.params = checkpoint.params
        self.generator: str = checkpoint.about.get("generator", "gmm")
        self.angles = tuple(checkpoint.about["angles"])
        self._threshold = self.params.get("cal.threshold") if watch else None
        self._fallback = Kernel()

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
        s = scale(self.params, x)
        frame, theta, _ = embed(self.params, s, np.exp(logw), self.angles)
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
        few = slice(None, WATCHED)
        if x.shape[1] > WATCHED:  # the heaviest would be a biased choice: take them as they come
            x, w = x[:, few], w[:, few] / np.maximum(w[:, few].sum(-1, keepdims=True), 1e-300)
        a, b = x[..., place], fresh[:, few][..., place]
        width = np.sqrt(b.var(1).sum(-1))[:, None, None] + 1e-9
        return energy_distance(a / width, b / width, w)

    def mixture(self, x: np.ndarray, logw: np.ndarray) -> tuple[np.ndarray, ...]:
        """Weights, means and covariances, in the model's units, of the mixtures that B sets embed to."""
        frame, theta, _ = embed(self.params, scale(self.params, x), np.exp(logw), self.angles)
        return in_state_space(mixture_of(self.params, theta, x.shape[-1]), frame, self.params)

    def theta(self, x: np.ndarray, logw: np.ndarray) -> tuple[Frame, np.ndarray]:
        """The frame and the embedding (B, t) of weighted sets."""
        frame, theta, _ = embed(self.params, scale(self.params, x), np.exp(logw), self.angles)
        return frame, theta


def size_bin(logw: np.ndarray) -> np.ndarray:
    """(B,) which of the calibrated ranges of the effective size a set falls in."""
    return np.searchsorted(BOUNDARIES, 1.0 / np.exp(2.0 * logw).sum(-1))
