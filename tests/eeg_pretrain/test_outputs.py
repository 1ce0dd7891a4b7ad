"""What the names of outputs say of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from nipstool.eeg_pretrain.outputs import check_form
from nipstool.kit.errors import UsageError


@pytest.mark.parametrize("name", ["em.csv", "em", "em.npz.gz", "em.npy"])
def test_embeddings_have_no_name_that_lies(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected a name that ends in \.npz or \.safetensors"):
        check_form(tmp_path / name)


@pytest.mark.parametrize("name", ["em.npz", "em.safetensors", "-", "/dev/null"])
def test_forms_devices_and_standard_output_pass(name: str) -> None:
    check_form(name)


def test_embed_refuses_the_name_before_it_opens_anything(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "nipstool", "eeg-pretrain", "embed", "absent", "absent.edf", "-o", "em.csv"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().endswith("em.csv: expected a name that ends in .npz or .safetensors")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
