"""The header of a safetensors file, read strictly and written as the reference writer writes it; no torch.

A file is: 8 bytes n (little-endian), n bytes of JSON, the tensors' bytes without overlap or hole. The JSON maps a
name to {"dtype", "shape", "data_offsets"}; "__metadata__" maps text to text.
"""

import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.files import StrPath, check_input
from nipstool.kit.parts import reason
from nipstool.kit.records import shown

# name, bits an element, torch's name (None: readable as bytes alone). In the order of the format's own enum,
# which is the reverse of the order in which the reference writer stores tensors.
_FORMATS: tuple[tuple[str, int, str | None], ...] = (
    ("BOOL", 8, "bool"),
    ("F4", 4, None),
    ("F6_E2M3", 6, None),
    ("F6_E3M2", 6, None),
    ("U8", 8, "uint8"),
    ("I8", 8, "int8"),
    ("F8_E5M2", 8, "float8_e5m2"),
    ("F8_E4M3", 8, "float8_e4m3fn"),
    ("F8_E8M0", 8, "float8_e8m0fnu"),
    ("F8_E4M3FNUZ", 8, "float8_e4m3fnuz"),
    ("F8_E5M2FNUZ", 8, "float8_e5m2fnuz"),
    ("I16", 16, "int16"),
    ("U16", 16, "uint16"),
    ("F16", 16, "float16"),
    ("BF16", 16, "bfloat16"),
    ("I32", 32, "int32"),
    ("U32", 32, "uint32"),
    ("F32", 32, "float32"),
    ("C64", 64, "complex64"),
    ("F64", 64, "float64"),
    ("I64", 64, "int64"),
    ("U64", 64, "uint64"),
)
DTYPES = {name: torch_name for name, _, torch_name in _FORMATS if torch_name}
_BITS = {name: bits for name, bits, _ in _FORMATS}
_RANK = {name: rank for rank, (name, _, _) in enumerate(_FORMATS)}

Specs = Mapping[str, tuple[str, Sequence[int]]]  # name -> (dtype, shape)

_METADATA = "__metadata__"
_MAX_HEADER = 100_000_000  # the reference reader's limit
_WORD = 1 << 64  # sizes are unsigned 64-bit integers

_OTHERS = (
    (rb"version https://git-lfs", "a git-lfs pointer; fetch the file itself with `git lfs pull`"),
    (rb"PK\x03\x04", "a zip archive, as torch.save writes"),
    (rb"\x80[\x02-\x05]", "a pickle, as torch.save wrote"),
    (rb"GGUF", "a GGUF file"),
    (rb"\x89HDF", "an HDF5 file"),
    (rb"\x93NUMPY", "a NumPy file"),
    (rb"\x1f\x8b", "a gzip archive"),
    (rb"(?i)\s*<(!doctype|html|head|\?xml)", "a web page, often a download that failed"),
)


def itemsize(dtype: str) -> int:
    """Bytes of one element of a safetensors dtype ("F32" -> 4)."""
    return nbytes(dtype, (1,))


def nbytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor. Raises ValueError for an unknown dtype or a size that is negative or no whole bytes."""
    if dtype not in _BITS:
        raise ValueError(f"unknown dtype {dtype!r}; expected one of {', '.join(_BITS)}")
    if any(size < 0 for size in shape):
        raise ValueError(f"negative size in shape {list(shape)}")
    bits = math.prod(shape) * _BITS[dtype]
    if bits % 8:
        raise ValueError(f"{list(shape)} of {dtype} fills no whole bytes")
    return bits // 8


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file: bytes `start` to `end` of `path`, counted from the file's beginning."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.end - self.start


@dataclass(frozen=True)
class Header:
    """What a file holds: its tensors in the order of their bytes, its metadata, and where the bytes begin."""

    infos: dict[str, TensorInfo]
    metadata: dict[str, str]
    data_start: int


def read_header(path: StrPath) -> Header:
    """The header of a safetensors file.

    Accepts what the reference reader accepts, save a key that occurs twice (the reference takes one of them) and
    entries spelled in ways that no writer uses (a list for an object). Raises InputMissingError where the file
    cannot be read, and DataError with what is wrong, or what the file is instead.
    """
    descriptor = open_file(path)
    try:
        return header_of(descriptor, Path(path))
    finally:
        os.close(descriptor)


def open_file(path: StrPath) -> int:
    """A descriptor for reading a regular file; the caller closes it. Raises as read_header does."""
    try:
        if not stat.S_ISREG(check_input(path).stat().st_mode):
            raise DataError(f"{os.fspath(path)}: is no regular file; expected a .safetensors file")
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InputMissingError(f"{os.fspath(path)}: cannot be read: {reason(error)}") from error


def header_of(descriptor: int, path: Path) -> Header:
    """`read_header` of a file that is open already; `path` names it in errors and results."""
    size = os.fstat(descriptor).st_size
    first = _pread(descriptor, min(size, 512), path)
    length = int.from_bytes(first[:8], "little")
    if size < 8:
        raise _wrong(path, first, f"{size} bytes are too few for a safetensors file")
    if length > _MAX_HEADER:
        raise _wrong(path, first, f"its first 8 bytes give the header {length} bytes, more than {_MAX_HEADER}")
    if 8 + length > size:
        raise _wrong(path, first, f"truncated: a header of {length} bytes, and the file has {size}")
    try:
        document = _parse(_pread(descriptor, 8 + length, path)[8:])
    except (ValueError, RecursionError) as error:
        raise _wrong(path, first, f"the header is no valid JSON: {error}") from error
    try:
        metadata = _metadata_of(document)
        infos = [_info(name, entry, path, 8 + length) for name, entry in document.items()]
        infos.sort(key=lambda info: (info.start, info.end))
        _check_ranges(infos, 8 + length, size)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    return Header({info.name: info for info in infos}, metadata, 8 + length)


def _pread(descriptor: int, length: int, path: Path) -> bytes:
    try:
        return os.pread(descriptor, length, 0)
    except OSError as error:
        raise InputMissingError(f"{path}: cannot be read: {reason(error)}") from error


def _wrong(path: Path, first: bytes, otherwise: str) -> DataError:
    """The mistake: the file is of another kind, or else `otherwise`."""
    for pattern, kind in _OTHERS:
        if re.match(pattern, first):
            return DataError(f"{path}: is {kind}; expected a safetensors file")
    return DataError(f"{path}: {otherwise if first else 'is empty; expected a safetensors file'}")


def _parse(text: bytes) -> dict[str, Any]:
    """JSON as strict as the reference reader's: no NaN, no doubled key, no half of a surrogate pair."""
    document = json.loads(
        text.decode(),
        object_pairs_hook=_once,
        parse_int=_integer,
        parse_float=_finite,
        parse_constant=_no_constant,
    )
    if not isinstance(document, dict):
        raise ValueError(f"expected an object, found {shown(document)}")
    if re.search(rb"\\u[dD][89a-fA-F]", text):
        json.dumps(document, ensure_ascii=False).encode()
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"{shown(counts.most_common(1)[0][0])} occurs twice")
    return found


def _integer(text: str) -> int | float:
    """A size, or a float for what is none (-0 and 2**64 too), which no size may be."""
    if text[0] == "-" or len(text) > 20 or int(text) >= _WORD:
        return _finite(text)
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"number {text[:20]} is out of range")
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON value")


def _metadata_of(document: dict[str, Any]) -> dict[str, str]:
    """Takes the metadata out of `document`."""
    metadata = document.pop(_METADATA, None)
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise ValueError(f"{_METADATA} is {shown(metadata)}; expected an object of texts")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise ValueError(f"{_METADATA} holds {shown(value)} under {shown(key)}; expected a text")
    return metadata


def _info(name: str, entry: Any, path: Path, data_start: int) -> TensorInfo:
    tensor = f"tensor {shown(name)}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise ValueError(f"{tensor} is {shown(entry)}; expected dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise ValueError(f"{tensor} has the unknown dtype {shown(dtype)}")
    if not _is_sizes(shape):
        raise ValueError(f"{tensor} has the shape {shown(shape)}; expected sizes of 0 or more")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{tensor} has the data_offsets {shown(offsets)}; expected [begin, end]")
    # the reference multiplies in 64 bits from the left, so a later 0 does not undo an overflow
    if any(count >= _WORD for count in accumulate(shape, mul)) or math.prod(shape) * _BITS[dtype] >= _WORD:
        raise ValueError(f"{tensor} has the shape {shown(shape)}: too large for any memory")
    needed, held = nbytes(dtype, shape), offsets[1] - offsets[0]
    if needed != held:
        raise ValueError(f"{tensor} of {dtype} {shown(shape)} needs {needed} bytes; its data_offsets hold {held}")
    return TensorInfo(name, dtype, tuple(shape), path, data_start + offsets[0], data_start + offsets[1])


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int for size in value)


def _check_ranges(infos: list[TensorInfo], data_start: int, size: int) -> None:
    """Every byte after the header belongs to one tensor. `infos` are sorted by their place."""
    place = data_start
    for info in infos:
        if info.start != place:
            fault = "overlaps another by" if info.start < place else "leaves a hole of"
            raise ValueError(f"tensor {shown(info.name)} {fault} {abs(info.start - place)} bytes")
        place = info.end
    if place > size:
        raise ValueError(f"truncated: expected {place} bytes, found {size}")
    if place < size:
        raise ValueError(f"expected {place} bytes, found {size}: what follows belongs to no tensor")


def layout(specs: Specs) -> dict[str, tuple[int, int]]:
    """name -> (begin, end), counted from the end of the header, in the order of the reference writer.

    Raises ValueError for a spec that cannot be stored.
    """
    ranges, place = {}, 0
    for name in sorted(specs, key=lambda name: (-_RANK.get(specs[name][0], 0), name)):
        size = nbytes(*specs[name])
        ranges[name] = (place, place + size)
        place += size
    return ranges


def encode_header(specs: Specs, metadata: Mapping[str, str] | None) -> bytes:
    """The bytes before the tensors: length, JSON, spaces up to a multiple of 8; metadata sorted by key.

    Byte for byte what `safetensors.torch.save_file` writes for at most one metadata key (with more, its order
    changes from run to run). Raises ValueError for specs that cannot be stored.
    """
    if _METADATA in specs:
        raise ValueError(f"a tensor cannot be named {_METADATA}")
    if odd := [key for key, value in (metadata or {}).items() if not isinstance(value, str)]:
        raise ValueError(f"metadata values are texts; {odd} are not")
    head: dict[str, Any] = {} if metadata is None else {_METADATA: dict(sorted(metadata.items()))}
    for name, (begin, end) in layout(specs).items():
        dtype, shape = specs[name]
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER:
        raise ValueError(f"a header of {len(text)} bytes; readers take {_MAX_HEADER}")
    return len(text).to_bytes(8, "little") + text


def metadata_place(metadata: Mapping[str, str], key: str) -> int:
    """Where in `encode_header(..., metadata)` the value of `key` begins, after its quotation mark."""
    before = {k: v for k, v in metadata.items() if k < key}
    text = json.dumps(dict(sorted(before.items())) | {key: ""}, ensure_ascii=False, separators=(",", ":"))
    return 8 + len(f'{{"{_METADATA}":{text[:-2]}'.encode())
