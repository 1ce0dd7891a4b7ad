"""The output of a fusion, opened whole: every key, shape and metadata entry first, tensors as they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from nipstool.fuse_lora.extras import Extra, extra_tensor
from nipstool.fuse_lora.job import Job
from nipstool.fuse_lora.metadata import HASHES, config_text, describe, legacy_hash, peft_config
from nipstool.fuse_lora.output import Spec, copied, specs_of
from nipstool.fuse_lora.targets import Block
from nipstool.kit.errors import UsageError
from nipstool.kit.files import AtomicFile, AtomicFolder
from nipstool.kit.parts import told_as
from nipstool.kit.tensors import TensorWriter, encode_header, torch_dtype

SUFFIXES = (".safetensors", ".sft", ".st", ".bin", ".pt", ".pth", ".ckpt")
OTHER_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".svg", ".pdf"),
    *(".json", ".jsonl", ".ndjson", ".yaml", ".yml", ".toml", ".csv", ".tsv", ".txt", ".md", ".html", ".log"),
    *(".npy", ".npz", ".gguf", ".onnx", ".h5", ".pkl", ".zip", ".gz", ".zst", ".tar", ".py"),
)
PEFT_FILES = ("adapter_model.safetensors", "adapter_config.json")


@dataclass(frozen=True)
class Output:
    """Where tensors go as they are made."""

    writer: TensorWriter
    specs: dict[str, Spec]

    def write(self, key: str, tensor: Tensor) -> None:
        """Write a tensor, in the dtype and shape announced for its key."""
        dtype, shape = self.specs[key]
        self.writer.write(key, tensor.to(torch_dtype(dtype)).reshape(shape))


def check_name(output: str | Path, format: str) -> None:
    """UsageError where an output's name ends like something else than what its format is written as."""
    suffix = Path(output).suffix.lower()
    if format == "peft" and suffix in (*SUFFIXES, *OTHER_SUFFIXES):
        raise UsageError(
            f"{output}: {format} is written as a folder; expected a name without {suffix}, or another --format"
        )
    if format != "peft" and suffix in OTHER_SUFFIXES:
        raise UsageError(
            f"{output}: {format} is written as a safetensors file; expected a name that ends in .safetensors"
        )


@contextmanager
def open_output(
    output: str | Path,
    blocks: Sequence[Block],
    extras: Sequence[Extra],
    job: Job,
    hashes: Sequence[str],
    *,
    force: bool,
) -> Iterator[Output]:
    """Open the output; on leaving, the extras, the hashes and PEFT's config are written and it appears whole."""
    specs = all_specs(blocks, extras, job)
    metadata = describe(job.adapters, hashes, blocks, job.style, job.how)
    if job.style.format != "peft":
        with AtomicFile(output, force=force) as file:
            yield from _fill(file.file, specs, metadata, extras, job)
        return
    with AtomicFolder(output, force=force) as folder, told_as(str(output)):
        with open(folder / PEFT_FILES[0], "w+b") as file:
            yield from _fill(file, specs, metadata, extras, job)
        config = peft_config(job.adapters, [t for b in blocks for t in b.targets], extras)
        (folder / PEFT_FILES[1]).write_text(config_text(config), encoding="utf-8")


def all_specs(blocks: Sequence[Block], extras: Sequence[Extra], job: Job) -> dict[str, Spec]:
    """key -> dtype and shape of everything that will be written."""
    specs: dict[str, Spec] = {}
    for block in blocks:
        for target in block.targets:
            if target.verbatim is None:
                specs |= specs_of(target, job.style, job.dtype)
            else:
                infos = job.adapters[target.verbatim].reader.infos
                names = copied(target, block, job.style)
                specs |= {key: (infos[name].dtype, tuple(infos[name].shape)) for key, name in names.items()}
    return specs | {extra.key: (extra.dtype, extra.shape) for extra in extras}


def _fill(
    file: BinaryIO, specs: dict[str, Spec], metadata: dict[str, str], extras: Sequence[Extra], job: Job
) -> Iterator[Output]:
    """Header, the caller's tensors, extras, hashes."""
    hashed = job.style.format == "kohya"
    writer = TensorWriter(file, specs, metadata, HASHES if hashed else {})
    yield Output(writer, specs)
    for extra in extras:
        writer.write(extra.key, extra_tensor(extra, job.adapters))
    if hashed:
        training = {key: value for key, value in metadata.items() if key.startswith("ss_")}
        plain_header = len(encode_header(specs, training))
        writer.patch("sshs_model_hash", writer.data_sha256())
        shift = writer.data_start
        writer.patch("sshs_legacy_hash", legacy_hash(lambda at, n: writer.read_back(shift + at, n), plain_header))
    writer.close()
