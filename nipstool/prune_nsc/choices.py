"""The choices that planning has: widths of each layer as groups for the solver, with their NSC and costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nipstool.kit.errors import DataError, UsageError
from nipstool.kit.language_models import to_config
from nipstool.kit.progress import Progress, silent
from nipstool.kit.tensors import TensorReader
from nipstool.prune_nsc.capacity import Scale, log_det, log_dets_of_widths
from nipstool.prune_nsc.decoder import Decoder, Width, check_width
from nipstool.prune_nsc.inventory import Layer, Matrix
from nipstool.prune_nsc.solver import Group

UNITS = ("ffn", "ffn,groups", "layers")


@dataclass(frozen=True)
class Choices:
    """What layers may keep: FFN widths and (query heads, KV heads), each widest first; whether they may go."""

    ffn: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    droppable: tuple[bool, ...]  # one a layer


def choices_of(
    decoder: Decoder, units: str, *, widths: Sequence[int] | None, multiple: int | None, ends: tuple[int, int]
) -> Choices:
    """The choices that the options leave. Raises UsageError for units or widths that make no sense."""
    if units not in UNITS:
        raise UsageError(f"--units {units}: expected {', '.join(UNITS)}")
    dense, layers = decoder.dense, len(decoder.blocks)
    ffn, heads = (dense.ffn,), ((dense.heads, dense.kv),)
    droppable = [False] * layers
    if units == "layers":
        droppable = [ends[0] <= i < layers - ends[1] for i in range(layers)]
    else:
        ffn = ffn_widths(decoder, widths, multiple)
    if units == "ffn,groups":
        heads = head_widths(decoder)
    return Choices(ffn, heads, tuple(droppable))


def multiple_of(decoder: Decoder, given: int | None) -> int:
    """The step of legal FFN widths: as given, else 64 for wide layers and 1 for narrow ones."""
    return given or (64 if decoder.dense.ffn >= 1024 else 1)


def ffn_widths(decoder: Decoder, widths: Sequence[int] | None, multiple: int | None) -> tuple[int, ...]:
    """Legal FFN widths, widest first: those listed, else every multiple and the dense one."""
    step = multiple_of(decoder, multiple)
    if widths:
        for width in widths:
            check_width(decoder, width, multiple or 1)
        return tuple(sorted(set(widths), reverse=True))
    return tuple(sorted({decoder.dense.ffn, *range(step, decoder.dense.ffn + 1, step)}, reverse=True))


def head_widths(decoder: Decoder) -> tuple[tuple[int, int], ...]:
    """Whole KV groups with their query heads; of a single group, its query heads one by one.

    Only counts that the stock configuration accepts: some families want hidden_size to be a multiple of the heads.
    """
    if decoder.dense.kv == 1:
        counts = [(heads, 1) for heads in range(decoder.dense.heads, 0, -1)]
    else:
        counts = [(kv * decoder.ratio, kv) for kv in range(decoder.dense.kv, 0, -1)]
    return tuple(count for count in counts if count == counts[0] or _accepted(decoder, *count))


def _accepted(decoder: Decoder, heads: int, kv: int) -> bool:
    change = {"num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": decoder.head_dim}
    try:
        to_config({**decoder.raw, **change}, decoder.source)
    except DataError:
        return False
    return True


@dataclass(frozen=True)
class Unit:
    """A group of the solver, and the widths that its choices mean (None: the layer goes)."""

    layer: int | None
    group: Group
    widths: tuple[Width | None, ...]


Measure = Callable[[Matrix], float]


def units_of(decoder: Decoder, choices: Choices, seq: int, measure: Measure) -> list[Unit]:
    """Layer by layer: FFN, then attention; a layer that may go is one unit. Last, what is always there.

    `measure` gives a matrix's NSC. Costs are parameters, FLOPs a token and cache bytes a token.
    """
    units = []
    for layer, droppable in enumerate(choices.droppable):
        if droppable:
            units.append(_whole(decoder, layer, choices, seq, measure))
            continue
        units.append(_part(decoder, layer, "ffn", choices, seq, measure))
        units.append(_part(decoder, layer, "attention", choices, seq, measure))
    empty = decoder.architecture([None] * len(decoder.blocks))
    rest = Group("rest", (0.0,), ((empty.params, empty.flops(seq), 0),))
    return [*units, Unit(None, rest, (None,))]


def _part(decoder: Decoder, layer: int, part: str, choices: Choices, seq: int, measure: Measure) -> Unit:
    dense = decoder.dense
    if part == "ffn":
        widths = [Width(ffn, dense.heads, dense.kv) for ffn in choices.ffn]
    else:
        widths = [Width(dense.ffn, heads, kv) for heads, kv in choices.heads]
    mlp = decoder.blocks[layer].mlp
    assert mlp is not None
    inside = [name for name in decoder.layer_tensors[layer] if name.startswith(f"{mlp.name}.") == (part == "ffn")]
    values, costs = [], []
    for width in widths:
        found = _of_tensors(decoder, inside, width, kv=part == "attention")
        values.append(sum(measure(matrix) for matrix in found.matrices))
        costs.append(_costs(decoder, found, width.heads if part == "attention" else 0, seq))
    return Unit(layer, Group(part, tuple(values), tuple(costs)), tuple(widths))


def _whole(decoder: Decoder, layer: int, choices: Choices, seq: int, measure: Measure) -> Unit:
    widths = [Width(ffn, heads, kv) for ffn in choices.ffn for heads, kv in choices.heads]
    values, costs = [], []
    for width in widths:
        found = decoder.layer(layer, width)
        values.append(sum(measure(matrix) for matrix in found.matrices))
        costs.append(_costs(decoder, found, width.heads, seq))
    return Unit(layer, Group("layer", (*values, 0.0), (*costs, (0, 0, 0))), (*widths, None))


def _of_tensors(decoder: Decoder, names: Sequence[str], width: Width, *, kv: bool) -> Layer:
    shapes = [(name, decoder.shape(name, width)) for name in names]
    matrices = tuple(Matrix(name, *shape) for name, shape in shapes if len(shape) == 2)
    vectors = sum(shape[0] for _, shape in shapes if len(shape) == 1)
    return Layer(matrices, vectors, kv_values=2 * width.kv * decoder.head_dim if kv else 0)


def _costs(decoder: Decoder, layer: Layer, heads: int, seq: int) -> tuple[int, int, int]:
    flops = 2 * sum(matrix.size for matrix in layer.matrices) + 4 * seq * heads * decoder.head_dim
    return layer.params, flops, layer.kv_values * decoder.kv_bytes_a_value


def at_initialisation(scale: Scale) -> Measure:
    """NSC by the closed form."""
    return lambda matrix: matrix.nsc(scale)


def of_weights(
    decoder: Decoder,
    reader: TensorReader,
    choices: Choices,
    scale: Scale,
    seed: int,
    progress: Progress = silent,
) -> Measure:
    """NSC of the real weights, each scaled to RMS 1/sqrt(inputs); widths by random parts. Reads tensor by tensor.

    Values are rounded to 9 digits, so that the number of threads does not show.
    """
    values: dict[tuple[str, tuple[int, int]], float] = {}
    names = [n for tensors in decoder.layer_tensors for n in tensors if len(decoder.shapes[n]) == 2]
    for done, name in enumerate(names, 1):
        values |= _spectrum(decoder, reader, name, choices, scale, seed)
        progress(done, len(names))
    return lambda matrix: values[matrix.name, (matrix.m, matrix.n)]


def _spectrum(
    decoder: Decoder, reader: TensorReader, name: str, choices: Choices, scale: Scale, seed: int
) -> dict[tuple[str, tuple[int, int]], float]:
    weight, cut = reader.read(name), decoder.cuts.get(name)
    rows, columns = decoder.shapes[name]
    if cut is None:
        return {(name, (rows, columns)): _rounded(log_det(weight, scale.snr, normalise=True))}
    if cut.unit == "ffn":
        unit, widths = 1, list(choices.ffn)
    else:
        whole = decoder.dense.kv > 1
        group = decoder.ratio if cut.unit == "query" and whole else 1
        unit = group * decoder.head_dim
        widths = sorted({heads if cut.unit == "query" and not whole else kv for heads, kv in choices.heads})
    found = log_dets_of_widths(weight, widths, cut.axis, unit=unit, snr=scale.snr, seed=seed)
    shapes = [(w * unit, columns) if cut.axis == 0 else (rows, w * unit) for w in widths]
    return {(name, shape): _rounded(value) for shape, value in zip(shapes, found, strict=True)}


def _rounded(value: float) -> float:
    return float(f"{value:.9g}")
