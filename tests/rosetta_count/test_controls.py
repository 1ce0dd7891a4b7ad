"""Controls: what a count is compared with."""

import numpy as np
import pytest
import torch
from arrays import Arrays, pairs_of, passed, reference, related

from nipstool.rosetta_count.controls import chance_pairs, excess, least_q, q_values, rotation
from nipstool.rosetta_count.correlate import mutual


def test_q_by_hand():
    """Observed .9 .6 .3; null .5 and .1 of two repetitions: FDR .9: 1/2, .6: 1/4, .3: (1+1)/6."""
    assert q_values([0.3, 0.9, 0.6], [0.5, 0.1], 2) == pytest.approx([1 / 3, 1 / 4, 1 / 4])
    assert q_values([0.5, 0.5], [], 1) == pytest.approx([0.5, 0.5])  # ties have the same rate
    assert q_values([0.4], [0.4], 1) == pytest.approx([1.0])  # a null pair at the same r counts
    assert least_q(3, 2) == pytest.approx(1 / 6)


@pytest.mark.parametrize("seed", range(3))
def test_unrelated_neurons_pair_as_chance_says(seed: int):
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2000, 300, generator=generator), torch.randn(2000, 200, generator=generator)
    found = passed(Arrays(a), Arrays(b))
    counts = [len(mutual(*both)) for both in [found.pairs[0].observed, *found.pairs[0].permuted]]
    assert chance_pairs(300, 200) == pytest.approx(120.2, abs=0.1)
    assert all(abs(count - 120.2) < 45 for count in counts)


def test_permuted_pairings_yield_nothing_after_the_false_discovery_rate():
    """Of each family the first permuted pairing plays the observed one, against the other five."""
    empty = 0
    for seed in range(100):
        a, b = related(1200, 60, 50, seed)
        found = passed(Arrays(a, rows=100), Arrays(b, rows=100), repeats=6, rotate=False, prefixes=False).pairs[0]
        first, *others = [mutual(*both).r.tolist() for both in found.permuted]
        empty += bool((q_values(first, [r for other in others for r in other], 5) > 0.01).all())
    assert empty >= 95


def test_a_permuted_pairing_is_that_of_shifted_samples():
    a, b = related(1000, 20, 15)
    found = passed(Arrays(a, rows=100), Arrays(b, rows=100), repeats=2)
    for k, both in enumerate(found.pairs[0].permuted, 1):
        r = reference(a, b.roll(100 * k, 0))
        assert np.abs(both[0].r[:, 0].numpy() - r.max(1)).max() < 1e-6


def test_units_of_different_sizes_lose_their_surplus_and_stay_exact():
    a, b = related(950, 20, 15)  # the last unit has 50
    found = passed(Arrays(a, rows=100), Arrays(b, rows=100), repeats=1)
    rows_a = torch.cat([torch.arange(100, 950), torch.arange(0, 50)])
    rows_b = torch.cat([torch.arange(0, 850), torch.arange(900, 950)])
    r = reference(a[rows_a], b[rows_b])
    assert np.abs(found.pairs[0].permuted[0][0].r[:, 0].numpy() - r.max(1)).max() < 1e-6


def test_the_rotated_control_is_the_correlation_with_the_product():
    a, b = related(1500, 30, 25)
    b[:, 3] = 0
    a[:, 2] = 1
    found = passed(Arrays(a, widths=(10, 20)), Arrays(b, widths=(15, 10)), seed=7)
    turned = [b[:, :15].double() @ rotation(15, 7, 0).T, b[:, 15:].double() @ rotation(10, 7, 1).T]
    a[:, 2] = torch.rand(1500)  # numpy knows no correlation of a constant
    r = np.delete(reference(a.double(), torch.cat(turned, 1)), 2, 0)
    assert found.pairs[0].rotated is not None
    ours = np.delete(found.pairs[0].rotated[0].r[:, 0].numpy(), 2)
    assert np.abs(ours - r.max(1)).max() < 1e-6
    pairs = mutual(*found.pairs[0].rotated)
    assert {(int(i), int(j)) for i, j in zip(pairs.a, pairs.b, strict=True)} == {
        (i + (i >= 2), j) for i, j in pairs_of(r)
    }


def test_excess_is_that_of_a_direct_transcription():
    """rho_i = mean over models of (max_j r(i, j) - max_j rbar(i, j)), Gurnee et al. 2024."""
    a, b = related(1500, 30, 25)
    _, c = related(1500, 30, 20, seed=0, noise=0.3)
    found = passed(Arrays(a), Arrays(b, widths=(15, 10)), Arrays(c), seed=3)
    expected = []
    for other, widths in ((b, (15, 10)), (c, (20,))):
        turned, at = [], 0
        for layer, width in enumerate(widths):
            turned.append(other[:, at : at + width].double() @ rotation(width, 3, layer).T)
            at += width
        baseline = reference(a.double(), torch.cat(turned, 1))
        expected.append(reference(a, other).max(1) - baseline.max(1))
    ours = excess(
        [pair.observed[0] for pair in found.pairs], [p.rotated[0] for p in found.pairs if p.rotated is not None]
    )
    assert np.abs(ours - np.mean(expected, 0)).max() < 1e-6
