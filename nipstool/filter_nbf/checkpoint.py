"""Trained networks on disk: one safetensors file that says for which domain and family it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from nipstool.filter_nbf.model import Dynamics
from nipstool.kit.errors import DataError
from nipstool.kit.files import AtomicFile, check_input
from nipstool.kit.records import parse_json

FORMAT = "nbf/1"
NETWORKS = ("enc.", "gen.")  # how their parameters are called; the others are scales and thresholds
SHIPPED = {"arena": "arena.safetensors"}


@dataclass(frozen=True)
class Checkpoint:
    """Parameters by name (float64), and what the file says of itself."""

    params: dict[str, np.ndarray]
    about: dict[str, Any]


def rounded(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Parameters as a file holds them: half precision for the networks, single for scales and thresholds."""
    return {
        name: np.ascontiguousarray(value, dtype=np.float16 if name.startswith(NETWORKS) else np.float32)
        for name, value in sorted(params.items())
    }


def save(path: str, params: Mapping[str, Any], about: Mapping[str, Any], *, force: bool) -> None:
    """Write parameters, `rounded`, with their description; errors as AtomicFile has them."""
    from safetensors.numpy import save as encode

    tensors = rounded(params)
    with AtomicFile(path, force=force) as out:
        out.file.write(encode(tensors, {"nbf": json.dumps({"format": FORMAT, **about}, sort_keys=True)}))


def load(path: str | Path) -> Checkpoint:
    """Read a checkpoint. Raises InputMissingError, or DataError where the file is none."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as decode

    from nipstool.kit.tensors import read_header

    header = read_header(check_input(path))
    try:
        about = parse_json(header.metadata["nbf"])
        tensors = decode(Path(path).read_bytes())
    except (KeyError, ValueError, SafetensorError) as error:
        raise DataError(f"{path}: is no checkpoint of this filter: its metadata has no readable nbf") from error
    if about.get("format") != FORMAT:
        raise DataError(f"{path}: has the format {about.get('format')!r}, expected {FORMAT}")
    for name, value in tensors.items():
        if name.startswith(NETWORKS) and not np.isfinite(value).all():
            raise DataError(f"{path}: {name} holds NaN or infinity")
    return Checkpoint({name: value.astype(np.float64) for name, value in tensors.items()}, about)


def describe(dynamics: Dynamics) -> dict[str, Any]:
    """What a checkpoint must have in common with the domain it is used for."""
    return {
        "domain": dynamics.label,
        "names": list(dynamics.names),
        "angles": list(dynamics.angles),
        "positions": list(dynamics.positions),
    }


def check_fits(checkpoint: Checkpoint, dynamics: Dynamics, path: str) -> None:
    """Raises DataError where a checkpoint was made for another domain."""
    mine, its = describe(dynamics), checkpoint.about
    for key in ("names", "angles", "domain"):
        if key == "domain" and not {mine["domain"], its.get("domain")} & set(SHIPPED):
            continue  # a user's file may have moved: its states decide
        if its.get(key) != mine[key]:
            raise DataError(
                f"{path}: was trained for {its.get('domain')} with {key} {its.get(key)}, not for"
                f" {mine['domain']} with {mine[key]}"
            )


def shipped(dynamics: Dynamics) -> Checkpoint | None:
    """The checkpoint that comes with the package for this domain, if there is one."""
    name = SHIPPED.get(dynamics.label)
    if name is None:
        return None
    resource = files("nipstool.filter_nbf") / "checkpoints" / name
    if not resource.is_file():
        return None
    with as_file(resource) as path:
        return load(path)
