"""The shipped checkpoint against a particle filter of the same size, on scenarios that training never saw."""

import numpy as np

from nipstool.filter_nbf import Bootstrap, Settings, load_domain
from nipstool.filter_nbf.checkpoint import shipped
from nipstool.filter_nbf.evaluate import Method, evaluate, rmse
from nipstool.filter_nbf.learned import Learned


def test_sixteen_fresh_scenarios() -> None:
    """Energy distance and evidence error at most 0.6 times the particle filter's."""
    domain = load_domain("arena")
    trained = shipped(domain)
    assert trained is not None
    methods = {
        "nbf": Method(Learned(trained), Settings(128)),
        "pf": Method(Bootstrap(), Settings(128, temper=False)),
    }
    found = evaluate(domain, methods, scenarios=16, reference=2000, seed=31, every=4).scores
    assert np.mean(found["nbf"].distance) <= 0.6 * np.mean(found["pf"].distance)
    assert rmse(found["nbf"].evidence) <= 0.6 * rmse(found["pf"].evidence)
