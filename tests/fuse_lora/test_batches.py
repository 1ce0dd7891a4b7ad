"""Modules of one shape computed as one batch, as an accelerator gets them, give what they give one by one."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nipstool.fuse_lora import fuse
from nipstool.fuse_lora.adapter import open_checked
from nipstool.fuse_lora.engine import Merge
from nipstool.fuse_lora.job import Job
from nipstool.fuse_lora.plan import make_units
from nipstool.fuse_lora.targets import Style, make_blocks
from nipstool.fuse_lora.work import _fuse_batch, batches

PAIR = ("sd15_pokemon_attnprocs.safetensors", "sd15_timohavdk_pytorch_lora_weights.safetensors")


@pytest.mark.realdata
@pytest.mark.parametrize("how", [Merge((1.0, 0.7)), Merge((1.0, 1.0), None, 0.002), Merge((1.0, 1.0), k=2)])
def test_a_batch_equals_its_items(data_dir: Path, how: Merge):
    with ExitStack() as stack, torch.inference_mode():
        files = [open_checked(data_dir / "fuse-lora" / name, name, stack) for name in PAIR]
        style = Style("sd15", "diffusers")
        blocks = make_blocks(make_units(files), files, style, damped=True)
        job = Job(files, how, style, "F64", torch.device("cpu"))
        groups = list(batches(blocks, 32))
        assert sum(len(group) for group in groups) == len(blocks) == 128
        assert max(len(group) for group in groups) > 8
        together = [_fuse_batch(group, job) for group in groups]
        alone = [[_fuse_batch([block], job) for block in group] for group in groups]
    for (size, tensors, reports), singles in zip(together, alone, strict=True):
        assert size == len(singles)
        expected = dict(pair for _, made, _ in singles for pair in made)
        assert dict(tensors).keys() == expected.keys()
        for key, tensor in tensors:
            torch.testing.assert_close(tensor, expected[key], rtol=1e-9, atol=1e-12)
        for report, (_, _, (one,)) in zip(reports, singles, strict=True):
            assert report.name == one.name
            assert report.k == one.k
            assert report.overlap == pytest.approx(one.overlap, rel=1e-9)
            assert report.mu == pytest.approx(one.mu, rel=1e-9)
            assert report.change == pytest.approx(one.change, rel=1e-9)


@pytest.mark.realdata
@pytest.mark.cuda
def test_cuda_gives_what_the_cpu_gives(data_dir: Path, tmp_path: Path):
    content, style = (data_dir / "fuse-lora" / name for name in PAIR)
    for device in ("cpu", "cuda"):
        fuse(content, [style], tmp_path / device, device=device)
    cpu, cuda = (load_file(tmp_path / device) for device in ("cpu", "cuda"))
    for key, tensor in cpu.items():
        torch.testing.assert_close(cuda[key], tensor, rtol=1e-5, atol=1e-7)
