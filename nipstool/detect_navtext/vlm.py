"""How a board looks to an image-text model of the user's: CLIP or SigLIP from a local folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.find import Embed
from nipstool.detect_navtext.lines import Image, Line
from nipstool.kit.errors import DataError, InputMissingError

if TYPE_CHECKING:
    import torch

CONTEXT = 0.4  # of a board's sides, shown around it
FOR = (
    "a photo of a store sign above the entrance",
    "a photo of a room number plate",
    "a photo of a floor sign",
    "a photo of a direction sign",
    "a photo of an exit sign",
    "a photo of a street sign",
    "a photo of an aisle sign in a supermarket",
)
AGAINST = (
    "a photo of an advertisement poster",
    "a photo of a price tag",
    "a photo of product packaging",
    "a photo of text on clothing",
    "a photo of a notice",
    "a photo of a screen",
    "a photo of a license plate",
)


def load_embedder(folder: Path, *, device: str = "cpu") -> Embed:
    """A function that scores the boards of lines, 0 to 1, by a model in the layout of Hugging Face.

    CLIP: the softmax over FOR and AGAINST, summed over FOR. SigLIP, which is trained on single pairs: the logistic
    of the best margin for, less the best against. Nothing is fetched and no code of the folder is run.

    Raises:
        InputMissingError: no such folder, or no config.json in it.
        DataError: it is no CLIP or SigLIP model, or a part of it is missing.
    """
    if not (folder / "config.json").is_file():
        raise InputMissingError(f"{folder}: holds no config.json; expected a CLIP or SigLIP folder")
    model, words, pixels = _loaded(folder)
    from nipstool.kit.runtime import choose_device

    where = choose_device(device)
    model.to(where).eval()
    texts = _unit(_texts(model, words, where))

    def embed(image: Image, lines: Sequence[Line], boards: Sequence[int]) -> NDArray[np.float32]:
        numbers = sorted(set(boards))
        on = {n: [line for line, board in zip(lines, boards, strict=True) if board == n] for n in numbers}
        crops = [board_crop(image, on[n]) for n in numbers]
        shown = pixels(images=crops, return_tensors="pt").to(where)
        scores = _scores(model, _unit(_features(model.get_image_features, **shown)), texts)
        by_board = dict(zip(numbers, scores.tolist(), strict=True))
        return np.array([by_board[board] for board in boards], np.float32)

    return embed


def _loaded(folder: Path) -> tuple[Any, Any, Any]:
    """The model, its tokenizer and its image processor."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    try:
        kinds = (AutoModel, AutoTokenizer, AutoImageProcessor)
        parts = [one.from_pretrained(folder, local_files_only=True) for one in kinds]
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise DataError(f"{folder}: is no CLIP or SigLIP folder that can be loaded: {str(error)[:160]}") from error
    if not hasattr(parts[0], "get_image_features") or not hasattr(parts[0], "logit_scale"):
        raise DataError(f"{folder}: holds a {type(parts[0]).__name__}; expected CLIP or SigLIP")
    return parts[0], parts[1], parts[2]


def _texts(model: Any, words: Any, where: torch.device) -> torch.Tensor:
    """Features of the prompts; SigLIP was trained on texts padded to their full length."""
    length = model.config.text_config.max_position_embeddings
    padding: Any = "max_length" if hasattr(model, "logit_bias") else True
    prompts = [*FOR, *AGAINST]
    given = words(prompts, padding=padding, truncation=True, max_length=length, return_tensors="pt")
    kept = {name: tensor.to(where) for name, tensor in given.items() if name in ("input_ids", "attention_mask")}
    if hasattr(model, "logit_bias"):
        kept.pop("attention_mask", None)
    return _features(model.get_text_features, **kept)


def _features(call: Any, **inputs: Any) -> torch.Tensor:
    import torch

    with torch.inference_mode():
        found = call(**inputs)
    return found if isinstance(found, torch.Tensor) else found.pooler_output


def _unit(features: torch.Tensor) -> torch.Tensor:
    return features / features.norm(dim=-1, keepdim=True)


def _scores(model: Any, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    """The probability that each picture is one of FOR."""
    import torch

    with torch.inference_mode():
        logits = images @ texts.T * model.logit_scale.exp()
        if hasattr(model, "logit_bias"):
            return torch.sigmoid(logits[:, : len(FOR)].amax(1) - logits[:, len(FOR) :].amax(1))
        return logits.softmax(dim=1)[:, : len(FOR)].sum(1)


def board_crop(image: Image, lines: Sequence[Line]) -> NDArray[np.uint8]:
    """A board with CONTEXT around it, in red, green, blue."""
    corners = np.concatenate([line.polygon for line in lines])
    low, high = corners.min(axis=0), corners.max(axis=0)
    around = CONTEXT * np.maximum(high - low, 8)
    limits = np.array([image.shape[1], image.shape[0]])
    x0, y0 = np.clip(low - around, 0, limits - 1).astype(int)
    x1, y1 = np.clip(high + around + 1, [x0 + 1, y0 + 1], limits).astype(int)
    return cv2.cvtColor(image[y0:y1, x0:x1], cv2.COLOR_BGR2RGB).astype(np.uint8)
