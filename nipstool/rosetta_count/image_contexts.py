"""The strongest images of neurons of vision models, with what they look at laid over them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nipstool.kit.progress import Progress, silent
from nipstool.rosetta_count.contexts import Context, Neuron
from nipstool.rosetta_count.images import Images, open_images
from nipstool.rosetta_count.sources import Reading
from nipstool.rosetta_count.vision import BATCH, ImageActivations, build, on_images, open_factory

if TYPE_CHECKING:
    import numpy as np

SIDE = 104  # of a picture on the page
HEAT = 0.5  # of a pixel's colour where the neuron is strongest


def strongest_images(
    needed: Mapping[str, Sequence[Neuron]],
    reading: Reading,
    most: int,
    device: Any = "cpu",
    progress: Progress = silent,
) -> dict[tuple[str, Neuron], list[Context]]:
    """The strongest images of some neurons of each model; a context's one piece is the image as a data URL."""
    names = list(needed)
    factories = [open_factory(name, reading.image_size) for name in names]
    images = [open_images(reading.data, f.prepare, reading.image_size) for f in factories]
    models = [build(factory, device) for factory in factories]
    found: dict[tuple[str, Neuron], list[Context]] = {}
    for name, activations, shown in zip(names, on_images(names, models, images, reading, 5), images, strict=True):
        contexts = _strongest(activations, needed[name], shown, most, progress)
        found |= {(name, neuron): one for neuron, one in contexts.items()}
    return found


def _strongest(
    activations: ImageActivations, neurons: Sequence[Neuron], images: Images, most: int, progress: Progress
) -> dict[Neuron, list[Context]]:
    import torch

    columns = [activations.layers[n.layer].columns.start + n.index for n in neurons]
    places = activations.grid[0] * activations.grid[1]
    parts = []
    for at in range(0, images.count, BATCH):
        progress(min(images.count, at + BATCH), images.count)
        values = activations.rows(at, min(images.count, at + BATCH))[:, columns].float().cpu()
        parts.append(values.reshape(-1, places, len(columns)))
    values = torch.cat(parts)  # [images, places, neurons]
    found = {}
    for column, neuron in enumerate(neurons):
        peaks = values[:, :, column].max(1).values
        rows = peaks.argsort(descending=True, stable=True)[:most].tolist()
        found[neuron] = [_context(images, row, values[row, :, column], activations.grid) for row in rows]
    return found


def _context(images: Images, row: int, values: Any, grid: tuple[int, int]) -> Context:
    picture = _picture(images, row)
    piece = "" if picture is None else data_url(_heated(picture, values.reshape(grid).numpy()))
    return Context(images.names[row], (piece,), tuple(values.tolist()), row)


def _picture(images: Images, row: int) -> np.ndarray | None:
    """[H, W, 3] of 0 ... 255 from a model's input, its range stretched; None for inputs that are no images."""
    import numpy as np

    values = images.read(row, row + 1)[0].numpy()
    if values.ndim == 1 and (side := int(len(values) ** 0.5)) ** 2 == len(values):
        values = values.reshape(side, side)
    if values.ndim == 2:
        values = values[None]
    if values.ndim != 3 or values.shape[0] not in (1, 3):
        return None
    low, high = float(values.min()), float(values.max())
    stretched = (values - low) * (255 / (high - low) if high > low else 0)
    return np.repeat(stretched, 3 // values.shape[0], 0).transpose(1, 2, 0)


def _heated(picture: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """The picture with orange where the neuron is active, on a canvas of SIDE."""
    import cv2
    import numpy as np

    large = cv2.resize(picture.astype(np.float32), (SIDE, SIDE), interpolation=cv2.INTER_NEAREST)
    if heat.size > 1 and heat.max() > 0:
        share = cv2.resize(np.maximum(heat / heat.max(), 0).astype(np.float32), (SIDE, SIDE))[:, :, None] * HEAT
        large = large * (1 - share) + np.array([230.0, 159.0, 0.0]) * share
    return np.clip(large, 0, 255).astype(np.uint8)


def data_url(picture: np.ndarray) -> str:
    """An RGB image [H, W, 3] in uint8 as a JPEG inside a data URL."""
    import cv2

    _, data = cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 80])
    return "data:image/jpeg;base64," + base64.b64encode(data.tobytes()).decode()
