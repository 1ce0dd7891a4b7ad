"""The compact detector and the relevance classifier: targets, losses, gradients, export, evaluation."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from nipstool.detect_navtext import build, detector, evaluation, fitting, learn, metrics, targets, training
from nipstool.detect_navtext.boxes import COMPACT, Rule, boxes_in
from nipstool.detect_navtext.dataset import Picture, Truth
from nipstool.detect_navtext.lines import Line
from nipstool.detect_navtext.network import SCALE, Detector, Probabilities
from nipstool.detect_navtext.poi import Names
from nipstool.detect_navtext.relevance import FEATURE_NAMES, Classifier, classify
from nipstool.detect_navtext.scenes import render
from nipstool.kit.errors import DataError, InputMissingError


def box(x: float, y: float, w: float, h: float) -> np.ndarray:
    return np.array([(x, y), (x + w, y), (x + w, y + h), (x, y + h)], np.float32)


def outlines(truths: Sequence[Truth], width: int, height: int, rule: Rule = COMPACT) -> np.ndarray:
    """What the post-processing makes of maps without a fault."""
    text = targets.maps_of(truths, width, height)[targets.TEXT]
    return boxes_in(np.asarray(cv2.resize(text, (width, height)), np.float32), width, height, rule)[0]


@pytest.mark.parametrize("tilt", [0.0, 4.0, -12.0, 30.0])
@pytest.mark.parametrize("size", [(200, 24), (40, 40), (300, 60), (70, 9.5)])
def test_the_post_processing_grows_the_target_back_to_the_line(size: tuple[float, float], tilt: float) -> None:
    line = np.asarray(cv2.boxPoints(((193.3, 160.6), size, tilt)), np.float32)
    half = replace(COMPACT, threshold=0.5)  # where a map without a fault has the outline
    [found] = outlines([Truth(line, "nav")], 384, 320, half)
    sides = sorted(cv2.minAreaRect(found)[1])
    assert sides == pytest.approx(sorted(size), abs=2.0)
    assert metrics.iou(found, line) > (0.85 if min(size) > 10 else 0.7)
    assert found.mean(axis=0) == pytest.approx(line.mean(axis=0), abs=0.5)


def test_maps_without_a_fault_give_the_lines_of_a_scene() -> None:
    """Growing and shrinking are inverse, low lines are not merged: or no training could help."""
    covered, roles, ious = [], [], []
    for place in (1, 3, 4, 7, 12, 13):
        scene = render(place, 0, size=(960, 736))
        picture = Picture("", 960, 736, build.shot_of(scene, 0, is_val=False).truths)
        counted = [truth.polygon for truth in picture.truths if truth.label != "ignore"]
        found = outlines(picture.truths, 960, 736)
        told = training.text_only(training.found_in(picture, list(found), np.ones(len(found))))
        covered += list(metrics.covered(told))
        roles += [role == "nav" for role in metrics.roles(told)]
        # boxes are upright rectangles turned, so a line seen from the side is measured by its own
        around = [np.asarray(cv2.boxPoints(cv2.minAreaRect(line)), np.float32) for line in counted]
        ious += [max(metrics.iou(one, box) for box in found) for one in around]
    assert len(covered) > 50
    assert np.mean(covered) > 0.98
    assert np.mean(roles) > 0.95
    assert np.mean(np.array(ious) > 0.5) > 0.9
    assert np.mean(ious) > 0.8


def test_maps_say_what_counts() -> None:
    truths = [
        Truth(box(8, 8, 80, 16), "nav"),
        Truth(box(8, 40, 80, 16), "other"),
        Truth(box(8, 72, 80, 16), "ignore"),
    ]
    text, mask, nav, weight = targets.maps_of(truths, 96, 96)
    rows = [8, 24, 40]  # the middles of the three lines, at half of the size
    assert [text[r, 24] for r in rows] == [1, 1, 0]
    assert [mask[r, 24] > 0 for r in rows] == [True, True, False]
    assert [nav[r, 24] for r in rows] == [1, 0, 0]
    assert [weight[r, 24] > 0 for r in rows] == [True, True, False]
    assert (mask[0, 0], weight[0, 0]) == (1, 0)
    again = targets.maps_of([*truths, Truth(box(8, 72, 80, 16), "text", score=0.8)], 96, 96)
    assert again[targets.TEXT][40, 24] == pytest.approx(0.8, abs=0.01)  # where the label says ignore
    assert again[targets.TEXT_MASK][40, 24] > 0
    assert again[targets.NAV_WEIGHT][40, 24] == 0


def test_a_small_line_counts_as_much_as_a_large_one_by_its_root() -> None:
    truths = [Truth(box(0, 8, 90, 10), "nav"), Truth(box(0, 40, 180, 20), "nav")]
    mask = targets.maps_of(truths, 192, 96)[targets.TEXT_MASK]
    assert mask[6, 10] == pytest.approx(1.0, abs=0.02)  # 900 square pixels
    assert mask[25, 10] == pytest.approx(0.5, abs=0.02)  # four times as many: half of the weight a pixel


def test_a_teacher_adds_only_what_has_no_label() -> None:
    truths = [Truth(box(8, 8, 80, 16), "nav"), Truth(box(8, 72, 80, 16), "ignore")]
    seen = [box(6, 6, 84, 20), box(8, 40, 80, 16), box(8, 72, 80, 16)]
    lines = [Line(polygon, None, None, 0.7, None) for polygon in seen]
    added = targets.taught(truths, lines)
    assert [one.polygon[0, 1] for one in added] == [40, 72]
    assert {(one.label, one.score) for one in added} == {("text", 0.7)}
    assert len(targets.taught((), lines)) == 3
    assert targets.taught(truths, ()) == ()


def test_a_crop_shows_the_line_where_its_map_says() -> None:
    image = np.full((300, 400, 3), 30, np.uint8)
    image[100:140, 100:300] = 220
    example = targets.Example(image, (Truth(box(100, 100, 200, 40), "nav"),))
    random = np.random.default_rng(0)
    agreed = 0
    for _ in range(10):
        shown, maps = targets.crop(random, example, 128)
        light = shown[0].reshape(64, 2, 64, 2).mean(axis=(1, 3))
        on, off = light[maps[targets.NAV] > 0.9], light[maps[targets.NAV] < 0.1]
        if len(on) < 80 or len(off) < 80:
            continue
        agreed += on.mean() > off.mean() + 0.3
    assert agreed >= 5


def test_losses_are_small_for_the_truth_and_large_for_its_opposite() -> None:
    truth = torch.zeros(1, 4, 16, 16)
    truth[:, targets.TEXT_MASK] = 1
    truth[:, targets.TEXT, 4:8, 2:14] = 1
    truth[:, targets.NAV, 4:8, 2:14] = 1
    truth[:, targets.NAV_WEIGHT, 4:8, 2:14] = 1
    right = torch.stack([truth[:, targets.TEXT], truth[:, targets.NAV]], 1) * 20 - 10
    assert learn.loss_of(right, truth) < 0.01
    assert learn.loss_of(-right, truth) > 10
    blind = right.clone()
    blind[:, 1] = 10  # navigation everywhere: wrong only where there is no text, which weighs little
    assert 0 < learn.loss_of(blind, truth) < learn.loss_of(-right, truth) / 5


def test_what_is_masked_has_no_gradient() -> None:
    truth = torch.zeros(1, 4, 8, 8)
    truth[:, targets.TEXT_MASK, :4] = 1
    logits = torch.randn(1, 2, 8, 8, requires_grad=True)
    learn.loss_of(logits, truth).backward()
    assert logits.grad is not None
    assert logits.grad[:, :, 4:].abs().max() == 0
    assert logits.grad[:, 0, :4].abs().max() > 0


def test_the_rate_rises_and_falls() -> None:
    rates = [learn.rate_at(step, 100) for step in range(100)]
    assert rates[0] < 0.25
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    assert rates[-1] < 0.05


def test_training_learns_a_line_and_a_seed_gives_the_same_weights() -> None:
    image = np.full((128, 256, 3), 40, np.uint8)
    image[50:70, 60:200] = 230
    example = targets.Example(image, (Truth(box(60, 50, 140, 20), "nav"),))
    weights, losses = [], []
    for _ in range(2):
        torch.manual_seed(0)
        network = Detector()
        course = learn.Course(24, batch=2, side=96, rate=3e-3, clutter=0.0, hard=0.0)
        losses.append(learn.train(network, [example], course))
        weights.append(next(network.head.parameters()).detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert np.mean(losses[0][-6:]) < 0.85 * np.mean(losses[0][:3])


def test_training_from_what_is_known_keeps_the_statistics_but_not_the_weights() -> None:
    image = np.full((96, 96, 3), 200, np.uint8)
    example = targets.Example(image, (Truth(box(20, 30, 50, 16), "nav"),))
    for keeps in (True, False):
        torch.manual_seed(0)
        network = Detector()
        before = {name: value.clone() for name, value in network.state_dict().items()}
        learn.train(network, [example], learn.Course(2, batch=2, side=96, keeps_statistics=keeps))
        same = {name: torch.equal(before[name], value) for name, value in network.state_dict().items()}
        statistics = {name for name in same if "running" in name}
        assert {same[name] for name in statistics} == {keeps}
        assert not any(same[name] for name in same if name.endswith("weight"))


def test_a_picture_is_shown_as_often_as_the_root_of_its_lines() -> None:
    def picture(lines: int) -> targets.Example:
        truths = [Truth(box(0, 0, 9, 9), "other")] * lines + [Truth(box(0, 0, 9, 9), "ignore")] * 50
        return targets.Example(np.zeros((9, 9, 3), np.uint8), tuple(truths))

    often = learn._often([picture(0), picture(4), picture(100)])
    assert often == pytest.approx(np.array([2, 2, 10]) / 14)


def test_a_damaged_split_for_validation_is_told_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "annotations").mkdir()
    with pytest.raises(InputMissingError, match=r"val\.json: no such file"):
        training.train(tmp_path, learn.Course(), names=Names([]), teacher=None)
    (tmp_path / "annotations" / "val.json").write_text('{"images": [{"id": 1}]}')
    with pytest.raises(DataError, match=r"val\.json: is no COCO file"):
        training.train(tmp_path, learn.Course(), names=Names([]), teacher=None)
    images = [{"id": 1, "file_name": "images/val/p1.jpg", "width": 9, "height": 9}]
    known = {"images": images, "categories": [], "annotations": []}
    (tmp_path / "annotations" / "val.json").write_text(json.dumps(known))
    with pytest.raises(InputMissingError, match=r"images/val/p1\.jpg"):
        training.train(tmp_path, learn.Course(), names=Names([]), teacher=None)


def test_maps_have_half_of_the_size_and_no_square_is_needed() -> None:
    maps = Probabilities(Detector()).eval()(torch.zeros(2, 3, 96, 160))
    assert maps.shape == (2, 2, 96 // SCALE, 160 // SCALE)
    assert 0 <= maps.min().item() <= maps.max().item() <= 1


def test_onnx_equals_torch_and_opencv_and_carries_its_metadata(tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = Detector()
    for module in network.modules():  # statistics as after training
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)  # pyright: ignore
            module.running_var.uniform_(0.5, 1.5)  # pyright: ignore
    data = detector.onnx_bytes(network.eval(), about={"steps": "7"}, classifier=b"\0weights")
    assert detector.check_export(data, network) <= 1e-4
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert detector.metadata(path)["steps"] == "7"
    assert detector.classifier_in(path) == b"\0weights"
    other = Detector().eval()
    with pytest.raises(DataError, match="differs"):
        detector.check_export(data, other)
    path.write_bytes(b"no onnx")
    with pytest.raises(DataError, match="is no ONNX"):
        detector.metadata(path)


# --- the relevance classifier ---


def sample(seed: int, count: int = 300) -> fitting.Sample:
    """Lines where a known word, a price and, less, large letters decide."""
    random = np.random.default_rng(seed)
    table = random.normal(0, 1, (count, len(FEATURE_NAMES))).astype(np.float32)
    column = FEATURE_NAMES.index
    words = table[:, column("word_any")] - table[:, column("form_price")]
    logit = 2 * words + 0.5 * table[:, column("height_median")]
    return fitting.Sample(table, logit > 0, np.ones(count))


def test_the_gradient_is_that_of_the_loss() -> None:
    one = sample(0, 40)
    random = np.random.default_rng(1)
    values = random.normal(0, 0.3, len(FEATURE_NAMES) + 1)
    args = (
        one.table.astype(float),
        one.is_nav.astype(float),
        fitting._balanced(one),
        random.uniform(0, 0.1, len(values)),
        random.normal(0, 0.1, len(values)),
    )
    _, gradient = fitting._objective(values, *args)
    for i in (0, 5, len(values) - 1):
        step = np.zeros_like(values)
        step[i] = 1e-5
        numeric = (
            fitting._objective(values + step, *args)[0] - fitting._objective(values - step, *args)[0]
        ) / 2e-5
        assert gradient[i] == pytest.approx(numeric, abs=1e-7)


def test_signs_hold_and_what_is_silent_says_nothing() -> None:
    classifier = Classifier(fitting.fit(sample(0)), 0.5)
    weights = dict(zip(FEATURE_NAMES, classifier.arrays["w1"][0].tolist(), strict=True))
    for name, weight in weights.items():
        sign = fitting.sign_of(name)
        assert sign is None or weight * sign >= 0
        assert sign != 0 or weight == 0
    assert weights["word_any"] > 0.3
    assert weights["form_price"] < -0.3
    other = sample(1)
    assert ((classify(other.table, classifier) > 0.5) == other.is_nav).mean() > 0.9


def test_the_same_classifier_has_the_same_bytes_and_comes_back(tmp_path: Path) -> None:
    from nipstool.detect_navtext.relevance import load_classifier

    classifier = Classifier(fitting.fit(sample(0)), 0.25)
    data = fitting.as_bytes(classifier)
    assert data == fitting.as_bytes(Classifier(fitting.fit(sample(0)), 0.25))
    path = tmp_path / "c.safetensors"
    path.write_bytes(data)
    again = load_classifier(path)
    assert again.threshold == 0.25
    assert classify(sample(2).table, again) == pytest.approx(classify(sample(2).table, classifier), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("b1", None),
        ("w1", lambda a: a[:, 1:]),
        ("mean", lambda a: a * np.nan),
        ("scale", lambda a: a * 0),
        ("w1", lambda a: a.astype(np.int32)),
    ],
)
def test_a_damaged_classifier_is_told(tmp_path: Path, name: str, change: Callable[..., np.ndarray] | None) -> None:
    from safetensors.numpy import save_file

    from nipstool.detect_navtext.relevance import load_classifier

    shipped = load_classifier()
    arrays = dict(shipped.arrays)
    value = arrays.pop(name)
    if change is not None:
        arrays[name] = np.ascontiguousarray(change(value))
    save_file(arrays, tmp_path / "own.safetensors", dict(shipped.about))
    with pytest.raises(DataError, match="is damaged"):
        load_classifier(tmp_path / "own.safetensors")
    save_file(dict(shipped.arrays), tmp_path / "own.safetensors", {**shipped.about, "threshold": "x"})
    with pytest.raises(DataError, match="is damaged"):
        load_classifier(tmp_path / "own.safetensors")


def test_the_cautious_threshold_keeps_what_it_says() -> None:
    scores = np.arange(1000) / 1000
    is_nav = np.ones(1000, bool)
    assert (scores >= fitting.cautious_threshold(scores, is_nav, 0.95)).mean() == pytest.approx(0.95, abs=0.002)


def test_a_place_of_its_own_is_learnt_from_few_lines() -> None:
    one = sample(3, 200)
    turned = fitting.Sample(one.table, one.table[:, FEATURE_NAMES.index("ground_blue")] > 0, one.weight)
    adapted = training.adapt(turned)
    assert adapted is not None
    kept = classify(turned.table, adapted) >= adapted.threshold
    assert (kept == turned.is_nav).mean() > 0.8  # blue signs, which the shipped classifier knows nothing of
    assert training.adapt(fitting.Sample(one.table[:3], np.array([True, False, False]), np.ones(3))) is None


def test_the_best_threshold_has_the_best_f1_and_is_at_most_a_half() -> None:
    scores, is_nav = np.array([0.9, 0.4, 0.3, 0.2]), np.array([True, True, False, False])
    assert training.best_threshold(scores, is_nav) == pytest.approx(0.35)
    assert training.best_threshold(np.array([0.9, 0.8]), np.array([True, True])) <= 0.5


# --- evaluate ---


def test_predictions_come_in_three_formats(tmp_path: Path) -> None:
    corners = box(1, 2, 30, 10).tolist()
    row = {"image": "x/a.jpg", "polygon": corners, "nav_score": 0.7, "kind": "room"}
    flat = [value for corner in corners for value in corner]
    coco = {
        "images": [{"id": 4, "file_name": "x/a.jpg"}],
        "annotations": [{"image_id": 4, "segmentation": [flat], "score": 0.7, "bbox": [1, 2, 30, 10]}],
    }
    texts = {"a.ndjson": json.dumps(row) + "\n\n", "a.json": json.dumps([row]), "c.json": json.dumps(coco)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        [found] = evaluation.read_predictions(tmp_path / name)
        assert (found.image, found.score) == ("x/a.jpg", 0.7)
        assert found.polygon.tolist() == corners
    (tmp_path / "none.json").write_text("[]")
    assert evaluation.read_predictions(tmp_path / "none.json") == []
    (tmp_path / "empty.ndjson").write_text("\n")
    with pytest.raises(DataError, match="is empty"):
        evaluation.read_predictions(tmp_path / "empty.ndjson")
    (tmp_path / "bad.ndjson").write_text('{"image": "a.jpg"}\n')
    with pytest.raises(DataError, match="row 1"):
        evaluation.read_predictions(tmp_path / "bad.ndjson")


def test_detections_go_to_the_picture_whose_path_ends_alike() -> None:
    pictures = [Picture(name, 9, 9, ()) for name in ("east/1.jpg", "west/1.jpg")]
    rows = [evaluation.Prediction(name, box(0, 0, 5, 5), 0.5, "room") for name in ("/d/west/1.jpg", "/d/2.jpg")]
    found, absent = evaluation.beside(pictures, rows)
    assert [len(one.polygons) for one in found] == [0, 1]
    assert absent == 1


def test_an_evaluation_prints_keep_everything_beside() -> None:
    truths = (Truth(box(0, 0, 40, 10), "nav", "room"), Truth(box(0, 20, 40, 10), "other"))
    pictures = [Picture("a_1.jpg", 90, 90, truths, "a"), Picture("b_1.jpg", 90, 90, truths, "b")]
    rows = [
        evaluation.Prediction(p.name, t.polygon, score, "room")
        for p in pictures
        for t, score in zip(truths, (0.9, 0.2), strict=True)
    ]
    found, _ = evaluation.beside(pictures, rows)
    result = evaluation.evaluate(found, 0.5)
    assert result.overall.f1 == 1.0
    assert result.everything[""].f1 == pytest.approx(2 / 3)
    assert [row[0] for row in evaluation.place_rows(result)] == ["a", "b", "all"]
    assert evaluation.kind_rows(result) == [["room", 2, 1.0]]
    assert result.at_90 == (0.9, 1.0)
    assert "F1 1.000 to 1.000" in evaluation.outcome(result)
    assert evaluation.in_places(pictures, ["a_"])[0].place == "a_"
    with pytest.raises(DataError, match="no picture"):
        evaluation.evaluate([], 0.5)
