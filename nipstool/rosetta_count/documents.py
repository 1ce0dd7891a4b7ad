"""Documents of text: records of JSON lines, files of a folder, or paragraphs of one file."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from nipstool.kit.errors import DataError, InputMissingError, UnavailableError
from nipstool.kit.files import check_input, spooled_input
from nipstool.kit.parts import reason
from nipstool.kit.records import field_of, parse_json

LINES = (".jsonl", ".ndjson", ".json")
PACKED = (".gz", ".zst")


@dataclass(frozen=True)
class Document:
    """A text, its label if it has one, and where it came from."""

    text: str
    label: str | None
    where: str


@dataclass(frozen=True)
class Texts:
    """Documents, and a warning for every file of a folder that could not be read."""

    documents: tuple[Document, ...]
    warnings: tuple[str, ...] = ()


def read_texts(path: str, *, text_field: str = "text", domain_field: str | None = None) -> Texts:
    """All documents of `path` ('-' is standard input): a JSON record, a file of a folder, or a paragraph each.

    Files of a folder are labelled by the subfolder they lie in. Raises InputMissingError, DataError naming the
    line, UnavailableError for .zst without zstandard.
    """
    if path != "-" and check_input(path).is_dir():
        texts = _folder(Path(path))
    else:
        with spooled_input(path) as file:
            told = "stdin" if path == "-" else path
            texts = Texts(tuple(_documents(file, told, text_field, domain_field)))
    texts = Texts(tuple(one for one in texts.documents if one.text.strip()), texts.warnings)
    if not texts.documents:
        raise DataError(f"{path}: no text in it; expected at least one document")
    return texts


def _folder(folder: Path) -> Texts:
    documents: list[Document] = []
    warnings: list[str] = []
    for file in sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")):
        inner = file.relative_to(folder).parts
        try:
            text = "\n".join(_lines(file, str(file)))
        except (DataError, InputMissingError) as error:
            warnings.append(f"warning: {error}")
            continue
        documents.append(Document(text, inner[0] if len(inner) > 1 else None, str(file)))
    if not documents:
        raise DataError(f"{folder}: {len(warnings)} files and none is a text; expected documents")
    return Texts(tuple(documents), tuple(warnings))


def _documents(file: Path, told: str, text_field: str, domain_field: str | None) -> Iterator[Document]:
    lines = _lines(file, told)
    stem = told.removesuffix(Path(told).suffix) if Path(told).suffix in PACKED else told
    first = next(lines, "")
    if stem.endswith(LINES) or (told == "stdin" and first.lstrip().startswith("{")):
        yield from _records([first], lines, told, text_field, domain_field)
    else:
        yield from _paragraphs(first, lines, told)


def _records(
    first: Sequence[str], rest: Iterator[str], told: str, text_field: str, domain_field: str | None
) -> Iterator[Document]:
    number = 0
    for part in (first, rest):
        for line in part:
            number += 1
            if line.strip():
                where = f"{told} line {number}"
                record = parse(line, where)
                label = None if domain_field is None else str(field_of(record, domain_field, where))
                yield Document(text_of(record, text_field, where), label, where)


def parse(line: str, where: str) -> dict[str, Any]:
    """A line as a JSON object; DataError, about `where`, for anything else."""
    try:
        record = parse_json(line)
    except ValueError as error:
        raise DataError(f"{where}: is no JSON: {' '.join(str(error).split())}") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: is {type(record).__name__}; expected a JSON object")
    return record


def text_of(record: dict[str, Any], name: str, where: str) -> str:
    """The text of a record."""
    text = field_of(record, name, where)
    if not isinstance(text, str):
        raise DataError(f"{where}: {name!r} is {type(text).__name__}; expected text")
    return text


def _paragraphs(first: str, rest: Iterator[str], told: str) -> Iterator[Document]:
    held: list[str] = []
    begun = 1
    for number, line in enumerate(_chained(first, rest), 1):
        if line.strip():
            begun = begun if held else number
            held.append(line)
        elif held:
            yield Document("\n".join(held), None, f"{told} line {begun}")
            held = []
    if held:
        yield Document("\n".join(held), None, f"{told} line {begun}")


def _chained(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _lines(file: Path, told: str) -> Iterator[str]:
    """The lines of a file, unpacked, without their ends; DataError with the line's number where it is no UTF-8."""
    number = 0
    try:
        with _opened(file, told) as source:
            for raw in source:
                number += 1
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                if "\0" in line:
                    raise DataError(f"{told}: line {number} holds NUL bytes; expected text")
                yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{told}: line {number} is not UTF-8: {error.reason} at byte {error.start}") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{told}: is no complete gzip file: {error}") from error
    except OSError as error:
        raise InputMissingError(f"{told}: cannot be read: {reason(error)}") from error


def _opened(file: Path, told: str) -> IO[bytes] | gzip.GzipFile:
    suffix = Path(told).suffix
    if suffix == ".gz":
        return gzip.open(file, "rb")
    if suffix != ".zst":
        return file.open("rb")
    try:
        import zstandard
    except ImportError as error:
        raise UnavailableError(f"{told}: needs the package zstandard to be unpacked") from error
    try:
        data = zstandard.ZstdDecompressor().stream_reader(file.open("rb"), closefd=True).read()
    except zstandard.ZstdError as error:
        raise DataError(f"{told}: is no complete zstandard file: {error}") from error
    return io.BytesIO(data)
