"""Pictures, folders, videos and cameras: what comes upright, what is refused in one line, what is dropped."""

import itertools
import os
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as pictures

from nipstool.detect_navtext.pictures import decoded, read_picture
from nipstool.detect_navtext.sources import Frame, Newest, Source, camera_frames, frames_of, sources_of
from nipstool.kit.errors import DataError, InputMissingError, NipsError


@pytest.fixture
def flag() -> np.ndarray:
    """40 x 64, blue above, red below left, green below right, in blue-green-red."""
    image = np.zeros((40, 64, 3), np.uint8)
    image[:20] = (255, 0, 0)
    image[20:, :32], image[20:, 32:] = (0, 0, 255), (0, 255, 0)
    return image


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_a_picture_once(tmp_path: Path, flag: np.ndarray, orientation: int) -> None:
    """Stored as the camera held it, shown upright: PIL's own transposition is the oracle."""
    stored = pictures.fromarray(flag[:, :, ::-1])
    exif = pictures.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.jpg", exif=exif, quality=95, subsampling=0)
    from PIL import ImageOps

    upright = np.asarray(ImageOps.exif_transpose(pictures.open(tmp_path / "a.jpg")).convert("RGB"))[:, :, ::-1]
    found = read_picture(tmp_path / "a.jpg")
    assert found.shape == upright.shape
    assert np.abs(found.astype(int) - upright).mean() < 3


@pytest.mark.realdata
def test_a_real_picture_with_an_orientation_is_read_upright(data_dir: Path) -> None:
    path = data_dir / "detect-navtext" / "extra" / "rapid_img_exif_orientation.jpg"
    stored = cv2.imread(str(path), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    assert stored is not None
    assert np.array_equal(read_picture(path), np.rot90(stored, 2))  # orientation 3


def test_depths_colours_and_alpha_become_eight_bits_of_colour(tmp_path: Path, flag: np.ndarray) -> None:
    deep = flag.astype(np.uint16) * 257
    cv2.imwrite(str(tmp_path / "deep.png"), deep)
    assert np.array_equal(read_picture(tmp_path / "deep.png"), flag)
    pictures.fromarray(flag[:, :, ::-1]).convert("CMYK").save(tmp_path / "cmyk.jpg", quality=95)
    assert np.abs(read_picture(tmp_path / "cmyk.jpg").astype(int) - flag).mean() < 6
    pictures.fromarray(flag[:, :, 0]).save(tmp_path / "grey.png")
    assert np.array_equal(read_picture(tmp_path / "grey.png"), np.repeat(flag[:, :, :1], 3, axis=2))
    clear = np.dstack([flag, np.full(flag.shape[:2], 255, np.uint8)])
    clear[:20, :, 3], clear[20:, :, 3] = 0, 128
    cv2.imwrite(str(tmp_path / "clear.png"), clear)
    seen = read_picture(tmp_path / "clear.png")
    assert (seen[:20] == 255).all()
    assert seen[30, 10].tolist() == [127, 127, 255]


def encoded(suffix: str) -> bytes:
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    done, data = cv2.imencode(suffix, image)
    assert done
    return data.tobytes()


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".bmp", ".tiff"])
@pytest.mark.parametrize("part", [0.0, 0.02, 0.5, 0.98])
def test_a_picture_cut_short_is_refused(suffix: str, part: float) -> None:
    whole = encoded(suffix)
    assert decoded(whole, "a").shape == (64, 64, 3)
    if suffix in (".bmp", ".tiff") and part > 0.4:
        return  # these decoders fill what is missing
    with pytest.raises(DataError, match=r"^a: is "):
        decoded(whole[: int(part * len(whole))], "a")


def test_a_png_that_claims_more_than_it_can_hold_is_refused_before_it_is_decoded() -> None:
    plain = cv2.imencode(".png", np.zeros((4000, 6000, 3), np.uint8), [cv2.IMWRITE_PNG_COMPRESSION, 9])[
        1
    ].tobytes()
    assert decoded(plain, "a").shape == (4000, 6000, 3)
    assert len(plain) > 4000 * 18001 / 1032
    claimed = plain[:16] + struct.pack(">II", 12000, 8000) + plain[24:]
    with pytest.raises(DataError, match=r"^a: is cut short: a PNG of 12000 x 8000 pixels, \d+ bytes are there$"):
        decoded(claimed, "a")


def test_a_png_chunk_that_claims_more_than_there_is_is_refused_before_memory_is_taken_for_it() -> None:
    plain = encoded(".png")
    at = plain.index(b"IDAT") - 4
    with pytest.raises(
        DataError, match=rf"^a: is cut short: a PNG with a chunk of 2147483647 bytes at byte {at}, "
    ):
        decoded(plain[:at] + struct.pack(">I", (1 << 31) - 1) + plain[at + 4 :], "a")
    with pytest.raises(DataError, match="without its last chunk"):
        decoded(plain[: plain.rindex(b"IEND") - 4], "a")
    assert decoded(plain + b"behind the end", "a").shape == (64, 64, 3)


def test_a_name_that_no_file_can_have_is_missing() -> None:
    with pytest.raises(InputMissingError, match=r"^'a.x00b\.png': embedded null byte; expected a picture$"):
        read_picture("a\0b.png")


def test_what_stands_behind_a_jpeg_and_a_thumbnail_in_it_do_no_harm() -> None:
    whole, thumbnail = encoded(".jpg"), encoded(".jpg")
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    assert decoded(whole[:2] + segment + whole[2:] + b"\0" * 99, "a").shape == (64, 64, 3)
    with pytest.raises(DataError, match="end marker"):
        decoded(whole[:2] + segment + whole[2:-400], "a")


@pytest.mark.parametrize(
    ("start", "told"),
    [
        *((b"\0\0\0\x24ftyp" + brand, "HEIC, which is not read") for brand in (b"heic", b"heix")),
        (b"\0\0\0\x24ftypmif1", "HEIF, which is not read"),
        (b"%PDF-1.7\n", "PDF, which is not read"),
        (b"\0\0\0\x24ftypavif", "AVIF, which is damaged or not read by this build of OpenCV"),
    ],
)
def test_formats_that_are_not_read_are_called_by_their_names(start: bytes, told: str) -> None:
    with pytest.raises(DataError) as error:
        decoded(start + bytes(200), "a.x")
    assert str(error.value) == f"a.x: is {told}; convert it to JPEG or PNG"
    with pytest.raises(DataError, match="is no picture that can be decoded"):
        decoded(b"\0\0\0\x24ftypmp42" + bytes(200), "a.x")


def test_a_folder_of_pictures_that_are_not_read_does_not_look_empty(tmp_path: Path) -> None:
    (tmp_path / "IMG_1.HEIC").write_bytes(b"\0\0\0\x24ftypheic" + bytes(200))
    [source] = sources_of([str(tmp_path)])
    assert isinstance(source, Source)
    with pytest.raises(DataError, match="is HEIC, which is not read"):
        next(frames_of(source))


def test_random_bytes_never_do_more_than_fail() -> None:
    rng = np.random.default_rng(0)
    for start in (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\x10\0\0\0WEBP", b"BM", b"GIF89a", b"II*\0"):
        for size in (1, 20, 300):
            with pytest.raises(DataError):
                decoded(start + rng.bytes(size), "a")
    for suffix in (".jpg", ".png", ".webp"):
        whole = encoded(suffix)
        for _ in range(40):
            data = bytearray(whole)
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
            with suppress(DataError):
                assert decoded(bytes(data), "a").dtype == np.uint8


def test_sources_are_what_words_name(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("z.jpg", "a.PNG", "b/c.mp4", "notes.txt", ".hidden.jpg"):
        (tmp_path / name).touch()
    found = list(
        sources_of(
            [str(tmp_path), "cam:0", "rtsp://a/b", "-", str(tmp_path / "none.jpg"), str(tmp_path / "z.jpg")]
        )
    )
    assert found[:3] == [
        Source(str(tmp_path / "a.PNG"), "picture", False),
        Source(str(tmp_path / "z.jpg"), "picture", False),
        Source(str(tmp_path / "b" / "c.mp4"), "video", False),
    ]
    assert [source.kind for source in found[3:6] if isinstance(source, Source)] == ["camera", "camera", "picture"]
    assert isinstance(found[6], InputMissingError)
    assert found[7] == Source(str(tmp_path / "z.jpg"), "picture", True)
    (tmp_path / "empty").mkdir()
    (error,) = sources_of([str(tmp_path / "empty")])
    assert isinstance(error, NipsError)


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """20 frames at 10 a second; frame n is of one grey, 10 n."""
    path = tmp_path / "v.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
    for number in range(20):
        writer.write(np.full((48, 64, 3), 10 * number, np.uint8))
    writer.release()
    return path


@pytest.mark.parametrize(
    ("fps", "numbers"), [(None, list(range(20))), (5.0, list(range(0, 20, 2))), (1.0, [0, 10])]
)
def test_frames_of_a_video_have_its_own_times(video: Path, fps: float | None, numbers: list[int]) -> None:
    frames = list(frames_of(Source(str(video), "video", True), fps))
    assert [frame.number for frame in frames] == numbers
    assert [frame.time for frame in frames] == pytest.approx([number / 10 for number in numbers], abs=1e-3)
    assert all(abs(float(f.image.mean()) - 10 * (f.number or 0)) < 3 for f in frames)


def test_a_video_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "v.mp4").write_bytes(b"nothing" * 100)
    with pytest.raises(DataError, match="no video"):
        list(frames_of(Source(str(tmp_path / "v.mp4"), "video", True)))


class Camera:
    """Gives numbered frames, one every `pause` seconds, and stops after `count`."""

    def __init__(self, count: int, pause: float = 0.0):
        self.numbers = itertools.count()
        self.count, self.pause = count, pause
        self.last = -1
        self.released = threading.Event()

    def isOpened(self) -> bool:
        return True

    def grab(self) -> bool:
        time.sleep(self.pause)
        self.last = next(self.numbers)
        return self.last < self.count

    def retrieve(self) -> tuple[bool, np.ndarray]:
        return True, np.full((2, 2, 3), self.last % 256, np.uint8)

    def get(self, prop: int) -> float:
        return 0.0

    def release(self) -> None:
        self.released.set()


def test_a_slow_reader_gets_the_newest_frame_of_a_camera() -> None:
    camera = Camera(10_000, pause=0.002)
    newest = Newest(camera)
    try:
        for _ in range(5):
            time.sleep(0.05)
            got = newest.next()
            assert got is not None
            assert camera.last - got[0] <= 2  # the one being read may be one ahead
    finally:
        newest.close()
    assert camera.released.is_set()


def test_a_camera_that_stops_is_told_with_what_was_seen() -> None:
    camera = Camera(3, pause=0.01)
    frames = camera_frames("cam:7", None, lambda name: camera, patience=0.5)
    seen: list[Frame] = []

    def watch() -> None:
        for frame in frames:
            seen.append(frame)

    with pytest.raises(DataError, match=r"cam:7: the camera stopped after \d frames"):
        watch()
    assert 1 <= len(seen) <= 3
    assert camera.released.is_set()
    with pytest.raises(InputMissingError, match="no camera"):
        list(frames_of(Source("cam:x", "camera", True)))


def test_a_damaged_picture_says_nothing_on_stderr_but_in_its_error(capfd: pytest.CaptureFixture[str]) -> None:
    encoded = bytearray(cv2.imencode(".png", np.full((40, 40, 3), 200, np.uint8))[1].tobytes())
    encoded[len(encoded) // 2] ^= 0xFF
    with pytest.raises(DataError):
        decoded(bytes(encoded), "a.png")
    os.write(2, b"whole\n")  # and the stream is there again
    assert capfd.readouterr().err == "whole\n"
