"""Small random models of the families that diffusers loads, and their outputs on fixed inputs."""

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor, nn

Run = Callable[[nn.Module], Tensor]


@dataclass(frozen=True)
class Small:
    """A model, and how to run it."""

    component: str
    model: nn.Module
    run: Run

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every linear layer and convolution: 'unet.….to_q' -> (out, in, *kernel)."""
        layers = (nn.Linear, nn.Conv2d)
        return {
            f"{self.component}.{name}": tuple(layer.weight.shape)
            for name, layer in self.model.named_modules()
            if isinstance(layer, layers)
        }

    def fresh(self) -> nn.Module:
        """A copy that a loader may change."""
        return copy.deepcopy(self.model)

    def output_with(self, updates: Mapping[str, np.ndarray]) -> Tensor:
        """The output with dense float64 updates added to the weights."""
        model = self.fresh()
        modules = dict(model.named_modules())
        for name, W in updates.items():
            layer = modules[name.removeprefix(f"{self.component}.")]
            assert isinstance(layer, nn.Linear | nn.Conv2d)
            layer.weight.data += torch.from_numpy(W).reshape(layer.weight.shape)
        return self.run(model)


def small_sd15() -> Small:
    """Attention with convolutions around it, as SD1.5 has."""
    torch.manual_seed(0)
    model = UNet2DConditionModel(
        sample_size=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(16, 32),
        layers_per_block=1,
        cross_attention_dim=768,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    image, text = torch.randn(1, 4, 8, 8, dtype=torch.float64), torch.randn(1, 5, 768, dtype=torch.float64)

    def run(unet: nn.Module) -> Tensor:
        return unet(image, 10, text).sample

    return Small("unet", model.double().eval(), run)


def small_sdxl() -> Small:
    """The blocks of SDXL, two layers each, with linear layers around the attention."""
    torch.manual_seed(0)
    model = UNet2DConditionModel(
        sample_size=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(8, 16, 24),
        layers_per_block=2,
        use_linear_projection=True,
        cross_attention_dim=2048,
        attention_head_dim=4,
        norm_num_groups=4,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=80,
    )
    image, text = torch.randn(1, 4, 8, 8, dtype=torch.float64), torch.randn(1, 5, 2048, dtype=torch.float64)
    added = {"text_embeds": torch.randn(1, 32, dtype=torch.float64), "time_ids": torch.ones(1, 6).double()}

    def run(unet: nn.Module) -> Tensor:
        return unet(image, 10, text, added_cond_kwargs=added).sample

    return Small("unet", model.double().eval(), run)


FLUX_WIDTH = 32


def small_flux() -> Small:
    """One double and two single blocks."""
    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        pooled_projection_dim=20,
        guidance_embeds=True,
        axes_dims_rope=(4, 4, 8),
    )
    image, text = torch.randn(1, 6, 4, dtype=torch.float64), torch.randn(1, 3, 24, dtype=torch.float64)
    pooled = torch.randn(1, 20, dtype=torch.float64)

    def run(transformer: nn.Module) -> Tensor:
        return transformer(
            hidden_states=image,
            encoder_hidden_states=text,
            pooled_projections=pooled,
            timestep=torch.tensor([0.5]).double(),
            img_ids=torch.zeros(6, 3),
            txt_ids=torch.zeros(3, 3),
            guidance=torch.tensor([3.5]).double(),
        ).sample

    return Small("transformer", model.double().eval(), run)


@contextmanager
def complaints() -> Iterator[list[str]]:
    """What diffusers, PEFT and transformers say while they load: warnings and log records from WARNING on."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(f"{record.name}: {record.getMessage()}")

    listener = Listener(logging.WARNING)
    loggers = [logging.getLogger(name) for name in ("diffusers", "peft", "transformers")]
    for logger in loggers:
        logger.addHandler(listener)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield said
        about_themselves = (FutureWarning, DeprecationWarning, PendingDeprecationWarning)
        said += [
            f"{w.category.__name__}: {w.message}" for w in caught if not issubclass(w.category, about_themselves)
        ]
    finally:
        for logger in loggers:
            logger.removeHandler(listener)
