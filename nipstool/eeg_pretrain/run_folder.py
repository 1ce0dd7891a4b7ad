"""A RUN: the folder that training leaves, from its first checkpoint to the finished model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nipstool.eeg_pretrain.config import DETECTORS, FORMAT, NOTICE, Config, as_plain, config_of
from nipstool.kit.errors import DataError
from nipstool.kit.files import AtomicFolder, StrPath, check_input
from nipstool.kit.records import is_number, parse_json, shown

if TYPE_CHECKING:
    import torch

    from nipstool.eeg_pretrain.model import Model

MODEL, ABOUT = "model.safetensors", "run.json"
CHECKPOINT = "checkpoint.safetensors"


class RunFolder(AtomicFolder):
    """As AtomicFolder, but a part that holds a checkpoint outlives whatever ends the run, for --resume."""

    def __init__(self, path: StrPath, *, force: bool = False, resume: bool = False):
        super().__init__(path, force=force)
        self._resume = resume

    def _prepare(self) -> None:
        if not (self._resume and (self._part / CHECKPOINT).is_file()):
            super()._prepare()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and (self._part / CHECKPOINT).is_file():
            self._release()
            return
        super().__exit__(kind, error, trace)


@dataclass(frozen=True)
class Run:
    """A finished run: its model, and what run.json says (thresholds, validation, settings)."""

    model: Model
    config: Config
    about: dict[str, Any]
    path: Path

    @property
    def labelled(self) -> bool:
        """Whether it learned from seizure labels."""
        return bool(self.about["labelled"])


def save_run(folder: Path, model: Model, about: Mapping[str, Any]) -> None:
    """Leave the model and its description in `folder`, and nothing that only a checkpoint needs."""
    from nipstool.eeg_pretrain.state_file import save_tensors

    plain = {"format": FORMAT, "notice": NOTICE, "config": as_plain(model.config), **about}
    save_tensors(folder / MODEL, model.state_dict(), {"format": FORMAT})
    (folder / ABOUT).write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n")
    (folder / CHECKPOINT).unlink(missing_ok=True)


def load_run(path: StrPath, device: torch.device | str = "cpu") -> Run:
    """The run in a folder.

    Raises InputMissingError where there is none, DataError where it is unfinished, damaged or of another version.
    """
    from nipstool.eeg_pretrain.model import Model
    from nipstool.eeg_pretrain.state_file import load_tensors

    folder = check_input(path)
    about = _about(folder)
    config = config_of(about["config"], str(folder / ABOUT))
    tensors, _ = load_tensors(check_input(folder / MODEL))
    model = Model(config)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise DataError(f"{folder / MODEL}: its tensors are not those of the model in {ABOUT}") from error
    return Run(model.to(device).eval(), config, about, folder)


def _about(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise DataError(f"{folder}: is no folder; expected a run that train has written")
    path = check_input(folder / ABOUT)
    try:
        about = parse_json(path.read_text(encoding="utf-8"))
        found = about["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is no description of a run") from error
    if found != FORMAT:
        raise DataError(f"{folder}: is a run of format {found}; this version reads format {FORMAT}")
    if missing := NEEDED.keys() - {"text_model"} - set(about):
        raise DataError(f"{path}: says nothing about {', '.join(sorted(missing))}")
    for name, (is_right, expected) in NEEDED.items():
        if not is_right(about.get(name)):
            raise DataError(f"{path}: {name} is {shown(about[name])}; expected {expected}")
    return about


def _is_thresholds(value: Any) -> bool:
    """{detector: {"chosen": whether on held-out seizures, "value": number}}."""
    return isinstance(value, dict) and all(
        isinstance(one := value.get(name), dict)
        and isinstance(one.get("chosen"), bool)
        and is_number(one.get("value"))
        for name in DETECTORS
    )


# what run.json must say for a run to be used, text_model if it had one: whether it is right, and in words
NEEDED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "config": (lambda value: isinstance(value, dict), "the model's settings"),
    "labelled": (lambda value: isinstance(value, bool), "true or false"),
    "shift": (lambda value: is_number(value, 1e6), "a number, of logits"),
    "thresholds": (_is_thresholds, f"a threshold for each of {', '.join(DETECTORS)}"),
    "text_model": (lambda value: value is None or isinstance(value, str), "a name or null"),
}
