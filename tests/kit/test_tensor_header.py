"""The strict header reader against the reference reader (safetensors' safe_open), and the messages of mistakes."""

import gzip
import io
import json
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.tensor_header import layout, nbytes
from nipstool.kit.tensors import encode_header, itemsize, read_header


def build(header: str | bytes, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else header.encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "U8", shape: str = "[]", offsets: str = "[0,1]", more: str = "") -> str:
    return f'{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}{more}}}}}'


def reference(path: Path) -> object:
    """Names, dtypes, shapes and metadata as safe_open sees them; None where it refuses the file."""
    try:
        with safe_open(path, "np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {n: (s.get_dtype(), tuple(s.get_shape())) for n, s in slices.items()}, file.metadata() or {}
    except Exception:
        return None


def ours(path: Path) -> object:
    try:
        header = read_header(path)
    except DataError:
        return None
    return {i.name: (i.dtype, i.shape) for i in header.infos.values()}, header.metadata


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Three small files by the reference writer."""
    folder = tmp_path_factory.mktemp("samples")
    bf16, int8 = torch.ones(1, dtype=torch.bfloat16), torch.zeros(5, dtype=torch.int8)
    sets = [
        {"a": torch.ones(2, 3), "b.weight": torch.zeros(4, dtype=torch.int64), "c": torch.tensor(True)},
        {"é\n": bf16, "empty": torch.empty(0, 7), "u": int8},
        {},
    ]
    for number, tensors in enumerate(sets):
        save_file(tensors, folder / str(number), metadata={"format": "pt"} if number else None)
    return [(folder / str(number)).read_bytes() for number in range(len(sets))]


def agree(path: Path, data: bytes) -> bool:
    """Asserts that both readers say the same of `data`; returns whether they accept it."""
    path.write_bytes(data)
    expected = reference(path)
    assert ours(path) == expected, data[:400]
    return expected is not None


def test_every_truncation_is_refused(samples, tmp_path):
    for sample in samples:
        assert agree(tmp_path / "f", sample)
        for length in range(len(sample)):
            assert not agree(tmp_path / "f", sample[:length])
        assert not agree(tmp_path / "f", sample + b"\0")


def test_flipped_bits_are_judged_as_the_reference_judges_them(samples, tmp_path):
    draw, accepted, cases = random.Random(0), 0, 0
    for sample in samples[:2]:
        header = 8 + int.from_bytes(sample[:8], "little")
        for _ in range(400):
            changed = bytearray(sample)
            for _ in range(draw.choice((1, 1, 2))):
                changed[draw.randrange(header)] ^= 1 << draw.randrange(8)
            (tmp_path / "f").write_bytes(changed)
            if is_doubled(tmp_path / "f"):
                continue
            accepted += agree(tmp_path / "f", bytes(changed))
            cases += 1
    assert cases > 700
    assert 10 < accepted < cases - 300  # there are cases of both kinds


def is_doubled(path: Path) -> bool:
    """A key that occurs twice, which we refuse and the reference does not always."""
    try:
        read_header(path)
    except DataError as error:
        return "occurs twice" in str(error)
    return False


TOKENS = (
    "-0",
    "0",
    "1",
    "2",
    "6",
    "-1",
    "1.0",
    "1e0",
    "1e400",
    "18446744073709551615",
    "18446744073709551616",
    "4611686018427387904",
    "9" * 400,
    "true",
    "null",
    "NaN",
    "Infinity",
    '""',
    '"F32"',
    '"f32"',
    '"I64"',
    '"F4"',
    '"F6_E2M3"',
    '"F8_E8M0"',
    '"\\ud83d\\ude00"',
    '"\\ud83d"',
    '"\\u0041"',
    "{}",
    "[]",
    "[0]",
    "[0,0]",
    "[1,6]",
    "[0,9223372036854775808,4]",
    "[4611686018427387904,0]",
    "[9223372036854775808,4,0]",
)


def test_values_put_in_place_of_others_are_judged_as_the_reference_judges_them(samples, tmp_path):
    draw, accepted = random.Random(1), 0
    for _ in range(1500):
        sample = draw.choice(samples[:2])
        length = int.from_bytes(sample[:8], "little")
        document = json.loads(sample[8 : 8 + length])
        name = draw.choice(list(document))
        field = draw.choice(list(document[name]))
        if isinstance(document[name][field], list) and document[name][field] and draw.random() < 0.6:
            document[name][field][draw.randrange(len(document[name][field]))] = "@"
        else:
            document[name][field if draw.random() < 0.9 else "unknown"] = "@"
        text = json.dumps(document, ensure_ascii=draw.random() < 0.5).replace('"@"', draw.choice(TOKENS))
        accepted += agree(tmp_path / "f", build(" " * draw.randrange(3) + text, sample[8 + length :]))
    assert 100 < accepted < 1400


@pytest.mark.parametrize(
    ("data", "valid"),
    [
        (build("{}"), True),
        (build(' \n\t\r{"__metadata__":null} '), True),
        (build(""), False),
        (build("[]"), False),
        (build("{}\0"), False),
        (build(b"\xef\xbb\xbf{}"), False),
        (build(b'{"__metadata__":{"a":"\xff"}}'), False),
        (build('{"__metadata__":[]}'), False),
        (build('{"__metadata__":{"a":1}}'), False),
        (build('{"__metadata__":{"a":"\x7f\\/\\u00e9"}}'), True),
        (build('{"__metadata__":{"a":"\x01"}}'), False),
        (build(entry(), b"x"), True),
        (build(entry(more=',"later":{"y":[1,null,-3.5]}'), b"x"), True),
        (build(entry(more=',"later":"\\udc00"'), b"x"), False),
        (build(entry("F4", "[2]"), b"x"), True),
        (build(entry("F4", "[1]"), b"x"), False),
        (build(entry(offsets="[1,2]"), b"xx"), False),
        (build(entry(offsets="[1,0]"), b"x"), False),
        (build(entry("U8", "[0]", "[1,1]"), b"x"), False),
        (build(entry("U8", "[true]"), b"x"), False),
        (build(entry("U8", "[4611686018427387904,0]", "[0,0]")), True),
        (build(entry("U8", "[0,9223372036854775808,4]", "[0,0]")), True),
        (build(entry("U8", "[9223372036854775808,4,0]", "[0,0]")), False),
        (build(entry()[:-1] + "," + entry("U8", "[0]", "[0,0]").replace("a", "b", 1)[1:], b"x"), True),
        ((100_000_001).to_bytes(8, "little") + b"{}", False),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", False),
    ],
)
def test_cases_by_hand(tmp_path, data, valid):
    assert agree(tmp_path / "f", data) == valid


@pytest.mark.parametrize(
    "header",
    [
        '{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        '{"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}}',
    ],
)
def test_a_doubled_key_is_always_refused(tmp_path, header):
    (tmp_path / "f").write_bytes(build(header, b"x"))
    with pytest.raises(DataError, match=r"'(a|dtype)' occurs twice"):
        read_header(tmp_path / "f")


def torch_zip() -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(3)}, buffer)
    return buffer.getvalue()


def pair(a: str, b: str) -> str:
    """A header of two tensors of two bytes, with these data_offsets."""
    return ",".join((entry(shape="[2]", offsets=a)[:-1], entry(shape="[2]", offsets=b)[1:].replace("a", "b", 1)))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "is empty"),
        (b"abc", "3 bytes are too few"),
        (b"  \n<!DOCTYPE html><html>not found</html>", "web page"),
        (b"<html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git-lfs pointer"),
        (pickle.dumps({"a": [1.5] * 9}), "pickle"),
        (torch_zip(), "zip archive"),
        (b"GGUF\x03\0\0\0" + b"\0" * 64, "GGUF"),
        (gzip.compress(b"x" * 100, mtime=0), "gzip"),
        (build("{}")[:9], "truncated: a header of 2 bytes, and the file has 9"),
        (build(entry("F32", "[2,3]", "[0,24]"), b"x" * 20), "truncated: expected 89 bytes, found 85"),
        (build(entry(), b"xyz"), "what follows belongs to no tensor"),
        (build("{oops"), "no valid JSON"),
        (build("{" * 100_000), "no valid JSON"),
        (build(entry("F33"), b"x"), r"tensor 'a' has the unknown dtype 'F33'"),
        (
            build(entry("F32", "[2,3]", "[0,20]"), b"x" * 20),
            r"F32 \[2, 3\] needs 24 bytes; .* hold 20",
        ),
        (build(entry(shape="[-1]"), b"x"), "shape"),
        (build(entry(shape="[4294967296,4294967296]"), b"x"), "too large"),
        (build(pair("[0,2]", "[4,6]"), b"xxxxxx"), "'b' leaves a hole of 2 bytes"),
        (build(pair("[0,2]", "[1,3]"), b"xxx"), "'b' overlaps another by 1 bytes"),
        (build('{"__metadata__":{"k":1}}'), "__metadata__ holds 1 under 'k'; expected a text"),
        (build('{"a":7}'), "'a' is 7; expected dtype, shape and data_offsets"),
    ],
)
def test_each_mistake_is_named(tmp_path, data, told):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(DataError, match=told) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_is_no_file(tmp_path):
    with pytest.raises(InputMissingError, match="No such file"):
        read_header(tmp_path / "absent")
    for other in (tmp_path, "/dev/null", "/dev/zero"):
        with pytest.raises(DataError, match="no regular file"):
            read_header(other)
    with pytest.raises(InputMissingError):
        read_header("-")


def test_a_name_cannot_smuggle_control_characters_into_a_message(tmp_path):
    (tmp_path / "f").write_bytes(build('{"\\u001b[31m\\n":7}'))
    with pytest.raises(DataError) as caught:
        read_header(tmp_path / "f")
    assert "\x1b" not in str(caught.value)


def test_offsets_are_absolute_and_tensors_in_the_order_of_their_bytes(tmp_path):
    text = pair("[2,4]", "[0,2]")
    (tmp_path / "f").write_bytes(build(text, b"bbaa"))
    header = read_header(tmp_path / "f")
    assert list(header.infos) == ["b", "a"]
    assert header.data_start == 8 + len(text)
    a = header.infos["a"]
    assert (tmp_path / "f").read_bytes()[a.start : a.end] == b"aa"
    assert (a.nbytes, a.shape, a.path) == (2, (2,), tmp_path / "f")


def test_sizes():
    assert [itemsize(name) for name in ("BOOL", "F8_E4M3", "BF16", "F32", "C64")] == [1, 1, 2, 4, 8]
    assert [nbytes("F32", (2, 3)), nbytes("F32", ()), nbytes("F64", (4, 0)), nbytes("F4", (3, 2))] == [24, 4, 0, 3]
    for dtype, shape in (("F33", (1,)), ("F32", (-1,)), ("F4", (3,))):
        with pytest.raises(ValueError):
            nbytes(dtype, shape)


def test_a_written_header_reads_back(tmp_path):
    specs = {"z": ("F16", (2, 2)), "a": ("I64", (1,)), "b": ("I64", ()), "é": ("BOOL", (3,))}
    assert layout(specs) == {"a": (0, 8), "b": (8, 16), "z": (16, 24), "é": (24, 27)}
    head = encode_header(specs, {"z": "1", "a": "2"})
    assert len(head) % 8 == 0
    assert head.index(b'"a":"2"') < head.index(b'"z":"1"')
    assert agree(tmp_path / "f", head + b"\0" * 27)
    for bad in ({"__metadata__": ("F32", ())}, {"a": ("F33", ())}, {"a": ("F32", (-1,))}, {"\ud800": ("F32", ())}):
        with pytest.raises(ValueError):
            encode_header(bad, None)
    with pytest.raises(ValueError, match="texts"):
        encode_header({}, {"a": 1})  # type: ignore[dict-item]


def test_headers_need_no_torch(tmp_path):
    (tmp_path / "f").write_bytes(build("{}"))
    code = """import sys
from nipstool.kit.tensors import read_header
read_header(sys.argv[1])
print('torch' in sys.modules, 'numpy' in sys.modules)"""
    command = [sys.executable, "-c", code, str(tmp_path / "f")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
