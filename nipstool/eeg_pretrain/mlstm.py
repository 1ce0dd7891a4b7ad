"""The mLSTM cell (xLSTM, arXiv 2405.04517, eqs. 19 to 27) in its three equal forms.

For one head, with queries and keys q_t, k_t of R^dk, values v_t of R^dv and two gate pre-activations i_t, f_t:

    C_t = sigma(f_t) C_{t-1} + exp(i_t) k_t v_t^T / sqrt(dk)      n_t likewise with 1 in place of v_t
    h_t = C_t^T q_t / max(|n_t^T q_t|, 1)

All forms hold C and n divided by exp(m_t), with m_t = max(log sigma(f_t) + m_{t-1}, i_t), so that nothing
overflows; the 1 becomes exp(-m_t). The published code adds a small constant to the denominator in these units: its
result then depends on m, and the forms differ. Here there is none: exp(-m_t) > 0.

`recurrent` is the definition, step by step; `parallel` is one T x T matrix; `chunkwise` is parallel in chunks
and recurrent between them, which is linear in T. h does not depend on m, so no gradient flows through it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

CHUNK = 64
BLOCK = 64  # chunks whose states are summed by one matrix product; longer inputs go block by block
CLOSED, OPEN = -1e30, 1e30  # gates of a padded step: nothing comes in, nothing is forgotten


class State(NamedTuple):
    """What a head remembers: C (..., dk, dv) and n (..., dk) in units of exp(m), m (...)."""

    C: Tensor
    n: Tensor
    m: Tensor


class Parts(NamedTuple):
    """Numerator (..., T, dv), denominator (..., T) and m (..., T): h = num / max(|den|, exp(-m))."""

    num: Tensor
    den: Tensor
    m: Tensor

    def h(self) -> Tensor:
        """The cell's output (..., T, dv)."""
        return self.num / torch.maximum(self.den.abs(), torch.exp(-self.m))[..., None]


def empty_state(q: Tensor, v: Tensor) -> State:
    """The state before the first step, for inputs like q (..., T, dk) and v (..., T, dv)."""
    shape = q.shape[:-2]
    return State(
        q.new_zeros(*shape, q.shape[-1], v.shape[-1]), q.new_zeros(*shape, q.shape[-1]), q.new_zeros(shape)
    )


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State | None = None
) -> tuple[Tensor, State]:
    """h (..., T, dv) and the last state, from q, k (..., T, dk), v (..., T, dv), gates (..., T)."""
    parts, state = recurrent_parts(q, k, v, i, f, state)
    return parts.h(), state


def recurrent_parts(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State | None = None
) -> tuple[Parts, State]:
    """As `recurrent`, before the division."""
    C, n, m = state or empty_state(q, v)
    k = k / math.sqrt(k.shape[-1])
    log_f = logsigmoid(f)
    nums, dens, ms = [], [], []
    for t in range(q.shape[-2]):
        before, m = m, torch.maximum(log_f[..., t] + m, i[..., t]).detach()
        keep = torch.exp(log_f[..., t] + before - m)
        take = torch.exp(i[..., t] - m)
        k_t = take[..., None] * k[..., t, :]
        C = keep[..., None, None] * C + k_t[..., :, None] * v[..., t, None, :]
        n = keep[..., None] * n + k_t
        nums.append((q[..., t, None, :] @ C)[..., 0, :])
        dens.append((q[..., t, :] * n).sum(-1))
        ms.append(m)
    return Parts(torch.stack(nums, -2), torch.stack(dens, -1), torch.stack(ms, -1)), State(C, n, m)


def parallel(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """h (..., T, dv) from the first step on, by one T x T matrix a head."""
    return parallel_parts(q, k, v, i, f).h()


def parallel_parts(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Parts:
    """As `parallel`, before the division."""
    F = logsigmoid(f).cumsum(-1)
    D = F[..., :, None] - F[..., None, :] + i[..., None, :]
    later = torch.ones(D.shape[-2:], dtype=torch.bool, device=D.device).triu(1)
    D = D.masked_fill(later, -torch.inf)
    m = torch.maximum(D.detach().amax(-1), F.detach())  # F: the empty state's m = 0, decayed, as in the others
    S = q @ k.mT / math.sqrt(k.shape[-1]) * torch.exp(D - m[..., None])
    return Parts(S @ v, S.sum(-1), m)


def chunkwise(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State | None = None, chunk: int = CHUNK
) -> tuple[Tensor, State]:
    """As `recurrent`, any T, at the cost of matrix products: linear in T.

    Args:
        q: queries (..., T, dk).
        k: keys (..., T, dk).
        v: values (..., T, dv).
        i: input gates (..., T).
        f: forget gates (..., T).
        state: what came before; nothing by default.
        chunk: steps a chunk.
    """
    parts, state = chunkwise_parts(q, k, v, i, f, state, chunk)
    return parts.h(), state


def chunkwise_parts(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State | None = None, chunk: int = CHUNK
) -> tuple[Parts, State]:
    """As `chunkwise`, before the division."""
    state = state or empty_state(q, v)
    T = q.shape[-2]
    span = chunk * BLOCK
    blocks = []
    for start in range(0, T, span):
        piece = slice(start, min(start + span, T))
        inputs = q[..., piece, :], k[..., piece, :], v[..., piece, :], i[..., piece], f[..., piece]
        parts, state = _block(*inputs, state, min(chunk, piece.stop - start))
        blocks.append(parts)
    if len(blocks) == 1:
        return blocks[0], state
    nums, dens, ms = zip(*blocks, strict=True)
    return Parts(torch.cat(nums, -2), torch.cat(dens, -1), torch.cat(ms, -1)), state


def _block(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State, L: int) -> tuple[Parts, State]:
    """At most BLOCK chunks of L steps; the last one is filled up with steps that change nothing."""
    T = q.shape[-2]
    if missing := -T % L:
        q, k, v = (pad(x, (0, 0, 0, missing)) for x in (q, k, v))
        i, f = pad(i, (0, missing), value=CLOSED), pad(f, (0, missing), value=OPEN)
    q, k, v = (x.unflatten(-2, (-1, L)) for x in (q, k / math.sqrt(k.shape[-1]), v))  # (..., N, L, d)
    i, log_f = i.unflatten(-1, (-1, L)), logsigmoid(f).unflatten(-1, (-1, L))  # (..., N, L)
    b = log_f.cumsum(-1)
    a = i - b  # step s counts exp(a_s + b_t) at step t of its chunk
    C, n, m = _states(k, v, a, b[..., -1], state)
    c = torch.maximum(a.detach().cummax(-1).values, m[..., :-1, None])  # m_t = b_t + c_t
    later = torch.full((L, L), -torch.inf, dtype=q.dtype, device=q.device).triu(1)
    S = q @ k.mT * torch.exp(a[..., None, :] - c[..., None] + later)  # (..., N, L, L)
    carried = torch.exp(m[..., :-1, None] - c)
    num = S @ v + carried[..., None] * (q @ C[..., :-1, :, :])
    den = S.sum(-1) + carried * (q @ n[..., :-1, :, None])[..., 0]
    # b_t was divided out of S, gradient and all: so it must have one here
    parts = Parts(num.flatten(-3, -2)[..., :T, :], den.flatten(-2)[..., :T], (b + c).flatten(-2)[..., :T])
    return parts, State(C[..., -1, :, :], n[..., -1, :], m[..., -1])


def _states(k: Tensor, v: Tensor, a: Tensor, g: Tensor, state: State) -> State:
    """The states before each chunk and after the last, (..., N + 1, ...): all at once, as weighted sums.

    With G_j the sum of g before chunk j, chunk r counts exp(G_j - G_r + max a_r - m_j) in the state before chunk
    j > r. Sums over many chunks need double precision; there are few of them.
    """
    G = pad(g.double().cumsum(-1), (1, 0))  # (..., N + 1)
    top = a.detach().amax(-1)  # (..., N)
    best = torch.cat([state.m[..., None].double(), top.double() - G[..., :-1].detach()], -1).cummax(-1).values
    m = G.detach() + best  # m_{j+1} = G_{j+1} + max(m_0, max_{r <= j}(top_r - G_r))
    W = G[..., :, None] - G[..., None, :-1] + top[..., None, :] - m[..., :, None]
    N = g.shape[-1]
    unseen = torch.full((N + 1, N), -torch.inf, dtype=W.dtype, device=W.device).triu()
    W = torch.exp(W + unseen).to(v.dtype)  # (..., N + 1, N)
    from_start = torch.exp(G + state.m[..., None] - m).to(v.dtype)
    weighted = k * torch.exp(a - top[..., None])[..., None]
    C = (W @ (weighted.mT @ v).flatten(-2)).unflatten(-1, (k.shape[-1], v.shape[-1]))
    n = W @ weighted.sum(-2)
    C = C + from_start[..., None, None] * state.C[..., None, :, :]
    return State(C, n + from_start[..., None] * state.n[..., None, :], m.to(v.dtype))
