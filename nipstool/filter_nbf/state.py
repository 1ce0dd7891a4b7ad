"""All tracks on disk, exactly: a stream that is split anywhere goes on as if it had not been."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from nipstool.filter_nbf.draws import KeyedGenerator
from nipstool.filter_nbf.tracks import Track, Tracks
from nipstool.kit.errors import DataError
from nipstool.kit.files import AtomicFile, check_input
from nipstool.kit.records import parse_json, shown

FORMAT = "nbf-state/1"
NUMBERS = ("ess", "t", "dt", "loglik")
COUNTS = ("step", "collapses")


def save_state(path: str, tracks: Tracks, *, belief: str, force: bool) -> None:
    """Write every track's particles, weights, time, step, control and evidence (safetensors, float64)."""
    from safetensors.numpy import save

    known = list(tracks.tracks.values())
    d, n = tracks.dynamics.dim, tracks.settings.n
    tensors = {
        "x": np.array([track.x for track in known]).reshape(-1, n, d),
        "logw": np.array([track.logw for track in known]).reshape(-1, n),
        "control": np.array([track.control for track in known]).reshape(
            len(known), len(tracks.dynamics.control_names)
        ),
        "origin": np.array([track.origin for track in known]).reshape(
            len(known), len(known[0].origin) if known else 0
        ),
    }
    tensors |= {name: np.array([getattr(track, name) for track in known], dtype=np.float64) for name in NUMBERS}
    tensors |= {name: np.array([getattr(track, name) for track in known], dtype=np.int64) for name in COUNTS}
    about = {"format": FORMAT, "tracks": list(tracks.tracks), **_made_with(tracks, belief)}
    with AtomicFile(path, force=force) as out:
        out.file.write(save(tensors, {"nbf": json.dumps(about)}))


def _made_with(tracks: Tracks, belief: str) -> dict[str, Any]:
    """What must be the same where a state is taken up again, or the answers would not be."""
    names = list(tracks.dynamics.names)
    return {"names": names, "n": tracks.settings.n, "seed": tracks.seed, "belief": belief}


def load_state(path: str, tracks: Tracks, *, belief: str) -> None:
    """Put the tracks of a file into `tracks`. Raises DataError where it is no state or one of another filter."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    from nipstool.kit.tensors import read_header

    header = read_header(check_input(path))
    try:
        about = parse_json(header.metadata["nbf"])
        found = load(Path(path).read_bytes())
    except (KeyError, ValueError, SafetensorError) as error:
        raise DataError(f"{path}: is no state of this filter") from error
    if about.get("format") != FORMAT:
        raise DataError(f"{path}: has the format {about.get('format')!r}, expected {FORMAT}")
    for key, value in _made_with(tracks, belief).items():
        if about.get(key) != value:
            raise DataError(f"{path}: was made with {key} {about.get(key)}, not with {value}")
    _check(path, about.get("tracks"), found, tracks)
    for b, name in enumerate(about["tracks"]):
        track = Track(
            KeyedGenerator(tracks.seed, name),
            found["x"][b].copy(),
            found["logw"][b].copy(),
            float(found["ess"][b]),
            float(found["t"][b]),
            found["control"][b].copy(),
            found["origin"][b].copy(),
        )
        track.dt, track.loglik = float(found["dt"][b]), float(found["loglik"][b])
        track.step, track.collapses = int(found["step"][b]), int(found["collapses"][b])
        tracks.tracks[name] = track


def _check(path: str, names: Any, found: dict[str, np.ndarray], tracks: Tracks) -> None:
    """Raises DataError where a file does not hold what `save_state` writes."""
    if not isinstance(names, list) or not all(isinstance(name, str | int | float | None) for name in names):
        raise DataError(f"{path}: its tracks are {shown(names)}; expected a list of ids")
    d, n, k = tracks.dynamics.dim, tracks.settings.n, len(tracks.dynamics.control_names)
    shapes = {"x": (n, d), "logw": (n,), "control": (k,)} | dict.fromkeys((*NUMBERS, *COUNTS), ())
    shapes["origin"] = found["origin"].shape[1:] if "origin" in found else ()
    for name, shape in shapes.items():
        array = found.get(name)
        expected = (len(names), *shape)
        if array is None or array.shape != expected or array.dtype.kind != ("i" if name in COUNTS else "f"):
            raise DataError(f"{path}: its {name} is no array of {expected}; expected what --state-out writes")
    if not np.isfinite(found["x"]).all() or not np.allclose(
        np.exp(np.minimum(found["logw"], 1.0)).sum(-1), 1.0, atol=1e-6
    ):
        raise DataError(f"{path}: holds particles that are no numbers, or weights that do not sum to 1")
