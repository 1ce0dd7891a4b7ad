"""A plan: what every layer keeps under the budgets, as one width for all (stock classes load it) and by NSC-DP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nipstool.kit.errors import InputMissingError, UsageError
from nipstool.kit.progress import Progress, silent
from nipstool.prune_nsc.bounds import upper_bound
from nipstool.prune_nsc.capacity import DEGENERATE_BELOW, Scale
from nipstool.prune_nsc.choices import (
    Measure,
    Unit,
    at_initialisation,
    choices_of,
    multiple_of,
    of_weights,
    units_of,
)
from nipstool.prune_nsc.decoder import Decoder, Width, check_width, has_weights, open_checkpoint, read_decoder
from nipstool.prune_nsc.solver import InfeasibleError, Problem, Solution, solve, solve_uniform

RESOURCES = ("params", "flops", "kv_bytes")
FORMATS = ("hf", "custom")
SPECTRA = ("init", "weights")


@dataclass(frozen=True)
class Budgets:
    """Limits; None is none. `ratio` is a share of the dense model's parameters."""

    params: int | None = None
    ratio: float | None = None
    flops: int | None = None
    kv_bytes: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return any(limit is not None for limit in (self.params, self.ratio, self.flops, self.kv_bytes))


@dataclass(frozen=True)
class Settings:
    """What a plan depends on beside the model; see the command's help."""

    units: str = "ffn"
    format: str = "hf"
    ffn: float | None = None
    widths: Sequence[int] | None = None
    multiple_of: int | None = None
    keep_first: int = 1
    keep_last: int = 1
    seq: int = 2048
    scale: Scale = field(default_factory=Scale)
    spectra: str = "init"
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """What the layers keep (None: the layer goes), what that costs, and how near the LP bound it is.

    With units "layers" only how many go is decided here; which ones, when their statistics are known.
    """

    layers: tuple[Width | None, ...]
    params: int
    flops: int
    kv_bytes: int
    nsc: float
    slack: Mapping[str, int]
    lp_bound: float | None
    gap: float | None
    method: str
    explored: int


@dataclass(frozen=True)
class Plan:
    """Both answers; `chosen` names the one that pruning takes."""

    model: str
    model_type: str
    units: str
    format: str
    chosen: str
    init: str
    snr: float
    spectra: str
    mean_snr: float
    seq: int
    multiple_of: int
    keep: tuple[int, int]  # first and last layers that stay whatever happens
    budgets: Mapping[str, int]
    dense: Answer
    uniform: Answer | None
    dp: Answer | None
    warnings: tuple[str, ...]

    @property
    def answer(self) -> Answer:
        """The chosen answer."""
        found = self.uniform if self.chosen == "uniform" else self.dp
        assert found is not None
        return found


def plan(
    model: str, budgets: Budgets, settings: Settings | None = None, *, progress: Progress = silent
) -> tuple[Decoder, Plan]:
    """Plan for a checkpoint folder or a config.json. Weights are read only for spectra "weights".

    Raises UsageError (InfeasibleError for budgets that nothing reaches) and what read_decoder raises.
    """
    settings = settings or Settings()
    _check(settings, budgets)
    decoder = read_decoder(model)
    dense = decoder.architecture()
    measure = at_initialisation(settings.scale)
    limits = _limits(budgets, decoder, settings.seq)
    warnings = []
    if (mean_snr := dense.mean_snr(settings.scale)) < DEGENERATE_BELOW:
        warnings.append(
            f"mean s sigma^2 is {mean_snr:.2g}: NSC is nearly a multiple of the parameter count; raise --snr"
        )
    step = multiple_of(decoder, settings.multiple_of)
    widths = settings.widths
    if settings.ffn is not None:
        widths = [ffn_width(decoder, settings.ffn, settings.multiple_of)]
    ends = (settings.keep_first, settings.keep_last)
    choices = choices_of(decoder, settings.units, widths=widths, multiple=settings.multiple_of, ends=ends)
    if settings.units == "ffn,groups" and len(choices.heads) == 1:
        warnings.append("no KV group can go: transformers accepts no smaller number of heads for this model")
    if settings.spectra == "weights":
        if not has_weights(model):
            raise InputMissingError(f"{model}: holds no weights, which --spectra weights reads")
        with open_checkpoint(model) as reader:
            measure = of_weights(decoder, reader, choices, settings.scale, settings.seed, progress)
    units = units_of(decoder, choices, settings.seq, measure)
    uniform, dp = _answers(decoder, units, limits, settings, measure)
    return decoder, Plan(
        model=model,
        model_type=decoder.raw["model_type"],
        units=settings.units,
        format=settings.format,
        chosen="uniform" if dp is None or (settings.format == "hf" and settings.units != "layers") else "dp",
        init=settings.scale.init,
        snr=settings.scale.snr,
        spectra=settings.spectra,
        mean_snr=mean_snr,
        seq=settings.seq,
        multiple_of=step,
        keep=ends,
        budgets=limits,
        dense=_dense(decoder, settings, measure),
        uniform=uniform,
        dp=dp,
        warnings=tuple(warnings),
    )


def _check(settings: Settings, budgets: Budgets) -> None:
    if settings.format not in FORMATS:
        raise UsageError(f"--format {settings.format}: expected hf or custom")
    if settings.spectra not in SPECTRA:
        raise UsageError(f"--spectra {settings.spectra}: expected init or weights")
    if settings.ffn is None and not budgets.any:
        raise UsageError("nothing to aim at: give --params, --ratio, --flops, --kv-bytes or --ffn")
    if settings.ffn is not None and (budgets.any or settings.widths or settings.units != "ffn"):
        raise UsageError("--ffn sets one width and takes no budget, --widths or other --units beside it")
    if budgets.params is not None and budgets.ratio is not None:
        raise UsageError("--params and --ratio both limit the parameters: give one")
    if budgets.ratio is not None and not 0 < budgets.ratio <= 1:
        raise UsageError(f"--ratio {budgets.ratio:g}: expected a share above 0 and up to 1")
    if settings.multiple_of is not None and settings.multiple_of < 1:
        raise UsageError(f"--multiple-of {settings.multiple_of}: expected 1 or more")


def ffn_width(decoder: Decoder, ffn: float, multiple: int | None) -> int:
    """The width that --ffn means: a number of channels, or below 1 a share, to the nearest legal width."""
    step = multiple_of(decoder, multiple)
    if 0 < ffn < 1:
        ffn = max(step, round(ffn * decoder.dense.ffn / step) * step)
    if ffn != int(ffn):
        raise UsageError(f"--ffn {ffn:g}: expected a number of channels, or a share below 1")
    check_width(decoder, int(ffn), step)
    return int(ffn)


def _limits(budgets: Budgets, decoder: Decoder, seq: int) -> dict[str, int]:
    """The limits by resource; UsageError for one above what the dense model takes."""
    dense = decoder.architecture()
    most: dict[str, int] = dict(zip(RESOURCES, (dense.params, dense.flops(seq), dense.kv_bytes), strict=True))
    params = budgets.params if budgets.ratio is None else int(budgets.ratio * dense.params)
    given: dict[str, int | None] = dict(zip(RESOURCES, (params, budgets.flops, budgets.kv_bytes), strict=True))
    limits = {name: limit for name, limit in given.items() if limit is not None}
    for name, limit in limits.items():
        if limit > most[name]:
            raise UsageError(f"budget {name} {limit}: is above the dense model's {most[name]}; nothing to prune")
    return limits


def _answers(
    decoder: Decoder, units: Sequence[Unit], limits: Mapping[str, int], settings: Settings, measure: Measure
) -> tuple[Answer | None, Answer | None]:
    """One width for all layers, and NSC-DP; the first is None where no single width fits but layers differ."""
    problem = Problem(tuple(unit.group for unit in units), tuple(limits.get(name) for name in RESOURCES))
    uniform = dp = None
    if settings.units != "layers":
        try:
            uniform = _answer(decoder, units, problem, solve_uniform(problem), settings.seq)
        except InfeasibleError:
            if settings.format == "hf":
                raise
    if settings.ffn is None:
        dp = _answer(decoder, units, problem, solve(problem), settings.seq)
    return uniform, dp


def _answer(decoder: Decoder, units: Sequence[Unit], problem: Problem, found: Solution, seq: int) -> Answer:
    layers = chosen_widths(decoder.dense, len(decoder.blocks), units, found)
    architecture = decoder.architecture(layers)
    used = dict(zip(RESOURCES, (architecture.params, architecture.flops(seq), architecture.kv_bytes), strict=True))
    assert tuple(used.values()) == found.costs, (used, found.costs)
    limits = dict(zip(RESOURCES, problem.limits, strict=True))
    slack = {name: limit - used[name] for name, limit in limits.items() if limit is not None}
    bound = upper_bound(problem) if slack else None
    gap = None if bound is None else max(0.0, bound - found.value)
    return Answer(
        layers=layers,
        **used,
        nsc=found.value,
        slack=slack,
        lp_bound=bound,
        gap=gap,
        method=found.method,
        explored=found.explored,
    )


def chosen_widths(dense: Width, layers: int, units: Sequence[Unit], found: Solution) -> tuple[Width | None, ...]:
    """What each layer keeps by a solution of the units' groups."""
    widths: list[Width | None] = [dense] * layers
    for unit, choice in zip(units, found.choices, strict=True):
        if unit.layer is None:
            continue
        width, before = unit.widths[choice], widths[unit.layer]
        if width is None or before is None:
            widths[unit.layer] = None
        elif unit.group.kind == "ffn":
            widths[unit.layer] = Width(width.ffn, before.heads, before.kv)
        elif unit.group.kind == "attention":
            widths[unit.layer] = Width(before.ffn, width.heads, width.kv)
        else:
            widths[unit.layer] = width
    return tuple(widths)


def _dense(decoder: Decoder, settings: Settings, measure: Measure) -> Answer:
    dense = decoder.architecture()
    nsc = sum(measure(matrix) for matrix in dense.all_matrices())
    layers = (decoder.dense,) * len(decoder.blocks)
    flops = dense.flops(settings.seq)
    return Answer(layers, dense.params, flops, dense.kv_bytes, nsc, {}, None, None, "dense", 0)
