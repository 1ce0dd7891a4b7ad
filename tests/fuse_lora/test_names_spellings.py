"""Every trainer's spelling of a module, and the family a file's names and shapes point to."""

import pytest

from nipstool.fuse_lora.names import Layout, read_layout, spell
from nipstool.kit.errors import DataError

Shapes = dict[str, tuple[int, ...]]
BLOCK = "down_blocks.1.attentions.0.transformer_blocks.0"
FLAT = "down_blocks_1_attentions_0_transformer_blocks_0"
SGM = "input_blocks_4_1_transformer_blocks_0"
KEY, OUT = f"unet.{BLOCK}.attn2.to_k", f"unet.{BLOCK}.attn2.to_out.0"
NORM = "transformer.transformer_blocks.18.norm1_context.linear"
LAYER = "text_model.encoder.layers.3"
PAIRS = {
    "kohya": (".lora_down.weight", ".lora_up.weight"),
    "peft": (".lora_A.weight", ".lora_B.weight"),
    "bare": (".lora_A", ".lora_B"),
    "named": (".lora_A.default.weight", ".lora_B.default.weight"),
    "dotted": (".lora.down.weight", ".lora.up.weight"),
    "processor": ("_lora.down.weight", "_lora.up.weight"),
    "linear": (".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight"),
}


def lora(*stems: str, pair: str = "kohya", out: int = 640, inp: int = 640, rank: int = 4) -> Shapes:
    down, up = PAIRS[pair]
    shapes: Shapes = {}
    for stem in stems:
        shapes |= {stem + down: (rank, inp), stem + up: (out, rank)}
    return shapes


def names(layout: Layout) -> list[str]:
    return [module.name for module in layout.modules]


@pytest.mark.parametrize(
    ("stem", "pair", "format", "name"),
    [
        (f"lora_unet_{SGM}_attn2_to_out_0", "kohya", "kohya", OUT),
        (f"lora_unet_{FLAT}_attn2_to_k", "kohya", "kohya", KEY),
        (f"lycoris_{FLAT}_attn2_to_k", "kohya", "lycoris", KEY),
        (f"unet.{BLOCK}.attn2.to_k", "peft", "diffusers", KEY),
        (f"unet.{BLOCK}.attn2.to_k", "named", "diffusers", KEY),
        (f"unet.{BLOCK}.attn2.to_k", "bare", "diffusers", KEY),
        (f"unet.{BLOCK}.attn2.to_out.0", "dotted", "diffusers-old", OUT),
        (f"unet.{BLOCK}.attn2.processor.to_out", "processor", "diffusers-old", OUT),
        (f"{BLOCK}.attn2.processor.to_out", "processor", "attn-procs", OUT),
        (f"unet.base_model.model.{BLOCK}.attn2.to_k", "peft", "diffusers", KEY),
        (f"base_model.model.{BLOCK}.attn2.to_k", "peft", "peft", KEY),
        (f"base_model.model.unet.{BLOCK}.attn2.to_k", "peft", "peft", KEY),
        ("diffusion_model.input_blocks.4.1.transformer_blocks.0.attn2.to_k", "kohya", "bfl", KEY),
        # in SD1.5 the first block on the way up has no attention between its layers and the upsampler
        ("diffusion_model.output_blocks.2.1.conv", "kohya", "bfl", "unet.up_blocks.0.upsamplers.0.conv"),
        ("diffusion_model.output_blocks.5.2.conv", "kohya", "bfl", "unet.up_blocks.1.upsamplers.0.conv"),
        ("lora_unet_double_blocks_18_txt_mod_lin", "kohya", "kohya", NORM),
        ("diffusion_model.double_blocks.18.txt_mod.lin", "peft", "bfl", NORM),
        ("double_blocks.18.txt_mod.lin", "peft", "bfl", NORM),
        ("base_model.model.double_blocks.18.txt_mod.lin", "peft", "bfl", NORM),
        ("transformer.double_blocks.18.txt_mod.lin", "kohya", "onetrainer", NORM),
        ("lora_transformer_transformer_blocks_18_norm1_context_linear", "kohya", "onetrainer", NORM),
        ("lora_unet_blocks_3_cross_attn_k_img", "kohya", "kohya", "transformer.blocks.3.attn2.add_k_proj"),
        ("lora_unet__blocks_3_ffn_0", "kohya", "kohya", "transformer.blocks.3.ffn.net.0.proj"),
        ("diffusion_model.blocks.3.self_attn.o", "peft", "bfl", "transformer.blocks.3.attn1.to_out.0"),
        (
            "lora_unet_joint_blocks_3_x_block_mlp_fc2",
            "kohya",
            "kohya",
            "transformer.transformer_blocks.3.ff.net.2",
        ),
        (
            "diffusion_model.transformer_blocks.3.txt_mod.1",
            "named",
            "bfl",
            "transformer.transformer_blocks.3.txt_mod.1",
        ),
    ],
)
def test_spellings(stem: str, pair: str, format: str, name: str):
    layout = read_layout(lora(stem, pair=pair))
    assert (names(layout), layout.format, layout.unknown) == ([name], format, ())
    assert layout.modules[0].stem == stem


@pytest.mark.parametrize(
    ("stem", "pair", "name"),
    [
        ("lora_te_text_model_encoder_layers_3_mlp_fc1", "kohya", f"text_encoder.{LAYER}.mlp.fc1"),
        (
            "lora_te1_text_model_encoder_layers_3_self_attn_q_proj",
            "kohya",
            f"text_encoder.{LAYER}.self_attn.q_proj",
        ),
        ("lora_te2_text_projection", "kohya", "text_encoder_2.text_projection"),
        (f"text_encoder.{LAYER}.self_attn.to_out", "processor", f"text_encoder.{LAYER}.self_attn.out_proj"),
        (f"text_encoder.{LAYER}.self_attn.out_proj", "linear", f"text_encoder.{LAYER}.self_attn.out_proj"),
        (f"text_encoders.clip_g.transformer.{LAYER}.mlp.fc2", "kohya", f"text_encoder_2.{LAYER}.mlp.fc2"),
        (f"clip_l.{LAYER}.mlp.fc2", "kohya", f"text_encoder.{LAYER}.mlp.fc2"),
    ],
)
def test_spellings_of_text_encoders(stem: str, pair: str, name: str):
    unet = lora("lora_unet_down_blocks_1_resnets_0_conv1")
    layout = read_layout({**unet, **lora(stem, pair=pair)})
    assert names(layout)[1:] == [name]
    # a file with that encoder alone
    layout = read_layout(lora(stem, pair=pair))
    assert names(layout) == [name]
    assert (layout.format == "diffusers-old") == (pair in ("processor", "linear"))


@pytest.mark.parametrize(("width", "family"), [(768, "sd15"), (1024, "sd2"), (2048, "sdxl")])
def test_stable_diffusion_is_known_by_its_cross_attention(width: int, family: str):
    stem = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn2_to_v"
    assert read_layout(lora(stem, inp=width)).family == family
    roles = ("w1_a", "w1_b", "w2_a", "w2_b")
    loha = {f"{stem}.hada_{role}": (640, 4) if role[-1] == "a" else (4, width) for role in roles}
    assert read_layout(loha).family == family
    # Tucker factors have the rank in front
    loha = {f"{stem}.hada_{role}": (4, 640) if role[-1] == "a" else (4, width) for role in roles}
    loha |= {f"{stem}.hada_t1": (4, 4, 3, 3), f"{stem}.hada_t2": (4, 4, 3, 3)}
    assert read_layout(loha).family == family
    lokr = {f"{stem}.lokr_w1": (8, 8), f"{stem}.lokr_w2_a": (80, 4), f"{stem}.lokr_w2_b": (4, width // 8)}
    assert read_layout(lokr).family == family


def test_stable_diffusion_is_known_by_its_blocks_and_then_by_metadata():
    resnet = "lora_unet_up_blocks_{}_resnets_0_conv1"
    assert read_layout(lora(resnet.format(3))).family == "sd15"
    assert read_layout(lora("lora_unet_label_emb_0_0", resnet.format(1))).family == "sdxl"
    assert read_layout(lora("unet.down_blocks.1.attentions.1.transformer_blocks.1.ff.net.2")).family == "sdxl"
    for version, family in {"sdxl_base_v1-0": "sdxl", "sd_v1": "sd15", "sd_v2_v": "sd2"}.items():
        assert read_layout(lora(resnet.format(1)), {"ss_base_model_version": version}).family == family
    metadata = {"modelspec.architecture": "stable-diffusion-xl-v1-base/lora"}
    assert read_layout(lora(resnet.format(1)), metadata).family == "sdxl"
    # names win over what the trainer wrote
    assert read_layout(lora(resnet.format(3)), metadata).family == "sd15"


def test_attention_of_flux_sd3_and_qwen_image():
    stem = "transformer.transformer_blocks.{}.attn.to_q"
    assert read_layout(lora(stem.format(3), inp=3072)).family == "flux"
    assert read_layout(lora(stem.format(3), inp=1536)).family == "sd3"
    assert read_layout(lora(stem.format(59), inp=3072)).family == "qwen-image"
    assert read_layout(lora("lora_unet_transformer_blocks_3_attn_to_q", inp=3072)).family == "qwen-image"
    assert read_layout(lora("diffusion_model.transformer_blocks.3.attn.to_q", inp=3072)).family == "qwen-image"
    metadata = {"ss_base_model_version": "qwen_image"}
    assert read_layout(lora(stem.format(3), inp=3072), metadata).family == "qwen-image"


@pytest.mark.parametrize(
    "shapes",
    [
        # HunyuanVideo, Chroma, FLUX.2 and LTX-Video share names with a family they are not of
        lora(*(f"lora_unet_double_blocks_0_{name}" for name in ("img_attn_qkv", "img_mlp_fc1", "img_mod_linear"))),
        lora(
            *(f"lora_unet_double_blocks_{n}_img_mlp_0" for n in range(19)),
            "lora_unet_distilled_guidance_layer_in_proj",
        ),
        lora(*(f"diffusion_model.single_blocks.{n}.linear1" for n in range(9)), out=9 * 3072, inp=3072),
        lora(*(f"transformer.transformer_blocks.{n}.attn1.to_q" for n in range(9)), inp=2048, pair="peft"),
        lora(*(f"lora_unet_layers_{n}_attention_qkv" for n in range(9))),
        lora(*(f"base_model.model.model.layers.{n}.self_attn.q_proj" for n in range(9)), pair="peft"),
        lora("lora_prior_unet_down_blocks_0_1", "lora_prior_te_text_model_encoder_layers_0_mlp_fc1"),
        lora("base_model.model.classifier", pair="peft"),
        lora("base_model.model.text_model.encoder.layers.0.self_attn.q_proj", pair="peft"),
    ],
)
def test_a_family_in_no_table_keeps_its_names(shapes: Shapes):
    layout = read_layout(shapes)
    assert layout.family == "unknown"
    assert layout.unknown == ()
    assert len(layout.modules) == len(shapes) // 2
    for module in layout.modules:
        assert layout.prefix + module.name == module.stem
        assert module.parts == (module.name,)
        assert spell(module.name, "unknown", layout.format) == module.stem


def test_unknown_names_are_written_in_their_own_syntax_only():
    assert spell("model.layers.0.q_proj", "unknown", "peft") == "base_model.model.model.layers.0.q_proj"
    assert spell("layers.0.attention.qkv", "unknown", "bfl") == "diffusion_model.layers.0.attention.qkv"
    with pytest.raises(DataError, match="kohya"):
        spell("model.layers.0.q_proj", "unknown", "kohya")
    with pytest.raises(DataError, match="diffusers"):
        spell("lora_unet_layers_0_qkv", "unknown", "diffusers")


def test_an_unknown_module_of_a_known_family_is_named():
    shapes = lora(
        *(f"lora_unet_double_blocks_{n}_img_mlp_0" for n in range(19)), "lora_unet_double_blocks_0_img_foo"
    )
    layout = read_layout(shapes)
    assert layout.family == "flux"
    assert len(layout.modules) == 19
    assert layout.unknown == tuple(key for key in shapes if "foo" in key)


def test_an_unknown_text_encoder_is_kept():
    stem = "lora_te_layers_0_mlp_down_proj"
    layout = read_layout(lora("lora_unet_blocks_0_self_attn_q_proj", stem))
    assert layout.family == "anima"
    assert names(layout) == ["transformer.transformer_blocks.0.attn1.to_q", stem]
    assert spell(stem, "anima", "kohya") == stem
    for name in (stem, "text_encoder.layers.0.mlp.down_proj"):
        with pytest.raises(DataError, match=name):
            spell(name, "anima", "bfl")
