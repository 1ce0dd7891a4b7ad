"""A pair of made-up SDXL LoRAs with a known overlap, for demonstrations and benchmarks; nothing was trained.

python -m nipstool.fuse_lora.synthetic FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from nipstool.fuse_lora.names import spell, suffixes
from nipstool.kit.files import AtomicFile
from nipstool.kit.tensors import TensorWriter, torch_dtype

PLANTED = ("down_blocks.2.attentions.0", "up_blocks.0.attentions.1")
"""Blocks of the UNet in which the content overlaps the style by design."""

# SDXL's UNet: the blocks with attention, their width and how many transformer blocks each holds
_BLOCKS = (
    *((f"down_blocks.1.attentions.{i}", 640, 2) for i in range(2)),
    *((f"down_blocks.2.attentions.{i}", 1280, 10) for i in range(2)),
    ("mid_block.attentions.0", 1280, 10),
    *((f"up_blocks.0.attentions.{i}", 1280, 10) for i in range(3)),
    *((f"up_blocks.1.attentions.{i}", 640, 2) for i in range(3)),
)
_TEXT = 2048  # width of the text embedding that cross-attention reads


def sdxl_modules() -> Iterator[tuple[str, int, int]]:
    """(canonical name, outputs, inputs) of the 722 linear layers in the attention blocks of SDXL's UNet."""
    for block, width, depth in _BLOCKS:
        yield f"unet.{block}.proj_in", width, width
        yield f"unet.{block}.proj_out", width, width
        for index in range(depth):
            place = f"unet.{block}.transformer_blocks.{index}"
            for attention, source in (("attn1", width), ("attn2", _TEXT)):
                yield f"{place}.{attention}.to_q", width, width
                yield f"{place}.{attention}.to_k", width, source
                yield f"{place}.{attention}.to_v", width, source
                yield f"{place}.{attention}.to_out.0", width, width
            yield f"{place}.ff.net.0.proj", 8 * width, width
            yield f"{place}.ff.net.2", width, 4 * width


def write_pair(
    folder: Path,
    *,
    rank: int = 8,
    overlap: float = 0.5,
    blocks: Sequence[str] = PLANTED,
    seed: int = 0,
    dtype: str = "F32",
) -> tuple[Path, Path]:
    """Write content.safetensors (kohya's names) and style.safetensors (diffusers' names) into `folder`.

    In every module of `blocks` exactly the share `overlap` of the content's energy lies on the style's input
    directions, up to the rounding of `dtype`; elsewhere the two are independent and meet at chance. Files that
    exist are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "content.safetensors", folder / "style.safetensors"
    about = "synthetic: random factors with a planted overlap, made by nipstool; no model was trained"
    metadata = (
        {"ss_base_model_version": "sdxl_base_v1-0", "ss_training_comment": about},
        {"format": "pt", "description": about},
    )
    modules = list(sdxl_modules())
    with AtomicFile(paths[0], force=True) as c, AtomicFile(paths[1], force=True) as s:
        content = TensorWriter(c.file, _specs(modules, "kohya", rank, dtype), metadata[0])
        style = TensorWriter(s.file, _specs(modules, "diffusers", rank, dtype), metadata[1])
        generator = torch.Generator().manual_seed(seed)
        for name, m, n in modules:
            planted = overlap if any(name.startswith(f"unet.{block}.") for block in blocks) else None
            (B_c, A_c), (B_s, A_s) = make_factors(m, n, rank, planted, generator)
            _write(content, name, "kohya", B_c, A_c, dtype)
            _write(style, name, "diffusers", B_s, A_s, dtype)
        content.close()
        style.close()
    return paths


def make_factors(
    m: int, n: int, rank: int, overlap: float | None, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Content and style factors (B [m, rank], A [rank, n]) in float64.

    With W an orthonormal basis whose first `rank` columns span the style's rows, the content's rows are
    sqrt(o) W_style + sqrt(1 - o) W_rest, row by row: whatever B_c is, the share o of its energy is on the style.
    """
    B_c, B_s = (torch.randn(m, rank, generator=generator, dtype=torch.float64) * 0.02 for _ in range(2))
    if overlap is None:
        rows = [torch.randn(rank, n, generator=generator, dtype=torch.float64) / n**0.5 for _ in range(2)]
        return (B_c, rows[0]), (B_s, rows[1])
    W = torch.linalg.qr(torch.randn(n, 2 * rank, generator=generator, dtype=torch.float64)).Q.mT
    mix = torch.randn(rank, rank, generator=generator, dtype=torch.float64) / rank**0.5
    A_c = overlap**0.5 * W[:rank] + (1 - overlap) ** 0.5 * W[rank:]
    return (B_c, A_c), (B_s, mix @ W[:rank])


def _specs(
    modules: Sequence[tuple[str, int, int]], format: str, rank: int, dtype: str
) -> dict[str, tuple[str, tuple[int, ...]]]:
    ends = suffixes(format)
    specs: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, m, n in modules:
        stem = spell(name, "sdxl", format)
        specs[stem + ends["down"]] = (dtype, (rank, n))
        specs[stem + ends["up"]] = (dtype, (m, rank))
        if "alpha" in ends:
            specs[stem + ends["alpha"]] = ("F32", ())
    return specs


def _write(writer: TensorWriter, name: str, format: str, B: Tensor, A: Tensor, dtype: str) -> None:
    """Store factors; where the format has an alpha it is half the rank, and B makes up for it."""
    ends, stem, kind = suffixes(format), spell(name, "sdxl", format), torch_dtype(dtype)
    scaled = "alpha" in ends
    writer.write(stem + ends["down"], A.to(kind))
    writer.write(stem + ends["up"], (2 * B if scaled else B).to(kind))
    if scaled:
        writer.write(stem + ends["alpha"], torch.tensor(A.shape[0] / 2))


if __name__ == "__main__":
    write_pair(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
