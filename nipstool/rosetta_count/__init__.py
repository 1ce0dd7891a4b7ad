"""Rosetta neurons: count the neurons that models share, beside controls, and fit how the count grows.

>>> from nipstool.rosetta_count import count_dumps
>>> outcome = count_dumps(["a.npy", "b.npy"])  # doctest: +SKIP
>>> outcome.count.pairs[0].thresholded  # doctest: +SKIP
258
"""

from nipstool.rosetta_count.count import Count, Inputs, PairCount, Subject
from nipstool.rosetta_count.work import Options, Outcome, count_neurons

__all__ = ["Count", "Inputs", "Options", "Outcome", "PairCount", "Subject", "count_neurons"]
