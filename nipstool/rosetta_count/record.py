"""Recording activations of any torch model: which sites there are, and their values during a forward pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import UsageError
from nipstool.kit.language_models import down_projections

if TYPE_CHECKING:
    from torch import Tensor, nn

SHOWN = 8  # candidates that an error lists
NO_NEURONS = {"MultiheadAttention", "Softmax", "Softmax2d", "LogSoftmax", "Softmin"}


@dataclass(frozen=True)
class Site:
    """A module whose input or output is recorded; `number` is what a layer is known by."""

    name: str
    number: int
    side: str = "output"


class EnoughError(Exception):
    """All sites have their values: the rest of the forward pass is not needed."""


def find_sites(model: nn.Module, pattern: str | None = None, told: str = "the model") -> list[Site]:
    """The sites of a model: the inputs of the MLPs' down projections, else the outputs of activation modules.

    `pattern` chooses among those of a transformers model, and of any other model the outputs of the modules whose
    name it matches (regular expression, searched). Raises UsageError, listing candidates, where nothing matches.
    """
    if hasattr(getattr(model, "config", None), "num_hidden_layers"):
        candidates = [Site(name, block, "input") for block, name, _ in down_projections(model)]
        return _chosen(candidates, pattern, told, "down projections of MLPs")
    if pattern is None:
        names = [name for name, module in model.named_modules() if _is_activation(module)]
        sites = [Site(name, number) for number, name in enumerate(names)]
        every = [name for name, _ in model.named_modules() if name]
        return _chosen(sites, None, told, "activation modules", every)
    names = [name for name, _ in model.named_modules() if name]
    return _numbered(_chosen([Site(name, 0) for name in names], pattern, told, "modules"))


def _numbered(sites: Sequence[Site]) -> list[Site]:
    return [Site(site.name, number, site.side) for number, site in enumerate(sites)]


def _is_activation(module: nn.Module) -> bool:
    from torch.nn.modules import activation

    kind = type(module)
    return kind.__module__ == activation.__name__ and kind.__name__ not in NO_NEURONS


def _chosen(
    sites: Sequence[Site], pattern: str | None, told: str, kind: str, candidates: Sequence[str] | None = None
) -> list[Site]:
    names = [site.name for site in sites] if candidates is None else candidates
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    if not sites:
        hint = f"; --sites chooses among {shown}" if names else ""
        raise UsageError(f"{told}: no {kind} found in it{hint}")
    try:
        chosen = [site for site in sites if pattern is None or re.search(pattern, site.name)]
    except re.error as error:
        raise UsageError(f"--sites {pattern}: is no regular expression: {error}") from error
    if not chosen:
        raise UsageError(f"--sites {pattern} matches none of the {kind} of {told}: {shown}")
    return chosen


@contextmanager
def record(model: nn.Module, sites: Sequence[Site] | str | None = None) -> Iterator[dict[str, Tensor]]:
    """`with record(model) as acts: model(x)`; then acts holds the latest values of every site, by name.

    Args:
        sites: from `find_sites`, or a pattern for it.
    """
    chosen = find_sites(model, sites) if sites is None or isinstance(sites, str) else list(sites)
    values: dict[str, Tensor] = {}

    def keep(site: Site, value: Any) -> None:
        values[site.name] = _tensor(value, site.name)

    with hooked(model, chosen, keep):
        yield values


@contextmanager
def hooked(model: nn.Module, sites: Sequence[Site], keep: Callable[[Site, Any], None]) -> Iterator[None]:
    """Call `keep(site, value)` for every site in every forward pass."""
    handles = []
    for site in sites:
        module = model.get_submodule(site.name)
        if site.side == "input":
            handles.append(module.register_forward_pre_hook(_before(site, keep)))
        else:
            handles.append(module.register_forward_hook(_after(site, keep)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _before(site: Site, keep: Callable[[Site, Any], None]) -> Callable[[nn.Module, Any], None]:
    return lambda module, args: keep(site, args[0])


def _after(site: Site, keep: Callable[[Site, Any], None]) -> Callable[[nn.Module, Any, Any], None]:
    return lambda module, args, out: keep(site, out)


def run_until_recorded(model: nn.Module, sites: Sequence[Site], run: Callable[[], Any]) -> dict[str, Tensor]:
    """One forward pass that ends when every site has its value. UsageError for sites that it does not reach."""
    import torch

    values: dict[str, Tensor] = {}

    def keep(site: Site, value: Any) -> None:
        values[site.name] = _tensor(value, site.name)
        if len(values) == len(sites) and site == sites[-1]:
            raise EnoughError

    with hooked(model, sites, keep), torch.inference_mode(), suppress(EnoughError):
        run()
    if missing := [site.name for site in sites if site.name not in values]:
        raise UsageError(f"the site {missing[0]} was not reached in a forward pass; --sites can leave it out")
    return values


def _tensor(value: Any, name: str) -> Tensor:
    from torch import Tensor

    while isinstance(value, tuple | list) and value:
        value = value[0]
    if not isinstance(value, Tensor):
        raise UsageError(f"the site {name} gives {type(value).__name__}; expected a tensor")
    return value
