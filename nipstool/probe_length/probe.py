"""A fitted probe on disk: coefficients in the units of hidden states, baselines, residuals, and a card."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from nipstool.kit.errors import DataError
from nipstool.kit.files import StrPath, check_input, is_stdio, sha256
from nipstool.kit.language_models import CONFIG
from nipstool.kit.tensors import INDEX_SUFFIX, TensorReader
from nipstool.probe_length.artefact import read_about, write_tensors
from nipstool.probe_length.collected import Origin
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
            arrays = {name: reader.read(name).numpy() for name in reader.infos}
            lines = {name: Linear(at[0], arrays[f"{name}.w"], at[1]) for name, at in about["lines"].items()}
            residuals = Residuals(*(arrays[f"residuals.{f.name}"] for f in fields(Residuals)))
            return Probe(
                origin=Origin(**{**about["origin"], "layers": tuple(about["origin"]["layers"])}),
                lines={name.removeprefix("along."): line for name, line in lines.items() if "along." in name},
                **{name: lines[name] for name in PLAIN},
                table=arrays["table"],
                table_ended=arrays["table_ended"],
                residuals=residuals,
                spread=spread(residuals, about["coverage"]),
                **{name: about[name] for name in ("mean", "mean_first", "coverage", "censored", "card")},
            )
        except (KeyError, TypeError, IndexError) as error:
            raise DataError(f"{path}: its description is incomplete: {error}") from error


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
