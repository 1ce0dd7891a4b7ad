"""From what --domain says to a model that has been tried once: a built-in name, or a user's FILE.py[:Class]."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from nipstool.filter_nbf.domains import BUILT_IN, maker
from nipstool.filter_nbf.draws import Draws
from nipstool.filter_nbf.model import METHODS, Dynamics
from nipstool.kit.errors import DataError, InputMissingError, UsageError

PROBE = 3


def load_domain(
    spec: str, params: Mapping[str, Any] | None = None, *, verb: str = "run", device: str = "cpu"
) -> Dynamics:
    """The domain that `spec` names, with its parameters, tried once with three particles.

    Raises:
        UsageError: no built-in domain has this name, or it does not take a parameter.
        InputMissingError: the file is not there.
        DataError: it cannot be run, lacks a method that `verb` needs, or a method gives a wrong shape.
    """
    params = dict(params or {})
    if spec in BUILT_IN:
        return Dynamics(_built_in(spec, params), spec)
    model = _from_file(spec, params)
    _require(model, spec, verb)
    return _probed(model, spec, device)


def _built_in(spec: str, params: dict[str, Any]) -> Any:
    make = maker(spec)
    known = set(inspect.signature(maker("linear-gaussian") if spec == "nile" else make).parameters)
    for name in params.keys() - known:
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(sorted(known))}"
        raise UsageError(f"--param {name}: {spec} has no such parameter{hint}")
    try:
        return make(**params)
    except (TypeError, ValueError, np.linalg.LinAlgError) as error:
        raise UsageError(f"--param: {spec}: {error}") from error
    except OSError as error:
        raise InputMissingError(f"--param: {error.filename}: {error.strerror}") from error


def _from_file(spec: str, params: dict[str, Any]) -> Any:
    path, _, name = spec.partition(":") if not Path(spec).exists() else (spec, "", "")
    if not path.endswith(".py"):
        near = get_close_matches(spec, BUILT_IN, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected FILE.py[:Class] or one of {', '.join(BUILT_IN)}"
        raise UsageError(f"--domain {spec}: no such domain; {hint}")
    if not Path(path).is_file():
        raise InputMissingError(f"{path}: no such file; expected a model")
    module = _run(path)
    found = getattr(module, name, None) if name else _only_model(module, path)
    if found is None:
        raise DataError(f"{path}: has no {name}")
    if not inspect.isclass(found):
        return found
    try:
        return found(**params)
    except Exception as error:  # whatever a user's constructor raises
        raise DataError(f"{path}: {found.__name__}() raised {type(error).__name__}: {error}") from error


def _run(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"nipstool_model_{Path(path).stem}", path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file look themselves up
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a user's file raises
        raise DataError(f"{path}: cannot be run: {type(error).__name__}: {error}") from error
    return module


def _only_model(module: Any, path: str) -> Any:
    found = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__
        if any(hasattr(value, method) for method in METHODS["run"])
    ]
    if len(found) != 1:
        what = "no class with the methods of a model" if not found else "several models"
        raise DataError(f"{path}: has {what}; name one as {path}:Class")
    return found[0]


def _require(model: Any, spec: str, verb: str) -> None:
    missing = [name for name in METHODS[verb] if not callable(getattr(model, name, None))]
    if missing:
        raise DataError(f"{spec}: {verb} needs the method {missing[0]}, which the model does not have")
    for name in ("names", "obs_names"):
        value = getattr(model, name, None)
        if isinstance(value, str) or not value or not all(isinstance(word, str) for word in value):
            raise DataError(f"{spec}: {name} is {value!r}, expected a tuple of names")


def _probed(model: Any, spec: str, device: str) -> Dynamics:
    """Call every method once. A model in torch is told by `backend = "torch"`, or by what its prior gives."""
    if getattr(model, "backend", None) is None and _wants_torch(model):
        model.backend = "torch"
    dynamics = Dynamics(model, spec, device=device)
    draws = Draws([np.random.default_rng(0)])
    x = dynamics.init_sample(PROBE, draws)
    if not np.isfinite(x).all():
        raise DataError(f"{spec}: init_sample gave a state that is no finite number")
    u = np.zeros((1, len(dynamics.control_names)))
    x = dynamics.transition_sample(x, u, np.ones(1), draws)
    if dynamics.has("log_likelihood"):
        y = np.zeros((1, len(dynamics.obs_names)))
        if dynamics.has("simulate_obs"):
            y = dynamics.simulate_obs(x[:, :1], u, draws)[:, 0]
        dynamics.log_likelihood(y, x, u)
    dynamics.valid(x)
    dynamics.nans = 0
    return dynamics


def _wants_torch(model: Any) -> bool:
    try:
        return hasattr(model.init_sample(PROBE, np.random.default_rng(0)), "detach")
    except Exception:  # a generator of the other kind: the probe proper says what is wrong
        return "torch" in vars(sys.modules[type(model).__module__])
