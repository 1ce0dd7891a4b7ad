"""Names of real LoRA files and of real files' key lists: family, format, algorithm, module count, accounting."""

import json
import re
from pathlib import Path

import pytest
from safetensors import safe_open

from nipstool.fuse_lora.names import Layout, Shape, read_layout, spell, writable_formats

Shapes = dict[str, Shape]

# family, format, algorithms, modules, what is refused: counted by hand from the names alone
KEYLISTS = {
    # one block: cross q, k, v, output; self q, k, v, output; mlp.layer1 and 2; one modulation
    "anima_lora_kohya_format": ("anima", "kohya", {"lora"}, 4 + 4 + 2 + 1, set()),
    "anima_lora_lokr_format": ("anima", "bfl", {"lokr"}, 3, {"DoRA"}),
    # 19 x (2 qkv, 2 proj, 4 mlp, 2 mod), 38 x (linear1, linear2, modulation), 2 final, 6 embedders, img_in, txt_in
    "flux_control_lora_format": ("flux", "bfl", {"lora"}, 19 * 10 + 38 * 3 + 2 + 6 + 2, {"control LoRA"}),
    # 12 x 6 CLIP, 24 x 7 T5, 19 x (4 and 4 of attention), 38 x (q, k, v)
    "flux_dora_onetrainer_format": ("flux", "onetrainer", {"lora"}, 12 * 6 + 24 * 7 + 19 * 8 + 38 * 3, {"DoRA"}),
    "flux_lokr_bfl_format": ("flux", "bfl", {"lokr"}, 6, set()),
    "flux_lora_aitoolkit_format": ("flux", "bfl", {"lora"}, 19 * 8 + 38 * 2, set()),
    # 19 x (4 + 4 of attention, 4 mlp, 2 norms), 38 x (q, k, v, norm, proj_mlp, proj_out)
    "flux_lora_diffusers_format": ("flux", "diffusers", {"lora"}, 19 * 14 + 38 * 6, set()),
    "flux_lora_diffusers_no_proj_mlp_format": ("flux", "diffusers", {"lora"}, 19 * 12 + 38 * 3, set()),
    "flux_lora_kohya_format": ("flux", "kohya", {"lora"}, 19 * 10 + 38 * 3, set()),
    "flux_lora_kohya_with_te1_format": ("flux", "kohya", {"lora"}, 19 * 10 + 38 * 3 + 12 * 6, set()),
    "flux_lora_xlabs_format": ("flux", "xlabs", {"lora"}, 3 * 4, set()),
    "qwen_image_lora_kohya_format": ("qwen-image", "kohya", {"lokr"}, 8, set()),
}
# family, format, modules, saved weights
FILES = {
    "sd15_pokemon_attnprocs": ("sd15", "attn-procs", 16 * 8, 0),
    "sd15_timohavdk_2100-lora": ("sd15", "diffusers-old", 16 * 8, 0),
    "sd15_timohavdk_pytorch_lora_weights": ("sd15", "diffusers-old", 16 * 8, 0),
    "peft_gpt2/adapter_model": ("unknown", "peft", 12, 1),
    "peft_gpt2_tigrinya/adapter_model": ("unknown", "peft", 12 * 3, 0),
    "peft_distilbert_imdb/adapter_model": ("unknown", "peft", 6 * 2, 4),
}


def keylist(folder: Path, name: str) -> Shapes:
    text = (folder / "fuse-lora" / "keylists" / f"{name}.json").read_text()
    return {key: tuple(shape) for key, shape in json.loads(text).items()}


def header(folder: Path, name: str) -> Shapes:
    with safe_open(folder / "fuse-lora" / f"{name}.safetensors", framework="np") as file:
        return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118


def everything(folder: Path) -> dict[str, Shapes]:
    return {name: keylist(folder, name) for name in KEYLISTS} | {name: header(folder, name) for name in FILES}


def accounted(layout: Layout) -> list[str]:
    modules = [*layout.modules, *(second for _, second in layout.duplicates)]
    keys = [key for module in modules for key in module.keys.values()]
    return sorted([*keys, *layout.additive, *layout.saved, *layout.unknown, *layout.refused_keys])


@pytest.mark.realdata
@pytest.mark.parametrize("name", KEYLISTS)
def test_key_lists(data_dir: Path, name: str):
    family, format, algorithms, count, refused = KEYLISTS[name]
    layout = read_layout(keylist(data_dir, name))
    assert (layout.family, layout.format) == (family, format)
    assert {module.algorithm for module in layout.modules} == algorithms
    assert len(layout.modules) == count
    assert {what for what, _ in layout.refused} == refused
    assert layout.unknown == ()
    assert layout.duplicates == ()


@pytest.mark.realdata
@pytest.mark.parametrize("name", FILES)
def test_real_files(data_dir: Path, name: str):
    family, format, count, saved = FILES[name]
    layout = read_layout(header(data_dir, name))
    assert (layout.family, layout.format, len(layout.modules), len(layout.saved)) == (family, format, count, saved)
    assert layout.prefix == ("base_model.model." if format == "peft" else "")
    assert layout.unknown == ()
    assert layout.refused == ()
    assert layout.duplicates == ()


@pytest.mark.realdata
def test_every_key_is_in_one_place(data_dir: Path):
    for name, shapes in everything(data_dir).items():
        assert accounted(read_layout(shapes)) == sorted(shapes), name


@pytest.mark.realdata
def test_a_stray_key_is_named(data_dir: Path):
    for name, shapes in everything(data_dir).items():
        plain = read_layout(shapes)
        layout = read_layout({**shapes, "foo.bar": (3,)})
        assert layout.unknown == ("foo.bar",), name
        assert accounted(layout) == sorted([*shapes, "foo.bar"])
        assert layout.modules == plain.modules


@pytest.mark.realdata
def test_order_is_that_of_the_file(data_dir: Path):
    for name, shapes in everything(data_dir).items():
        places = {key: place for place, key in enumerate(shapes)}
        downs = ("down", "w1", "w1_a")
        firsts = [
            places[next(m.keys[role] for role in downs if role in m.keys)] for m in read_layout(shapes).modules
        ]
        assert firsts == sorted(firsts), name


@pytest.mark.realdata
def test_spelling_what_was_read_is_the_identity(data_dir: Path):
    checked = set()
    for name, shapes in everything(data_dir).items():
        layout = read_layout(shapes)
        if layout.format not in writable_formats(layout.family):
            continue
        # BFL's own files carry no wrapper
        bare = layout.format == "bfl" and layout.prefix == ""
        for module in layout.modules:
            stem = spell(module.name, layout.family, layout.format)
            assert stem == ("diffusion_model." if bare else "") + module.stem, name
        checked.add(layout.format)
    assert checked == {"kohya", "diffusers", "peft", "bfl"}


@pytest.mark.realdata
def test_refused_key_lists_still_show_their_modules(data_dir: Path):
    layout = read_layout(keylist(data_dir, "flux_dora_onetrainer_format"))
    assert all("dora_scale" in module.keys for module in layout.modules)
    layout = read_layout(keylist(data_dir, "flux_control_lora_format"))
    assert all("bias" in module.keys for module in layout.modules)
    # the scales of 2 x 2 norms in each double block and of 2 in each single one
    assert len(layout.saved) == 19 * 4 + 38 * 2
    layout = read_layout(keylist(data_dir, "anima_lora_lokr_format"))
    assert ["dora_scale" in module.keys for module in layout.modules] == [True, True, False]


@pytest.mark.realdata
def test_two_spellings_of_sd15_agree_on_every_module(data_dir: Path):
    pokemon = read_layout(header(data_dir, "sd15_pokemon_attnprocs"))
    timo = read_layout(header(data_dir, "sd15_timohavdk_2100-lora"))
    names = {module.name for module in pokemon.modules}
    assert len(names) == 128
    assert names == {module.name for module in timo.modules}
    assert sum(name.endswith(".to_out.0") for name in names) == 32


@pytest.mark.realdata
def test_flux_key_lists_agree_across_formats(data_dir: Path):
    def parts(name: str) -> set[str]:
        return {part for module in read_layout(keylist(data_dir, name)).modules for part in module.parts}

    kohya, diffusers = parts("flux_lora_kohya_format"), parts("flux_lora_diffusers_format")
    assert len(diffusers) == 19 * 14 + 38 * 6
    assert kohya == diffusers
    # BFL's own list has the embedders besides
    assert {name for name in parts("flux_control_lora_format") if "transformer_blocks." in name} == kohya
    assert parts("flux_lora_aitoolkit_format") < kohya
    xlabs = {re.sub(r"\.10?\.", ".0.", name) for name in parts("flux_lora_xlabs_format")}
    assert len(xlabs) == 8
    assert xlabs < kohya
    with_te1 = parts("flux_lora_kohya_with_te1_format")
    assert {name for name in with_te1 if not name.startswith("text_encoder.")} == kohya


@pytest.mark.realdata
def test_sdxl_names_in_both_directions(data_dir: Path):
    modules = json.loads((data_dir / "fuse-lora" / "keylists" / "sdxl_unet_attn_modules.json").read_text())

    def layout(names: dict[str, list[int]], down: str, up: str, prefix: str = "") -> Layout:
        shapes: Shapes = {}
        for name, (out, inp) in names.items():
            shapes[prefix + name + down] = (4, inp)
            shapes[prefix + name + up] = (out, 4)
        return read_layout(shapes)

    kohya = layout(modules["kohya"], ".lora_down.weight", ".lora_up.weight")
    diffusers = layout(modules["diffusers"], ".lora_A.weight", ".lora_B.weight", "unet.")
    assert (kohya.family, kohya.format) == ("sdxl", "kohya")
    assert (diffusers.family, diffusers.format) == ("sdxl", "diffusers")
    expected = {"unet." + name for name in modules["diffusers"]}
    assert len(expected) == 722
    assert {module.name for module in kohya.modules} == expected
    assert {module.name for module in diffusers.modules} == expected
    assert {spell(name, "sdxl", "kohya") for name in expected} == set(modules["kohya"])
    assert {spell(module.name, "sdxl", "diffusers") for module in kohya.modules} == expected
