"""Finding text: cuts, tiles, boxes out of maps, strips, and the networks beside independent runs of them."""

from copy import copy
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nipstool.detect_navtext import boxes, maps, models, recognise
from nipstool.detect_navtext.lines import Image, Line
from nipstool.detect_navtext.maps import Detector, View, cuts, padded, shown_size
from nipstool.detect_navtext.ocr import Reader, Reading, in_order, not_worth
from nipstool.kit.errors import DataError, InputMissingError


def ink(width: int, height: int, *words: tuple[str, int, int, float], thick: int = 2) -> Image:
    """Black words on white; each is text, x, y of its baseline, size."""
    image = np.full((height, width, 3), 255, np.uint8)
    for text, x, y, size in words:
        cv2.putText(image, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, size, (0, 0, 0), thick, cv2.LINE_AA)
    return image


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader()


def at(reader: Reader, scale: int, **reading: Any) -> Reader:
    """The same networks, looking at another scale."""
    other = copy(reader)
    other.reading = Reading(View(scale=scale), **reading)
    return other


@given(st.integers(1, 400), st.integers(8, 90))
def test_cuts_cover_a_length_once_and_see_a_margin(units: int, side_units: int) -> None:
    length, side = 32 * units, 32 * side_units
    parts = list(cuts(length, side))
    assert parts[0][2] == 0
    assert parts[-1][3] == length
    for (start, end, first, last), following in zip(parts, [*parts[1:], None], strict=True):
        assert all(value % 32 == 0 for value in (start, end, first, last))
        assert 0 <= start <= first < last <= end <= length
        assert start == 0 or first - start >= maps.MARGIN // 2
        assert end == length or end - last >= maps.MARGIN // 2
        assert following is None or following[2] == last


def test_tiles_of_a_local_map_make_the_map_of_the_whole(monkeypatch: pytest.MonkeyPatch, reader: Reader) -> None:
    """With a network that looks at one pixel at a time, cutting must not show."""
    image = np.random.default_rng(0).integers(0, 256, (1700, 2304, 3), np.uint8)
    monkeypatch.setattr(Detector, "_run", lambda self, shown: shown[None, :, :, 0].astype(np.float32) / 255)
    tiled = reader._detector.maps(image, View(tile=640))
    height, width = tiled.shape[1:]
    assert (width, height) == (2304, 1696)
    assert tiled.dtype == np.uint8
    whole = cv2.resize(image, (width, height))[:, :, 0]
    assert np.abs(tiled[0].astype(int) - whole).max() <= 2


def test_a_word_on_a_seam_makes_one_box(monkeypatch: pytest.MonkeyPatch, reader: Reader) -> None:
    """A bright bar is text to this network; bars lie across seams of a 1600 x 2400 picture in tiles of 640."""
    image = np.zeros((1600, 2400, 3), np.uint8)
    bars = [(500, 100, 700, 140), (900, 590, 1300, 640), (1500, 1000, 1540, 1300)]
    for x0, y0, x1, y1 in bars:
        image[y0:y1, x0:x1] = 255
    monkeypatch.setattr(Detector, "_run", lambda self, shown: shown[None, :, :, 0].astype(np.float32) / 255)
    found, scores = boxes.boxes_in(reader._detector.maps(image, View(tile=640))[0], 2400, 1600)
    assert len(found) == len(bars)
    assert (scores > 0.9).all()
    centres = sorted(tuple(np.round(box.mean(axis=0)).astype(int)) for box in found)
    assert np.allclose(centres, sorted(((x0 + x1) / 2, (y0 + y1) / 2) for x0, y0, x1, y1 in bars), atol=2)


def test_scale_is_chosen_by_the_picture() -> None:
    assert shown_size(640, 480, View()) == (int(640 * 736 / 480), 736)  # enlarged to 736
    assert shown_size(3000, 1500, View()) == (3000, 1500)  # nothing shrunk: tiles
    assert max(shown_size(3000, 1500, View(tile=0))) == 2000
    assert shown_size(60, 50, View()) == (180, 150)  # no more than threefold
    assert max(shown_size(3000, 1500, View(scale=640))) == 640


def test_a_box_grows_by_area_times_ratio_over_perimeter() -> None:
    """A bar of 100 x 20 (dilation adds a pixel on two sides): d = A * 1.6 / L outwards."""
    probability = np.zeros((200, 320), np.float32)
    probability[80:100, 50:150] = 0.8
    found, scores = boxes.boxes_in(probability, 320, 200)
    wide, high = 100.0, 20.0  # between the centres of the outer pixels after dilation
    grow = wide * high * 1.6 / (2 * (wide + high))
    left, top, right, bottom = 49 - grow, 79 - grow, 149 + grow, 99 + grow
    assert len(found) == 1
    assert np.allclose(found[0], [[left, top], [right, top], [right, bottom], [left, bottom]], atol=1.6)
    assert scores[0] == pytest.approx(0.8 * 100 * 20 / (101 * 21), abs=0.002)


def test_bytes_and_floats_give_the_same_boxes() -> None:
    squares = np.kron(np.eye(4, 6), np.ones((40, 60))).astype(np.float32)
    probability = np.asarray(cv2.GaussianBlur(squares, (0, 0), 3), np.float32)
    floats, scores = boxes.boxes_in(probability, 720, 320)
    whole, rounded = boxes.boxes_in(np.rint(probability * 255).astype(np.uint8), 720, 320)
    assert np.abs(floats - whole).max() <= 2
    assert np.abs(scores - rounded).max() < 0.01


def test_corners_go_clockwise_from_the_top_left() -> None:
    turned = np.array([[10, 5], [0, 6], [0, 0], [10, 1]], np.float32)
    assert boxes.clockwise(turned).tolist() == [[0, 0], [10, 1], [10, 5], [0, 6]]


def test_a_strip_is_the_box_upright_and_turned_where_it_stands() -> None:
    image = np.random.default_rng(1).integers(0, 256, (60, 80, 3), np.uint8)
    lying = np.array([[10, 20], [40, 20], [40, 30], [10, 30]], np.float32)
    assert np.array_equal(recognise.strip_of(image, lying), image[20:30, 10:40])
    standing = np.array([[10, 20], [20, 20], [20, 50], [10, 50]], np.float32)
    assert np.array_equal(recognise.strip_of(image, standing), np.rot90(image[20:50, 10:20]))


def test_greedy_ctc_drops_repeats_and_blanks(reader: Reader) -> None:
    recogniser = reader._recogniser
    assert recogniser is not None
    steps = [5, 5, 0, 5, 7, 7, 0, 0]
    scores = np.full((len(steps), len(recogniser.characters)), 1e-6, np.float32)
    scores[np.arange(len(steps)), steps] = [0.9, 0.8, 0.9, 0.7, 0.5, 0.9, 0.9, 0.9]
    text, score = recogniser._decode(scores)
    assert text == recogniser.characters[5] * 2 + recogniser.characters[7]
    assert score == pytest.approx((0.9 + 0.7 + 0.5) / 3)
    assert recogniser._decode(np.eye(1, len(recogniser.characters), dtype=np.float32)) == ("", 0.0)


def test_no_weight_of_the_detector_is_denormal_and_its_map_is_that_of_cv2(reader: Reader) -> None:
    """cv2.dnn runs the file of the wheel, weights as they are."""
    image = ink(192, 96, ("EXIT", 20, 64, 1.6), thick=4)
    ours = reader._detector._run(image)[0]
    net = cv2.dnn.readNetFromONNX(str(models.bundled().detector))
    blob = image.astype(np.float32).transpose(2, 0, 1)[None] / 127.5 - 1
    net.setInput(blob)
    theirs = net.forward()[0, 0]
    assert np.abs(ours - theirs).max() < 1e-4
    assert ours.max() > 0.5


def test_text_is_read_with_the_reason_where_it_is_not(reader: Reader) -> None:
    lines = at(reader, 640).read(ink(640, 240, ("EXIT 12", 40, 90, 2.0), ("Room 204", 60, 190, 1.5), thick=4))
    assert [line.text for line in lines] == ["EXIT 12", "Room 204"]
    assert all(line.reason is None and (line.text_score or 0) > 0.9 for line in lines)
    quad = np.array([[0, 0], [50, 0], [50, 5], [0, 5]], np.float32)
    assert not_worth(Line(quad, None, None, 0.9)) == "too-small"
    assert not_worth(Line(quad * 4, None, None, 0.51)) == "unsure"
    assert not_worth(Line(quad * 4, None, None, 0.9)) is None


def test_lines_below_the_least_height_are_left_out(reader: Reader) -> None:
    image = ink(640, 240, ("BIG", 40, 90, 2.4), ("small words", 60, 190, 0.8), thick=3)
    few = at(reader, 640, min_height=40)
    assert len(at(reader, 640, read="none").read(image)) == 2
    assert [line.text for line in few.read(image)] == ["BIG"]
    assert len(at(reader, 640, min_share=0.2, read="none").read(image)) == 1


def test_a_strip_of_a_picture_is_read_in_its_own_pixels(reader: Reader) -> None:
    image = ink(500, 29, ("GATE B12", 20, 24, 0.8))
    shown, above = padded(image)
    assert (shown.shape[0], above) == (2 * above + 29, above)
    (line,) = at(reader, 512).read(image)
    assert line.text is not None
    assert line.text.replace(" ", "") == "GATEB12"
    assert line.polygon[:, 1].min() >= 0
    assert line.polygon[:, 1].max() <= 29


def test_lines_come_from_top_to_bottom_and_left_to_right() -> None:
    quad = np.array([[0, 0], [20, 0], [20, 10], [0, 10]], np.float32)
    lines = [Line(quad + shift, None, None, 1.0) for shift in ([50, 2], [0, 40], [0, 0], [50, 41])]
    assert [tuple(line.polygon[0]) for line in in_order(lines)] == [(0, 0), (50, 2), (0, 40), (50, 41)]
    assert in_order([]) == []


def test_nothing_is_found_on_an_empty_picture(reader: Reader) -> None:
    assert reader.read(np.full((200, 300, 3), 127, np.uint8)) == []
    assert reader.read(np.zeros((1, 1, 3), np.uint8)) == []


@pytest.mark.realdata
def test_lines_are_those_of_rapidocr(data_dir: Path, reader: Reader) -> None:
    """The same models and settings: boxes, texts and scores equal."""
    import logging

    from rapidocr import RapidOCR

    logging.disable(logging.INFO)
    try:
        params = {"Global.use_cls": False, "EngineConfig.onnxruntime.intra_op_num_threads": 1}
        peer = RapidOCR(params=params)
        image = cv2.imread(str(data_dir / "detect-navtext" / "images" / "mmocr_demo_text_det.jpg"))
        assert image is not None
        theirs = peer(image)
    finally:
        logging.disable(logging.NOTSET)
    other = copy(reader)
    other.reading = Reading(read="all")
    ours = {line.text: line for line in other.read(image)}  # pyright: ignore[reportArgumentType]
    assert len(theirs.txts) >= 3  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    for text, box, score in zip(theirs.txts, theirs.boxes, theirs.scores, strict=True):  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
        line = ours[" ".join(text.split())]
        assert np.abs(line.polygon - box).max() <= 1
        assert line.text_score == pytest.approx(score, abs=1e-3)


def test_models_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match="no such folder"):
        models.in_folder(tmp_path / "none")
    with pytest.raises(InputMissingError, match=r"\*det\*"):
        models.in_folder(tmp_path)
    for name in ("ch_PP-OCRv5_det.onnx", "ch_PP-OCRv5_rec.onnx", "ppocr_keys_v5.txt"):
        (tmp_path / name).touch()
    found = models.in_folder(tmp_path)
    assert found.mean == models.IMAGENET[0]
    assert found.characters == tmp_path / "ppocr_keys_v5.txt"
    (tmp_path / "ocr.toml").write_text("mean = [0.5, 0.5, 0.5]\nstd = [1, 2]\n")
    with pytest.raises(DataError, match="std"):
        models.in_folder(tmp_path)
    with pytest.raises(DataError, match="no ONNX model"):
        models.session(tmp_path / "ppocr_keys_v5.txt")


def test_a_recogniser_in_the_detectors_place_is_refused() -> None:
    found = models.bundled()
    assert found.recogniser is not None
    with pytest.raises(DataError, match="expected a text detector"):
        Reader(detector=models.Models(found.recogniser, None))
