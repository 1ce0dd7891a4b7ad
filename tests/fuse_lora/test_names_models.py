"""Every canonical name is a module of the real model, and every layer of the model has a name in each format."""

import pytest
import torch
from torch import nn

from nipstool.fuse_lora.names import fusion_of, native_fused, read_layout, spell, suffixes, writable_formats
from nipstool.kit.errors import DataError

diffusers = pytest.importorskip("diffusers", reason="needs diffusers' models")
transformers = pytest.importorskip("transformers", reason="needs transformers' models")

SD15 = {"cross_attention_dim": 768}
SDXL = {
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
    "use_linear_projection": True,
}
SD2 = {"cross_attention_dim": 1024, "use_linear_projection": True, "attention_head_dim": (5, 10, 20, 20)}
ONE = {"num_layers": 1}
MODELS = {
    "sd15": ("UNet2DConditionModel", SD15, "unet."),
    "sd2": ("UNet2DConditionModel", SD2, "unet."),
    "sdxl": ("UNet2DConditionModel", SDXL, "unet."),
    "flux": ("FluxTransformer2DModel", {"guidance_embeds": True}, "transformer."),
    "sd3": (
        "SD3Transformer2DModel",
        {
            "num_layers": 24,
            "num_attention_heads": 24,
            "caption_projection_dim": 1536,
            "dual_attention_layers": (0,),
        },
        "transformer.",
    ),
    "wan": ("WanTransformer3DModel", {**ONE, "added_kv_proj_dim": 5120, "image_dim": 1280}, "transformer."),
    "qwen-image": ("QwenImageTransformer2DModel", ONE, "transformer."),
    "anima": ("CosmosTransformer3DModel", ONE, "transformer."),
}
LAYERS = (nn.Linear, nn.Conv2d, nn.Conv3d)
# 304 BFL modules in the blocks become 494, and there are 2 of norm_out and proj_out, 6 embedders, 2 inputs
FLUX_LAYERS = 19 * 14 + 38 * 6 + 10


def layers(family: str) -> dict[str, tuple[int, int]]:
    """Canonical name -> (out, in) of every layer that LoRA can adapt."""
    kind, config, prefix = MODELS[family]
    with torch.device("meta"):
        model = getattr(diffusers, kind)(**config)
    return {
        prefix + name: (module.weight.shape[0], module.weight.shape[1])
        for name, module in model.named_modules()
        if isinstance(module, LAYERS)
    }


def stems_in(names: dict[str, tuple[int, int]], family: str, format: str) -> dict[str, tuple[int, int]]:
    """Stem -> (out, in) of the layers in a format, fused where it keeps them fused."""
    stems: dict[str, tuple[int, int]] = {}
    for name, (out, inp) in names.items():
        fusion = fusion_of(name, family) if native_fused(format, family) else None
        stem = spell(fusion[0] if fusion else name, family, format)
        stems[stem] = (stems.get(stem, (0, inp))[0] + out, inp)
    return stems


@pytest.mark.parametrize("family", MODELS)
def test_every_layer_survives_every_format(family: str):
    names = layers(family)
    # the rank makes no difference, and the demo's key tables rely on every layer being there
    for format in writable_formats(family):
        ends = suffixes(format)
        shapes: dict[str, tuple[int, ...]] = {}
        for stem, (out, inp) in stems_in(names, family, format).items():
            shapes[stem + ends["down"]] = (4, inp)
            shapes[stem + ends["up"]] = (out, 4)
        layout = read_layout(shapes)
        assert (layout.unknown, layout.duplicates, layout.refused) == ((), (), ()), format
        assert (layout.family, layout.format) == (family, format)
        assert {part for module in layout.modules for part in module.parts} == set(names)
        for module in layout.modules:
            assert spell(module.name, family, format) == module.stem


def test_counts_of_the_full_models():
    assert len(layers("flux")) == FLUX_LAYERS
    flux = stems_in(layers("flux"), "flux", "kohya")
    blocks = {stem: widths for stem, widths in flux.items() if "_blocks_" in stem}
    assert len(blocks) == 304
    assert len(flux) == 304 + 10
    assert blocks["lora_unet_single_blocks_37_linear1"] == (21504, 3072)
    sdxl = layers("sdxl")
    attention = [name for name in sdxl if ".attentions." in name]
    assert len(attention) == 722
    assert len(stems_in(sdxl, "sdxl", "kohya")) == len(sdxl)


@pytest.mark.parametrize(
    ("family", "part"), [("flux", "transformer_blocks.3.attn.to_k"), ("sd3", "transformer_blocks.3.attn.to_k")]
)
def test_formats_that_fuse_have_no_name_for_a_part(family: str, part: str):
    name = f"transformer.{part}"
    fusion = fusion_of(name, family)
    assert fusion == (
        "transformer.transformer_blocks.3.attn.to_qkv",
        tuple(f"transformer.transformer_blocks.3.attn.to_{letter}" for letter in "qkv"),
    )
    for format in ("kohya", "bfl"):
        with pytest.raises(DataError, match=format):
            spell(name, family, format)
    for format in ("diffusers", "peft"):
        with pytest.raises(DataError, match=format):
            spell("transformer.transformer_blocks.3.attn.to_qkv", family, format)


def encoder_layers(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}


@pytest.mark.parametrize(("encoder", "depth"), [(1, 12), (2, 32)])
def test_clip_encoders_of_sdxl(encoder: int, depth: int):
    with torch.device("meta"):
        config = transformers.CLIPTextConfig(num_hidden_layers=depth)
        names = encoder_layers(transformers.CLIPTextModelWithProjection(config))
    component = "text_encoder" if encoder == 1 else "text_encoder_2"
    assert len(names) == 6 * depth + 1
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        stem = spell(f"{component}.{name}", "sdxl", "kohya")
        assert stem == f"lora_te{encoder}_{name.replace('.', '_')}"
        shapes |= {f"{stem}.lora_down.weight": (4, 768), f"{stem}.lora_up.weight": (768, 4)}
    layout = read_layout({**shapes, **unet_of("sdxl")})
    found = {module.name for module in layout.modules if module.name.startswith("text_encoder")}
    assert found == {f"{component}.{name}" for name in names}


@pytest.mark.parametrize(
    ("family", "prefix", "component"),
    [
        ("flux", "lora_te2_", "text_encoder_2"),
        ("flux", "lora_te3_", "text_encoder_2"),
        ("sd3", "lora_te3_", "text_encoder_3"),
    ],
)
def test_t5_encoders(family: str, prefix: str, component: str):
    with torch.device("meta"):
        config = transformers.T5Config(num_layers=24, feed_forward_proj="gated-gelu")
        names = encoder_layers(transformers.T5EncoderModel(config))
    assert len(names) == 24 * 7
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        stem = prefix + name.replace(".", "_")
        shapes |= {f"{stem}.lora_down.weight": (4, 64), f"{stem}.lora_up.weight": (64, 4)}
    layout = read_layout({**shapes, **unet_of(family)})
    found = {module.name for module in layout.modules if module.name.startswith("text_encoder")}
    assert found == {f"{component}.{name}" for name in names}
    assert all(spell(name, family, "kohya").startswith("lora_te3_") for name in found)
    assert all(spell(name, family, "bfl").startswith("text_encoders.t5xxl.transformer.") for name in found)


def unet_of(family: str) -> dict[str, tuple[int, ...]]:
    """One module of the denoiser in kohya's names, by which the family is known."""
    stem, out, inp = {
        "sdxl": ("lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_k", 640, 2048),
        "flux": ("lora_unet_double_blocks_0_img_attn_qkv", 9216, 3072),
        "sd3": ("lora_unet_joint_blocks_0_x_block_attn_qkv", 4608, 1536),
    }[family]
    return {f"{stem}.lora_down.weight": (4, inp), f"{stem}.lora_up.weight": (out, 4)}
