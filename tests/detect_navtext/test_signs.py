"""Signs out of pictures: features that size does not change, the classifier, regions, formats, NavOCR's chain."""

import csv
import io
import json
import math
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from safetensors.numpy import save_file

from nipstool.detect_navtext import formats
from nipstool.detect_navtext.appearance import NAMES, appearance
from nipstool.detect_navtext.boards import board_of
from nipstool.detect_navtext.find import Finder, Sign, blended, cut
from nipstool.detect_navtext.lines import KINDS, Image, Line
from nipstool.detect_navtext.maps import View
from nipstool.detect_navtext.navocr import NavOcr, letterbox, unletterboxed
from nipstool.detect_navtext.ocr import Reader, Reading
from nipstool.detect_navtext.poi import Name, Names
from nipstool.detect_navtext.relevance import (
    FEATURE_NAMES,
    FEATURE_VERSION,
    Classifier,
    classify,
    features,
    load_classifier,
)
from nipstool.detect_navtext.rows import FIELDS, Seen, row_of
from nipstool.kit.errors import DataError, InputMissingError, UsageError


def line(text: str | None, x: float, y: float, width: float, height: float) -> Line:
    corners = np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]], np.float32)
    return Line(corners, text, 0.99 if text else None, 0.9, None if text else "no-text")


def scene() -> tuple[Image, list[Line]]:
    """A blue plate with white letters, a price on red, text on a wall."""
    image = np.full((480, 640, 3), 200, np.uint8)
    cv2.rectangle(image, (90, 40), (330, 110), (160, 60, 0), -1)
    cv2.putText(image, "Gates 1-9", (100, 90), cv2.FONT_HERSHEY_SIMPLEX, 1.4, (255, 255, 255), 3)
    cv2.rectangle(image, (400, 300), (520, 350), (0, 0, 200), -1)
    cv2.putText(image, "4.99", (410, 340), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (255, 255, 255), 3)
    cv2.putText(image, "wall", (100, 400), cv2.FONT_HERSHEY_SIMPLEX, 1.0, (60, 60, 60), 2)
    return image, [
        line("Gates 1-9", 98, 55, 225, 42),
        line("4.99", 408, 308, 95, 36),
        line("wall", 98, 375, 75, 28),
    ]


def test_features_do_not_change_with_the_size_of_the_picture() -> None:
    image, lines = scene()
    names = Names([Name("Wall", "store")])
    small = features(lines, image, board_of(lines), names)
    double = cv2.resize(image, None, fx=2, fy=2, interpolation=cv2.INTER_NEAREST).astype(np.uint8)
    twice = [Line(one.polygon * 2, one.text, one.text_score, one.det_score, one.reason) for one in lines]
    large = features(twice, double, board_of(twice), names)
    assert small.shape == (3, len(FEATURE_NAMES))
    assert small.dtype == np.float32
    looks = [FEATURE_NAMES.index(name) for name in (*NAMES, "board_unrest", "board_ring_step")]
    others = [i for i in range(len(FEATURE_NAMES)) if i not in looks]
    assert np.allclose(small[:, others], large[:, others], atol=1e-4)
    assert np.abs(small[:, looks] - large[:, looks]).max() < 0.35
    assert np.median(np.abs(small[:, looks] - large[:, looks])) < 0.03


def test_features_say_what_is_there() -> None:
    image, lines = scene()
    table = features(lines, image, board_of(lines), Names([Name("Wall", "store")]))
    gates, price, wall = ({name: float(row[i]) for i, name in enumerate(FEATURE_NAMES)} for row in table)
    assert gates["word_gate"] > 0.5
    assert gates["form_gate"] == 1
    assert price["form_price"] == 1
    assert price["digits"] == pytest.approx(3 / 4)
    assert wall["map_own"] == 1
    assert wall["map_chain"] == gates["map_own"] == 0
    assert gates["height_rank"] > price["height_rank"] > wall["height_rank"]
    assert features([], image, [], Names([])).shape == (0, len(FEATURE_NAMES))


def test_a_plate_looks_like_one() -> None:
    image, lines = scene()
    gates, price, wall = (dict(zip(NAMES, appearance(image, one), strict=True)) for one in lines)
    assert gates["light_on_dark"] == price["light_on_dark"] == 1
    assert wall["light_on_dark"] == 0
    assert gates["ground_blue"] > 0.9
    assert price["ground_red"] > 0.9
    assert wall["ground_saturation"] < 0.05
    assert gates["contrast"] > 0.5
    assert wall["ring_step"] < 0.05
    outside = line("x", 700, 500, 50, 20)
    assert not appearance(image, outside).any()


def classifier(path: Path, weights: dict[str, float], about: dict[str, str] | None = None) -> Path:
    arrays = {
        "mean": np.zeros(len(FEATURE_NAMES), np.float32),
        "scale": np.ones(len(FEATURE_NAMES), np.float32),
        "w1": np.array([[weights.get(name, 0.0) for name in FEATURE_NAMES]], np.float32),
        "b1": np.zeros(1, np.float32),
    }
    save_file(arrays, path, about or {"features": str(FEATURE_VERSION), "threshold": "0.4"})
    return path


def test_a_classifier_is_what_its_file_says(tmp_path: Path) -> None:
    model = load_classifier(classifier(tmp_path / "a.safetensors", {"word_any": 2.0, "sale": -1.0}))
    assert model.threshold == 0.4
    table = np.zeros((3, len(FEATURE_NAMES)), np.float32)
    table[0, FEATURE_NAMES.index("word_any")] = 1
    table[1, FEATURE_NAMES.index("sale")] = 100  # as far out as four
    scores = classify(table, model)
    assert scores == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(4)), 0.5], abs=1e-6)
    hidden = {
        **model.arrays,
        "w0": np.eye(2, len(FEATURE_NAMES), FEATURE_NAMES.index("sale"), dtype=np.float32),
        "b0": np.array([0.5, 0.0], np.float32),
        "w1": np.array([[3.0, 0.0]], np.float32),
    }
    assert classify(table, Classifier(hidden, 0.5))[2] == pytest.approx(1 / (1 + math.exp(-3 * math.tanh(0.5))))


def test_a_classifier_of_other_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError):
        load_classifier(tmp_path / "none.safetensors")
    with pytest.raises(DataError, match="features None"):
        load_classifier(classifier(tmp_path / "a.safetensors", {}, {"threshold": "0.5"}))
    (tmp_path / "b.safetensors").write_bytes(b"no such thing at all")
    with pytest.raises(DataError):
        load_classifier(tmp_path / "b.safetensors")


def test_a_region_is_cut_in_pixels_or_shares() -> None:
    image = np.arange(60 * 80 * 3, dtype=np.int64).reshape(60, 80, 3).astype(np.uint8)
    part, shift = cut(image, (10, 20, 30, 15))
    assert np.array_equal(part, image[20:35, 10:40])
    assert shift.tolist() == [10, 20]
    half, shift = cut(image, (0.5, 0.5, 0.5, 0.5))
    assert np.array_equal(half, image[30:, 40:])
    assert np.array_equal(cut(image, (70, 50, 100, 100))[0], image[50:, 70:])
    with pytest.raises(UsageError, match="holds nothing"):
        cut(image, (90, 0, 5, 5))


def test_two_probabilities_become_one_by_their_odds() -> None:
    p, q = np.array([0.5, 0.2, 0.999], np.float32), np.array([0.5, 0.8, 0.5], np.float32)
    assert blended(p, q) == pytest.approx([0.5, 0.5, 1 / (1 + (0.01 / 0.99) ** 0.5)], abs=1e-5)


def test_a_sign_is_found_where_it_is_and_no_socket_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **more: Any) -> None:
        raise AssertionError("a socket was opened")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    image, _ = scene()
    model = load_classifier(classifier(tmp_path / "a.safetensors", {"form_gate": 2.0, "form_price": -2.0}))
    finder = Finder(Reader(reading=Reading(View(scale=640))), None, model, roi=(50, 20, 500, 360))
    signs = finder.find(image)
    assert [sign.line.text for sign in signs] == ["Gates 1-9", "4.99"]
    gates, price = signs
    assert (gates.kind, price.kind) == ("gate", "other")
    assert gates.nav_score > finder.threshold > price.nav_score
    assert gates.evidence["form"] == ["gate"]
    left, top, width, _ = gates.line.bbox
    assert left == pytest.approx(98, abs=12)
    assert top == pytest.approx(55, abs=12)
    assert width == pytest.approx(225, abs=20)


def seen() -> list[Seen]:
    signs = [
        Sign(line("Gates, 1-9", 98.5, 55.25, 225, 42), 0.91, "gate", "right", {"form": ["gate"]}, 0),
        Sign(line(None, 408, 308, 95, 36), 0.5, "store", None, {}, 1),
    ]
    track = {"id": 4, "first": 0.5, "last": 2.0, "seen": 12}
    return [
        Seen("a.jpg", None, None, 640, 480, [row_of(sign, "a.jpg") for sign in signs]),
        Seen("empty.jpg", None, None, 320, 240, []),
        Seen("v.mp4", 12, 1.25, 640, 360, [row_of(signs[0], "v.mp4", frame=12, time=1.25, track=track)]),
    ]


def test_ndjson_json_and_csv_hold_the_same_rows() -> None:
    rows = [json.loads(text) for text in formats.ndjson(seen())]
    assert [tuple(row) for row in rows] == [FIELDS] * 3
    assert rows[0]["polygon"] == [[98.5, 55.25], [323.5, 55.25], [323.5, 97.25], [98.5, 97.25]]
    assert rows[0]["bbox"] == [98.5, 55.25, 225, 42]
    assert (rows[1]["text"], rows[1]["reason"]) == (None, "no-text")
    assert rows[2]["track"] == {"id": 4, "first": 0.5, "last": 2.0, "seen": 12}
    document = json.loads("".join(formats.json_document(seen())))
    assert document["detections"] == rows
    assert [image["image"] for image in document["images"]] == ["a.jpg", "empty.jpg", "v.mp4"]
    table = list(csv.DictReader(io.StringIO("".join(formats.comma_separated(seen())))))
    assert [row["text"] for row in table] == ["Gates, 1-9", "", "Gates, 1-9"]
    assert json.loads(table[0]["polygon"]) == rows[0]["polygon"]


def test_coco_loads_in_pycocotools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    COCO = pytest.importorskip("pycocotools.coco").COCO
    (tmp_path / "a.json").write_text("".join(formats.coco(seen())))
    loaded = COCO(str(tmp_path / "a.json"))
    capsys.readouterr()
    assert len(loaded.getImgIds()) == 3
    (first,) = loaded.loadAnns(loaded.getAnnIds(imgIds=[1], catIds=loaded.getCatIds(["gate"])))
    assert loaded.annToMask(first).sum() == pytest.approx(first["area"], rel=0.02)
    assert first["area"] == 225 * 42
    assert first["attributes"]["text"] == "Gates, 1-9"


def test_yolo_gives_the_boxes_of_coco(tmp_path: Path) -> None:
    assert formats.yolo(seen(), tmp_path) == 3
    coco = json.loads("".join(formats.coco(seen())))
    lines = (tmp_path / "labels" / "a.txt").read_text().splitlines()
    assert len(lines) == 2
    for text, annotation in zip(lines, coco["annotations"], strict=False):
        number, cx, cy, w, h, score = (float(word) for word in text.split())
        box = [(cx - w / 2) * 640, (cy - h / 2) * 480, w * 640, h * 480]
        assert np.abs(np.subtract(box, annotation["bbox"])).max() < 0.5
        assert annotation["category_id"] == number + 1
        assert score == annotation["score"]
    assert (tmp_path / "labels" / "empty.txt").read_text() == ""
    assert (tmp_path / "labels" / "v_000012.txt").exists()
    assert f"  2: {KINDS[2]}\n" in (tmp_path / "data.yaml").read_text()


def test_ros2_has_a_message_a_picture() -> None:
    messages = [json.loads(text) for text in formats.ros2(seen())]
    assert [len(message["detections"]) for message in messages] == [2, 0, 1]
    assert messages[2]["header"]["stamp"] == {"sec": 1, "nanosec": 250_000_000}
    first = messages[0]["detections"][0]
    assert first["results"][0]["hypothesis"] == {"class_id": "Gates, 1-9", "score": 0.91}
    assert first["bbox"]["center"]["position"] == {"x": 98.5 + 112.5, "y": 55.25 + 21}
    assert (first["bbox"]["size_x"], first["bbox"]["size_y"]) == (225, 42)


@pytest.mark.parametrize("size", [(640, 480), (333, 1000), (2000, 37), (641, 640)])
def test_the_letterbox_goes_there_and_back(size: tuple[int, int]) -> None:
    width, height = size
    image = np.zeros((height, width, 3), np.uint8)
    square, ratio, (left, top) = letterbox(image)
    assert square.shape == (640, 640, 3)
    assert square[0, 0].tolist() == ([114] * 3 if left or top else [0] * 3)
    corners = np.array([[0, 0, width, height], [width / 4, height / 3, width / 2, height / 2]], np.float32)
    there = corners * ratio + np.array([left, top, left, top])
    assert np.abs(unletterboxed(there.astype(np.float32), ratio, (left, top), image) - corners).max() <= 1


def navocr_model(
    path: Path, boxes: Sequence[Sequence[float]], scores: Sequence[float], inputs: str = "images"
) -> Path:
    """A detector that always gives the same boxes of the square, with the inputs and outputs of NavOCR's."""
    values = {
        "labels": np.zeros((1, len(scores)), np.int64),
        "boxes": np.array([boxes], np.float32),
        "scores": np.array([scores], np.float32),
    }
    types = {"labels": TensorProto.INT64, "boxes": TensorProto.FLOAT, "scores": TensorProto.FLOAT}
    nodes = [
        helper.make_node("Constant", [], [n], value=onnx.numpy_helper.from_array(v)) for n, v in values.items()
    ]
    graph = helper.make_graph(
        nodes,
        "detector",
        [
            helper.make_tensor_value_info(inputs, TensorProto.FLOAT, [1, 3, 640, 640]),
            helper.make_tensor_value_info("orig_target_sizes", TensorProto.INT64, [1, 2]),
        ],
        [helper.make_tensor_value_info(name, types[name], list(v.shape)) for name, v in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return path


class FixedWords:
    """A recogniser that answers by the width of what it is shown."""

    def read(self, strips: Sequence[Image]) -> list[tuple[str, float]]:
        return [("EXIT   2", 0.9) if strip.shape[1] > 100 else ("junk", 0.6) for strip in strips]


def test_navocrs_chain_orders_by_score_and_drops_unsure_text(tmp_path: Path) -> None:
    image = np.zeros((480, 640, 3), np.uint8)  # ratio 1, 80 pixels above
    model = navocr_model(
        tmp_path / "a.onnx",
        [[10, 100, 210, 140], [300, 180, 360, 200], [0, 0, 50, 50], [500, 90, 660, 130]],
        [0.6, 0.9, 0.5, 0.7],
    )
    lines = NavOcr(model, FixedWords()).read(image)  # pyright: ignore[reportArgumentType]
    assert [one.det_score for one in lines] == pytest.approx([0.9, 0.7, 0.6], abs=1e-4)
    assert [one.text for one in lines] == [None, "EXIT 2", "EXIT 2"]
    assert lines[0].reason == "no-text"
    assert lines[2].bbox == (10, 20, 200, 40)
    assert lines[1].bbox == (500, 10, 140, 40)  # cut at the picture's edge
    assert [one.reason for one in NavOcr(model, None).read(image)] == ["not-asked"] * 3


def test_a_model_with_other_inputs_is_no_detector_of_navocrs(tmp_path: Path) -> None:
    model = navocr_model(tmp_path / "a.onnx", [[0, 0, 9, 9]], [0.9], inputs="pixels")
    with pytest.raises(DataError, match="takes pixels, orig_target_sizes"):
        NavOcr(model, None)
