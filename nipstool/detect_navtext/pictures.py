"""Pictures from files: upright, eight bits, three channels, or one line that says why not."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np

from nipstool.detect_navtext.lines import Image
from nipstool.kit.errors import DataError, InputMissingError
from nipstool.kit.parts import reason

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".dib", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".gif")
) | {".avif", ".heic", ".heif"}  # told where they cannot be read: a folder of them must not look empty
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_PDF = b"%PDF"
_BRANDS = {  # at byte 8 of a file in the format of ISO 14496-12; AVIF is decoded where OpenCV was built with it
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"), "HEIC"),
    **dict.fromkeys((b"mif1", b"msf1", b"miaf"), "HEIF"),
}
_MOST = 1 << 30  # pixels, as OpenCV's own limit
_DEFLATE = 1032  # bytes that one byte of deflate can stand for, at the most


class _Codecs:
    """libpng, libjpeg and OpenCV tell of damage on descriptor 2 themselves; ours is the one line that counts."""

    def __init__(self) -> None:
        self._lock, self._within, self._kept = threading.Lock(), 0, -1

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Descriptor 2 leads nowhere while any thread is inside."""
        with self._lock:
            self._within += 1
            if self._within == 1:
                self._kept = os.dup(2)
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 2)
                os.close(nowhere)
        try:
            yield
        finally:
            with self._lock:
                self._within -= 1
                if self._within == 0:
                    os.dup2(self._kept, 2)
                    os.close(self._kept)


_codecs = _Codecs()


def read_picture(path: str | Path) -> Image:
    """The picture in a file, turned as its EXIF orientation says.

    16 bits are cut to 8, CMYK and grey become colour, what is transparent shows white.

    Raises:
        InputMissingError: the file cannot be read.
        DataError: it is empty, cut short, or no picture that OpenCV can decode.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise InputMissingError(f"{path}: {reason(error)}; expected a picture") from error
    except ValueError as error:  # a name with a zero byte, from a dataset
        raise InputMissingError(f"{os.fspath(path)!r}: {error}; expected a picture") from error
    return decoded(data, os.fspath(path))


def decoded(data: bytes, name: str) -> Image:
    """As `read_picture`, of a file's bytes; `name` is what errors call it."""
    if not data:
        raise DataError(f"{name}: is empty; expected a picture")
    if (lack := _cut_short(data)) is not None:
        raise DataError(f"{name}: is cut short: {lack}")
    image = _decode(data, cv2.IMREAD_COLOR, name)
    if image is None and (kind := _not_read(data)) is not None:
        raise DataError(f"{name}: is {kind}; convert it to JPEG or PNG")
    if image is None:
        raise DataError(f"{name}: is no picture that can be decoded; it begins with {data[:8]!r}")
    if data.startswith(_PNG) and len(data) > 25 and data[25] in (4, 6):
        return _on_white(image, _decode(data, cv2.IMREAD_UNCHANGED, name))
    return image


def _decode(data: bytes, flags: int, name: str) -> Image | None:
    try:
        with _codecs.silent():
            image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        words = str(error).strip().splitlines()[-1]
        raise DataError(f"{name}: cannot be decoded (at most {_MOST} pixels): {words[-160:]}") from error
    return image  # pyright: ignore[reportReturnType]


def _on_white(image: Image, whole: Image | None) -> Image:
    """The picture over white where its alpha says so; a PNG of OpenCV's has alpha last, of 8 or 16 bits."""
    if whole is None or whole.ndim != 3 or whole.shape[2] != 4 or whole.shape[:2] != image.shape[:2]:
        return image
    full = 65535 if whole.dtype == np.uint16 else 255
    clear = whole[:, :, 3] < full
    if not clear.any():
        return image
    alpha = whole[:, :, 3:].astype(np.float32) / full
    return (image * alpha + 255 * (1 - alpha)).round().astype(np.uint8)


def _not_read(data: bytes) -> str | None:
    """What a file is that OpenCV has not decoded, of the formats that people have; None for any other."""
    if data.startswith(_PDF):
        return "PDF, which is not read"
    if data[4:8] != b"ftyp":
        return None
    if data[8:12] in (b"avif", b"avis"):
        return "AVIF, which is damaged or not read by this build of OpenCV"
    return f"{_BRANDS[data[8:12]]}, which is not read" if data[8:12] in _BRANDS else None


def _cut_short(data: bytes) -> str | None:
    """What is missing at the end of a JPEG, PNG or WebP; None where all is there, or for other formats."""
    if data.startswith(_JPEG):
        return None if data.find(b"\xff\xd9", _start_of_scan(data)) >= 0 else "a JPEG without its end marker"
    if data.startswith(_PNG):
        return _beyond_deflate(data) or _beyond_chunk(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        size = struct.unpack("<I", data[4:8])[0] + 8
        return None if len(data) >= size else f"a WebP of {size} bytes, {len(data)} are there"
    return None


def _beyond_deflate(data: bytes) -> str | None:
    """What a PNG claims, where that is more than its bytes can hold; told before memory is taken for it."""
    if len(data) < 26:
        return "a PNG without its header"
    width, height, bits, colours = struct.unpack(">IIBB", data[16:26])
    row = 1 + width * bits * {2: 3, 4: 2, 6: 4}.get(colours, 1) // 8
    if height * row <= _DEFLATE * len(data):
        return None
    return f"a PNG of {width} x {height} pixels, {len(data)} bytes are there"


def _beyond_chunk(data: bytes) -> str | None:
    """What is missing of a PNG's chunks up to IEND; OpenCV takes memory for the length that a chunk claims."""
    at = len(_PNG)
    while at + 12 <= len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        if kind == b"IEND":
            return None
        if size > len(data) - at - 12:
            return f"a PNG with a chunk of {size} bytes at byte {at}, {len(data) - at - 12} are there"
        at += 12 + size
    return "a PNG without its last chunk"


def _start_of_scan(data: bytes) -> int:
    """Where a JPEG's first scan begins: markers in segments before it (thumbnails) are not the picture's."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xDA:
            return at
        if marker == 0xFF or 0xD0 <= marker <= 0xD9:
            at += 1 if marker == 0xFF else 2
            continue
        at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    return min(at, len(data))
