"""What is looked at: pictures, folders of them, videos, cameras; one frame after the other, one in memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cv2

from nipstool.detect_navtext.lines import Image
from nipstool.detect_navtext.pictures import SUFFIXES, decoded, read_picture
from nipstool.kit.errors import DataError, InputMissingError, NipsError
from nipstool.kit.files import check_input, is_stdio, spooled_input

VIDEOS = frozenset(
    (
        ".mp4",
        ".avi",
        ".mov",
        ".mkv",
        ".webm",
        ".m4v",
        ".mpg",
        ".mpeg",
        ".ts",
        ".mts",
        ".wmv",
        ".flv",
        ".ogv",
        ".3gp",
    )
)
STREAMS = ("rtsp://", "rtsps://", "rtmp://", "udp://", "http://", "https://")
CAMERA = "cam:"
PATIENCE_S = 5.0  # without a frame, a camera has stopped


@dataclass(frozen=True)
class Source:
    """One input.

    Attributes:
        name: as the user knows it.
        kind: `picture`, `video` or `camera`.
        named: whether the user named it, or it was found in a folder.
    """

    name: str
    kind: str
    named: bool


@dataclass(frozen=True, eq=False)
class Frame:
    """One picture. Of a video: its number from 0 and its time in seconds; of a still picture both are None."""

    source: str
    image: Image
    number: int | None = None
    time: float | None = None


class Capture(Protocol):
    """What is used of cv2.VideoCapture."""

    def grab(self) -> bool: ...
    def retrieve(self) -> Any: ...
    def get(self, propId: int, /) -> float: ...
    def release(self) -> None: ...


def sources_of(inputs: Sequence[str]) -> Iterator[Source | NipsError]:
    """The sources that words on a command line name, in order; an error stands in its source's place.

    A folder gives the pictures and videos in it and below, by name.
    """
    for word in inputs:
        if is_camera(word):
            yield Source(word, "camera", True)
        elif is_stdio(word):
            yield Source(word, "picture", True)
        else:
            yield from _of_path(word)


def is_camera(word: str) -> bool:
    """Whether a word names a camera (`cam:0`) or a stream by its address."""
    return word.startswith(CAMERA) or word.startswith(STREAMS)


def _of_path(word: str) -> Iterator[Source | NipsError]:
    try:
        path = check_input(word)
    except InputMissingError as error:
        yield error
        return
    if not path.is_dir():
        yield Source(word, _kind(word), True)
        return
    count = 0
    for top, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES | VIDEOS:
                count += 1
                yield Source(os.path.join(top, name), _kind(name), False)
    if not count:
        yield InputMissingError(f"{word}: holds no picture and no video")


def _kind(name: str) -> str:
    return "video" if Path(name).suffix.lower() in VIDEOS else "picture"


def frames_of(source: Source, fps: float | None = None) -> Iterator[Frame]:
    """The frames of a source: of a picture one, of a video at most `fps` a second, of a camera the newest ones.

    Raises:
        InputMissingError, DataError: it cannot be read, or a camera stopped.
    """
    if source.kind == "camera":
        yield from camera_frames(source.name, fps)
    elif source.kind == "video":
        yield from _video_frames(source.name, source.name, fps)
    elif is_stdio(source.name):
        with spooled_input(source.name) as path:
            yield from _piped(path, fps)
    else:
        yield Frame(source.name, read_picture(source.name))


def _piped(path: Path, fps: float | None) -> Iterator[Frame]:
    """Standard input: a picture, or else a video."""
    data = path.read_bytes()
    try:
        frame = Frame("-", decoded(data, "standard input"))
    except DataError:
        del data
        if not _opens(path):
            raise
    else:
        yield frame
        return
    yield from _video_frames(str(path), "-", fps)


def _opens(path: Path) -> bool:
    capture = cv2.VideoCapture(str(path))
    opened = capture.isOpened() and capture.get(cv2.CAP_PROP_FRAME_COUNT) > 1
    capture.release()
    return opened


def _video_frames(path: str, name: str, fps: float | None) -> Iterator[Frame]:
    check_input(path)
    capture = cv2.VideoCapture(path)
    try:
        if not capture.isOpened():
            raise DataError(f"{name}: is no video that can be decoded")
        number = -1
        for number, at in _kept(capture, fps):
            done, image = capture.retrieve()
            if not done:
                raise DataError(f"{name}: frame {number} cannot be decoded")
            yield Frame(name, image, number, at)  # pyright: ignore[reportArgumentType]
        if number < 0:
            raise DataError(f"{name}: has no frame")
    finally:
        capture.release()


def _kept(capture: Capture, fps: float | None) -> Iterator[tuple[int, float]]:
    """Number and time of the frames to look at, each grabbed: at most `fps` a second, by the video's own clock."""
    due = 0.0
    rate = capture.get(cv2.CAP_PROP_FPS) or 25.0
    number = 0
    while capture.grab():
        at = capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
        at = at if at > 0 or number == 0 else number / rate  # some containers hold no times
        if fps is None or at >= due - 0.5 / rate:
            yield number, round(at, 4)
            due = at + 1 / fps if fps else at
        number += 1


class Newest:
    """The newest frame of a camera, read by a thread so that none waits in a queue.

    Args:
        capture: the open camera.
        clock: seconds; frames are stamped with it, from 0.
    """

    def __init__(self, capture: Capture, clock: Callable[[], float] = time.monotonic):
        self._capture = capture
        self._clock = clock
        self._start = clock()
        self._changed = threading.Condition()
        self._frame: tuple[int, float, Image] | None = None
        self._ended = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="camera", daemon=True)
        self._thread.start()

    def next(self, patience: float = PATIENCE_S) -> tuple[int, float, Image] | None:
        """The newest frame not given yet: number, seconds, picture; None when no more come."""
        with self._changed:
            self._changed.wait_for(lambda: self._frame is not None or self._ended, patience)
            frame, self._frame = self._frame, None
            return frame

    def close(self) -> None:
        """Stop reading."""
        self._closing = True
        self._thread.join(timeout=2)
        self._capture.release()

    def _run(self) -> None:
        number = 0
        while not self._closing:
            done, image = self._capture.retrieve() if self._capture.grab() else (False, None)
            with self._changed:
                if not done or image is None:
                    self._ended = True
                else:
                    self._frame = (number, round(self._clock() - self._start, 4), image)
                    number += 1
                self._changed.notify_all()
                if self._ended:
                    return


def open_camera(name: str) -> Capture:
    """The camera of `cam:N` or of an address. Raises InputMissingError where it does not answer."""
    if name.startswith(CAMERA):
        number = name.removeprefix(CAMERA)
        if not number.isdigit():
            raise InputMissingError(f"{name}: no camera of that name; expected cam:0, cam:1 …")
        capture = cv2.VideoCapture(int(number))
    else:
        capture = cv2.VideoCapture(name)
    if not capture.isOpened():
        capture.release()
        raise InputMissingError(f"{name}: no camera answers")
    return capture  # pyright: ignore[reportReturnType]


def camera_frames(
    name: str, fps: float | None, opener: Callable[[str], Capture] = open_camera, patience: float = PATIENCE_S
) -> Iterator[Frame]:
    """The newest frame of a camera whenever one is asked for, at most `fps` a second, until it stops.

    Raises:
        InputMissingError: it does not answer. DataError: it stopped.
    """
    newest = Newest(opener(name))
    count, last = 0, 0.0
    try:
        while (got := newest.next(patience)) is not None:
            number, at, image = got
            if fps and count and at < last + 1 / fps:
                continue
            count, last = count + 1, at
            yield Frame(name, image, number, at)
        raise DataError(f"{name}: the camera stopped after {count} frames were looked at")
    finally:
        newest.close()
