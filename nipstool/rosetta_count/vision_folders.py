"""Vision transformers from Hugging Face folders: building them, preparing images for them, their patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.files import check_input
from nipstool.kit.language_models import CONFIG, load_body, quiet, read_config_json, to_config
from nipstool.kit.parts import reason
from nipstool.kit.records import parse_json

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

PREPROCESSOR = "preprocessor_config.json"
SIZE = 224


@dataclass(frozen=True)
class Preparation:
    """What preprocessor_config.json asks for, sizes as (height, width) in pixels, None where a step is left out.

    Args:
        shortest: the image is resized, in its own proportions, so that its shorter side has so many.
        size: the image is resized to this.
        crop: of the middle.
        scale: of pixels 0 ... 255, before `mean` and `deviation` of each channel.
    """

    shortest: int | None = None
    size: tuple[int, int] | None = (SIZE, SIZE)
    crop: tuple[int, int] | None = None
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)
    cubic: bool = False


def is_vision_folder(path: str) -> bool:
    """Whether a folder holds a model of images: it has a preprocessor, or its configuration speaks of patches."""
    if not Path(path).is_dir():
        return False
    try:
        config = read_config_json(path)
    except (DataError, InputMissingError):
        return False
    return "patch_size" in config or (Path(path) / PREPROCESSOR).exists()


def fresh_vision(path: str) -> Any:
    """The model of a folder's configuration with fresh weights, under torch's present seed."""
    from transformers import AutoModel

    config = to_config(read_config_json(path), path)
    with quiet():
        return AutoModel.from_config(config)


def trained_vision(path: str) -> Any:
    """The model of a folder with its weights. DataError where it has no stack of blocks or is not complete."""
    model = load_body(path)
    if not hasattr(model.config, "patch_size"):
        raise DataError(f"{path}: its configuration has no patch_size; expected a vision transformer")
    return model


def preparation(path: str, size: int | None = None) -> Preparation:
    """What a folder says of its images; `size` replaces the size that the model sees.

    Without preprocessor_config.json: the configuration's image_size, values from -1 to 1.
    """
    own = _pair(read_config_json(path).get("image_size")) or (SIZE, SIZE)
    file = check_input(path) / PREPROCESSOR
    found = Preparation(size=own)
    if file.exists():
        try:
            found = _read(parse_json(file.read_bytes()), own)
        except OSError as error:
            raise InputMissingError(f"{file}: cannot be read: {reason(error)}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(
                f"{file}: is no preprocessor's configuration: {' '.join(str(error).split())}"
            ) from error
    return found if size is None else replace(found, shortest=None, size=(size, size), crop=None)


def _read(raw: Mapping[str, Any], own: tuple[int, int]) -> Preparation:
    size = raw.get("size", list(own))
    shortest = size.get("shortest_edge") if isinstance(size, dict) else None
    resized = raw.get("do_resize", True)
    crop = _pair(raw.get("crop_size")) if raw.get("do_center_crop") else None
    plain = not raw.get("do_normalize", True)
    return Preparation(
        shortest=int(shortest) if shortest and resized else None,
        size=_pair(size) if resized and not shortest else None,
        crop=crop,
        scale=float(raw.get("rescale_factor", 1 / 255)) if raw.get("do_rescale", True) else 1.0,
        mean=(0.0,) * 3 if plain else tuple(map(float, raw.get("image_mean", (0.5,) * 3))),
        deviation=(1.0,) * 3 if plain else tuple(map(float, raw.get("image_std", (0.5,) * 3))),
        cubic=raw.get("resample") == 3,
    )


def _pair(size: Any) -> tuple[int, int] | None:
    """(height, width) of a number, a pair or {"height", "width"}."""
    if isinstance(size, dict):
        size = [size["height"], size["width"]] if "height" in size and "width" in size else None
    if isinstance(size, list | tuple) and len(size) == 2:
        return int(size[0]), int(size[1])
    return (int(size), int(size)) if isinstance(size, int) else None


def preparer(path: str, size: int | None = None) -> Any:
    """`prepare(image)`: an image [H, W, 3], RGB in uint8, as the model's input [3, h, w]."""
    return partial(prepared, preparation(path, size))


def prepared(how: Preparation, image: np.ndarray) -> np.ndarray:
    """An image [H, W, 3], RGB in uint8, as the input [3, h, w], float32."""
    import numpy as np

    if how.shortest is not None:
        factor = how.shortest / min(image.shape[:2])
        image = _resized(image, (round(image.shape[0] * factor), round(image.shape[1] * factor)), how.cubic)
    elif how.size is not None:
        image = _resized(image, how.size, how.cubic)
    if how.crop is not None:
        image = _cropped(image, how.crop)
    values = image.astype(np.float32) * np.float32(how.scale)
    values = (values - np.array(how.mean, np.float32)) / np.array(how.deviation, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1))


def _resized(image: np.ndarray, size: tuple[int, int], cubic: bool) -> np.ndarray:
    """Averaged where it becomes smaller, so that nothing is skipped; interpolated where it becomes larger."""
    import cv2
    import numpy as np

    smaller = size[0] <= image.shape[0] and size[1] <= image.shape[1]
    way = cv2.INTER_AREA if smaller else cv2.INTER_CUBIC if cubic else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, size[::-1], interpolation=way))


def _cropped(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The middle; zeros where the image is smaller."""
    import numpy as np

    lacking = [max(0, want - have) for want, have in zip(size, image.shape, strict=False)]
    image = np.pad(image, [(n // 2, n - n // 2) for n in lacking] + [(0, 0)])
    top, left = ((have - want) // 2 for have, want in zip(image.shape, size, strict=False))
    return image[top : top + size[0], left : left + size[1]]


def patches(model: Any, values: Tensor, images: Tensor, told: str) -> Tensor:
    """Of a transformer's values [B, T, n] those of its patches, [B, n, h, w].

    Positions before them (CLS, registers) are left out. Other models' values come back as they are. DataError
    where there are fewer positions than patches.
    """
    size = _pair(getattr(getattr(model, "config", None), "patch_size", None))
    if size is None or values.dim() != 3 or images.dim() != 4:
        return values
    grid = images.shape[2] // size[0], images.shape[3] // size[1]
    count = grid[0] * grid[1]
    if values.shape[1] < count:
        raise DataError(f"{told}: {values.shape[1]} positions for {grid[0]} x {grid[1]} patches")
    return values[:, -count:].transpose(1, 2).unflatten(2, grid)


def folder_files(path: str) -> list[Path]:
    """The files of a folder that its results depend on."""
    names = {CONFIG, PREPROCESSOR}
    return [f for f in sorted(check_input(path).iterdir()) if f.name in names or f.suffix == ".safetensors"]
