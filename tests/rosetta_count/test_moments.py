"""Neurons' statistics are those of scipy, and neurons that carry no information are found out."""

import numpy as np
import pytest
import torch
from arrays import Arrays, passed, related
from scipy import stats

from nipstool.kit.errors import DataError
from nipstool.rosetta_count.count import Subject, check_live


@pytest.mark.parametrize("mean", [0.0, 50.0])
def test_moments_are_scipys(mean: float):
    a, b = related(3000, 30, 5)
    a = torch.relu(a) + mean
    found = passed(Arrays(a), Arrays(b)).neurons[0]
    values = a.double().numpy()
    assert np.allclose(found.mean, values.mean(0), rtol=1e-5)
    assert np.allclose(found.deviation, values.std(0), rtol=1e-5)
    assert np.allclose(found.skew, stats.skew(values), rtol=1e-4, atol=1e-5)
    assert np.allclose(found.kurtosis, stats.kurtosis(values, fisher=False), rtol=1e-4)
    assert np.allclose(found.frequency, (values > 0).mean(0))
    rolls = 1 - np.abs(values).mean(0) ** 2 / (values**2).mean(0)
    assert np.allclose(found.sparseness, rolls, rtol=1e-4, atol=1e-5)


def test_dead_constant_quantised_and_equal_neurons_take_no_part():
    a, b = related(2000, 12, 12)
    a[:, 0], a[:, 1], a[:, 2] = 0, -3.5, (torch.arange(2000) % 3).float()
    a[:, 3] = torch.where(torch.arange(2000) < 1990, 0.0, 1.0)  # alive at the very end, two values
    a[:, 9] = a[:, 7]
    a[:, 10] = 2 * a[:, 7]  # no copy
    found = passed(Arrays(a), Arrays(b)).neurons[0]
    expected = ["dead", "constant", "quantised", "quantised", *["live"] * 5, "duplicate", "live", "live"]
    assert list(found.state) == expected
    assert found.live.tolist() == [state == "live" for state in expected]


def test_bfloat16_far_from_zero_is_reported_as_quantised():
    a, b = related(2000, 10, 10)
    a = (a + 1e4 * a.std(0)).bfloat16()
    assert set(passed(Arrays(a), Arrays(b)).neurons[0].state) <= {"quantised", "constant"}


def test_nan_is_an_error_that_names_the_layer():
    a, b = related(600, 10, 10)
    b[400, 7] = float("nan")
    with pytest.raises(DataError, match=r"layer layer1: 1 of 5 neurons are NaN or infinite \(the first is 2\)"):
        passed(Arrays(a), Arrays(b, widths=(5, 5)))


def test_a_dead_layer_is_an_error_that_names_it():
    a, b = related(600, 10, 10)
    a[:, 5:] = 0
    model = Arrays(a, widths=(5, 5))
    recorded = passed(model, Arrays(b))
    with pytest.raises(DataError, match="layer layer1 has no live neuron \\(5 dead\\)"):
        check_live([Subject("m", model.layers)], recorded.neurons[:1])
