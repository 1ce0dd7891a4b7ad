"""Tracks on injected boxes: a pan over a wall of signs, cut at the edges, missed, misread."""

from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

from nipstool.detect_navtext.find import Finder, Sign
from nipstool.detect_navtext.lines import Line
from nipstool.detect_navtext.maps import View
from nipstool.detect_navtext.ocr import Reader, Reading
from nipstool.detect_navtext.run import Tally, Wanted, look
from nipstool.detect_navtext.sources import Source
from nipstool.detect_navtext.track import Track, Tracker

SIZE = (640, 360)
WALL = {
    "Room 204": (700, 100, 160, 30), "Room 205": (1100, 100, 160, 30), "EXIT": (1500, 60, 120, 50),
    "Toilets": (1500, 200, 140, 24), "Café Müller": (2100, 150, 260, 60), "Gate B12": (2600, 80, 180, 40),
}  # fmt: skip


def sign(text: str | None, x: float, y: float, width: float, height: float, score: float = 0.95) -> Sign:
    corners = np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]], np.float32)
    line = Line(corners, text, score if text else None, 0.9, None if text else "no-text")
    return Sign(line, 0.8, "room", None, {}, 0)


def view(shift: float, rng: np.random.Generator, misread: float, missed: float) -> list[Sign]:
    """What a camera at `shift` sees: signs cut at its edges, some misread, some missed."""
    seen = []
    for text, (x, y, width, height) in WALL.items():
        left, right = max(0.0, x - shift), min(float(SIZE[0]), x - shift + width)
        if right - left < 12 or rng.random() < missed:
            continue
        start, end = (left - (x - shift)) / width, (right - (x - shift)) / width
        part = text[round(start * len(text)) : round(end * len(text))]
        if rng.random() < misread and part:
            at = int(rng.integers(len(part)))
            part = part[:at] + "I1lO0B8"[int(rng.integers(7))] + part[at + 1 :]
        jitter = rng.normal(0, 1, 2)
        seen.append(
            sign(part or None, left + jitter[0], y + jitter[1], right - left, height, 0.6 + 0.35 * rng.random())
        )
    return seen


def pan(frames: int, step: float, fps: float = 30.0, misread: float = 0.25, missed: float = 0.1) -> list[Track]:
    rng = np.random.default_rng(0)
    tracker, gone = Tracker(), []
    for number in range(frames):
        gone += tracker.update(view(number * step, rng, misread, missed), SIZE, frame=number, time=number / fps)
    return [*gone, *tracker.finish()]


@pytest.mark.parametrize("step", [3.0, 9.0])
def test_three_hundred_frames_of_a_pan_make_one_track_a_sign(step: float) -> None:
    tracks = pan(300 if step < 9 else 320, step)
    way = step * (299 if step < 9 else 319)
    came_in = [text for text, (x, *_) in WALL.items() if x - way < SIZE[0] - 12]
    seen_whole = [text for text, (x, _, width, _) in WALL.items() if x + width - way < SIZE[0]]
    assert len(tracks) == len(came_in)
    texts: Counter[str | None] = Counter(track.sign.line.text for track in tracks)
    whole: Counter[str | None] = Counter(seen_whole)
    assert texts & whole == whole


def test_a_track_tells_when_a_sign_was_seen() -> None:
    tracks = pan(300, 9.0, misread=0, missed=0)
    track = next(track for track in tracks if track.sign.line.text == "EXIT")
    assert track.first == pytest.approx((1500 - 640 + 12) / 9 / 30, abs=0.05)
    assert track.last == pytest.approx((1500 + 120 - 12) / 9 / 30, abs=0.05)
    assert track.seen == pytest.approx((track.last - track.first) * 30 + 1, abs=1)
    assert track.sign.nav_score == pytest.approx(0.8)


def test_two_signs_with_one_text_stay_two_and_other_texts_never_join() -> None:
    tracker = Tracker()
    for number in range(10):
        tracker.update(
            [sign("Room", 50, 50, 80, 20), sign("Room", 400, 50, 80, 20)], SIZE, frame=number, time=number / 10
        )
    assert len(tracker.finish()) == 2
    tracker.update([sign("EXIT", 50, 50, 80, 20)], SIZE, frame=0, time=0.0)
    tracker.update([sign("Bakery", 50, 50, 80, 20)], SIZE, frame=1, time=0.1)
    assert sorted(t.sign.line.text or "" for t in tracker.finish()) == ["Bakery", "EXIT"]


def test_a_pan_that_is_really_read_makes_one_row_a_sign(tmp_path: Path) -> None:
    """Twenty frames over a wall with two signs, through video, detector, recogniser, classifier and tracker."""
    wall = np.full((96, 700, 3), 230, np.uint8)
    for text, x in (("ROOM 12", 40), ("EXIT", 420)):
        cv2.putText(wall, text, (x, 60), cv2.FONT_HERSHEY_SIMPLEX, 1.3, (30, 30, 30), 3, cv2.LINE_AA)
    path = tmp_path / "pan.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (384, 96))
    for number in range(20):
        writer.write(wall[:, 14 * number : 14 * number + 384])
    writer.release()
    finder = Finder(Reader(reading=Reading(View(scale=384))), threshold=0.0)
    sources = [Source(str(path), "video", True)]
    rows = [row for _, one in look(sources, finder.find, Wanted(0.0), Tally()) for row in one.rows]
    assert sorted(row["text"] for row in rows) == ["EXIT", "ROOM 12"]
    assert all(row["track"]["seen"] >= 5 for row in rows)
    (room,) = (row for row in rows if row["text"] == "ROOM 12")
    assert room["track"]["first"] == 0


def test_a_sign_that_was_never_read_is_a_track_too() -> None:
    tracker = Tracker()
    for number in range(5):
        tracker.update([sign(None, 50 + number, 50, 80, 20)], SIZE, frame=number, time=number / 10)
    (track,) = tracker.finish()
    assert (track.sign.line.text, track.seen) == (None, 5)
