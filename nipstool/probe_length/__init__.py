"""Probes that read from a language model's hidden states how long its answer will be.

>>> from nipstool.probe_length import fit, load_statistics
>>> probe, report = fit(load_statistics("answers.stats")[0])  # doctest: +SKIP
>>> report.verdict  # doctest: +SKIP
"""

from nipstool.probe_length.collected import Collected, merged
from nipstool.probe_length.collected import load as load_statistics
from nipstool.probe_length.fit import Report, fit
from nipstool.probe_length.predict import Predictor
from nipstool.probe_length.probe import Probe, load
from nipstool.probe_length.schedule import schedule

__all__ = ["Collected", "Predictor", "Probe", "Report", "fit", "load", "load_statistics", "merged", "schedule"]
