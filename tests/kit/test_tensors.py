"""Reading and writing tensors, against safetensors' own writer and loader."""

import hashlib
import io
import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.files import AtomicFile
from nipstool.kit.tensors import (
    DTYPES,
    TensorReader,
    TensorWriter,
    dtype_name,
    encode_header,
    open_tensors,
    torch_dtype,
)


def specs_of(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}


def written(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    file = io.BytesIO()
    writer = TensorWriter(file, specs_of(tensors), metadata)
    for name in sorted(tensors, reverse=True):
        writer.write(name, tensors[name])
    writer.close()
    return file.getvalue()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


# against the reference

texts = st.text(st.characters(codec="utf-8"), max_size=6)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = torch_dtype(draw(st.sampled_from(list(DTYPES))))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = torch.Size(shape).numel() * dtype.itemsize
    data = draw(st.binary(min_size=count, max_size=count))
    if dtype == torch.bool:
        data = bytes(byte & 1 for byte in data)
    return torch.tensor(list(data), dtype=torch.uint8).view(dtype).reshape(shape)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(texts.filter(lambda name: name != "__metadata__"), tensors(), max_size=8),
    st.none() | st.dictionaries(texts, texts, max_size=1),
)
def test_bytes_are_those_of_save_file_and_read_back(tmp_path_factory, some, metadata):
    assume(some or metadata != {})  # there the reference writes a header that it cannot read
    path = tmp_path_factory.mktemp("one") / "f"
    save_file(some, path, metadata=metadata)
    assert written(some, metadata) == path.read_bytes()
    with TensorReader(path) as reader:
        assert reader.metadata == (metadata or {})
        assert all(same_bits(reader.read(name), tensor) for name, tensor in some.items())
        assert reader.infos.keys() == some.keys()


def test_every_dtype_is_covered_and_named_both_ways():
    assert len(DTYPES) == 19
    for name in DTYPES:
        assert dtype_name(torch_dtype(name)) == name
    with pytest.raises(DataError, match="F4"):
        torch_dtype("F4")
    with pytest.raises(DataError, match="complex128"):
        dtype_name(torch.complex128)


def test_several_metadata_keys_are_sorted_and_equal_when_parsed(tmp_path):
    metadata = {"z": "1", "a": '"\\é\n', "m": ""}
    data = written({"x": torch.ones(3)}, metadata)
    (tmp_path / "f").write_bytes(data)
    with safe_open(tmp_path / "f", "pt") as file:
        assert file.metadata() == metadata
        assert torch.equal(file.get_tensor("x"), torch.ones(3))
    assert data == written({"x": torch.ones(3)}, dict(reversed(metadata.items())))


@pytest.mark.realdata
def test_real_files_are_read_as_the_reference_reads_them_and_written_back_bit_for_bit(data_dir):
    paths = sorted((data_dir / "fuse-lora").rglob("*.safetensors"))
    assert paths
    for path in paths:
        expected = load_file(path)
        with TensorReader(path) as reader:
            found = {name: reader.read(name) for name in reader.infos}
            assert found.keys() == expected.keys()
            assert all(same_bits(found[name], expected[name]) for name in expected)
            metadata = reader.metadata
        if len(metadata) <= 1:
            assert written(found, metadata or None) == path.read_bytes(), path


# reading


def test_what_is_read_is_writable_and_its_own(tmp_path):
    save_file({"x": torch.ones(4)}, tmp_path / "f")
    with TensorReader(tmp_path / "f") as reader:
        first = reader.read("x")
        first.add_(1)
        (tmp_path / "other").write_bytes(b"")
        os.replace(tmp_path / "other", tmp_path / "f")  # the open file is still the old one
        assert torch.equal(reader.read("x"), torch.ones(4))
        assert reader.read_bytes("x") == bytearray(torch.ones(4).numpy().tobytes())
        half = bytearray(8)
        reader.read_into("x", memoryview(half), 8)
        assert half == torch.ones(2).numpy().tobytes()
        with pytest.raises(ValueError):
            reader.read_into("x", memoryview(half), 12)
        with pytest.raises(DataError, match="no tensor 'y'"):
            reader.read("y")


def test_a_file_cut_while_it_is_open(tmp_path):
    save_file({"x": torch.ones(400)}, tmp_path / "f")
    with TensorReader(tmp_path / "f") as reader:
        os.truncate(tmp_path / "f", 200)
        with pytest.raises(DataError, match="became shorter"):
            reader.read("x")


def test_a_dtype_that_torch_lacks_can_be_carried_as_bytes(tmp_path):
    specs = {"x": ("F4", (3, 2)), "y": ("F32", ())}
    (tmp_path / "f").write_bytes(encode_header(specs, None) + b"\0\0\x80?abc")
    with TensorReader(tmp_path / "f") as reader:
        with pytest.raises(DataError, match="F4"):
            reader.read("x")
        assert reader.read_bytes("x") == b"abc"
        assert reader.read("y").item() == 1.0
        file = io.BytesIO()
        writer = TensorWriter(file, specs)
        for name in specs:
            writer.write_bytes(name, [reader.read_bytes(name)])
        writer.close()
    assert file.getvalue() == (tmp_path / "f").read_bytes()


def test_several_files_may_not_share_a_name(tmp_path):
    save_file({"x": torch.ones(1)}, tmp_path / "a", metadata={"k": "a"})
    save_file({"y": torch.zeros(1)}, tmp_path / "b", metadata={"k": "b", "l": "b"})
    with TensorReader([tmp_path / "a", tmp_path / "b"]) as reader:
        assert (reader.read("x").item(), reader.read("y").item()) == (1.0, 0.0)
        assert reader.metadata == {"k": "a", "l": "b"}
    with pytest.raises(DataError, match=r"'x' is in .*a too"):
        TensorReader([tmp_path / "a", tmp_path / "b", tmp_path / "a"])


def sharded(folder: Path, **shards: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A Hugging Face folder; returns all its tensors."""
    folder.mkdir()
    weight_map = {}
    for shard, some in shards.items():
        save_file(some, folder / f"{shard}.safetensors", metadata={"format": "pt"})
        weight_map |= dict.fromkeys(some, f"{shard}.safetensors")
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return {name: tensor for some in shards.values() for name, tensor in some.items()}


def test_folders(tmp_path):
    expected = sharded(tmp_path / "m", s1={"a": torch.ones(2)}, s2={"b": torch.zeros(3, dtype=torch.bfloat16)})
    with open_tensors(tmp_path / "m") as reader:
        assert all(same_bits(reader.read(name), tensor) for name, tensor in expected.items())
    save_file({"c": torch.ones(1)}, tmp_path / "m" / "model.safetensors")
    with open_tensors(tmp_path / "m") as reader:
        assert list(reader.infos) == ["c"]
    with open_tensors(tmp_path / "m" / "model.safetensors") as reader:
        assert list(reader.infos) == ["c"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"found 0 \.safetensors files"):
        open_tensors(tmp_path / "empty")
    with pytest.raises(InputMissingError):
        open_tensors(tmp_path / "absent")


@pytest.mark.parametrize(
    ("index", "told"),
    [
        ('{"weight_map": {"a": "../s1.safetensors"}}', "expected the name of a .safetensors file"),
        ('{"weight_map": {"a": "/etc/s1.safetensors"}}', "expected the name"),
        ('{"weight_map": {"a": "x\\\\s1.safetensors"}}', "expected the name"),
        ('{"weight_map": {"a": ".."}}', "expected the name"),
        ('{"weight_map": {"a": "s1.bin"}}', "expected the name"),
        ('{"weight_map": {"a": 3}}', "expected the name"),
        ('{"weight_map": {"nope": "s1.safetensors"}}', "'nope' in s1.safetensors, which does not hold it"),
        ('{"weight_map": {"a": "s2.safetensors", "b": "s1.safetensors"}}', "does not hold it"),
        ('{"weight_map": {}}', "empty"),
        ('{"weight_map": []}', "weight_map"),
        ("{}", "weight_map"),
        ("[]", "weight_map"),
        ("", "weight_map"),
        ("\xff{", "weight_map"),
        ("[" * 100_000, "weight_map"),
    ],
)
def test_a_wrong_index(tmp_path, index, told):
    sharded(tmp_path / "m", s1={"a": torch.ones(2)}, s2={"b": torch.ones(2)})
    (tmp_path / "m" / "model.safetensors.index.json").write_bytes(index.encode("latin-1"))
    with pytest.raises(DataError, match=told):
        open_tensors(tmp_path / "m")


def test_a_missing_shard_and_a_second_index(tmp_path):
    sharded(tmp_path / "m", s1={"a": torch.ones(2)}, s2={"b": torch.ones(2)})
    (tmp_path / "m" / "s2.safetensors").unlink()
    with pytest.raises(InputMissingError, match=r"s2\.safetensors"):
        open_tensors(tmp_path / "m")
    (tmp_path / "m" / "x.safetensors.index.json").write_text("{}")
    with pytest.raises(DataError, match="expected one"):
        open_tensors(tmp_path / "m")


# writing


def test_views_of_all_kinds_are_stored_by_value(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    views = {
        "transposed": base.T,
        "strided": base[::2, 1::3],
        "expanded": torch.ones(1, 3).expand(5, 3),
        "single": base[::4, 3],  # contiguous by torch's rule, with a stride of 24
        "conjugate scalar": torch.tensor(1 + 2j).conj(),
        "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
        "negative": torch.tensor([1 + 2j]).conj().imag,
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "permuted": torch.arange(120.0).reshape(2, 3, 4, 5).permute(3, 1, 0, 2),
    }
    (tmp_path / "f").write_bytes(written(views))
    loaded = load_file(tmp_path / "f")
    assert all(torch.equal(loaded[name], view) for name, view in views.items())


def test_a_large_view_is_stored_in_pieces(tmp_path):
    base = torch.arange(3 * 2500 * 1000, dtype=torch.float32).reshape(2500, 3000)  # 30 MB: two pieces
    with AtomicFile(tmp_path / "f") as out:
        writer = TensorWriter(out.file, {"x": ("F32", (3000, 2500))})
        writer.write("x", base.T)
        writer.close()
    assert torch.equal(load_file(tmp_path / "f")["x"], base.T)


def test_requests_that_cannot_be_stored():
    writer = TensorWriter(io.BytesIO(), {"x": ("F32", (2,)), "y": ("U8", (3,))})
    for name, wrong in (("x", torch.ones(3)), ("x", torch.ones(2).half()), ("z", torch.ones(2))):
        with pytest.raises(ValueError, match="announced"):
            writer.write(name, wrong)
    with pytest.raises(ValueError, match="announced 3 bytes, given 2"):
        writer.write_bytes("y", [b"a", b"b"])
    writer.write("x", torch.ones(2))
    with pytest.raises(ValueError, match="written already"):
        writer.write("x", torch.ones(2))
    with pytest.raises(ValueError, match="1 tensors not written, 'y'"):
        writer.close()
    with pytest.raises(ValueError, match="not written"):
        writer.data_sha256()


@pytest.mark.parametrize("key", ["hash", "é", "zz", 'x"a', "a"])
def test_a_fixed_key_is_patched_in_place(tmp_path, key):
    others = {"m": f'"{key}":"0000"', 'y"a': "é", "b\n": "\x01"}
    with AtomicFile(tmp_path / "f") as out:
        writer = TensorWriter(out.file, {"x": ("F32", (2,))}, others, fixed={key: 64})
        writer.write("x", torch.ones(2))
        data = torch.ones(2).numpy().tobytes()
        assert writer.data_sha256() == hashlib.sha256(data).hexdigest()
        assert writer.read_back(writer.data_start + 4, 99) == data[4:]
        for wrong in ("short", "é" * 64, '"' * 64, "\n" * 64, "\\" * 64):
            with pytest.raises(ValueError, match="no plain text"):
                writer.patch(key, wrong)
        with pytest.raises(ValueError, match="never patched"):
            writer.close()
        writer.patch(key, writer.data_sha256())
        writer.close()
    with safe_open(tmp_path / "f", "pt") as file:
        assert file.metadata() == {**others, key: hashlib.sha256(data).hexdigest()}
        assert torch.equal(file.get_tensor("x"), torch.ones(2))


def test_a_key_is_given_or_fixed_not_both():
    with pytest.raises(ValueError, match="given and fixed"):
        TensorWriter(io.BytesIO(), {}, {"k": "v"}, fixed={"k": 3})


@pytest.mark.cuda
def test_tensors_on_a_device(tmp_path):
    x = torch.arange(6.0, device="cuda").reshape(2, 3).T
    (tmp_path / "f").write_bytes(written({"x": x}))
    assert torch.equal(load_file(tmp_path / "f")["x"], x.cpu())
