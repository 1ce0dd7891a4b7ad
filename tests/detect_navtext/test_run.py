"""Many pictures: order, failures, tracks, shares of several processes, memory, drawings."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pytest

from nipstool.detect_navtext import shares
from nipstool.detect_navtext.annotate import Fonts, dejavu, drawn
from nipstool.detect_navtext.choices import Choices, finder_of, region
from nipstool.detect_navtext.find import Sign
from nipstool.detect_navtext.lines import Image, Line
from nipstool.detect_navtext.output import check, drawing, encodable, pens, undrawn, unless_nothing, write
from nipstool.detect_navtext.rows import Seen
from nipstool.detect_navtext.run import Tally, Wanted, look
from nipstool.detect_navtext.sources import Source, sources_of
from nipstool.kit.distributed import Group
from nipstool.kit.errors import DataError, InputMissingError, OutputError, UsageError


def sign(text: str | None, score: float = 0.9, kind: str = "room", x: float = 10.0) -> Sign:
    corners = np.array([[x, 10], [x + 60, 10], [x + 60, 30], [x, 30]], np.float32)
    return Sign(Line(corners, text, 0.9 if text else None, 0.9), score, kind, None, {}, 0)


def two_signs(image: Image) -> list[Sign]:
    """The grey of a picture, in tens, as a room; and an advertisement."""
    return [sign(f"Room {10 * round(float(image.mean()) / 10)}"), sign("SALE", 0.1, "other", x=100)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(6):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.full((48, 200, 3), 10 * number, np.uint8))
    return tmp_path


def test_rows_come_in_the_order_of_the_inputs_and_what_is_held_back_is_counted(folder: Path) -> None:
    tally = Tally()
    steps = []
    names = [str(folder / f"{n}.png") for n in (3, 1, 5)]
    found = list(look(sources_of(names), two_signs, Wanted(0.5), tally, progress=lambda *at: steps.append(at)))
    assert [number for number, _ in found] == [0, 1, 2]
    assert [one.rows[0]["text"] for _, one in found] == ["Room 30", "Room 10", "Room 50"]
    assert [one.image for _, one in found] == names
    assert (tally.pictures, tally.signs, tally.held_back, tally.failures) == (3, 3, 3, [])
    assert steps == [(1, 3), (2, 3), (3, 3)]
    chosen = [
        one.rows for _, one in look(sources_of(names), two_signs, Wanted(0.0, frozenset({"other"})), Tally())
    ]
    assert [[row["text"] for row in rows] for rows in chosen] == [["SALE"]] * 3


def test_what_fails_is_told_and_the_rest_is_done(folder: Path) -> None:
    (folder / "2.png").write_bytes(b"no picture")

    def run(*inputs: Path, strict: bool = False) -> tuple[int, Exception | None]:
        tally = Tally()
        list(look(sources_of([str(one) for one in inputs]), two_signs, Wanted(), tally))
        return tally.pictures, tally.failure(strict=strict)

    assert run(folder) == (5, None)
    pictures, error = run(folder, strict=True)
    assert pictures == 5
    assert isinstance(error, DataError)
    pictures, error = run(folder / "2.png", folder / "1.png")
    assert (pictures, type(error)) == (1, DataError)
    pictures, error = run(folder / "none.png", folder / "1.png")
    assert (pictures, type(error)) == (1, InputMissingError)
    pictures, error = run(folder / "none.png", folder / "2.png")
    assert type(error) is DataError
    assert str(error).endswith("(and 1 more of the inputs could not be used)")


def test_nothing_left_leaves_no_output(folder: Path) -> None:
    (folder / "2.png").write_bytes(b"no picture")
    tally = Tally()
    found = look(sources_of([str(folder / "2.png")]), two_signs, Wanted(), tally)
    seen = unless_nothing((one for _, one in found), tally, strict=False)
    with pytest.raises(DataError, match=r"2\.png"):
        write(str(folder / "out.ndjson"), "ndjson", seen, print, force=False)
    assert not (folder / "out.ndjson").exists()


def test_a_video_gives_one_row_a_sign(folder: Path) -> None:
    path = folder / "v.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (200, 48))
    for _ in range(20):
        writer.write(np.full((48, 200, 3), 80, np.uint8))
    writer.release()
    tally = Tally()
    ((_, one),) = look(sources_of([str(path)]), two_signs, Wanted(0.5), tally)
    (row,) = one.rows
    assert (row["text"], row["frame"], row["time"]) == ("Room 80", 0, 0.0)
    assert row["track"] == {"id": 0, "first": 0.0, "last": 1.9, "seen": 20}
    assert (tally.pictures, tally.signs, tally.held_back) == (20, 1, 1)
    frames = list(look(sources_of([str(path)]), two_signs, Wanted(0.5), Tally(), fps=5, track=False))
    assert [one.frame for _, one in frames] == list(range(0, 20, 2))


def test_processes_share_the_inputs_and_join_them_in_order(folder: Path) -> None:
    """Two ranks one after the other; what torchrun adds is only that they run at once."""
    names = [str(folder / f"{n}.png") for n in range(6)]
    tallies = [Tally(), Tally()]
    parts = [shares.part_name(str(folder / "out"), rank) for rank in range(2)]
    for rank, (tally, part) in enumerate(zip(tallies, parts, strict=True)):
        shares.write_part(part, look(sources_of(names), two_signs, Wanted(), tally, share=(rank, 2)))
    joined = list(shares.joined_parts(parts))
    alone = [one for _, one in look(sources_of(names), two_signs, Wanted(), Tally())]
    assert joined == alone
    assert isinstance(joined[0], Seen)
    total = Tally()
    shares.add_up(total, tallies)
    assert (total.pictures, total.signs, total.held_back) == (6, 6, 6)
    with shares.gathered(enumerate(alone), Tally(), "-", Group()) as seen:
        assert list(seen) == alone


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_does_not_grow_with_the_number_of_pictures(folder: Path) -> None:
    """200 frames of 2 MB each: were they kept, it would be 380 MB."""
    cv2.imwrite(str(folder / "a.jpg"), np.full((800, 800, 3), 90, np.uint8))

    def several() -> Iterator[Source]:
        for _ in range(200):
            yield Source(str(folder / "a.jpg"), "picture", True)

    tally, sizes = Tally(), []
    for _ in look(several(), two_signs, Wanted(), tally):
        sizes.append(resident())
    assert tally.pictures == 200
    assert max(sizes[20:]) - sizes[20] < 50 << 20


def test_signs_are_drawn_and_text_without_a_font_is_its_number(folder: Path) -> None:
    image = np.full((120, 400, 3), 255, np.uint8)
    fonts = Fonts(dejavu())
    one = drawn(image, [sign("Café Ελλάς"), sign("ZZ", x=200)], fonts)
    assert one.shape == image.shape
    assert (one != image).any()
    assert (image == 255).all()  # a copy
    assert not fonts.uncovered
    unknown = "\U000e01ef\ufdd0"  # no font has these
    assert fonts.of(unknown) is None
    assert fonts.uncovered
    two = drawn(image, [sign(unknown), sign("ZZ", x=200)], Fonts(dejavu()))
    assert (two[:40, :100] != 255).any()
    with pytest.raises(DataError, match="no TrueType"):
        Fonts(folder / "0.png")


def test_each_picture_is_drawn_beside_the_others(folder: Path) -> None:
    (folder / "sub").mkdir()
    cv2.imwrite(str(folder / "sub" / "0.png"), np.full((48, 200, 3), 7, np.uint8))
    sources = list(sources_of([str(folder / "0.png"), str(folder / "sub" / "0.png")]))
    for processes in (1, 2):
        drawn_in = folder / f"drawn{processes}"
        for rank in range(processes):
            draw, _ = pens(drawn_in, dejavu(), 1.0, sources)
            list(look(sources, two_signs, Wanted(), Tally(), draw=draw, share=(rank, processes)))
        made = sorted(path.name for path in drawn_in.iterdir())
        assert len(made) == 2
        assert made[0] == "0.png"
    with pytest.raises(OutputError):
        drawing(folder / "0.png", Fonts(), 1.0)


@pytest.mark.parametrize("form", ["json", "coco", "csv", "ros2"])
def test_every_format_goes_to_a_file(folder: Path, form: str) -> None:
    found = look(sources_of([str(folder / "1.png")]), two_signs, Wanted(), Tally())
    target = folder / "out"
    write(str(target), form, (one for _, one in found), print, force=False)
    text = target.read_text()
    assert "Room 10" in text
    if form != "csv":
        assert json.loads(text)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (Choices(scale="big"), "--scale big"),
        (Choices(scale="3"), "--scale 3"),
        (Choices(tile="none"), "--tile none"),
        (Choices(min_height="tall"), "--min-height tall"),
        (Choices(min_height="-3"), "--min-height -3"),
        (Choices(roi="1,2,3"), "--roi 1,2,3"),
        (Choices(roi="0,0,0,5"), "--roi 0,0,0,5"),
        (Choices(read="some"), "--read some"),
        (Choices(kinds=["room,castle"]), "--kinds castle"),
    ],
)
def test_words_that_mean_nothing_are_a_usage_error(choices: Choices, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        finder_of(choices)


def test_regions_and_outputs_are_checked_before_any_work(folder: Path) -> None:
    assert region("0.1,0.2,0.5,0.5") == (0.1, 0.2, 0.5, 0.5)
    assert region(None) is None
    with pytest.raises(UsageError, match="--format xml"):
        check("-", "xml", [], None, force=False)
    with pytest.raises(UsageError, match="name it with -o"):
        check("-", "yolo", [], None, force=False)
    with pytest.raises(UsageError, match="is the input"):
        check(str(folder / "0.png"), "ndjson", [str(folder / "0.png")], None, force=True)
    with suppress(OutputError):
        check(str(folder / "0.png"), "ndjson", [], None, force=False)
        raise AssertionError("an output that exists was taken")


def test_a_stream_that_is_not_utf8_gets_the_same_json_in_escapes() -> None:
    text = json.dumps({"text": "出口 Çıkış"}, ensure_ascii=False)
    assert encodable(text, "UTF-8") == text
    escaped = encodable(text, "ANSI_X3.4-1968")
    assert escaped.isascii()
    assert json.loads(escaped) == json.loads(text)


def test_without_a_folder_nothing_is_drawn(tmp_path: Path) -> None:
    assert pens(None, None, 1.0) == (None, None)
    draw, fonts = pens(tmp_path / "drawn", None, 1.0)
    assert draw is not None
    assert undrawn(fonts) == ""
    assert fonts is not None
    fonts.uncovered = True  # pyright: ignore
    assert "--font" in undrawn(fonts)
