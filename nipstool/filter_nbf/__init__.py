"""Neural Bayesian Filtering (arXiv 2510.03614): the belief of a dynamic system, on a stream, for any model.

>>> import io
>>> from nipstool.filter_nbf import Gaussian, RowReader, Settings, Tracks, filter_stream, load_domain
>>> tracks = Tracks(load_domain("nile"), Gaussian(), Settings(n=1000))
>>> lines = []
>>> tally = filter_stream(io.BytesIO(b'{"flow": 1120}'), RowReader(("flow",), ()), tracks, lines.append)
>>> tally.rows, lines[0][:21]
(1, '{"t": 0.0, "id": null')
"""

from nipstool.filter_nbf.answers import Contents
from nipstool.filter_nbf.beliefs import Bootstrap, Gaussian, Kernel
from nipstool.filter_nbf.choose import choose_belief
from nipstool.filter_nbf.filter import Settings, prior, step
from nipstool.filter_nbf.load import load_domain
from nipstool.filter_nbf.rows import Row, RowReader
from nipstool.filter_nbf.simulate import Scenario, simulate
from nipstool.filter_nbf.stream import filter_stream
from nipstool.filter_nbf.tracks import Tracks

__all__ = [
    "Bootstrap",
    "Contents",
    "Gaussian",
    "Kernel",
    "Row",
    "RowReader",
    "Scenario",
    "Settings",
    "Tracks",
    "choose_belief",
    "filter_stream",
    "load_domain",
    "prior",
    "simulate",
    "step",
]
