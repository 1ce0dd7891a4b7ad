"""What a model's parts do on tokens: second moments of FFN channels and heads, and how layers turn their input.

Scores:   channel i of an FFN      sqrt(E[h_i^2]) |down[:, i]|
          KV group g               sqrt(E[|O_g a_g|^2]),  a_g its columns of o_proj's input
          layer                    1 - E[cos(input, output)]
Repair of the down projection W for kept channels K, with C = E[h h^T] over all channels and D = diag(C):
          W' = W (C[:, K] + eps D[:, K]) (C[K, K] + eps D[K, K])^-1
the ridge regression that is drawn to the original weights, not to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError
from nipstool.kit.progress import Progress, silent
from nipstool.prune_nsc.decoder import Decoder
from nipstool.prune_nsc.selection import Scores

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 0.1
_MOMENTS_BYTES = 1 << 30


@dataclass
class Moments:
    """Sums over tokens of one layer: h h^T [ffn, ffn] or its diagonal [ffn], and of a a^T for each head."""

    tokens: int = 0
    ffn: Tensor | None = None
    heads: Tensor | None = None  # [groups, columns, columns]


def moments(
    model: Any,
    decoder: Decoder,
    batches: Sequence[Tensor],
    *,
    full: bool,
    heads: bool,
    progress: Progress = silent,
) -> Iterator[tuple[int, Moments]]:
    """Moments layer by layer, over as many passes as keep the sums within a GiB.

    Args:
        full: the whole h h^T, which the repair needs; else its diagonal.
        heads: o_proj's input too.
    """
    ffn = decoder.dense.ffn
    at_once = max(1, _MOMENTS_BYTES // (4 * ffn * ffn)) if full else len(decoder.blocks)
    starts = range(0, len(decoder.blocks), at_once)
    total, done = len(starts) * len(batches), 0
    for start in starts:
        chosen = range(start, min(start + at_once, len(decoder.blocks)))
        found = {layer: Moments() for layer in chosen}
        with ExitStack() as stack:
            for layer in chosen:
                stack.enter_context(_watching(model, decoder, layer, found[layer], full=full, heads=heads))
            for batch in batches:
                run(model, batch)
                done += 1
                progress(done, total)
        yield from found.items()


def run(model: Any, ids: Tensor) -> None:
    """One forward pass without logits. Raises DataError where it ends in NaN or infinity."""
    import torch

    with torch.inference_mode():
        device = model.get_input_embeddings().weight.device
        out = model.get_decoder()(input_ids=ids.to(device), use_cache=False)
        if not bool(out.last_hidden_state.isfinite().all()):
            raise DataError("the model's hidden states are NaN or infinite")


@contextmanager
def _watching(
    model: Any, decoder: Decoder, layer: int, sums: Moments, *, full: bool, heads: bool
) -> Iterator[None]:
    mlp, attention = decoder.blocks[layer].mlp, decoder.blocks[layer].attention
    assert mlp is not None
    assert attention is not None

    def on_down(_module: Any, inputs: tuple[Tensor, ...]) -> None:
        h = inputs[0].flatten(0, -2).float()
        sums.tokens += len(h)
        new = h.mT @ h if full else h.square().sum(0)
        sums.ffn = new if sums.ffn is None else sums.ffn.add_(new)

    def on_output(_module: Any, inputs: tuple[Tensor, ...]) -> None:
        groups = decoder.dense.heads if decoder.dense.kv == 1 else decoder.dense.kv
        a = inputs[0].flatten(0, -2).float().unflatten(1, (groups, -1)).transpose(0, 1)
        new = a.mT @ a
        sums.heads = new if sums.heads is None else sums.heads.add_(new)

    handles = [model.get_submodule(mlp.down).register_forward_pre_hook(on_down)]
    if heads:
        handles.append(model.get_submodule(attention.o).register_forward_pre_hook(on_output))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def scores_of(sums: Moments, down: Tensor, output: Tensor) -> Scores:
    """Scores of a layer; `down` [hidden, ffn] and `output` [hidden, heads * head_dim] are its weights."""
    assert sums.ffn is not None
    energy = sums.ffn.diagonal() if sums.ffn.dim() == 2 else sums.ffn
    channels = (energy.double() / sums.tokens).sqrt() * down.double().norm(dim=0)
    heads = None
    if sums.heads is not None:
        parts = output.double().unflatten(1, (len(sums.heads), -1)).transpose(0, 1)  # [groups, hidden, columns]
        heads = ((parts @ (sums.heads.double() / sums.tokens)) * parts).sum((1, 2)).clamp_min(0).sqrt()
    return Scores(channels.cpu(), None if heads is None else heads.cpu())


def repaired(down: Tensor, sums: Moments, kept: Sequence[int]) -> Tensor:
    """The down projection of the kept channels [hidden, kept], in float64; see the module's text."""
    import torch

    assert sums.ffn is not None
    moment = sums.ffn.double() / sums.tokens
    k = torch.tensor(kept, device=moment.device)
    ridge = EPSILON * moment.diagonal()
    ridge = ridge + 1e-9 * ridge.mean() + torch.finfo(torch.float64).tiny  # channels that never fire
    cross = moment[:, k]
    cross[k, torch.arange(len(k), device=k.device)] += ridge[k]
    square = cross[k]
    factor = torch.linalg.cholesky(square)
    return torch.cholesky_solve((down.double() @ cross).mT, factor).mT


def turns(model: Any, decoder: Decoder, batches: Iterable[Tensor], progress: Progress = silent) -> list[float]:
    """1 - mean cosine between each block's input and output."""
    sums, tokens = [0.0] * len(decoder.blocks), [0] * len(decoder.blocks)

    def watch(layer: int) -> Callable[..., None]:
        def on_block(_module: Any, args: tuple[Tensor, ...], kwargs: dict[str, Any], out: Any) -> None:
            before = (args[0] if args else kwargs["hidden_states"]).float()
            after = (out[0] if isinstance(out, tuple) else out).float()
            cosine = (before * after).sum(-1) / (before.norm(dim=-1) * after.norm(dim=-1)).clamp_min(1e-30)
            sums[layer] += float(cosine.double().sum())
            tokens[layer] += cosine.numel()

        return on_block

    handles = [
        model.get_submodule(block.name).register_forward_hook(watch(block.index), with_kwargs=True)
        for block in decoder.blocks
    ]
    try:
        batches = list(batches)
        for done, batch in enumerate(batches, 1):
            run(model, batch)
            progress(done, len(batches))
    finally:
        for handle in handles:
            handle.remove()
    return [1 - total / count for total, count in zip(sums, tokens, strict=True)]
