"""A fitted probe on disk: coefficients in the units of hidden states, baselines, residuals, and a card."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nipstool.kit.errors import DataError
from nipstool.kit.files import StrPath, check_input, is_stdio, sha256
from nipstool.kit.language_models import CONFIG
from nipstool.kit.records import is_number, shown
from nipstool.kit.tensors import INDEX_SUFFIX, TensorReader
from nipstool.probe_length.artefact import LARGEST, read_about, read_array, write_tensors
from nipstool.probe_length.collected import Origin, origin_of
from nipstool.probe_length.comparison import BOTH
from nipstool.probe_length.intervals import Residuals, Spread, spread

KIND = "probe-length probe"
PLAIN = ("first", "length", "smooth", "prompt")
Array = np.ndarray


@dataclass(frozen=True)
class Linear:
    """z = b0 + w.x at a layer, in log1p(remaining)."""

    layer: int
    w: Array  # [D] float64
    b0: float

    def __call__(self, x: Array) -> Array:
        """Predictions [rows] for x [rows, D]."""
        return x @ self.w + self.b0


@dataclass(frozen=True)
class Probe:
    """All that predicting, evaluating and tracing need."""

    origin: Origin
    lines: dict[str, Linear]  # along the answer: probe, position-and-probe, token identity
    first: Linear  # at t = 0
    length: Linear  # position and prompt length
    smooth: Linear  # position alone, from t, log1p t, sqrt t
    prompt: Linear  # prompt length, at t = 0
    table: Array  # position alone, [M], Kaplan-Meier
    table_ended: Array  # the same from answers that ended
    mean: float
    mean_first: float
    residuals: Residuals  # out of fold, at t = 0
    spread: Spread
    coverage: float
    censored: bool  # whether cut answers took part at t = 0
    card: dict[str, Any]

    def at_coverage(self, coverage: float) -> Spread:
        """The distribution of residuals with bounds at another coverage."""
        return self.spread if coverage == self.coverage else spread(self.residuals, coverage)


def save(path: StrPath, probe: Probe, *, force: bool) -> None:
    """Write a probe with its card."""
    import torch

    lines = {**{f"along.{name}": line for name, line in probe.lines.items()}, **_plain(probe)}
    arrays = {f"{name}.w": line.w for name, line in lines.items()}
    arrays |= {"table": probe.table, "table_ended": probe.table_ended}
    arrays |= {f"residuals.{name}": array for name, array in vars(probe.residuals).items()}
    about = {
        "kind": KIND,
        "origin": asdict(probe.origin),
        "lines": {name: [line.layer, line.b0] for name, line in lines.items()},
        **{name: getattr(probe, name) for name in ("mean", "mean_first", "coverage", "censored", "card")},
    }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    write_tensors(path, tensors, about, force=force)


def _plain(probe: Probe) -> dict[str, Linear]:
    return {name: getattr(probe, name) for name in PLAIN}


def load(path: StrPath) -> Probe:
    """A probe of a file. Raises InputMissingError, or DataError where the file is none."""
    with TensorReader(check_input(path)) as reader:
        about = read_about(path, reader, KIND)
        try:
            origin = origin_of(about["origin"])
            facts = {name: about[name] for name in ("mean", "mean_first", "coverage", "censored", "card")}
            _check(facts)
            array = partial(read_array, path, reader)
            lines = {name: _line(array, name, at, origin) for name, at in about["lines"].items()}
            residuals = _residuals(array)
            tables = {name: array(name, "f", [None]) for name in ("table", "table_ended")}
            if not all(map(len, tables.values())):
                raise ValueError("a table of positions is empty")
            return Probe(
                origin=origin,
                lines={name.removeprefix("along."): line for name, line in lines.items() if "along." in name},
                **{name: lines[name] for name in PLAIN},
                **tables,
                residuals=residuals,
                spread=spread(residuals, facts["coverage"]),
                **facts,
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise DataError(f"{path}: its description is not that of a probe: {error}") from error


def _check(facts: Mapping[str, Any]) -> None:
    """Raises ValueError for facts that no probe has."""
    right = {
        **{name: is_number(facts[name], LARGEST) for name in ("mean", "mean_first")},
        "coverage": is_number(facts["coverage"]) and 0 < facts["coverage"] < 1,
        "censored": isinstance(facts["censored"], bool),
        "card": isinstance(facts["card"], dict),
    }
    for name in (name for name, is_right in right.items() if not is_right):
        raise ValueError(f"{name} is {shown(facts[name])}")


def _line(array: Callable[..., Array], name: str, at: Any, origin: Origin) -> Linear:
    layer, b0 = at
    plain = name in PLAIN and name != "first"
    if not (is_number(b0, LARGEST) and (layer in origin.layers or (plain and layer == 0))):
        raise ValueError(f"{name} is {shown(at)}")
    own = not plain and name != f"along.{BOTH}"  # of hidden states alone
    return Linear(layer, array(f"{name}.w", "f", [origin.width if own else None]), b0)


def _residuals(array: Callable[..., Array]) -> Residuals:
    value = array("residuals.value", "f", [None])
    kinds = {"censored": "b", "weight": "f", "group": "i"}
    found = Residuals(value, *(array(f"residuals.{name}", kind, value.shape) for name, kind in kinds.items()))
    if not len(value) or not (found.weight > 0).all():
        raise ValueError("there is no residual, or one that does not count")
    return found


def model_hash(folder: StrPath) -> str:
    """SHA-256 over what decides hidden states: configuration, tokenizer, weights (of further shards, the names).

    Only the first shard of a sharded checkpoint is read: a run must not begin with reading hundreds of gigabytes.
    """
    folder = Path(folder)
    index = sorted(folder.glob(f"*{INDEX_SUFFIX}"))
    shards = sorted(folder.glob("*.safetensors"))
    files = [folder / CONFIG, folder / "tokenizer.json", folder / "tokenizer_config.json", *index, *shards[:1]]
    digest = hashlib.sha256()
    for file in files:
        if file.exists():
            digest.update(f"{file.name} {sha256(file)}\n".encode())
    for shard in shards[1:]:
        digest.update(f"{shard.name} {shard.stat().st_size}\n".encode())
    return digest.hexdigest()


def named_for(model: StrPath, output: StrPath) -> str:
    """The model's folder as a file at `output` should name it: relative to it where the user named it so."""
    if Path(model).is_absolute() or is_stdio(output):
        return os.fspath(model)
    place = os.path.dirname(os.path.realpath(output))
    return os.path.relpath(os.path.realpath(model), place)


def model_of(origin: Origin, path: StrPath, given: StrPath | None) -> Path:
    """The model folder of a file at `path`, or the given one. Raises DataError where it is another model."""
    beside = Path() if is_stdio(path) else Path(os.path.dirname(os.path.realpath(path)))
    folder = Path(given) if given is not None else beside / origin.model
    from nipstool.probe_length.hidden import check_folder

    check_folder(folder)
    if (found := model_hash(folder)) != origin.sha256:
        raise DataError(
            f"{path}: was made with another model than {folder}: its hash is {origin.sha256[:12]}, the"
            f" folder's {found[:12]}"
        )
    return folder
