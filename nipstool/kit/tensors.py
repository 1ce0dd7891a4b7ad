"""Tensors on disk: safetensors files and sharded Hugging Face folders, read one by one and written one by one.

Reading never maps a file into memory, because mapped pages count as resident; writing never holds more than one
tensor. Headers (tensor_header.py) need no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.files import AtomicFolder, StrPath, check_input, check_output
from nipstool.kit.parts import reason, told_as
from nipstool.kit.records import parse_json
from nipstool.kit.tensor_header import (
    DTYPES,
    Header,
    Specs,
    TensorInfo,
    encode_header,
    header_of,
    itemsize,
    layout,
    metadata_place,
    open_file,
    read_header,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "DTYPES",
    "Header",
    "TensorInfo",
    "TensorReader",
    "TensorWriter",
    "dtype_name",
    "encode_header",
    "itemsize",
    "open_tensors",
    "read_header",
    "rewrite",
    "torch_dtype",
]

INDEX_SUFFIX = ".safetensors.index.json"
# files that hold weights: not copied beside rewritten ones, which they would contradict
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".tflite", ".ot"}
_PIECE = 4 << 20


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a safetensors dtype; DataError where this torch has none (F4, F6)."""
    import torch

    dtype = getattr(torch, DTYPES.get(name, ""), None)
    if dtype is None:
        raise DataError(f"torch {torch.__version__} cannot hold values of dtype {name}")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The safetensors name of a torch dtype; DataError where the format has none (complex128)."""
    torch_name = str(dtype).removeprefix("torch.")
    for name, known in DTYPES.items():
        if known == torch_name:
            return name
    raise DataError(f"safetensors files cannot hold values of dtype {torch_name}")


class TensorReader:
    """Tensors of one or several safetensors files, read one at a time into memory of their own.

    `infos` and `metadata` are there from the start; of several files' metadata the first to set a key wins.
    Raises what read_header raises, and DataError where two files hold the same name.
    """

    def __init__(self, paths: StrPath | Iterable[StrPath]):
        self._descriptors: dict[Path, int] = {}
        self.infos: dict[str, TensorInfo] = {}
        self.metadata: dict[str, str] = {}
        try:
            for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
                self._add(Path(path))
        except BaseException:
            self.close()
            raise

    def _add(self, path: Path) -> None:
        # the descriptor outlives a rename over the file, so header and bytes stay those of one file
        self._descriptors[path] = open_file(path)
        header = header_of(self._descriptors[path], path)
        for name in self.infos.keys() & header.infos.keys():
            raise DataError(f"{path}: tensor {name!r} is in {self.infos[name].path} too")
        self.infos |= header.infos
        self.metadata = header.metadata | self.metadata

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files; nothing can be read afterwards."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def __del__(self) -> None:
        self.close()

    def read(self, name: str) -> Tensor:
        """A tensor in its stored dtype and shape, on the CPU, in writable memory of its own."""
        import torch

        info = self._info(name)
        dtype = torch_dtype(info.dtype)
        data = torch.empty(info.nbytes, dtype=torch.uint8)
        self.read_into(name, data.numpy().data)
        return data.view(dtype).reshape(info.shape)

    def read_bytes(self, name: str) -> bytearray:
        """The bytes of a tensor as they are stored (little-endian, last axis fastest)."""
        data = bytearray(self._info(name).nbytes)
        self.read_into(name, memoryview(data))
        return data

    def read_into(self, name: str, buffer: memoryview, begin: int = 0) -> None:
        """Fills a writable buffer of bytes with a tensor's stored bytes from `begin` on."""
        info = self._info(name)
        if begin + len(buffer) > info.nbytes:
            raise ValueError(f"{name}: {len(buffer)} bytes from {begin} on, of {info.nbytes}")
        filled = 0
        while filled < len(buffer):
            try:
                place = info.start + begin + filled
                got = os.preadv(self._descriptors[info.path], [buffer[filled:]], place)
            except OSError as error:
                raise InputMissingError(f"{info.path}: cannot be read: {reason(error)}") from error
            if got == 0:
                raise DataError(f"{info.path}: became shorter while it was read")
            filled += got

    def _info(self, name: str) -> TensorInfo:
        if name not in self.infos:
            raise DataError(f"{', '.join(map(str, self._descriptors))}: no tensor {name!r}")
        return self.infos[name]


def open_tensors(path: StrPath) -> TensorReader:
    """The tensors of a .safetensors file, or of a Hugging Face folder.

    A folder holds model.safetensors, or one *.safetensors.index.json whose weight_map names the shards beside it,
    or a single .safetensors file. Raises InputMissingError or DataError saying what is absent or wrong.
    """
    path = check_input(path)
    if not path.is_dir():
        return TensorReader(path)
    if (path / "model.safetensors").exists():
        return TensorReader(path / "model.safetensors")
    indices = sorted(path.glob(f"*{INDEX_SUFFIX}"))
    if len(indices) > 1:
        raise DataError(f"{path}: expected one *{INDEX_SUFFIX}, found {', '.join(i.name for i in indices)}")
    if indices:
        return _open_shards(indices[0])
    files = sorted(path.glob("*.safetensors"))
    if len(files) != 1:
        found = f"found {len(files)} .safetensors files"
        raise DataError(f"{path}: expected model.safetensors or an index of shards; {found}")
    return TensorReader(files[0])


def _open_shards(index: Path) -> TensorReader:
    weight_map = _weight_map(index)
    reader = TensorReader(index.parent / shard for shard in dict.fromkeys(weight_map.values()))
    for name, shard in weight_map.items():
        if name not in reader.infos or reader.infos[name].path.name != shard:
            reader.close()
            raise DataError(f"{index}: names {name!r} in {shard}, which does not hold it")
    return reader


def _weight_map(index: Path) -> dict[str, str]:
    """name -> shard file, each a plain name, so that no index leads outside its folder."""
    try:
        weight_map = parse_json(index.read_bytes())["weight_map"]
        shards = weight_map.items()
    except OSError as error:
        raise InputMissingError(f"{index}: cannot be read: {reason(error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{index}: expected a JSON object with a weight_map") from error
    for name, shard in shards:
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or set(shard) & set("/\\\0"):
            raise DataError(f"{index}: {name!r} is in {shard!r}; expected the name of a .safetensors file")
    if not weight_map:
        raise DataError(f"{index}: its weight_map is empty")
    return weight_map


class TensorWriter:
    """A safetensors file written tensor by tensor, in any order, into a seekable binary file.

    Byte for byte what `safetensors.torch.save_file` writes, for at most one metadata key; with more, ours are
    sorted (theirs change from run to run). The file is neither closed nor renamed here: see AtomicFile.

    Args:
        specs: name -> (safetensors dtype, shape), complete.
        fixed: metadata keys whose value is known only later -> its length; see `patch`.

    Raises ValueError for a request that cannot be stored.
    """

    def __init__(
        self,
        file: BinaryIO,
        specs: Specs,
        metadata: Mapping[str, str] | None = None,
        fixed: Mapping[str, int] | None = None,
    ):
        self._fixed = dict(fixed or {})
        self._patched: set[str] = set()
        if twice := self._fixed.keys() & (metadata or {}).keys():
            raise ValueError(f"metadata given and fixed: {sorted(twice)}")
        self._metadata = {**(metadata or {}), **{key: "0" * width for key, width in self._fixed.items()}}
        self._specs = {name: (dtype, tuple(shape)) for name, (dtype, shape) in specs.items()}
        header = encode_header(self._specs, None if metadata is None and not fixed else self._metadata)
        self.data_start = len(header)
        self._ranges = layout(self._specs)
        self._missing = dict.fromkeys(self._specs)
        self._file = file
        file.seek(0)
        file.write(header)

    def write(self, name: str, tensor: Tensor) -> None:
        """Stores a tensor of the announced dtype and shape, from any device, contiguous or not; once a name."""
        import torch

        found = (dtype_name(tensor.dtype), tuple(tensor.shape))
        if self._specs.get(name) != found:
            raise ValueError(f"{name}: announced {self._specs.get(name)}, given {found}")
        self._begin(name)
        for piece in _pieces(tensor.detach()):
            # as_strided: a contiguous tensor of one element may have any stride, which view() does not take
            flat = piece.as_strided((piece.numel(),), (1,))
            self._file.write(flat.view(torch.uint8).numpy().data)
        del self._missing[name]

    def write_bytes(self, name: str, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Stores a tensor given as its bytes, in pieces; once a name."""
        self._begin(name)
        begin, end = self._ranges[name]
        if (given := sum(self._file.write(piece) for piece in pieces)) != end - begin:
            raise ValueError(f"{name}: announced {end - begin} bytes, given {given}")
        del self._missing[name]

    def _begin(self, name: str) -> None:
        if name not in self._missing:
            raise ValueError(f"{name}: {'is written already' if name in self._specs else 'was not announced'}")
        self._file.seek(self.data_start + self._ranges[name][0])

    def data_sha256(self) -> str:
        """SHA-256, in hexadecimal, of all tensors' bytes: of the file without its header."""
        self._check_complete()
        digest, place = hashlib.sha256(), self.data_start
        while data := self.read_back(place, _PIECE):
            digest.update(data)
            place += len(data)
        return digest.hexdigest()

    def read_back(self, start: int, length: int) -> bytes:
        """Bytes of the file as written so far; fewer than `length` at its end."""
        self._file.seek(start)
        return self._file.read(length)

    def patch(self, key: str, value: str) -> None:
        """Puts a value of exactly the announced length, printable ASCII, into a `fixed` metadata key."""
        plain = value.isascii() and value.isprintable() and not set(value) & set('"\\')
        if len(value) != self._fixed[key] or not plain:
            raise ValueError(f"{key}: {value!r} is no plain text of {self._fixed[key]} characters")
        self._file.seek(metadata_place(self._metadata, key))
        self._file.write(value.encode())
        self._patched.add(key)

    def close(self) -> None:
        """Raises ValueError where a tensor or the value of a `fixed` key is missing."""
        self._check_complete()
        if unset := self._fixed.keys() - self._patched:
            raise ValueError(f"metadata never patched: {sorted(unset)}")

    def _check_complete(self) -> None:
        if self._missing:
            raise ValueError(f"{len(self._missing)} tensors not written, {next(iter(self._missing))!r} first")


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor in plain memory: itself, or else row by row through one small buffer, never a whole copy."""
    import torch

    if tensor.is_contiguous() and tensor.device.type == "cpu" and not (tensor.is_conj() or tensor.is_neg()):
        yield tensor
        return
    tensor = tensor if tensor.dim() else tensor[None]
    rows = max(1, _PIECE // max(1, tensor[0].nbytes))
    buffer = torch.empty((min(rows, len(tensor)), *tensor.shape[1:]), dtype=tensor.dtype)
    for part in tensor.split(rows):
        yield buffer[: len(part)].copy_(part)


def rewrite(
    source: StrPath,
    target: StrPath,
    transform: Callable[[str, Tensor], Tensor] | None,
    *,
    max_shard_bytes: int,
    force: bool,
) -> None:
    """Rewrites a Hugging Face folder (or a file) into the folder `target`, tensor by tensor.

    `transform(name, tensor)` keeps dtype and shape (ValueError otherwise); None copies the bytes. Shards hold at
    most `max_shard_bytes` of tensors, or a single larger one; what fits into one becomes model.safetensors. Other
    files (configuration, tokenizer) are copied, other weights are not. Peak memory: two of the largest tensors.

    Raises what open_tensors and AtomicFolder raise; UsageError where `target` is or holds `source`.
    """
    check_output(target, inputs=[source], force=force, folder=True)
    place = os.fspath(target)
    with open_tensors(source) as reader, AtomicFolder(place, force=force) as folder, told_as(place):
        if Path(source).is_dir():
            _copy_others(Path(source), folder)
        shards = _shards(reader.infos.values(), max_shard_bytes)
        for shard, infos in shards.items():
            _write_shard(folder / shard, infos, reader, transform)
        if len(shards) > 1:
            (folder / f"model{INDEX_SUFFIX}").write_text(_index(shards), encoding="utf-8")


def _shards(infos: Iterable[TensorInfo], most: int) -> dict[str, list[TensorInfo]]:
    """file name -> its tensors, in the given order."""
    groups: list[list[TensorInfo]] = [[]]
    held = 0
    for info in infos:
        if groups[-1] and held + info.nbytes > most:
            groups.append([])
            held = 0
        groups[-1].append(info)
        held += info.nbytes
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": group for i, group in enumerate(groups, 1)}


def _write_shard(
    path: Path,
    infos: Sequence[TensorInfo],
    reader: TensorReader,
    transform: Callable[[str, Tensor], Tensor] | None,
) -> None:
    with open(path, "w+b") as file:
        specs = {info.name: (info.dtype, info.shape) for info in infos}
        writer = TensorWriter(file, specs, reader.metadata or {"format": "pt"})
        for name in specs:
            if transform is None:
                writer.write_bytes(name, [reader.read_bytes(name)])
            else:
                writer.write(name, transform(name, reader.read(name)))
        writer.close()


def _index(shards: Mapping[str, Sequence[TensorInfo]]) -> str:
    total = sum(info.nbytes for infos in shards.values() for info in infos)
    weight_map = {info.name: shard for shard, infos in shards.items() for info in infos}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return json.dumps(index, indent=2, sort_keys=True) + "\n"


def _copy_others(source: Path, folder: Path) -> None:
    for top, subfolders, names in os.walk(source):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            file = Path(top, name)
            is_index = name.endswith(".index.json")
            if file.suffix in _WEIGHTS or is_index or name.startswith(".") or not file.is_file():
                continue
            check_input(file)
            copy = folder / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
