"""An image-text model of random weights: loaded from a folder, scored as transformers itself does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipModel,
)

from nipstool.detect_navtext.lines import Line
from nipstool.detect_navtext.vlm import AGAINST, FOR, board_crop, load_embedder
from nipstool.kit.errors import DataError, InputMissingError

SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def saved(folder: Path, kind: str) -> Path:
    """A folder with a model of 16 wide, a tokenizer of whole words, and an image processor."""
    words = sorted({word for prompt in (*FOR, *AGAINST) for word in prompt.split()})
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<end>", *words])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<end>").save_pretrained(folder)
    text = {
        **SMALL,
        "vocab_size": len(vocabulary),
        "max_position_embeddings": 16,
        "eos_token_id": 1,
        "bos_token_id": 0,
    }
    text["pad_token_id"] = 0
    image = {**SMALL, "image_size": 32, "patch_size": 16}
    torch.manual_seed(0)
    if kind == "clip":
        model = CLIPModel(CLIPConfig(text_config=text, vision_config=image, projection_dim=8))
    else:
        model = SiglipModel(SiglipConfig(text_config={**text, "projection_size": 16}, vision_config=image))
    model.save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def two_boards() -> tuple[np.ndarray, list[Line], list[int]]:
    image = np.random.default_rng(0).integers(0, 256, (120, 160, 3), np.uint8)
    quad = np.array([[0, 0], [40, 0], [40, 10], [0, 10]], np.float32)
    lines = [Line(quad + shift, "A", 0.9, 0.9) for shift in ([10, 10], [10, 24], [100, 90])]
    return image, lines, [0, 0, 1]


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_scores_are_those_of_the_models_own_forward(tmp_path: Path, kind: str) -> None:
    folder = saved(tmp_path, kind)
    image, lines, boards = two_boards()
    scores = load_embedder(folder)(image, lines, boards)
    assert scores[0] == scores[1]
    crops = [board_crop(image, lines[:2]), board_crop(image, lines[2:])]
    model = (CLIPModel if kind == "clip" else SiglipModel).from_pretrained(folder).eval()
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    padding = {"padding": "max_length", "max_length": 16} if kind == "siglip" else {"padding": True}
    texts = words([*FOR, *AGAINST], return_tensors="pt", **padding)
    if kind == "siglip":
        del texts["attention_mask"]
    texts.pop("token_type_ids", None)
    pixels = CLIPImageProcessor.from_pretrained(folder)(images=crops, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**texts, **pixels).logits_per_image
    if kind == "clip":
        expected = logits.softmax(1)[:, : len(FOR)].sum(1)
    else:
        expected = torch.sigmoid(logits[:, : len(FOR)].amax(1) - logits[:, len(FOR) :].amax(1))
    assert scores[[0, 2]] == pytest.approx(expected.numpy(), abs=1e-5)


def test_a_crop_has_its_surroundings_and_stays_in_the_picture() -> None:
    image, lines, _ = two_boards()
    assert board_crop(image, lines[:2]).shape == (10 + 24 + 10, 10 + 40 + 16 + 1, 3)
    assert np.array_equal(board_crop(image, lines[:2])[0, 0], image[0, 0, ::-1])
    far = [Line(lines[0].polygon + 500, None, None, 0.9)]
    assert board_crop(image, far).size > 0


def test_a_folder_that_holds_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match="no config"):
        load_embedder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(DataError, match="CLIP or SigLIP"):
        load_embedder(tmp_path)
