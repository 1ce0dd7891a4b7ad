"""On three networks trained here on handwritten digits: the count's excess against a direct transcription."""

import numpy as np
import pytest
import torch

from nipstool.rosetta_count.controls import rotation
from nipstool.rosetta_count.digits import count_hidden, hidden, network, train

WIDTH, STEPS, SAMPLES, SEED = 24, 300, 4000, 5


def direct(anchor: np.ndarray, others: list[np.ndarray], live: list[np.ndarray]) -> np.ndarray:
    """rho_i = mean over models of (max_j r(i, j) - max_j rbar(i, j)), all in float64 by numpy.

    rbar is r with a model's layers multiplied by random matrices, all their neurons in them. For r itself dead and
    nearly dead neurons are left out.
    """
    differences = []
    for other, own in zip(others, live, strict=True):
        turned = [other[:, at * WIDTH : (at + 1) * WIDTH] @ rotation(WIDTH, SEED, at).numpy().T for at in range(2)]
        highest = []
        for values in (other[:, own], np.concatenate(turned, 1)):
            r = np.corrcoef(anchor, values, rowvar=False)[: anchor.shape[1], anchor.shape[1] :]
            highest.append(r.max(1))
        differences.append(highest[0] - highest[1])
    return np.mean(differences, 0)


def test_excess_of_three_digits_networks_is_that_of_a_direct_transcription():
    pytest.importorskip("sklearn")
    from nipstool.rosetta_count.digits import load_digits

    torch.set_num_threads(1)
    images, classes = load_digits()
    networks = [network(WIDTH, seed) for seed in range(3)]
    accuracies = [train(one, images, classes, seed, STEPS) for seed, one in enumerate(networks)]
    assert min(accuracies) > 0.5
    trained = [hidden(one, images[:SAMPLES], f"seed {seed}") for seed, one in enumerate(networks)]
    fresh = [hidden(network(WIDTH, 100 + seed), images[:SAMPLES], "fresh") for seed in range(3)]
    count = count_hidden(trained, fresh, 1, seed=SEED).count
    assert count.excess is not None
    live = [neurons.live.numpy() for neurons in count.neurons]
    values = [one.values.double().numpy() for one in trained]
    assert min(map(sum, live)) > WIDTH
    expected = direct(values[0][:, live[0]], values[1:], live[1:])
    assert np.abs(count.excess[live[0]] - expected).max() < 1e-6
    assert np.isnan(count.excess[~live[0]]).all()
    assert np.ptp(expected) > 0.1  # a constant would agree with anything
