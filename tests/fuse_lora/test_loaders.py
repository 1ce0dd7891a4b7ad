"""Fused files loaded by diffusers and PEFT: the model's output is that with the dense result in its weights."""

import copy
import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from nipstool.fuse_lora import convert, fuse
from tests.fuse_lora.lora_files import (
    Dense,
    Lora,
    dense,
    deviation,
    directions,
    dotted,
    flux_shapes,
    flux_split,
    kohya,
    kohya_flux,
    kohya_sd15,
    kohya_sdxl,
    np_lora,
    random_lora,
    read,
    save,
)

pytest.importorskip("diffusers", reason="needs diffusers as oracle")
pytest.importorskip("peft", reason="needs PEFT as oracle")

from diffusers.loaders import lora_conversion_utils, lora_pipeline, single_file_utils
from diffusers.loaders.lora_pipeline import (
    FluxLoraLoaderMixin,
    StableDiffusionLoraLoaderMixin,
    StableDiffusionXLLoraLoaderMixin,
)
from peft import PeftModel
from transformers import GPT2Config, GPT2LMHeadModel

from tests.fuse_lora.models import FLUX_WIDTH, Small, complaints, small_flux, small_sd15, small_sdxl

MUS = (0.0, 0.5, math.inf)
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT's, not ours


def resized(module: ModuleType, name: str, wide: str, small: str) -> Callable[..., Any]:
    """One of diffusers' converters of FLUX, for a model of another width than the one written into it."""
    source = inspect.getsource(getattr(module, name))
    assert wide in source
    names = dict(vars(module))
    exec(source.replace(wide, small), names)
    return names[name]


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


def reference(content: Dense, style: Dense) -> dict[float, Dense]:
    """What each mu makes of the two, module by module."""
    V = {name: directions(style[name]) for name in content.keys() & style.keys()}
    return {
        mu: {**content, **style, **{name: np_lora(content[name], [style[name]], mu, V=V[name]) for name in V}}
        for mu in MUS
    }


def check_output(found: Tensor, wanted: Tensor, plain: Tensor) -> None:
    """The wanted output, and one that the LoRA has changed."""
    scale = wanted.abs().max()
    assert float((found - wanted).abs().max() / scale) < 1e-5
    assert float((found - plain).abs().max() / scale) > 1e-2


@dataclass(frozen=True)
class Case:
    """A small model, two files for it, and what is expected of their fusion with each mu."""

    small: Small
    content: Path
    style: Path
    expected: Mapping[float, Dense]
    outputs: Mapping[float, Tensor]

    def check(self, loaded: nn.Module, mu: float) -> None:
        check_output(self.small.run(loaded), self.outputs[mu], self.small.run(self.small.model))


def make_case(folder: Path, small: Small, content: Lora, stem: Callable[[str], str]) -> Case:
    """A kohya file at scale 2, and a diffusers file of another rank that lacks every fourth layer."""
    some = {name: shape for place, (name, shape) in enumerate(small.shapes.items()) if place % 4}
    style = random_lora(some, 4, 2, size=0.5)
    a = save(folder / "content.safetensors", kohya(content, stem, alpha=6.0))
    b = save(folder / "style.safetensors", dotted(style))
    updates = {name: 2.0 * W for name, W in dense(content).items()}
    if small.component == "transformer":
        updates = flux_split(updates)
    expected = reference(updates, dense(style))
    with torch.no_grad():
        return Case(small, a, b, expected, {mu: small.output_with(W) for mu, W in expected.items()})


@pytest.fixture(scope="module")
def sd15(tmp_path_factory: pytest.TempPathFactory) -> Case:
    small = small_sd15()
    content = random_lora(small.shapes, 3, 1, size=0.5)
    return make_case(tmp_path_factory.mktemp("sd15"), small, content, kohya_sd15)


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Case:
    small = small_sdxl()
    content = random_lora(small.shapes, 3, 1, size=0.5)
    return make_case(tmp_path_factory.mktemp("sdxl"), small, content, kohya_sdxl)


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The content in fused blocks, the style in split ones and in the layers around them."""
    content = random_lora(flux_shapes(FLUX_WIDTH, 1, 2), 3, 1, size=0.5)
    return make_case(tmp_path_factory.mktemp("flux"), small_flux(), content, kohya_flux)


# --- UNets ----------------------------------------------------------------------------------------


def load_unet(loader: Any, path: Path, unet: nn.Module) -> nn.Module:
    """As a pipeline does it: read, convert, and put into the model."""
    state, alphas, metadata = loader.lora_state_dict(
        str(path.parent), weight_name=path.name, unet_config=unet.config, return_lora_metadata=True
    )
    loader.load_lora_into_unet(state, alphas, unet, metadata=metadata)
    return unet


def load_peft(folder: Path, model: nn.Module) -> nn.Module:
    """PEFT's own way; nothing may be missing or left over."""
    loaded = PeftModel.from_pretrained(model, str(folder))
    result = loaded.load_adapter(str(folder), "again")
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    return loaded


UNETS = [
    *(("sd15", format, mu) for format in ("kohya", "diffusers", "peft") for mu in MUS),
    *(("sdxl", format, mu) for format in ("kohya", "diffusers") for mu in MUS),
    ("sdxl", "peft", 0.5),
]


@pytest.mark.parametrize(("family", "format", "mu"), UNETS)
def test_unet(tmp_path: Path, request: pytest.FixtureRequest, family: str, format: str, mu: float) -> None:
    case: Case = request.getfixturevalue(family)
    loader = {"sd15": StableDiffusionLoraLoaderMixin, "sdxl": StableDiffusionXLLoraLoaderMixin}[family]
    out = tmp_path / ("folder" if format == "peft" else "out.safetensors")
    fusion = fuse(case.content, [case.style], out, mu=mu, format=format)
    assert fusion.family == family
    assert len(fusion.modules) == len(case.small.shapes)
    with complaints() as said:
        model = case.small.fresh()
        loaded = load_peft(out, model) if format == "peft" else load_unet(loader, out, model)
    assert said == []
    case.check(loaded, mu)


def test_kohya_modules_that_pass_keep_their_alpha_where_they_can(tmp_path: Path, sd15: Case) -> None:
    """Convolutions may have another alpha, as in LoCon files; attention layers all get one, or diffusers errs."""
    small = sd15.small
    layers = {n: s for n, s in small.shapes.items() if ".attentions." in n and len(s) == 2}
    convolutions = {n: s for n, s in small.shapes.items() if n.endswith("conv1")}
    alone = {n: s for n, s in layers.items() if n.startswith("unet.mid_block") and "attn2" in n}
    both = {n: s for n, s in layers.items() if "attn1" in n}
    first = random_lora({n: s for n, s in layers.items() if n not in alone}, 4, 1, size=0.5)
    second, style = random_lora(convolutions, 4, 2, size=0.5), random_lora({**both, **alone}, 5, 3, size=0.5)
    state = kohya(first, kohya_sd15, alpha=2.0) | kohya(second, kohya_sd15, alpha=1.0)
    a = save(tmp_path / "a.safetensors", state)
    b = save(tmp_path / "b.safetensors", kohya(style, kohya_sd15, alpha=10.0))
    fuse(a, [b], tmp_path / "out.safetensors", mu=0.5)
    written = load_file(tmp_path / "out.safetensors")
    met = {kohya_sd15(name) for name in both}
    kept = [key for key in state if key.partition(".")[0] not in met]
    assert len(kept) == 3 * (len(first) - len(both) + len(second))
    assert all(torch.equal(written[key], state[key]) for key in kept)
    assert {float(t) for key, t in written.items() if "_attn" in key and key.endswith(".alpha")} == {2.0}
    content = {n: W / 2 for n, W in dense(first).items()} | {n: W / 4 for n, W in dense(second).items()}
    with complaints() as said:
        loaded = load_unet(StableDiffusionLoraLoaderMixin, tmp_path / "out.safetensors", small.fresh())
    assert said == []
    wanted = small.output_with(reference(content, {n: 2 * W for n, W in dense(style).items()})[0.5])
    check_output(small.run(loaded), wanted, small.run(small.model))


# --- FLUX -----------------------------------------------------------------------------------------


def load_flux(path: Path, transformer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    name, wide = "_convert_kohya_flux_lora_to_diffusers", "[3072, 3072, 3072, 12288]"
    small = str([FLUX_WIDTH, FLUX_WIDTH, FLUX_WIDTH, 4 * FLUX_WIDTH])
    monkeypatch.setattr(lora_pipeline, name, resized(lora_conversion_utils, name, wide, small))
    state, alphas, metadata = FluxLoraLoaderMixin.lora_state_dict(
        str(path.parent), weight_name=path.name, return_alphas=True, return_lora_metadata=True
    )
    # outside the blocks this converter leaves the component away, and the loader would then pass them over
    state = {key if key.startswith("transformer.") else f"transformer.{key}": t for key, t in state.items()}
    FluxLoraLoaderMixin.load_lora_into_transformer(state, alphas, transformer, metadata=metadata)
    return transformer


def bfl_updates(path: Path, small: Small) -> Dense:
    """The updates of a BFL file under diffusers' names, by diffusers' converter of BFL's checkpoints.

    A checkpoint is made whose weights are the updates, with zeros for what the file does not have.
    """
    found = {stem.removeprefix("diffusion_model."): W for stem, W in read(path).items()}
    checkpoint: dict[str, Tensor] = {}
    for name, (rows, columns) in bfl_shapes(small).items():
        W = found.pop(name, np.zeros((rows, columns)))
        checkpoint[f"{name}.weight"], checkpoint[f"{name}.bias"] = torch.from_numpy(W), torch.zeros(rows)
    assert found == {}
    for block in {name.split(".")[1] for name in bfl_shapes(small) if name.startswith("double")}:
        for side in ("img", "txt"):
            for which in ("query", "key"):
                checkpoint[f"double_blocks.{block}.{side}_attn.norm.{which}_norm.scale"] = torch.zeros(1)
    for block in {name.split(".")[1] for name in bfl_shapes(small) if name.startswith("single")}:
        for which in ("query", "key"):
            checkpoint[f"single_blocks.{block}.norm.{which}_norm.scale"] = torch.zeros(1)
    name = "convert_flux_transformer_checkpoint_to_diffusers"
    convert = resized(single_file_utils, name, "inner_dim = 3072", f"inner_dim = {FLUX_WIDTH}")
    weights = {f"transformer.{key}": W for key, W in convert(checkpoint).items() if key.endswith(".weight")}
    names = small.shapes.keys()
    return {key.removesuffix(".weight"): W.numpy() for key, W in weights.items() if key[:-7] in names}


def bfl_shapes(small: Small) -> dict[str, tuple[int, int]]:
    shapes = flux_shapes(FLUX_WIDTH, 1, 2)
    for bfl, name in {
        "img_in": "x_embedder",
        "txt_in": "context_embedder",
        "final_layer.linear": "proj_out",
        "final_layer.adaLN_modulation.1": "norm_out.linear",
        **{
            f"{bfl}.{side}_layer": f"time_text_embed.{embedder}_embedder.linear_{number}"
            for bfl, embedder in (("time_in", "timestep"), ("guidance_in", "guidance"), ("vector_in", "text"))
            for side, number in (("in", 1), ("out", 2))
        },
    }.items():
        rows, columns = small.shapes[f"transformer.{name}"]
        shapes[bfl] = rows, columns
    return shapes


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("format", ["kohya", "diffusers", "peft", "bfl"])
def test_flux(tmp_path: Path, flux: Case, monkeypatch: pytest.MonkeyPatch, format: str, mu: float) -> None:
    out = tmp_path / ("folder" if format == "peft" else "out.safetensors")
    fusion = fuse(flux.content, [flux.style], out, mu=mu, format=format)
    assert fusion.family == "flux"
    with complaints() as said:
        model = flux.small.fresh()
        loaded = load_peft(out, model) if format == "peft" else load_flux(out, model, monkeypatch)
    assert said == []
    flux.check(loaded, mu)


def test_bfl_by_the_converter_of_checkpoints(tmp_path: Path, flux: Case) -> None:
    fuse(flux.content, [flux.style], tmp_path / "out.safetensors", mu=0.5, format="bfl")
    found = bfl_updates(tmp_path / "out.safetensors", flux.small)
    assert found.keys() == flux.small.shapes.keys() >= flux.expected[0.5].keys()
    for name, W in found.items():
        assert deviation(W, flux.expected[0.5].get(name, np.zeros_like(W))) < 1e-6, name


# --- GPT-2 ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2() -> GPT2LMHeadModel:
    """One layer of the real width: as many as are compared."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=1, vocab_size=32, n_positions=16)).eval()


@pytest.fixture
def gpt2_pair(data_dir: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The real adapters' first layer, without the classifier's head."""
    folders = []
    for name in ("peft_gpt2", "peft_gpt2_tigrinya"):
        source, folder = data_dir / "fuse-lora" / name, tmp_path / name
        state = load_file(source / "adapter_model.safetensors")
        first = {key: tensor for key, tensor in state.items() if ".h.0." in key}
        save(folder / "adapter_model.safetensors", first)
        config = json.loads((source / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | {"task_type": None}))
        folders.append(folder)
    return folders[0], folders[1]


@pytest.mark.realdata
@pytest.mark.parametrize(("kind", "rank", "most"), [("cat", None, 1e-6), ("svd", 8, 1e-5)])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.7, -0.4)])
def test_mu_0_is_pefts_weighted_adapter(
    tmp_path: Path,
    gpt2: GPT2LMHeadModel,
    gpt2_pair: tuple[Path, Path],
    kind: str,
    rank: int | None,
    most: float,
    weights: tuple[float, float],
) -> None:
    model = PeftModel.from_pretrained(copy.deepcopy(gpt2), str(gpt2_pair[0]), adapter_name="content")
    model.load_adapter(str(gpt2_pair[1]), "style")
    model.add_weighted_adapter(
        ["content", "style"], list(weights), "both", combination_type=kind, svd_rank=rank, svd_full_matrices=False
    )
    fuse(gpt2_pair[0], [gpt2_pair[1]], tmp_path / "out", mu=0.0, rank=rank, weights=weights)
    found = read(tmp_path / "out")
    compared = 0
    for name, layer in model.named_modules():
        if hasattr(layer, "lora_A") and "both" in layer.lora_A:
            B, A = (getattr(layer, side)["both"].weight.double().numpy() for side in ("lora_B", "lora_A"))
            assert deviation(found[name], layer.scaling["both"] * (B @ A)) < most, name
            compared += 1
    assert compared == len(found) == 3


@pytest.mark.realdata
def test_gpt2(tmp_path: Path, gpt2: GPT2LMHeadModel, gpt2_pair: tuple[Path, Path]) -> None:
    """Its layers keep their weights transposed (fan_in_fan_out), which changes nothing about A and B."""
    tokens = torch.arange(12)[None]
    a, b = (read(folder) for folder in gpt2_pair)
    plain = gpt2(tokens).logits
    for mu, expected in reference(a, b).items():
        fuse(gpt2_pair[0], [gpt2_pair[1]], tmp_path / f"{mu}", mu=mu)
        with complaints() as said:
            loaded = load_peft(tmp_path / f"{mu}", copy.deepcopy(gpt2))
        assert said == []
        model = copy.deepcopy(gpt2)
        modules: dict[str, Any] = dict(model.named_modules())
        for name, W in expected.items():
            modules[name.removeprefix("base_model.model.")].weight.data += torch.from_numpy(W.T)
        check_output(loaded(tokens).logits, model(tokens).logits, plain)


# --- PEFT's configuration -------------------------------------------------------------------------


def test_a_peft_folder_names_exactly_its_modules(tmp_path: Path, flux: Case) -> None:
    """'proj_out' is the end of other modules' names; loaded by its config, only itself is adapted."""
    small, last, inner = flux.small, "transformer.proj_out", "transformer.transformer_blocks.0.attn.to_q"
    lora = random_lora({name: small.shapes[name] for name in (last, inner)}, 2, 1, size=0.5)
    other = random_lora({last: small.shapes[last]}, 3, 2, size=0.5)
    a, b = save(tmp_path / "a.safetensors", dotted(lora)), save(tmp_path / "b.safetensors", dotted(other))
    fuse(a, [b], tmp_path / "out", mu=0.0, format="peft")
    loaded = load_peft(tmp_path / "out", small.fresh())
    layers = {f"transformer.{name}" for name, layer in loaded.named_modules() if hasattr(layer, "lora_A")}
    assert {name.replace("base_model.model.", "") for name in layers} == {last, inner}
    expected = {last: dense(lora)[last] + dense(other)[last], inner: dense(lora)[inner]}
    check_output(small.run(loaded), small.output_with(expected), small.run(small.model))


def test_a_bias_of_one_module_leaves_no_gap(tmp_path: Path, flux: Case) -> None:
    """PEFT has a bias in all modules or in none; what has no delta gets zeros."""
    small = flux.small
    names = [f"transformer.transformer_blocks.0.attn.{name}" for name in ("to_q", "to_k", "to_out.0")]
    lora = random_lora({name: small.shapes[name] for name in names}, 2, 1, size=0.5)
    bias = torch.linspace(-1, 1, small.shapes[names[0]][0])
    source = save(tmp_path / "a.safetensors", dotted(lora) | {f"{names[0]}.lora_B.bias": bias})
    convert(source, tmp_path / "out", format="peft")
    with complaints() as said:
        loaded = load_peft(tmp_path / "out", small.fresh())
    assert said == []
    plain = small.fresh()
    layer: Any = dict(plain.named_modules())[names[0].removeprefix("transformer.")]
    layer.bias.data += bias
    wanted = Small("transformer", plain, small.run).output_with(dense(lora))
    check_output(small.run(loaded), wanted, small.output_with(dense(lora)))
