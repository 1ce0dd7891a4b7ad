"""How to exercise every verb: a valid run on inputs made here, and what the verb can do.

A verb that is registered and not in this table fails the suite, so a new command adds its lines here.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file


def nothing(folder: Path) -> None:
    """The inputs of a verb that has none."""


@dataclass(frozen=True)
class Case:
    """A valid run of one verb, in a folder where `make` has put its inputs."""

    command: str
    verb: str | None  # None: the default verb, which the command's name alone runs
    args: tuple[str, ...]  # without -o
    make: Callable[[Path], None] = nothing
    inputs: tuple[str, ...] = ()  # those of args that are input files
    output: str | None = None  # a name to give to -o
    folder: bool = False  # the output is a folder
    json: bool = True
    reads_stdin: bool = False  # an input may be '-'
    writes_stdout: bool = False  # the output may be '-'
    setting: tuple[str, str, str, str] | None = None  # an option; its value as a flag, variable and in TOML
    halves_are_bad: bool = True  # half of an input is no input
    essence: Callable[[Path], object] = Path.read_bytes  # of the output, what its inputs' names do not change

    def __str__(self) -> str:
        return self.command if self.verb is None else f"{self.command}-{self.verb}"

    @property
    def words(self) -> tuple[str, ...]:
        """What to type after `nipstool`, before any argument."""
        return (self.command,) if self.verb is None else (self.command, self.verb)

    @property
    def valid(self) -> tuple[str, ...]:
        """A command line that works."""
        return (*self.words, *self.args, *(("-o", self.output) if self.output is not None else ()))

    def with_output(self, output: str) -> tuple[str, ...]:
        return (*self.words, *self.args, "-o", output)

    def with_input(self, old: str, new: str) -> tuple[str, ...]:
        return tuple(new if word == old else word for word in self.valid)


# --- inputs ---


def some_text(folder: Path) -> None:
    (folder / "notes.txt").write_text("".join(f"line {number} of the notes\n" for number in range(200)))


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


def some_rows(folder: Path) -> None:
    """A hundred years of a river."""
    flows = 1000.0 + 150.0 * np.random.default_rng(0).standard_normal(100)
    rows = (f'{{"t": {t}, "flow": {flow:.1f}}}\n' for t, flow in enumerate(flows))
    (folder / "rows.ndjson").write_text("".join(rows))


def tensors(path: Path) -> dict[str, bytes]:
    """The tensors of a safetensors file; its metadata name the inputs."""
    return {name: tensor.tobytes() for name, tensor in load_file(path).items()}


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "tie_word_embeddings": True,
}


def some_model(folder: Path) -> None:
    """A language model of two small layers, and a space of architectures around it."""
    random = np.random.default_rng(0)
    d, f, kv = LLAMA["hidden_size"], LLAMA["intermediate_size"], 8
    shapes = {"model.embed_tokens.weight": (LLAMA["vocab_size"], d), "model.norm.weight": (d,)}
    parts = {"q": (d, d), "k": (kv, d), "v": (kv, d), "o": (d, d), "gate": (f, d), "up": (f, d), "down": (d, f)}
    for layer in range(2):
        for name, shape in parts.items():
            place = "self_attn" if len(name) == 1 else "mlp"
            shapes[f"model.layers.{layer}.{place}.{name}_proj.weight"] = shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{name}.weight"] = (d,)
    weights = {name: random.standard_normal(shape, dtype=np.float32) / 4 for name, shape in shapes.items()}
    (folder / "model").mkdir()
    save_file(weights, folder / "model" / "model.safetensors", {"format": "pt"})
    for place in (folder, folder / "model"):
        (place / "config.json").write_text(json.dumps(LLAMA))
    space = '[base]\nconfig = "config.json"\n[per_layer]\nintermediate_size = [8, 16, 24]\n'
    (folder / "space.toml").write_text(space)


# --- the table ---

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
    Case(
        "filter-nbf",
        None,
        ("rows.ndjson", "--domain", "nile", "--particles", "16", "--on-error", "stop"),
        some_rows,
        inputs=("rows.ndjson",),
        json=False,
        reads_stdin=True,
        halves_are_bad=False,
        setting=("--seed", "1", "2", "3"),
    ),
    Case(
        "filter-nbf",
        "train",
        ("--domain", "nile", "--scenarios", "2", "--steps", "2", "--batch", "2"),
        output="nile.safetensors",
        writes_stdout=True,
        setting=("--seed", "1", "2", "3"),
    ),
    Case(
        "filter-nbf",
        "simulate",
        ("--domain", "arena", "--steps", "200"),
        json=False,
        setting=("--seed", "1", "2", "3"),
    ),
    Case(
        "filter-nbf",
        "evaluate",
        ("--domain", "nile", "--scenarios", "2", "--steps", "3", "--reference", "100", "--particles", "16"),
        setting=("--seed", "1", "2", "3"),
    ),
    Case(
        "prune-nsc",
        None,
        ("model", "--ratio", "0.9", "--channels", "random"),
        some_model,
        inputs=("model/config.json", "model/model.safetensors"),
        output="smaller",
        folder=True,
        setting=("--ffn", "12", "16", "20"),
    ),
    Case(
        "prune-nsc",
        "plan",
        ("config.json", "--ratio", "0.9"),
        some_model,
        inputs=("config.json",),
        setting=("--snr", "0.5", "2", "3"),
    ),
    Case(
        "prune-nsc",
        "plan",
        ("config.json", "--ratio", "0.9"),
        some_model,
        inputs=("config.json",),
        output="plan.json",
        writes_stdout=True,
        setting=("--snr", "0.5", "2", "3"),
    ),
    Case(
        "prune-nsc",
        "search",
        ("space.toml", "--max-params", "4000"),
        some_model,
        inputs=("space.toml",),
        output="best.json",
        writes_stdout=True,
        setting=("--snr", "0.5", "2", "3"),
    ),
    Case(
        "prune-nsc",
        "score",
        ("config.json",),
        some_model,
        inputs=("config.json",),
        reads_stdin=True,
        setting=("--snr", "0.5", "2", "3"),
    ),
    Case(
        "prune-nsc",
        "search",
        ("space.toml", "--max-params", "4000"),
        some_model,
        inputs=("space.toml",),
        setting=("--snr", "0.5", "2", "3"),
    ),
    Case("completion", None, ("bash",), json=False),
    # the plug-in in tests/plugins
    Case("example-shout", None, ("hello", "--times", "2"), json=False),
    Case(
        "example-copy",
        None,
        ("notes.txt",),
        some_text,
        inputs=("notes.txt",),
        output="copy.txt",
        reads_stdin=True,
        writes_stdout=True,
        halves_are_bad=False,
        setting=("--tag", "flag", "variable", "file"),
    ),
    Case(
        "example-copy",
        "count",
        ("notes.txt",),
        some_text,
        inputs=("notes.txt",),
        reads_stdin=True,
        halves_are_bad=False,
        setting=("--json", "", "1", "true"),
    ),
]
