"""Rosetta neurons: count the neurons that models share, beside controls, and fit how the count grows.

>>> from nipstool.rosetta_count import record
>>> with record(model) as acts:  # doctest: +SKIP
...     model(x)
"""

from nipstool.rosetta_count.count import Count, Inputs, PairCount, Subject
from nipstool.rosetta_count.record import record
from nipstool.rosetta_count.work import Options, Outcome, count_neurons

__all__ = ["Count", "Inputs", "Options", "Outcome", "PairCount", "Subject", "count_neurons", "record"]
