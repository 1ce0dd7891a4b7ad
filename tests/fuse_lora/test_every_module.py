"""Full key sets of SDXL and FLUX, loaded by diffusers into whole models on torch's meta device without a word."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nipstool.fuse_lora import fuse
from tests.fuse_lora.lora_files import dotted, flux_shapes, kohya, kohya_flux, kohya_sdxl, random_lora, save

pytest.importorskip("diffusers", reason="needs diffusers as oracle")
pytest.importorskip("peft", reason="needs PEFT as oracle")

from diffusers.loaders.lora_pipeline import FluxLoraLoaderMixin, StableDiffusionXLLoraLoaderMixin
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

from tests.fuse_lora.models import complaints


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def on_meta(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor.to("meta") for key, tensor in state.items()}


def adapted(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Layer -> (out, in) of what was put into a model."""
    weights = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    stems = [
        name.removesuffix("A.default_0.weight") for name in weights if name.endswith("lora_A.default_0.weight")
    ]
    return {
        stem.removesuffix(".lora_"): (
            weights[f"{stem}B.default_0.weight"][0],
            weights[f"{stem}A.default_0.weight"][1],
        )
        for stem in stems
    }


@pytest.mark.realdata
@pytest.mark.parametrize("format", ["kohya", "diffusers"])
def test_every_module_of_sdxl(data_dir: Path, tmp_path: Path, format: str) -> None:
    """722 modules of the UNet and 72 of one text encoder, names and shapes as in the real model."""
    lists = json.loads((data_dir / "fuse-lora" / "keylists" / "sdxl_unet_attn_modules.json").read_text())
    shapes = {f"unet.{name}": tuple(shape) for name, shape in lists["diffusers"].items()}
    encoder = CLIPTextModel(CLIPTextConfig(hidden_size=16, intermediate_size=24, num_attention_heads=2))
    shapes |= {
        f"text_encoder.{'' if name.startswith('text_model.') else 'text_model.'}{name}": tuple(layer.weight.shape)
        for name, layer in encoder.named_modules()
        if isinstance(layer, nn.Linear)
    }
    assert len(shapes) == 722 + 72
    whole = random_lora(shapes, 1, 1)
    part = {name: whole[name] for place, name in enumerate(shapes) if place % 3}
    spelled = dict(zip((f"unet.{n}" for n in lists["diffusers"]), lists["kohya"], strict=True))
    a = save(tmp_path / "a.safetensors", kohya(part, lambda n: spelled.get(n) or kohya_sdxl(n), alpha=1.0))
    b = save(tmp_path / "b.safetensors", dotted(whole))
    out = tmp_path / "out.safetensors"
    assert len(fuse(a, [b], out, format=format).modules) == len(shapes)
    with torch.device("meta"):
        unet = UNet2DConditionModel(**json.loads(SDXL_CONFIG))
    loader: Any = StableDiffusionXLLoraLoaderMixin
    with complaints() as said:
        state, alphas, metadata = loader.lora_state_dict(
            str(tmp_path), weight_name=out.name, unet_config=unet.config, return_lora_metadata=True
        )
        loader.load_lora_into_unet(on_meta(state), alphas, unet, metadata=metadata, low_cpu_mem_usage=True)
        loader.load_lora_into_text_encoder(state, alphas, encoder, prefix="text_encoder", metadata=metadata)
    assert said == []
    assert adapted(unet) == {name: tuple(shape) for name, shape in lists["diffusers"].items()}
    assert len(adapted(encoder)) == 72


SDXL_CONFIG = """{
  "sample_size": 128, "block_out_channels": [320, 640, 1280], "layers_per_block": 2,
  "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
  "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
  "transformer_layers_per_block": [1, 2, 10], "attention_head_dim": [5, 10, 20], "cross_attention_dim": 2048,
  "use_linear_projection": true, "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
  "projection_class_embeddings_input_dim": 2816
}"""


@pytest.mark.parametrize("format", ["kohya", "diffusers", "bfl"])
def test_every_module_of_flux(tmp_path: Path, format: str) -> None:
    """304 modules as BFL counts them, 494 as diffusers does."""
    shapes = flux_shapes(3072, 19, 38)
    assert len(shapes) == 304
    whole = random_lora(shapes, 1, 1)
    part = {name: whole[name] for place, name in enumerate(shapes) if place % 3}
    a = save(tmp_path / "a.safetensors", kohya(part, kohya_flux, alpha=1.0, dtype=torch.float16))
    b = save(tmp_path / "b.safetensors", kohya(whole, kohya_flux, alpha=1.0, dtype=torch.float16))
    out = tmp_path / "out.safetensors"
    fuse(a, [b], out, format=format)
    with torch.device("meta"):
        transformer = FluxTransformer2DModel(guidance_embeds=True)
    blocks = {
        name: tuple(layer.weight.shape)
        for name, layer in transformer.named_modules()
        if "blocks." in name and isinstance(layer, nn.Linear)
    }
    loader: Any = FluxLoraLoaderMixin
    with complaints() as said:
        state, alphas, metadata = loader.lora_state_dict(
            str(tmp_path), weight_name=out.name, return_alphas=True, return_lora_metadata=True
        )
        loader.load_lora_into_transformer(
            on_meta(state), alphas, transformer, metadata=metadata, low_cpu_mem_usage=True
        )
    assert said == []
    assert len(blocks) == 494
    assert adapted(transformer) == blocks
