"""Images that vision models read: a folder (subfolders are classes), or an array of inputs in a .npy file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.files import check_input
from nipstool.kit.parts import reason

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SIZE = 224


@dataclass(frozen=True)
class Images:
    """How many inputs there are, how rows [start, stop) are read, labels, and each one's name."""

    count: int
    read: Callable[[int, int], Tensor]
    labels: tuple[str, ...] | None
    names: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def open_images(path: str, prepare: Callable[[np.ndarray], Any] | None = None, size: int | None = None) -> Images:
    """The images of a folder, or the rows of an array.

    Args:
        prepare: of an image [H, W, 3], RGB in uint8, the model's input; default: resized to `size` x `size`,
            [3, H, W], 0 to 1.

    Raises InputMissingError, DataError where there is no image, or the file is no array of numbers.
    """
    found = check_input(path)
    if not found.is_dir():
        return _array(found)
    files = sorted(p for p in found.rglob("*") if p.is_file() and p.suffix.lower() in SUFFIXES)
    good, warnings = [], []
    for file in files:
        try:
            load_image(file)
            good.append(file)
        except DataError as error:
            warnings.append(f"warning: {error}")
    if not good:
        raise DataError(f"{path}: no image in this folder; expected {', '.join(SUFFIXES[:3])} ...")
    labels = [file.relative_to(found).parts[0] if file.parent != found else "" for file in good]

    def read(start: int, stop: int) -> Tensor:
        import torch

        inputs = [_prepared(load_image(file), prepare, size or SIZE) for file in good[start:stop]]
        for file, one in zip(good[start:stop], inputs, strict=True):
            if one.shape != inputs[0].shape:
                own, first = ("x".join(map(str, shape)) for shape in (one.shape, inputs[0].shape))
                raise DataError(f"{file}: prepared it is {own}, others {first}; expected one size (--image-size)")
        return torch.stack(inputs)

    several = tuple(labels) if len(set(labels)) > 1 else None
    return Images(len(good), read, several, tuple(map(str, good)), tuple(warnings))


def _array(file: Path) -> Images:
    import numpy as np
    import torch

    try:
        values = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise InputMissingError(f"{file}: cannot be read: {reason(error)}") from error
    except (ValueError, EOFError, TypeError, SyntaxError) as error:
        raise DataError(f"{file}: is neither a folder of images nor a .npy file") from error
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub" or values.ndim < 2 or not len(values):
        raise DataError(f"{file}: expected an array [N, ...] of numbers, a model's inputs")

    def read(start: int, stop: int) -> Tensor:
        return torch.from_numpy(np.array(values[start:stop], dtype=np.float32))

    return Images(len(values), read, None, tuple(f"{file} row {row}" for row in range(len(values))))


def load_image(file: Path) -> np.ndarray:
    """An image [H, W, 3], RGB in uint8; DataError where it cannot be read."""
    import cv2
    import numpy as np

    try:
        data = np.frombuffer(file.read_bytes(), dtype=np.uint8)
        image = cv2.imdecode(data, cv2.IMREAD_COLOR) if len(data) else None
    except (OSError, cv2.error) as error:
        raise DataError(f"{file}: cannot be read: {' '.join(str(error).split())[:200]}") from error
    if image is None:
        raise DataError(f"{file}: is no image that can be read")
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))


def _prepared(image: np.ndarray, prepare: Callable[[np.ndarray], Any] | None, size: int) -> Tensor:
    import cv2
    import numpy as np
    import torch

    if prepare is not None:
        return torch.as_tensor(prepare(image), dtype=torch.float32)
    small = cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA)
    return torch.from_numpy(np.ascontiguousarray(small.transpose(2, 0, 1))).float() / 255
