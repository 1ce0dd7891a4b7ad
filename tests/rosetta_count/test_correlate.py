"""Correlations are those of numpy in float64, whatever the means, the dtype and the number of batches."""

import numpy as np
import pytest
import torch
from arrays import Arrays, pairs_of, passed, reference, related

from nipstool.rosetta_count.correlate import Best, Sums, correlations, frame_of, mutual, top


def full(a: torch.Tensor, b: torch.Tensor, rows: int = 500) -> np.ndarray:
    """r of all pairs by our sums, in units of `rows` samples."""
    frames = frame_of(a[:rows]), frame_of(b[:rows])
    sums = Sums.zeros(a.shape[1], b.shape[1])
    for at in range(0, len(a), rows):
        sums.add(frames[0](a[at : at + rows]), frames[1](b[at : at + rows]))
    live = torch.ones(a.shape[1], dtype=torch.bool), torch.ones(b.shape[1], dtype=torch.bool)
    return torch.cat([r for _, r in correlations(sums, *live)]).numpy()


@pytest.mark.parametrize("mean", [0.0, 3.0, 100.0, 1e4])
def test_float32_with_any_mean_is_numpys_r(mean: float):
    a, b = related(4000, 60, 50)
    a, b = a + mean * a.std(0), b - mean * b.std(0)
    assert np.abs(full(a, b) - reference(a, b)).max() < 1e-6


@pytest.mark.parametrize("mean", [0.0, 3.0, 30.0])
def test_bfloat16_is_numpys_r_of_the_rounded_values(mean: float):
    a, b = (values.bfloat16() for values in related(4000, 60, 50))
    a, b = ((v.float() + mean * v.float().std(0)).bfloat16() for v in (a, b))
    assert np.abs(full(a, b) - reference(a, b)).max() < 1e-6


def test_float64_keeps_what_float32_would_lose():
    a, b = (values.double() + 1e7 for values in related(2000, 20, 20))
    assert np.abs(full(a, b) - reference(a, b)).max() < 1e-6


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_tiny_and_huge_values_do_not_leave_the_range(scale: float):
    a, b = related(1000, 20, 20)
    assert np.abs(full(a * scale, b / scale) - reference(a, b)).max() < 1e-6


def test_first_samples_unlike_the_rest_do_no_harm():
    a, b = related(4000, 40, 40)
    a[:500] *= 0.01
    b[:500] += 5
    assert np.abs(full(a, b) - reference(a, b)).max() < 1e-6


def test_many_batches_do_not_stagnate_as_a_bfloat16_accumulator_does():
    """The official code adds into bfloat16: after 1,220 batches of 8 x 32 samples r = 0.5 has become about 0.2."""
    known = torch.tensor([0.3, 0.5, 0.7, 0.9, 0.99])
    generator = torch.Generator().manual_seed(0)
    sums, narrow = Sums.zeros(5, 5), torch.zeros(5, 5, dtype=torch.bfloat16)
    frame = None
    for _ in range(1220):
        a = torch.randn(256, 5, generator=generator)
        b = known * a + (1 - known**2).sqrt() * torch.randn(256, 5, generator=generator)
        frame = frame or (frame_of(a), frame_of(b))
        sums.add(frame[0](a), frame[1](b))
        narrow = (narrow.float() + a.T @ b).bfloat16()
    live = torch.ones(5, dtype=torch.bool)
    ours = torch.cat([r for _, r in correlations(sums, live, live)]).diagonal()
    theirs = narrow.float().diagonal() / (1220 * 256)
    assert float((ours - known).abs().max()) <= 0.01
    assert float((theirs - known).abs()[1]) > 0.15


def test_pairs_are_those_of_a_dense_reference():
    a, b = related(4000, 300, 200)
    found = mutual(*passed(Arrays(a), Arrays(b)).pairs[0].observed)
    assert set(zip(found.a.tolist(), found.b.tolist(), strict=True)) == pairs_of(reference(a, b))
    assert found.r.tolist() == sorted(found.r.tolist(), reverse=True)


def test_k_neighbours_are_those_of_a_full_sort():
    a, b = related(2000, 80, 70)
    found = mutual(*passed(Arrays(a), Arrays(b), k=3).pairs[0].observed)
    r = reference(a, b)
    of_a = np.argsort(-r, 1, kind="stable")[:, :3]
    of_b = np.argsort(-r, 0, kind="stable")[:3].T
    expected = {
        (i, int(j), rank + 1, of_b[j].tolist().index(i) + 1)
        for i in range(80)
        for rank, j in enumerate(of_a[i])
        if i in of_b[j] and r[i, j] >= 0
    }
    ours = (found.a.tolist(), found.b.tolist(), found.rank_a.tolist(), found.rank_b.tolist())
    assert set(zip(*ours, strict=True)) == expected


def test_the_lowest_index_wins_a_tie():
    r = torch.tensor([[0.5, 0.9, 0.9, 0.9], [0.1, 0.1, 0.1, 0.1]], dtype=torch.float64)
    assert top(r, 1)[1].tolist() == [[1], [0]]
    assert top(r, 2)[1].tolist() == [[1, 2], [0, 1]]
    best = Best.none(2, 2)
    best.merge(slice(None), r[:, 2:], 2)  # the later columns first
    best.merge(slice(None), r[:, :2], 0)
    assert best.index.tolist() == [[1, 2], [0, 1]]


def test_a_permuted_rescaled_copy_of_a_model_pairs_every_live_neuron_right():
    a, _ = related(3000, 120, 1)
    a[:, 5] = 0
    a[:, 6] = 2.5
    order = torch.randperm(120, generator=torch.Generator().manual_seed(1))
    b = a[:, order] * (torch.rand(120, generator=torch.Generator().manual_seed(2)) + 0.1) + 3
    found = mutual(*passed(Arrays(a), Arrays(b)).pairs[0].observed)
    assert set(found.a.tolist()) == set(range(120)) - {5, 6}
    assert torch.equal(order[found.b], found.a)
    assert float(found.r.min()) > 1 - 1e-6


def test_planted_neurons_are_found():
    generator = torch.Generator().manual_seed(3)
    shared, planted = 40, torch.randn(3000, 40, generator=generator)
    a, b = (torch.randn(3000, 200, generator=generator) for _ in range(2))
    a[:, :shared] = planted + 0.4 * a[:, :shared]
    b[:, -shared:] = planted + 0.4 * b[:, -shared:]
    found = mutual(*passed(Arrays(a), Arrays(b)).pairs[0].observed, min_r=0.5)
    right = sum(j == i + 160 for i, j in zip(found.a.tolist(), found.b.tolist(), strict=True))
    assert 2 * right / (len(found) + shared) >= 0.99


def test_a_negative_correlation_is_no_pair():
    a = torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    assert len(mutual(*passed(Arrays(a), Arrays(-a)).pairs[0].observed)) == 0
