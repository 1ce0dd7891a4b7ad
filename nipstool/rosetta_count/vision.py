"""Vision models on images: of a file.py:factory, with weights, and of Hugging Face folders.

The file of a factory is run, since it is named explicitly.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError, NipsError, UsageError
from nipstool.kit.files import check_input, sha256
from nipstool.rosetta_count.count import Inputs, Subject
from nipstool.rosetta_count.grids import Grid, common_grid, grid_of, samples
from nipstool.rosetta_count.images import Images, open_images
from nipstool.rosetta_count.record import Site, find_sites, run_until_recorded
from nipstool.rosetta_count.stream import Layer, layers_of
from nipstool.rosetta_count.units import Unit, make_units
from nipstool.rosetta_count.vision_folders import patches

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from nipstool.kit.progress import Stages
    from nipstool.rosetta_count.sources import Reading
    from nipstool.rosetta_count.work import Options

BATCH = 64


@dataclass(frozen=True)
class Factory:
    """What a name stands for: makers of fresh and of trained models, what prepares an image, the files behind."""

    name: str
    make: Callable[[], Any]
    trained: Callable[[], Any]
    prepare: Callable[[Any], Any] | None
    files: tuple[Path, ...]


def open_factory(name: str, image_size: int | None = None) -> Factory:
    """The factory of a Hugging Face folder, or of file.py:factory[+weights]."""
    from nipstool.rosetta_count import vision_folders as folders

    if not Path(name).is_dir():
        return load_factory(name)
    files = tuple(folders.folder_files(name))
    make, trained = partial(folders.fresh_vision, name), partial(folders.trained_vision, name)
    return Factory(name, make, trained, folders.preparer(name, image_size), files)


def load_factory(spec: str) -> Factory:
    """The factory; its file may define `preprocess(image)`, [H, W, 3] uint8 to the model's input.

    Raises InputMissingError, DataError where the file cannot be run or has no such function.
    """
    from nipstool.rosetta_count.sources import FACTORY

    match = FACTORY.fullmatch(spec)
    assert match is not None
    file = check_input(match["file"])
    module = _run(file)
    make = getattr(module, match["name"], None)
    if not callable(make):
        raise DataError(f"{file}: has no function {match['name']!r}")
    prepare = getattr(module, "preprocess", None)
    if not match["weights"]:
        return Factory(spec, make, make, prepare, (file,))
    weights = check_input(match["weights"])

    def trained() -> Any:
        model = make()
        _load(model, weights)
        return model

    return Factory(spec, make, trained, prepare, (file, weights))


def _run(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"nipstool_model_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise DataError(f"{file}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's code raises
        raise DataError(f"{file}: cannot be run: {type(error).__name__}: {error}") from error
    return module


def build(factory: Factory, device: torch.device | str, *, trained: bool = True, seed: int = 0) -> nn.Module:
    """The model in evaluation mode; with its weights, or fresh under a seed."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = factory.trained() if trained else factory.make()
        except NipsError:
            raise
        except Exception as error:  # whatever the user's code raises
            raise DataError(f"{factory.name}: the factory fails: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise DataError(f"{factory.name}: gives {type(model).__name__}; expected a torch module")
    return model.to(device).eval()


def _load(model: Any, weights: Path) -> None:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if weights.suffix == ".safetensors":
            state: Any = load_file(weights)
        elif weights.suffix in (".pt", ".pth"):
            state = torch.load(weights, map_location="cpu", weights_only=True)
        else:
            raise DataError(f"{weights}: expected weights that end in .safetensors, .pt or .pth")
        for key in ("state_dict", "model", "model_state_dict"):
            if isinstance(state, dict) and isinstance(state.get(key), dict):
                state = state[key]
        model.load_state_dict(state)
    except DataError:
        raise
    except (SafetensorError, RuntimeError, TypeError, AttributeError, EOFError, ValueError, OSError) as error:
        raise DataError(f"{weights}: do not fit the model: {' '.join(str(error).split())[:300]}") from error
    except Exception as error:  # UnpicklingError and its kin
        raise DataError(f"{weights}: holds more than weights: {' '.join(str(error).split())[:200]}") from error


@dataclass(frozen=True)
class ImageActivations:
    """A model's neurons at every place of every image of a unit."""

    name: str
    layers: tuple[Layer, ...]
    model: Any
    sites: tuple[Site, ...]
    images: Images
    units: tuple[Unit, ...]
    grid: Grid

    def unit(self, index: int) -> Tensor:
        """[S, n] in the model's own dtype; float32 where places were resampled."""
        unit = self.units[index]
        return self.rows(unit.start, unit.stop)

    def rows(self, start: int, stop: int) -> Tensor:
        """The samples of images [start, stop)."""
        import torch

        parts = []
        for at in range(start, stop, BATCH):
            values = recorded(self.model, self.sites, self.images.read(at, min(stop, at + BATCH)))
            parts.append(torch.cat([samples(values[site.name], self.grid) for site in self.sites], 1))
        return torch.cat(parts)


def recorded(model: nn.Module, sites: Sequence[Site], images: Tensor) -> dict[str, Tensor]:
    """The values of all sites on some images. DataError where the model does not take them."""
    parameter = next(iter(model.parameters()), None)
    if parameter is not None:
        images = images.to(parameter.device, parameter.dtype)
    try:
        values = run_until_recorded(model, sites, lambda: model(images))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape = "x".join(map(str, images.shape))
        raise DataError(f"the model does not take inputs {shape}: {' '.join(str(error).split())[:200]}") from error
    values = {name: patches(model, value, images, f"the site {name}") for name, value in values.items()}
    for name, value in values.items():
        if value.dim() not in (2, 3, 4) or len(value) != len(images):
            shape = "x".join(map(str, value.shape))
            raise UsageError(
                f"the site {name} gives {shape}; expected [B, n], [B, C, H, W] or [B, T, n] (--sites)"
            )
    return values


def open_vision(
    models: Sequence[str], reading: Reading, options: Options, stages: Stages
) -> tuple[Inputs, dict[str, str], dict[str, Any]]:
    """Vision models on images."""
    from nipstool.rosetta_count.job import same_twice

    factories = [open_factory(name, reading.image_size) for name in models]
    found = [open_images(reading.data, f.prepare, reading.image_size) for f in factories]
    for warning in [*found[0].warnings, *same_twice(models)]:
        stages.note(warning)
    built = [build(factory, options.device) for factory in factories]
    activations = on_images(models, built, found, reading, options.repeats)
    units = activations[0].units
    places = activations[0].grid[0] * activations[0].grid[1]
    if found[0].count * places < 3:
        raise DataError(f"{reading.data}: {found[0].count * places} samples; expected many more")

    def untrained() -> list[ImageActivations]:
        fresh = [
            build(f, options.device, trained=False, seed=options.seed + 1 + n) for n, f in enumerate(factories)
        ]
        return on_images(models, fresh, found, reading, options.repeats)

    import torch

    inputs = Inputs(
        models=activations,
        subjects=[
            Subject(a.name, a.layers, sum(p.numel() for p in m.parameters()))
            for a, m in zip(activations, built, strict=True)
        ],
        units=len(units),
        samples=found[0].count * places,
        documents=found[0].count,
        untrained=untrained,
        document_of=lambda t: torch.arange(units[t].start, units[t].stop).repeat_interleave(places),
        labels=found[0].labels,
    )
    told = {"kind": "vision", "data": reading.data, "units": len(units), "grid": list(activations[0].grid)}
    return inputs, _hashes(factories, reading.data), {**told, "reading": vars(reading)}


def on_images(
    names: Sequence[str], models: Sequence[Any], images: Sequence[Images], reading: Reading, repeats: int
) -> list[ImageActivations]:
    """Activations on one grid, that of the first model unless it is given."""
    sites = [find_sites(model, reading.sites, name) for name, model in zip(names, models, strict=True)]
    trials = [recorded(m, s, i.read(0, 1)) for m, s, i in zip(models, sites, images, strict=True)]
    grid = common_grid((grid_of(tuple(value.shape)) for value in trials[0].values()), reading.grid)
    units = make_units([grid[0] * grid[1]] * images[0].count, repeats=repeats)
    found = []
    for name, model, own, trial, shown in zip(names, models, sites, trials, images, strict=True):
        named = [(site.name, site.number, trial[site.name].shape[_axis(trial[site.name])]) for site in own]
        found.append(ImageActivations(name, layers_of(named), model, tuple(own), shown, tuple(units), grid))
    return found


def _axis(value: Tensor) -> int:
    return 1 if value.dim() == 4 else -1


def _hashes(factories: Sequence[Factory], data: str) -> dict[str, str]:
    files = [file for factory in factories for file in factory.files]
    place = Path(data)
    files += [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    return {str(file): sha256(file) for file in files}
