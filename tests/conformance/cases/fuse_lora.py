"""The verbs of fuse-lora."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.conformance.cases.case import Case, tensors

SDXL_MODULES = {  # kohya's name of a module of SDXL: what it takes in, what it gives out
    "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q": (640, 640),
    "lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_k": (2048, 640),
    "lora_unet_middle_block_1_transformer_blocks_0_attn1_to_v": (1280, 1280),
}


def some_loras(folder: Path) -> None:
    """Two LoRAs of rank 2 for SDXL, under kohya's names."""
    for seed, name in enumerate(("content.safetensors", "style.safetensors")):
        random = np.random.default_rng(seed)
        tensors = {}
        for module, (width, height) in SDXL_MODULES.items():
            tensors[f"{module}.lora_down.weight"] = random.standard_normal((2, width), dtype=np.float32)
            tensors[f"{module}.lora_up.weight"] = random.standard_normal((height, 2), dtype=np.float32)
            tensors[f"{module}.alpha"] = np.array(1.0, np.float32)
        save_file(tensors, folder / name, {"ss_network_module": "networks.lora"})


LORAS = ("content.safetensors", "style.safetensors")


CASES = [
    Case(
        "fuse-lora",
        None,
        LORAS,
        some_loras,
        inputs=LORAS,
        output="fused.safetensors",
        reads_stdin=True,
        writes_stdout=True,
        setting=("--mu", "0.25", "inf", "0.75"),
        essence=tensors,
    ),
    Case(
        "fuse-lora",
        "compare",
        LORAS,
        some_loras,
        inputs=LORAS,
        reads_stdin=True,
        setting=("--leak", "0.1", "0.2", "0.3"),
    ),
    Case(
        "fuse-lora",
        "inspect",
        ("content.safetensors",),
        some_loras,
        inputs=("content.safetensors",),
        reads_stdin=True,
        setting=("--threads", "1", "2", "3"),
    ),
    Case(
        "fuse-lora",
        "convert",
        ("content.safetensors", "--format", "diffusers"),
        some_loras,
        inputs=("content.safetensors",),
        output="converted.safetensors",
        reads_stdin=True,
        writes_stdout=True,
        setting=("--energy-rank", "0.7", "0.8", "0.9"),
        essence=tensors,
    ),
]
