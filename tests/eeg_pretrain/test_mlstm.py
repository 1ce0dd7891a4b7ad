"""The mLSTM cell: the three forms are one function, and its gradients are those of its definition."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from nipstool.eeg_pretrain import mlstm

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def draw(seed: int, T: int, gate_std: float, d: int = 8, heads: int = 3) -> Inputs:
    random = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, heads, T, d, generator=random, dtype=torch.float64) for _ in range(3))
    i, f = (gate_std * torch.randn(1, heads, T, generator=random, dtype=torch.float64) for _ in range(2))
    return q, k, v, i, f


def by_hand(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """The definition without any stabilisation, for one head of few steps and small gates."""
    C, n, hs = torch.zeros(q.shape[-1], v.shape[-1], dtype=q.dtype), torch.zeros(q.shape[-1], dtype=q.dtype), []
    for t in range(len(q)):
        keep, take = 1.0 / (1.0 + math.exp(-f[t])), math.exp(i[t])
        C = keep * C + take * torch.outer(k[t], v[t]) / math.sqrt(q.shape[-1])
        n = keep * n + take * k[t] / math.sqrt(q.shape[-1])
        hs.append((C.T @ q[t]) / max(abs(float(n @ q[t])), 1.0))
    return torch.stack(hs)


def worst(one: Tensor, other: Tensor) -> float:
    """The largest difference of a head, relative to the head's largest output."""
    return float(((one - other).abs().amax((-1, -2)) / other.abs().amax((-1, -2))).max())


def test_the_recurrent_form_is_the_definition() -> None:
    q, k, v, i, f = draw(0, 12, 1.0)
    h, _ = mlstm.recurrent(q, k, v, i, f)
    for head in range(3):
        expected = by_hand(*(x[0, head] for x in (q, k, v, i, f)))
        assert torch.allclose(h[0, head], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("seed", range(20))
def test_the_three_forms_are_equal(seed: int) -> None:
    T = 1 + (seed * 97 + 255) % 256
    inputs = draw(seed, T, 3.0)
    h, last = mlstm.recurrent(*inputs)
    assert worst(mlstm.parallel(*inputs), h) <= 1e-10
    for chunk in (1, 7, 64):
        mine, state = mlstm.chunkwise(*inputs, chunk=chunk)
        assert worst(mine, h) <= 1e-10
        for got, expected in zip(state, last, strict=True):
            assert float((got - expected).abs().max()) <= 1e-10 * max(1.0, float(expected.abs().max()))


def test_numerator_and_denominator_agree_where_gates_are_wild() -> None:
    q, k, v, i, f = draw(1, 1024, 30.0)
    (one, _), two = mlstm.recurrent_parts(q, k, v, i, f), mlstm.parallel_parts(q, k, v, i, f)
    three, _ = mlstm.chunkwise_parts(q, k, v, i, f)
    size = mlstm.parallel_parts(q.abs(), k.abs(), v.abs(), i, f)  # not the sums themselves, but above them
    D_sum = absolute_sums(q, k, v, i, f)
    for other in (two, three):
        assert float((one.m - other.m).abs().max()) <= 1e-10 * float(one.m.abs().max())
        assert float(((one.num - other.num).abs() / D_sum[0]).max()) <= 1e-10
        assert float(((one.den - other.den).abs() / D_sum[1]).max()) <= 1e-10
    assert bool((D_sum[0] <= size.num * (1 + 1e-9)).all())


def absolute_sums(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    """sum_s |S_ts| |v_s| and sum_s |S_ts|, with S as the parallel form has it."""
    F = torch.nn.functional.logsigmoid(f).cumsum(-1)
    D = (F[..., :, None] - F[..., None, :] + i[..., None, :]).masked_fill(
        torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1), -torch.inf
    )
    m = torch.maximum(D.amax(-1), F)
    S = (q @ k.mT).abs() / math.sqrt(q.shape[-1]) * torch.exp(D - m[..., None])
    return S @ v.abs(), S.sum(-1)


@pytest.mark.parametrize("cut", [1, 63, 64, 100])
def test_a_stream_in_two_pieces_is_the_whole(cut: int) -> None:
    inputs = draw(2, 150, 3.0)
    q, k, v, i, f = inputs
    whole, last = mlstm.chunkwise(q, k, v, i, f)
    q, k, v, i, f = (x[:, :, :cut] for x in inputs)
    first, state = mlstm.chunkwise(q, k, v, i, f)
    q, k, v, i, f = (x[:, :, cut:] for x in inputs)
    second, end = mlstm.chunkwise(q, k, v, i, f, state=state)
    assert worst(torch.cat([first, second], -2), whole) <= 1e-10
    assert torch.allclose(end.C, last.C, atol=1e-12)


def test_many_blocks_are_one_input(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw(3, 200, 3.0)
    whole, _ = mlstm.chunkwise(*inputs, chunk=8)
    monkeypatch.setattr(mlstm, "BLOCK", 3)
    pieces, _ = mlstm.chunkwise(*inputs, chunk=8)
    assert worst(pieces, whole) <= 1e-12


def test_the_future_changes_no_past_output() -> None:
    q, k, v, i, f = draw(4, 130, 3.0)
    before = mlstm.chunkwise(q, k, v, i, f)[0]
    for x in (q, k, v, i, f):
        x[:, :, 90:] = 7.0
    after = mlstm.chunkwise(q, k, v, i, f)[0]
    assert torch.equal(before[:, :, :90], after[:, :, :90])
    assert not torch.equal(before[:, :, 90:], after[:, :, 90:])


@pytest.mark.parametrize("form", [mlstm.recurrent, mlstm.parallel, partial(mlstm.chunkwise, chunk=4)])
def test_gradients(form: object) -> None:
    inputs = tuple(x.requires_grad_() for x in draw(5, 9, 1.0, d=2, heads=1))

    def h(*x: Tensor) -> Tensor:
        out = form(*x)  # type: ignore[operator]
        return out if isinstance(out, Tensor) else out[0]

    assert torch.autograd.gradcheck(h, inputs)


def test_extreme_gates_stay_finite() -> None:
    q, k, v, _, f = (x.float().requires_grad_() for x in draw(6, 201, 3.0))
    i = torch.linspace(-120.0, 80.0, 201).expand(1, 3, 201).clone().requires_grad_()
    h, _ = mlstm.chunkwise(q, k, v, i, f)
    h.sum().backward()
    assert bool(torch.isfinite(h).all())
    for x in (q, k, v, i, f):
        assert x.grad is not None
        assert bool(torch.isfinite(x.grad).all())
