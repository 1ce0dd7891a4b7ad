"""Where modules stand in tables and pictures, the made-up pair, and when there is nothing to warn of."""

from pathlib import Path

import pytest
import torch

from nipstool.fuse_lora import fuse, inspect
from nipstool.fuse_lora.report import block_and_kind
from nipstool.fuse_lora.synthetic import sdxl_modules, write_pair
from tests.fuse_lora.lora_files import (
    ATTENTION,
    Factors,
    Lora,
    dense,
    directions,
    dotted,
    metadata,
    random_lora,
    save,
)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("unet.down_blocks.1.attentions.0.transformer_blocks.3.attn2.to_k", ("down.1.attentions.0", "attn2.to_k")),
        ("unet.mid_block.attentions.0.proj_in", ("mid.attentions.0", "proj_in")),
        ("unet.up_blocks.2.resnets.1.conv1", ("up.2.resnets.1", "conv1")),
        ("unet.conv_in", ("other", "conv_in")),
        ("text_encoder.text_model.encoder.layers.7.mlp.fc1", ("text_encoder:layers.7", "mlp.fc1")),
        ("transformer.single_transformer_blocks.12.attn.to_q", ("single_transformer_blocks.12", "attn.to_q")),
        ("transformer.h.3.attn.c_attn", ("h.3", "attn.c_attn")),
        ("lm_head", ("other", "lm_head")),
    ],
)
def test_where_a_module_stands(name: str, place: tuple[str, str]) -> None:
    assert block_and_kind(name) == place


def test_the_made_up_pair_says_what_it_is(tmp_path: Path) -> None:
    assert len(list(sdxl_modules())) == 722
    first, again = write_pair(tmp_path / "1", rank=1), write_pair(tmp_path / "2", rank=1)
    assert all("synthetic" in str(metadata(path)) for path in first)
    assert [inspect(path, spectra=False).format for path in first] == ["kohya", "diffusers"]
    assert [a.read_bytes() == b.read_bytes() for a, b in zip(first, again, strict=True)] == [True, True]


def warnings_of(folder: Path, a: Lora, b: Lora, mu: float) -> tuple[str, ...]:
    content, style = save(folder / "a.safetensors", dotted(a)), save(folder / "b.safetensors", dotted(b))
    return fuse(content, [style], folder / f"{mu}.safetensors", mu=mu, force=True).warnings


def test_a_projection_that_changes_little_says_so(tmp_path: Path) -> None:
    """Content rows orthogonal to the style's leave nothing to remove; where mu is 0 nobody asked to."""
    a, b = random_lora(ATTENTION, 4, 1), random_lora(ATTENTION, 4, 2)
    assert warnings_of(tmp_path, a, b, 0.5) == ()
    apart: Lora = {}
    for name, (B, A) in a.items():
        V = torch.from_numpy(directions(dense(b)[name])).float()
        apart[name] = Factors(B, A - A @ V @ V.mT)
    (line,) = warnings_of(tmp_path, apart, b, 0.5)
    assert "of a plain sum" in line
    assert warnings_of(tmp_path, apart, b, 0.0) == ()
