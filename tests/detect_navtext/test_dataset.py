"""Datasets: what is written is read back, COCO and YOLO agree, places and near-duplicates stay together."""

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from nipstool.detect_navtext import build, dataset
from nipstool.detect_navtext.build import Shot
from nipstool.detect_navtext.choices import Choices
from nipstool.detect_navtext.dataset import Picture, Truth
from nipstool.detect_navtext.making import Job, make
from nipstool.kit.errors import DataError, InputMissingError


def slanted(x: float = 10.3) -> np.ndarray:
    return np.array([(x, 20.1), (x + 60.4, 24.2), (x + 59.8, 40.3), (x - 0.6, 36.2)], np.float32)


def picture() -> Picture:
    truths = (
        Truth(slanted(), "nav", "room", "Room 1", 0.91, {"lexicon": {"room": 1.0}}),
        Truth(slanted(100), "other", "", "SALE"),
        Truth(slanted(200), "ignore"),
    )
    return Picture("images/train/a.jpg", 400, 300, truths, "hall", {"made": "photograph"})


def a_shot(name: str, place: str, seed: int, image: np.ndarray | None = None) -> Shot:
    if image is None:
        coarse = np.random.default_rng(seed).integers(0, 255, (6, 7, 3)).astype(np.uint8)
        image = np.asarray(cv2.resize(coarse, (70, 60), interpolation=cv2.INTER_NEAREST), np.uint8)
    return Shot(name, image, (Truth(slanted(5), "nav", "room", "1"),), place, "photograph", name, f"{seed}")


def test_coco_comes_back_as_it_was() -> None:
    [again] = dataset._pictures(json.loads(json.dumps(dataset.coco([picture()]))))
    first = picture()
    assert (again.name, again.width, again.height, again.place) == (first.name, 400, 300, "hall")
    for one, two in zip(again.truths, first.truths, strict=True):
        assert (one.label, one.kind, one.text) == (two.label, two.kind, two.text)
        assert one.polygon == pytest.approx(two.polygon, abs=0.01)
    assert again.truths[0].score == 0.91


def test_coco_loads_in_pycocotools(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    from pycocotools.coco import COCO

    path = tmp_path / "a.json"
    path.write_text(json.dumps(dataset.coco([picture()])))
    coco = COCO(str(path))
    annotations = coco.loadAnns(coco.getAnnIds(imgIds=[1]))
    assert [a["iscrowd"] for a in annotations] == [0, 0, 1]
    mask = coco.annToMask(annotations[0])
    assert mask.sum() == pytest.approx(annotations[0]["area"], rel=0.05)
    assert {c["name"] for c in coco.loadCats(coco.getCatIds())} == {"navtext", "other", "ignore"}


def test_yolo_and_coco_agree_within_half_a_pixel() -> None:
    first = picture()
    boxes = [a["bbox"] for a in dataset.coco([first])["annotations"]][:2]
    lines = dataset.yolo(first).splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1"]  # what is to be ignored is left out
    for line, box in zip(lines, boxes, strict=True):
        cx, cy, w, h = (float(v) for v in line.split()[1:])
        assert [(cx - w / 2) * 400, (cy - h / 2) * 300, w * 400, h * 300] == pytest.approx(box, abs=0.5)
    corners = [float(v) for v in dataset.yolo(first, corners=True).splitlines()[0].split()[1:]]
    assert np.array(corners).reshape(-1, 2) * [400, 300] == pytest.approx(first.truths[0].polygon, abs=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "is no COCO file"),
        ('{"images": [], "annotations": []}', "categories"),
        ('{"categories": [{"id": 1, "name": "cat"}], "images": [], "annotations": []}', "cat"),
    ],
)
def test_what_is_no_coco_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        dataset.read_coco(path)
    assert str(caught.value).startswith(f"{path}: ")
    with pytest.raises(InputMissingError):
        dataset.read_coco(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("name", "place"),
    [("mall_west_12.jpg", "mall_west"), ("a/b/hall-3.png", "hall"), ("IMG_0001.JPG", "IMG"), ("77.jpg", "place")],
)
def test_the_place_in_a_name(name: str, place: str) -> None:
    assert dataset.place_of(name) == place
    assert build.place("mall_west_12.jpg", ["mall", "mall_west"]) == "mall_west"


def test_splits_hold_about_the_share_and_every_place_once() -> None:
    found = dataset.splits({"a": 50, "b": 30, "c": 15, "d": 5}, 0.2)
    assert found == {"a": "train", "b": "train", "c": "val", "d": "val"}
    assert dataset.splits({"a": 5}, 0.5) == {"a": "train"}
    assert set(dataset.splits({"a": 50, "b": 50}, 0.2).values()) == {"train", "val"}


def test_near_duplicates_join_places() -> None:
    one = a_shot("a.png", "x", 1).image
    lighter = np.clip(one.astype(int) + 3, 0, 255).astype(np.uint8)
    hashes = [build.picture_hash(image) for image in (one, lighter, a_shot("c.png", "z", 2).image)]
    groups, near = build.together(["x", "y", "z"], hashes)
    assert near == 1
    assert groups[0] == groups[1] != groups[2]


def test_a_dataset_is_written_whole(tmp_path: Path) -> None:
    shots = [a_shot(f"p{i}_{j}.png", f"p{i}", 10 * i + j) for i in range(4) for j in range(3)]
    shots.append(a_shot("again.png", "p9", 11))  # the same file as one before
    told: list[str] = []
    built = build.write(shots, tmp_path, share=0.25, licence="CC0", warn=told.append)
    assert built.pictures == {"train": 9, "val": 3}
    assert built.kinds == {"room": 12}
    assert len(told) == 1
    rows = list(csv.DictReader((tmp_path / "provenance.csv").open()))
    places = {split: {row["place"] for row in rows if row["split"] == split} for split in ("train", "val")}
    assert not places["train"] & places["val"]
    assert all(row["licence"] == "CC0" for row in rows)
    for split, count in built.pictures.items():
        pictures = dataset.read_coco(dataset.file_in(tmp_path, split))
        assert len(pictures) == count
        for one in pictures:
            assert (tmp_path / one.name).is_file()
            assert (tmp_path / "labels" / split / f"{Path(one.name).stem}.txt").read_text() == dataset.yolo(one)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no picture"):
        build.write([], tmp_path / "empty")


def test_what_nobody_is_sure_of_is_ignored() -> None:
    def label(score: float, is_read: bool = True) -> str:
        return build.label_of(score, is_read=is_read, positive=0.6, negative=0.4)

    assert [label(s) for s in (0.61, 0.6, 0.59, 0.41, 0.4, 0.1)] == [
        "nav",
        "nav",
        "ignore",
        "ignore",
        "other",
        "other",
    ]
    assert label(0.99, is_read=False) == "ignore"


def test_a_photograph_keeps_its_bytes_unless_it_is_turned(data_dir: Path) -> None:
    from nipstool.detect_navtext.pictures import read_picture

    folder = data_dir / "detect-navtext"
    plain, turned = (
        folder / "images" / "cvtext_scenetext01.jpg",
        folder / "extra" / "rapid_img_exif_orientation.jpg",
    )
    kept = build.photograph("a.jpg", plain.read_bytes(), read_picture(plain), (), "p", "a")
    assert kept.data == plain.read_bytes()
    assert kept.name == "a.jpg"
    written = build.photograph("b.jpg", turned.read_bytes(), read_picture(turned), (), "p", "b")
    assert written.data is None
    assert written.name == "b.png"


def test_rendered_pictures_hold_out_a_fold(tmp_path: Path) -> None:
    shots = list(build.rendered(6, 0, []))
    assert len({shot.place for shot in shots}) == 3
    assert {shot.is_val for shot in shots} == {True, False}
    again = list(build.rendered(2, 0, []))
    assert [s.sha256 for s in again] == [s.sha256 for s in shots[:2]]


def test_an_error_names_what_could_not_be_used(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), np.full((120, 200, 3), 200, np.uint8))
    for name in ("no.png", "places.geojson"):
        (tmp_path / name).write_text('{"type": ')
    with pytest.raises(DataError, match=r"places\.geojson:1: is no JSON"):
        make(tmp_path / "out", Job([str(tmp_path / "a.png")]), Choices(poi=[tmp_path / "places.geojson"]))
    with pytest.raises(DataError, match=r"no\.png: is no picture"):
        make(tmp_path / "out", Job([str(tmp_path / "no.png")]), Choices())
    with pytest.raises(DataError, match="no picture could be used"):
        make(tmp_path / "out", Job([]), Choices())
    assert not (tmp_path / "out").exists()
