"""What the keys of LoRA files are to their modules: roles, duplicates, refusals, fused blocks, fuzzed keys."""

import string
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nipstool.fuse_lora.names import (
    Layout,
    Module,
    fusion_of,
    native_fused,
    part_rows,
    read_layout,
    spell,
    suffixes,
    swaps_halves,
    writable_formats,
)
from nipstool.fuse_lora.names.grouping import group_keys, widths
from nipstool.kit.errors import DataError

Shapes = dict[str, tuple[int, ...]]
ATTENTION = "down_blocks.1.attentions.0.transformer_blocks.0"
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


def accounted(layout: Layout) -> list[str]:
    modules = [*layout.modules, *(second for _, second in layout.duplicates)]
    keys = [key for module in modules for key in module.keys.values()]
    return sorted([*keys, *layout.additive, *layout.saved, *layout.unknown, *layout.refused_keys])


def test_two_spellings_of_one_module_are_both_shown():
    sgm = "lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_k"
    diffusers = "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k"
    shapes = {**lora(sgm, diffusers), f"{sgm}.alpha": (), f"{diffusers}.alpha": ()}
    layout = read_layout(shapes)
    assert [module.stem for module in layout.modules] == [sgm]
    assert [(a.stem, b.stem, b.keys["alpha"]) for a, b in layout.duplicates] == [
        (sgm, diffusers, f"{diffusers}.alpha")
    ]
    assert accounted(layout) == sorted(shapes)


def test_an_adapter_name_left_in_beside_the_plain_spelling():
    stem = f"unet.{ATTENTION}.attn2.to_k"
    shapes = {**lora(stem, pair="peft"), **lora(stem, pair="named")}
    layout = read_layout(shapes)
    ((first, second),) = layout.duplicates
    assert first.keys["down"] == f"{stem}.lora_A.weight"
    assert second.keys["down"] == f"{stem}.lora_A.default.weight"
    assert accounted(layout) == sorted(shapes)


def test_a_fused_block_and_a_part_of_it_overlap():
    shapes = lora("lora_unet_double_blocks_0_img_attn_qkv", "lora_unet_double_blocks_0_img_mlp_0")
    shapes |= lora("transformer.transformer_blocks.0.attn.to_v", pair="peft")
    layout = read_layout(shapes)
    assert len(layout.modules) == 2
    assert [second.name for _, second in layout.duplicates] == ["transformer.transformer_blocks.0.attn.to_v"]


def test_roles_of_every_algorithm():
    stem = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn1_to_q"
    keys = {
        "lora": ("lora_down.weight", "lora_up.weight", "lora_mid.weight", "alpha", "dora_scale", "diff_b"),
        "loha": tuple(f"hada_{role}" for role in ("w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2")),
        "lokr": ("lokr_w1", "lokr_w2_a", "lokr_w2_b", "lokr_t2", "alpha"),
    }
    roles = {
        "lora": {"down", "up", "mid", "alpha", "dora_scale", "bias"},
        "loha": {"w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2"},
        "lokr": {"w1", "w2_a", "w2_b", "t2", "alpha"},
    }
    for algorithm, ends in keys.items():
        layout = read_layout({f"{stem}.{end}": (4, 4) for end in ends})
        (module,) = layout.modules
        assert module.algorithm == algorithm
        assert set(module.keys) == roles[algorithm]
        assert all(module.keys[role].endswith(role) for role in ("w1_a", "t2", "alpha") if role in module.keys)


def test_deltas_without_factors_are_summed():
    stem = "diffusion_model.blocks.0.cross_attn"
    shapes = {
        **lora(f"{stem}.q", pair="kohya"),
        f"{stem}.q.diff_b": (640,),
        f"{stem}.norm_q.diff": (640,),
        f"{stem}.norm_q.diff_b": (640,),
        f"{stem}.norm_k.w_norm": (640,),
        f"{stem}.norm_k.set_weight": (640,),
    }
    layout = read_layout(shapes)
    assert layout.modules[0].keys["bias"] == f"{stem}.q.diff_b"
    assert layout.additive == (f"{stem}.norm_q.diff", f"{stem}.norm_q.diff_b", f"{stem}.norm_k.w_norm")
    assert layout.saved == (f"{stem}.norm_k.set_weight",)


@pytest.mark.parametrize(
    ("what", "ends"),
    [
        ("AdaLoRA", {"lora_A": (12, 64), "lora_B": (64, 12), "lora_E": (12, 1)}),
        ("OFT", {"oft_blocks": (4, 16, 16), "alpha": ()}),
        ("OFT", {"oft_R.weight": (4, 120)}),
        ("BOFT", {"oft_blocks": (2, 4, 16, 16), "alpha": ()}),
        ("BOFT", {"boft_R": (2, 4, 16, 16), "boft_s": (64, 1)}),
        (
            "GLoRA",
            {"a1.weight": (64, 4), "a2.weight": (4, 64), "b1.weight": (64, 4), "b2.weight": (4, 64), "alpha": ()},
        ),
        ("IA3", {"ia3_l": (1, 64)}),
        ("VeRA", {"vera_lambda_b": (64,), "vera_lambda_d": (8,)}),
    ],
)
def test_other_algorithms_are_refused_by_name(what: str, ends: Mapping[str, tuple[int, ...]]):
    stem = "base_model.model.encoder.layer.0.attention.q"
    shapes = {f"{stem}.{end}": shape for end, shape in ends.items()}
    layout = read_layout(shapes)
    assert [name for name, _ in layout.refused] == [what]
    assert layout.modules == ()
    assert layout.unknown == ()
    assert layout.refused[0][1] in shapes
    # a plain module beside it is still read
    beside = lora("base_model.model.encoder.layer.1.attention.q", pair="peft")
    assert len(read_layout({**shapes, **beside}).modules) == 1


@pytest.mark.parametrize(
    ("what", "shapes"),
    [
        ("cloneofsimo positional LoRA", {"unet:0:up": (320, 4), "unet:0:down": (4, 320)}),
        ("textual inversion", {"emb_params": (4, 768)}),
        ("textual inversion", {"clip_l": (4, 768), "clip_g": (4, 1280)}),
        ("textual inversion", {"<my cat>": (768,)}),
        ("VAE", {"decoder.conv_in.weight": (512, 4, 3, 3), "encoder.conv_in.bias": (128,)}),
        ("VAE", {"first_stage_model.decoder.conv_in.weight": (512, 4, 3, 3)}),
        ("full checkpoint", {"model.layers.0.self_attn.q_proj.weight": (64, 64)}),
        ("full checkpoint", {"encoder.layer.0.attention.self.query.weight": (64, 64)}),
        ("full checkpoint", {"model.diffusion_model.input_blocks.0.0.weight": (320, 4, 3, 3)}),
        ("control LoRA", {"lora_controlnet": (), "input_blocks.1.0.emb_layers.1.up": (320, 64)}),
        ("ControlNet-LLLite", {"lllite_unet_input_blocks_1_1_attn1_to_q.down.0.weight": (32, 320)}),
    ],
)
def test_files_that_hold_no_lora_are_named(what: str, shapes: Shapes):
    layout = read_layout(shapes)
    assert [name for name, _ in layout.refused] == [what]
    assert layout.modules == ()
    assert accounted(layout) == sorted(shapes)


def test_peft_magnitudes_are_dora():
    stem = "base_model.model.model.layers.0.q_proj"
    for end in ("lora_magnitude_vector", "lora_magnitude_vector.weight", "lora_magnitude_vector.default.weight"):
        layout = read_layout({**lora(stem, pair="peft"), f"{stem}.{end}": (640,)})
        assert layout.refused == (("DoRA", f"{stem}.{end}"),)
        assert layout.modules[0].keys["dora_scale"] == f"{stem}.{end}"


def test_a_factor_without_its_counterpart_has_no_place():
    stem = f"unet.{ATTENTION}.attn2.to_k"
    shapes = {f"{stem}.lora_down.weight": (4, 640), f"{stem}.alpha": ()}
    assert read_layout(shapes).unknown == tuple(shapes)
    assert read_layout({f"{stem}.hada_w1_a": (4, 4), f"{stem}.hada_w1_b": (4, 4)}).modules == ()
    assert read_layout({f"{stem}.lokr_w1": (4, 4), f"{stem}.lokr_w2_a": (4, 4)}).modules == ()


def test_what_peft_saves_besides():
    stem = "base_model.model.model.layers.0.q_proj"
    saved = [
        "base_model.model.score.weight",
        "base_model.model.lm_head.base_layer.weight",
        "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta",
        "base_model.model.model.layers.0.q_proj.bias",
    ]
    layout = read_layout({**lora(stem, pair="peft"), **dict.fromkeys(saved, (640,)), "base_model.model.x": (1,)})
    assert layout.saved == tuple(saved)
    assert layout.unknown == ("base_model.model.x",)
    # without the wrapper, what the config names
    bare = {**lora("layers.0.q_proj", pair="peft"), "head.dense.weight": (4, 4), "tail.weight": (4, 4)}
    layout = read_layout(bare, modules_to_save=("head",), is_peft=True)
    assert (layout.format, layout.saved, layout.unknown) == ("peft", ("head.dense.weight",), ("tail.weight",))


def test_peft_embeddings_have_suffixes_of_their_own():
    stem = "base_model.model.model.embed_tokens"
    shapes: Shapes = {f"{stem}.lora_embedding_A": (4, 32000), f"{stem}.lora_embedding_B": (64, 4)}
    (module,) = read_layout(shapes).modules
    assert module.embedding
    ends = suffixes("peft", embedding=True)
    assert {module.stem + ends[role] for role in ("down", "up")} == set(shapes)
    assert not read_layout(lora(stem, pair="peft")).modules[0].embedding


def test_widths_from_the_shapes_of_the_factors():
    def size(ends: Mapping[str, tuple[int, ...]]) -> tuple[int, int] | None:
        shapes = {f"unet.conv_in.{end}": shape for end, shape in ends.items()}
        (group,) = group_keys(shapes).complete
        return widths(group, shapes)

    lora_of_conv = {"lora_down.weight": (4, 32, 3, 3), "lora_up.weight": (64, 4, 1, 1)}
    assert size(lora_of_conv) == (64, 32)
    loha = {
        f"hada_{role}": (64, 4) if role.endswith("a") else (4, 32) for role in ("w1_a", "w1_b", "w2_a", "w2_b")
    }
    assert size(loha) == (64, 32)
    # Tucker: the rank stands in front in both factors
    loha |= {"hada_w1_a": (4, 64), "hada_w2_a": (4, 64), "hada_t1": (4, 4, 3, 3), "hada_t2": (4, 4, 3, 3)}
    assert size(loha) == (64, 32)
    assert size({"lokr_w1": (8, 2), "lokr_w2": (8, 16, 3, 3)}) == (64, 32)
    assert size({"lokr_w1_a": (8, 1), "lokr_w1_b": (1, 2), "lokr_w2_a": (8, 4), "lokr_w2_b": (4, 16)}) == (64, 32)
    assert size({"lokr_w1": (8, 2), "lokr_w2_a": (4, 8), "lokr_w2_b": (4, 16), "lokr_t2": (4, 4, 3, 3)}) == (
        64,
        32,
    )
    assert size({"lora_down.weight": (4,), "lora_up.weight": ()}) is None


def test_rows_of_the_parts():
    def module(stem: str, pair: str = "kohya") -> Module:
        return read_layout(lora(stem, pair=pair)).modules[0]

    linear1 = module("lora_unet_single_blocks_0_linear1")
    assert part_rows(linear1, 21504, 3072) == (3072, 3072, 3072, 12288)
    qkv = module("lora_unet_double_blocks_0_img_attn_qkv")
    assert part_rows(qkv, 9216, 3072) == (3072, 3072, 3072)
    assert part_rows(module("lora_unet_double_blocks_0_img_mlp_0"), 12288, 3072) == (12288,)
    with pytest.raises(DataError, match="9215 rows"):
        part_rows(qkv, 9215, 3072)
    with pytest.raises(DataError, match="linear1"):
        part_rows(linear1, 9216, 3072)


def test_fusion_names_the_block_and_all_its_parts():
    block = "transformer.single_transformer_blocks.12"
    parts = (f"{block}.attn.to_q", f"{block}.attn.to_k", f"{block}.attn.to_v", f"{block}.proj_mlp")
    for part in parts:
        assert fusion_of(part, "flux") == (f"{block}.linear1", parts)
    context = "transformer.transformer_blocks.1.attn"
    joint = tuple(f"{context}.add_{letter}_proj" for letter in "qkv")
    assert fusion_of(joint[2], "flux") == (f"{context}.add_qkv_proj", joint)
    for name in (f"{block}.proj_out", "text_encoder.text_projection", "transformer.h.0.attn.c_attn"):
        assert fusion_of(name, "flux") is None
    assert fusion_of(parts[0], "qwen-image") is None
    assert fusion_of(parts[0], "unknown") is None


def test_which_formats_fuse():
    assert {format for format in writable_formats("flux") if native_fused(format, "flux")} == {"kohya", "bfl"}
    assert not any(native_fused("kohya", family) for family in ("sdxl", "wan", "qwen-image", "unknown"))
    assert "bfl" not in writable_formats("sdxl")
    with pytest.raises(DataError, match="bfl"):
        spell(f"unet.{ATTENTION}.attn2.to_k", "sdxl", "bfl")
    with pytest.raises(DataError, match="xlabs"):
        spell("transformer.x_embedder", "flux", "xlabs")
    for family, prefix in {"sd15": "lora_te_", "sd2": "lora_te_", "sdxl": "lora_te1_"}.items():
        assert spell("text_encoder.text_projection", family, "kohya") == f"{prefix}text_projection"
    with pytest.raises(DataError, match="peft"):
        spell("text_encoder.text_projection", "sdxl", "peft")


def test_halves_are_swapped_where_they_are_two():
    stems = ("lora_unet_final_layer_adaLN_modulation_1", "lora_unet_double_blocks_0_img_mod_lin")
    layout = read_layout(lora(*stems, out=6144, inp=3072))
    assert [module.swap_halves for module in layout.modules] == [True, False]
    layout = read_layout(lora("transformer.norm_out.linear", "transformer.x_embedder", out=6144, inp=3072))
    assert not layout.modules[0].swap_halves
    assert not swaps_halves("transformer.norm_out.linear", "qwen-image", "kohya", 6144, 3072)


def test_suffixes_are_read_back():
    for format in ("kohya", "diffusers", "peft", "bfl"):
        ends = suffixes(format)
        stem = "lora_unet_mid_block_resnets_0_conv1"
        (module,) = read_layout({stem + end: (4, 4) for end in ends.values()}).modules
        assert module.keys == {role: stem + end for role, end in ends.items()}


STEMS = st.sampled_from(
    [
        "lora_unet_input_blocks_4_1_proj_in",
        "lora_unet_double_blocks_0_img_attn_qkv",
        "lora_te2_text_projection",
        "base_model.model.h.0.c_attn",
        "transformer.transformer_blocks.0.attn.to_q",
        "diffusion_model.blocks.#.self_attn.q",
        "lora_unet_blocks_0_self_attn_q",
        "transformer_blocks.{}.attn.to_q",
        "double_blocks.0.processor.qkv_lora1",
        "lora_unet_",
        "unet.",
        "",
    ]
)
ENDS = st.sampled_from(
    [
        *(f".lora_{side}.weight" for side in ("down", "up", "mid", "A", "B", "A.default", "B.x")),
        *(".lora_A", ".lora_B", ".lora_E", "_lora.down.weight", "_lora.up.weight", ".down.weight", ".up.weight"),
        *(".alpha", ".dora_scale", ".diff", ".diff_b", ".weight", ".bias", ".oft_blocks", ".set_weight"),
        *(f".hada_{role}" for role in ("w1_a", "w1_b", "w2_a", "w2_b", "t1", "zz")),
        *(f".lokr_{role}" for role in ("w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b", "t2")),
    ]
)
TEXT = st.text(alphabet=string.ascii_lowercase + string.digits + "._:#{}<>é٣", max_size=12)
KEYS = st.builds(str.__add__, STEMS, ENDS) | st.builds("{}{}{}".format, STEMS, TEXT, ENDS) | TEXT
SHAPES = st.lists(st.integers(0, 4096), max_size=5).map(tuple)


# whole modules too, since two random keys seldom meet
MODULES = st.lists(st.builds(lora, STEMS | st.builds(str.__add__, STEMS, TEXT), pair=st.sampled_from(list(PAIRS))))


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(KEYS, SHAPES, max_size=24),
    MODULES,
    st.dictionaries(TEXT, TEXT, max_size=2),
    st.booleans(),
)
def test_any_keys_are_accounted_for(loose: Shapes, modules: list[Shapes], metadata: dict[str, str], is_peft: bool):
    shapes = loose | {key: shape for module in modules for key, shape in module.items()}
    layout = read_layout(shapes, metadata, is_peft=is_peft)
    assert accounted(layout) == sorted(shapes)
    parts = [part for module in layout.modules for part in module.parts]
    assert len(parts) == len(set(parts))
    for module in layout.modules:
        for format in writable_formats(layout.family):
            try:
                stem = spell(module.name, layout.family, format)
            except DataError:
                continue
            assert stem
