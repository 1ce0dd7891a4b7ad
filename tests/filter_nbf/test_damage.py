"""States and checkpoints that are not what was written: told when they are read, never met in the stream."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from nipstool.filter_nbf.checkpoint import describe, save
from nipstool.filter_nbf.choose import choose_belief
from nipstool.filter_nbf.state import load_state, save_state
from nipstool.kit.errors import DataError
from tests.filter_nbf.test_learned import ARENA, untrained
from tests.filter_nbf.test_stream import answers, flows, tracks_for

Change = Callable[[np.ndarray], np.ndarray]


def changed(path: Path, name: str, change: Change | None) -> None:
    """Another value of one tensor of a file; None takes it out."""
    with safe_open(path, "np") as kept:
        about, tensors = kept.metadata(), {key: kept.get_tensor(key) for key in kept.keys()}  # noqa: SIM118
    value = tensors.pop(name)
    if change is not None:
        tensors[name] = np.ascontiguousarray(change(value))
    save_file(tensors, path, about)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("t", None, r"its t is no array of \(1,\)"),
        ("x", lambda a: a[:, :-1], r"its x is no array of \(1, 32, 1\)"),
        ("step", lambda a: a.astype(np.float64), "its step is no array"),
        ("x", lambda a: a * np.nan, "particles that are no numbers"),
        ("logw", lambda a: a + 1e300, "weights that do not sum to 1"),
        ("logw", lambda a: a - 1.0, "weights that do not sum to 1"),
    ],
)
def test_a_damaged_state_is_told(tmp_path: Path, name: str, change: Change | None, told: str) -> None:
    tracks, path = tracks_for(n=32), tmp_path / "s"
    answers(flows([1000.0, 900.0], id="a"), tracks)
    save_state(str(path), tracks, belief="pf", force=False)
    load_state(str(path), tracks_for(n=32), belief="pf")
    changed(path, name, change)
    with pytest.raises(DataError, match=told):
        load_state(str(path), tracks_for(n=32), belief="pf")


def test_a_state_whose_ids_are_none_is_told(tmp_path: Path) -> None:
    tracks, path = tracks_for(n=32), tmp_path / "s"
    answers(flows([1000.0], id="a"), tracks)
    save_state(str(path), tracks, belief="pf", force=False)
    with safe_open(path, "np") as kept:
        about, tensors = json.loads(kept.metadata()["nbf"]), {key: kept.get_tensor(key) for key in kept.keys()}  # noqa: SIM118
    save_file(tensors, path, {"nbf": json.dumps({**about, "tracks": {"a": 1}})})
    with pytest.raises(DataError, match="expected a list of ids"):
        load_state(str(path), tracks_for(n=32), belief="pf")


def test_damaged_networks_are_told(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for name, change, told in (
        ("enc.0.self.w", lambda a: a * np.float16(np.nan), "enc.0.self.w holds NaN or infinity"),
        ("enc.0.self.w", None, "its networks lack a part or do not fit together"),
        ("enc.0.self.w", lambda a: a[:-1], "its networks lack a part or do not fit together"),
    ):
        save(str(path), untrained(), {**describe(ARENA), "generator": "gmm"}, force=True)
        changed(path, name, change)
        with pytest.raises(DataError, match=told):
            choose_belief("nbf", ARENA, str(path))


def test_a_scale_that_is_no_number_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save(str(path), untrained(), {**describe(ARENA), "generator": "gmm"}, force=False)
    changed(path, "scale.std", lambda a: a * np.float32(np.nan))
    with pytest.raises(DataError, match="a belief that is no number"):
        choose_belief("nbf", ARENA, str(path))
