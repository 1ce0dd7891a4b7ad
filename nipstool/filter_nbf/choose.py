"""From names to a belief: what --belief and --checkpoint mean for a domain."""

from __future__ import annotations

from dataclasses import dataclass

from nipstool.filter_nbf.beliefs import Belief, Bootstrap, Gaussian, Kernel
from nipstool.filter_nbf.checkpoint import check_fits, load, shipped
from nipstool.filter_nbf.model import Dynamics
from nipstool.kit.errors import DataError, UsageError

BELIEFS = ("nbf", "gaussian", "pf")


@dataclass(frozen=True)
class Choice:
    """A belief, and what the user should know."""

    belief: Belief
    note: str = ""


def choose_belief(
    name: str, dynamics: Dynamics, checkpoint: str | None = None, *, cov: str = "auto", watch: bool = True
) -> Choice:
    """The belief that `name` means here.

    Without a checkpoint for the domain, "nbf" is a tempered, regularised particle filter, and the note says so.

    Raises:
        UsageError: the name is none of BELIEFS, or a checkpoint is given that it has no use for.
        InputMissingError, DataError: the checkpoint cannot be used, or is of another domain.
    """
    if name not in BELIEFS:
        raise UsageError(f"--belief {name}: expected one of {', '.join(BELIEFS)}")
    if name != "nbf":
        if checkpoint is not None:
            raise UsageError(f"--checkpoint {checkpoint}: --belief {name} has no use for one")
        return Choice(Bootstrap() if name == "pf" else Gaussian(cov))
    trained = load(checkpoint) if checkpoint is not None else shipped(dynamics)
    if trained is None:
        note = (
            f"no checkpoint for {dynamics.label}: this is a tempered, regularised particle filter"
            f" (nipstool filter-nbf train --domain {dynamics.label} -o X.safetensors makes one)"
        )
        return Choice(Kernel(), note)
    told = checkpoint or "the shipped checkpoint"
    check_fits(trained, dynamics, told)
    from nipstool.filter_nbf.learned import Learned

    try:
        belief = Learned(trained, watch=watch)
        belief.try_out(dynamics.dim)
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise DataError(f"{told}: its networks lack a part or do not fit together ({error})") from error
    return Choice(belief)
