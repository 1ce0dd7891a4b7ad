"""The same names as diffusers' own converters: every tensor carries its own number and is found again by it."""

import inspect
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nipstool.fuse_lora.names import part_rows, read_layout, spell, swaps_halves
from nipstool.fuse_lora.names.anima import ANIMA
from nipstool.fuse_lora.names.encoders import CLIP
from nipstool.fuse_lora.names.flux import FLUX
from nipstool.fuse_lora.names.qwen import QWEN
from nipstool.fuse_lora.names.sd3 import SD3
from nipstool.fuse_lora.names.wan import WAN

convert = pytest.importorskip("diffusers.loaders.lora_conversion_utils", reason="needs diffusers as oracle")
single_file = pytest.importorskip("diffusers.loaders.single_file_utils", reason="needs diffusers as oracle")
state_dicts = pytest.importorskip("diffusers.utils.state_dict_utils", reason="needs diffusers as oracle")

State = dict[str, torch.Tensor]
Shapes = dict[str, tuple[int, ...]]


def filled(stems: Iterable[str], rows: Callable[[str], int], down: str, up: str) -> tuple[State, dict[float, str]]:
    """LoRA of rank two whose down factors are filled with the number of their stem, and number -> stem."""
    state: State = {}
    numbers: dict[float, str] = {}
    for number, stem in enumerate(stems, start=1):
        numbers[float(number)] = stem
        state[stem + down] = torch.full((2, 2), float(number))
        state[stem + up] = torch.zeros(rows(stem), 2)
    return state, numbers


def names_by_stem(converted: State, numbers: dict[float, str], marker: str = ".lora_A") -> dict[str, list[str]]:
    """Stem -> the modules that its down factor went to, in the converter's order."""
    found: dict[str, list[str]] = {}
    for key, tensor in converted.items():
        if marker in key and key.endswith(".weight"):
            found.setdefault(numbers[tensor.flatten()[0].item()], []).append(key.partition(marker)[0])
    return found


def ours(state: State) -> dict[str, list[str]]:
    layout = read_layout({key: tuple(tensor.shape) for key, tensor in state.items()})
    assert layout.unknown == ()
    assert layout.duplicates == ()
    return {module.stem: list(module.parts) for module in layout.modules}


def keylist_stems(data_dir: Path, name: str) -> list[str]:
    keys = json.loads((data_dir / "fuse-lora" / "keylists" / f"{name}.json").read_text())
    return [module.stem for module in read_layout({key: tuple(shape) for key, shape in keys.items()}).modules]


def encoders_apart(converted: State) -> tuple[State, State]:
    """The text encoders' tensors under PEFT's names, by diffusers' own renaming, and the others."""
    encoders = {key: tensor for key, tensor in converted.items() if key.startswith("text_encoder")}
    others = {key: tensor for key, tensor in converted.items() if key not in encoders}
    if encoders:
        encoders = state_dicts.convert_state_dict_to_diffusers(encoders)
        encoders = state_dicts.convert_state_dict_to_peft(encoders)
    return encoders, others


def sdxl_by_diffusers(state: State) -> State:
    state = convert._maybe_map_sgm_blocks_to_diffusers(dict(state), SimpleNamespace(layers_per_block=2))
    converted, _ = convert._convert_non_diffusers_lora_to_diffusers(state)
    encoders, unet = encoders_apart(converted)
    return {**state_dicts.convert_unet_state_dict_to_peft(unet), **encoders}


@pytest.mark.realdata
def test_sdxl_kohya(data_dir: Path):
    modules = json.loads((data_dir / "fuse-lora" / "keylists" / "sdxl_unet_attn_modules.json").read_text())
    inner = [name for name, _ in CLIP.rows if name.startswith("text_model.encoder.")]
    encoders = [
        f"lora_te{encoder}_{name.format(layer).replace('.', '_')}"
        for encoder, layers in ((1, 12), (2, 32))
        for layer in range(layers)
        for name in inner
    ]
    stems = [*modules["kohya"], *encoders]
    assert len(stems) == 722 + 72 + 192
    state, numbers = filled(stems, lambda _: 2, ".lora_down.weight", ".lora_up.weight")
    theirs = names_by_stem(sdxl_by_diffusers(state), numbers)
    assert ours(state) == theirs


def test_sdxl_kohya_outside_attention():
    """Convolutions and embeddings: what LyCORIS trains besides."""
    stems = [
        "lora_unet_input_blocks_0_0",
        "lora_unet_out_2",
        *(f"lora_unet_time_embed_{n}" for n in (0, 2)),
        *(f"lora_unet_label_emb_0_{n}" for n in (0, 2)),
        *(f"lora_unet_input_blocks_{n}_0_op" for n in (3, 6)),
        *(f"lora_unet_output_blocks_{n}_2_conv" for n in (2, 5)),
    ]
    resnets = [f"input_blocks_{n}_0" for n in (1, 2, 4, 5, 7, 8)] + [f"output_blocks_{n}_0" for n in range(9)]
    for block in [*resnets, "middle_block_0", "middle_block_2"]:
        inner = ("in_layers_2", "out_layers_3", "emb_layers_1", "skip_connection")
        stems += [f"lora_unet_{block}_{name}" for name in inner]
    stems.append("lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q")
    state, numbers = filled(stems, lambda _: 2, ".lora_down.weight", ".lora_up.weight")
    theirs = names_by_stem(sdxl_by_diffusers(state), numbers)
    assert ours(state) == theirs


def flux_rows(stem: str) -> int:
    if stem.endswith("linear1"):
        return 7 * 3072
    return 3 * 3072 if "qkv" in stem else 2


def with_component(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """diffusers' kohya converter leaves the component away outside the blocks."""
    parts = ("transformer.", "text_encoder.")
    return {
        stem: [name if name.startswith(parts) else f"transformer.{name}" for name in names]
        for stem, names in found.items()
    }


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["flux_lora_kohya_format", "flux_lora_kohya_with_te1_format"])
def test_flux_kohya_key_lists(data_dir: Path, name: str):
    state, numbers = filled(keylist_stems(data_dir, name), flux_rows, ".lora_down.weight", ".lora_up.weight")
    encoders, transformer = encoders_apart(convert._convert_kohya_flux_lora_to_diffusers(dict(state)))
    assert ours(state) == names_by_stem(transformer | encoders, numbers)


def test_flux_kohya_every_module():
    stems = [f"lora_unet_{native.format(3).replace('.', '_')}" for native, _ in FLUX.rows]
    state, numbers = filled(stems, flux_rows, ".lora_down.weight", ".lora_up.weight")
    converted = convert._convert_kohya_flux_lora_to_diffusers(dict(state))
    assert ours(state) == with_component(names_by_stem(converted, numbers))


@pytest.mark.realdata
def test_flux_bfl_key_list(data_dir: Path):
    """diffusers reads these names with kohya's suffixes only."""
    stems = keylist_stems(data_dir, "flux_lora_aitoolkit_format")
    state, numbers = filled(stems, flux_rows, ".lora_down.weight", ".lora_up.weight")
    assert ours(state) == names_by_stem(convert._convert_kohya_flux_lora_to_diffusers(dict(state)), numbers)


@pytest.mark.realdata
def test_flux_control_key_list(data_dir: Path):
    """Bare BFL names: their converter takes the very key list, norms and biases included."""
    stems = keylist_stems(data_dir, "flux_control_lora_format")
    state, numbers = filled(stems, flux_rows, ".lora_A.weight", ".lora_B.weight")
    extra = json.loads((data_dir / "fuse-lora" / "keylists" / "flux_control_lora_format.json").read_text())
    whole = state | {key: torch.zeros(shape) for key, shape in extra.items() if key not in state}
    theirs = with_component(names_by_stem(convert._convert_bfl_flux_control_lora_to_diffusers(whole), numbers))
    # this converter does not go through q, k and v in order
    assert {stem: sorted(parts) for stem, parts in ours(state).items()} == {
        stem: sorted(parts) for stem, parts in theirs.items()
    }


@pytest.mark.realdata
def test_flux_xlabs_key_list(data_dir: Path):
    stems = keylist_stems(data_dir, "flux_lora_xlabs_format")
    stems += [f"single_blocks.7.processor.{name}" for name in ("qkv_lora", "proj_lora")]
    state, numbers = filled(stems, flux_rows, ".down.weight", ".up.weight")
    assert ours(state) == names_by_stem(convert._convert_xlabs_flux_lora_to_diffusers(dict(state)), numbers)


def test_flux_rows_are_cut_and_swapped_as_in_diffusers():
    fused = ("lora_unet_single_blocks_0_linear1", "lora_unet_double_blocks_0_txt_attn_qkv")
    rows = {fused[0]: 7 * 3072, fused[1]: 3 * 3072, "lora_unet_final_layer_adaLN_modulation_1": 2 * 3072}
    state: State = {}
    for stem, count in rows.items():
        state[f"{stem}.lora_down.weight"] = torch.ones(1, 3072)
        state[f"{stem}.lora_up.weight"] = torch.arange(count, dtype=torch.float32)[:, None]
    layout = read_layout({key: tuple(tensor.shape) for key, tensor in state.items()})
    converted = convert._convert_kohya_flux_lora_to_diffusers(dict(state))
    *whole, halves = layout.modules
    for module in whole:
        start = 0
        for part, count in zip(module.parts, part_rows(module, rows[module.stem], 3072), strict=True):
            assert converted[f"{part}.lora_B.weight"].flatten()[[0, -1]].tolist() == [start, start + count - 1]
            start += count
        assert start == rows[module.stem]
        assert not module.swap_halves
    assert halves.swap_halves
    assert converted["norm_out.linear.lora_B.weight"].flatten()[0] == 3072
    assert swaps_halves(halves.name, "flux", "bfl", 6144, 3072)
    assert not swaps_halves(halves.name, "flux", "diffusers", 6144, 3072)


def test_wan_by_its_two_converters():
    blocks = [native for native, _ in WAN.rows if native.startswith("blocks.")]
    heads = ["time_projection.1", "head.head", "img_emb.proj.1", "img_emb.proj.3"]
    heads += [f"{name}_embedding.{n}" for name in ("text", "time") for n in (0, 2)]
    dotted = ["diffusion_model." + native.format(n) for n in range(2) for native in blocks]
    dotted += ["diffusion_model." + name for name in heads]
    state, numbers = filled(dotted, lambda _: 2, ".lora_A.weight", ".lora_B.weight")
    theirs = names_by_stem(convert._convert_non_diffusers_wan_lora_to_diffusers(dict(state)), numbers)
    assert ours(state) == theirs
    flat = ["lora_unet_" + native.format(n).replace(".", "_") for n in range(2) for native in blocks]
    state, numbers = filled(flat, lambda _: 2, ".lora_down.weight", ".lora_up.weight")
    state |= {f"{stem}.alpha": torch.tensor(2.0) for stem in flat}
    theirs = names_by_stem(convert._convert_musubi_wan_lora_to_diffusers(dict(state)), numbers)
    assert ours(state) == theirs


def test_qwen_by_its_converter():
    names = [native.format(21) for native, _ in QWEN.rows]
    stems = [f"lora_unet_{name.replace('.', '_')}" for name in names]
    state, numbers = filled(stems, lambda _: 2, ".lora_down.weight", ".lora_up.weight")
    theirs = names_by_stem(convert._convert_non_diffusers_qwen_lora_to_diffusers(dict(state)), numbers)
    assert ours(state) == theirs


def test_anima_by_its_converter():
    stems = ["diffusion_model." + native.format(5) for native, _ in ANIMA.rows]
    state, numbers = filled(stems, lambda _: 2, ".lora_A.weight", ".lora_B.weight")
    theirs = names_by_stem(convert._convert_non_diffusers_anima_lora_to_diffusers(dict(state)), numbers)
    assert ours(state) == theirs


def numbered_checkpoint(natives: list[str], width: int) -> tuple[State, dict[float, str]]:
    """Weights and biases of every native module, each row of a weight filled with the module's number."""
    state: State = {}
    numbers = {}
    for number, native in enumerate(natives, start=1):
        numbers[float(number)] = native
        rows = 3 * width if "qkv" in native else 2 * width
        state[f"{native}.weight"] = torch.full((rows, width), float(number))
        state[f"{native}.bias"] = torch.zeros(rows)
    return state, numbers


def test_sd3_by_the_checkpoint_converter():
    """diffusers has no converter of SD3 LoRAs: that of the checkpoints says the same."""
    last = 1
    natives = [native.format(n) for native, _ in SD3.rows for n in range(last + 1) if "{}" in native or n == 0]
    # the last block's context ends with its modulation
    ends = ("context_block.attn.proj", "context_block.mlp.fc1", "context_block.mlp.fc2")
    natives = [name for name in natives if not (name.startswith(f"joint_blocks.{last}.") and name.endswith(ends))]
    state, numbers = numbered_checkpoint(natives, 4)
    state["pos_embed"] = torch.zeros(1)
    converted = single_file.convert_sd3_transformer_checkpoint_to_diffusers(dict(state))
    converted.pop("pos_embed.pos_embed")
    theirs = names_by_stem(converted, numbers, ".weight")
    lora, _ = filled(
        ["diffusion_model." + name for name in natives], lambda _: 4, ".lora_A.weight", ".lora_B.weight"
    )
    mine = {stem.removeprefix("diffusion_model."): parts for stem, parts in ours(lora).items()}
    assert mine == {stem: [f"transformer.{name}" for name in names] for stem, names in theirs.items()}


def test_sd3_swaps_the_modulations_of_two_halves():
    # that diffusers swaps just these is in the source of its converter
    source = inspect.getsource(single_file.convert_sd3_transformer_checkpoint_to_diffusers)
    assert source.count("swap_scale_shift(") == 4
    shapes: Shapes = {}
    for stem, out in {
        "joint_blocks.22.context_block.adaLN_modulation.1": 6 * 1536,
        "joint_blocks.23.context_block.adaLN_modulation.1": 2 * 1536,
        "joint_blocks.23.x_block.adaLN_modulation.1": 6 * 1536,
        "final_layer.adaLN_modulation.1": 2 * 1536,
        "final_layer.linear": 64,
    }.items():
        shapes[f"diffusion_model.{stem}.lora_A.weight"] = (4, 1536)
        shapes[f"diffusion_model.{stem}.lora_B.weight"] = (out, 4)
    layout = read_layout(shapes)
    assert layout.family == "sd3"
    assert [module.swap_halves for module in layout.modules] == [False, True, False, True, False]
    name = layout.modules[1].name
    assert swaps_halves(name, "sd3", "kohya", 3072, 1536)
    assert not swaps_halves(name, "sd3", "kohya", 9216, 1536)
    assert spell(name, "sd3", "kohya") == "lora_unet_joint_blocks_23_context_block_adaLN_modulation_1"
