"""Coverage and ICDAR rules: cases worked by hand, and shapely and pycocotools as oracles."""

import json
from pathlib import Path

import numpy as np
import pytest

from nipstool.detect_navtext import dataset, metrics
from nipstool.detect_navtext.metrics import Found


def box(x: float, y: float, w: float, h: float) -> np.ndarray:
    return np.array([(x, y), (x + w, y), (x + w, y + h), (x, y + h)], np.float32)


def found(polygons: list, scores: list[float], truths: list, labels: list[str], place: str = "p") -> Found:
    kinds = ["store" if label == "nav" else "" for label in labels]
    return Found(place, polygons, np.array(scores, float), ["other"] * len(polygons), truths, labels, kinds)


SIGN, PRICE, POSTER = box(0, 0, 100, 20), box(0, 50, 100, 20), box(0, 100, 100, 100)


def test_a_detection_is_what_more_than_half_of_it_lies_on() -> None:
    exactly_half, more = box(-50, 0, 100, 20), box(-49, 0, 100, 20)
    on_poster, nowhere = box(10, 110, 20, 20), box(500, 0, 10, 10)
    one = found(
        [exactly_half, more, on_poster, nowhere, PRICE], [1] * 5, [SIGN, PRICE, POSTER], ["nav", "other", "ignore"]
    )
    assert metrics.roles(one) == ["other", "nav", "ignore", "other", "other"]


def test_a_sign_is_found_where_several_words_cover_half_of_it() -> None:
    halves = [box(0, 0, 26, 20), box(30, 0, 25, 20)]
    assert metrics.covered(found(halves, [1, 1], [SIGN], ["nav"])).tolist() == [True]
    assert metrics.covered(found(halves[:1], [1], [SIGN], ["nav"])).tolist() == [False]


def test_rates_by_hand() -> None:
    # two signs and two others found; the threshold keeps one sign and one other
    detections = [SIGN, box(0, 300, 50, 10), PRICE, box(0, 400, 50, 10)]
    one = found(detections, [0.9, 0.2, 0.6, 0.1], [SIGN, detections[1], PRICE], ["nav", "nav", "other"])
    rates = metrics.rates([metrics.tally(one)], 0.5)
    assert (rates.nav, rates.other) == (2, 2)
    assert (rates.precision, rates.recall, rates.f1, rates.dropped, rates.found) == (0.5, 0.5, 0.5, 0.5, 1.0)
    assert rates.ap == pytest.approx((1 / 1 + 2 / 3) / 2)  # signs at ranks 1 and 3
    everything = metrics.rates([metrics.tally(one)], -np.inf)
    assert (everything.precision, everything.recall, everything.dropped) == (0.5, 1.0, 0.0)


def test_rates_without_a_denominator_are_none() -> None:
    rates = metrics.rates([metrics.tally(found([], [], [], []))], 0.5)
    assert (rates.precision, rates.recall, rates.f1, rates.dropped, rates.found, rates.ap) == (None,) * 6


def test_average_precision_takes_ties_together_and_agrees_with_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    for _ in range(20):
        scores = np.round(random.random(30), 1)  # many ties
        truth = random.random(30) < 0.4
        ours = metrics.average_precision(truth, scores)
        assert ours == pytest.approx(sklearn.average_precision_score(truth, scores), abs=1e-12)


def test_threshold_at_a_recall() -> None:
    scores = [0.9, 0.8, 0.7, 0.3, 0.75, 0.2]
    polygons = [box(0, 40 * i, 30, 10) for i in range(6)]
    one = found(polygons, scores, polygons[:4], ["nav"] * 4)
    assert metrics.at_recall([metrics.tally(one)], 0.75) == (
        0.7,
        0.5,
    )  # three of four signs; of 0.75, 0.2 one goes
    assert metrics.at_recall([metrics.tally(one)], 1.0) == (0.3, 0.5)


def test_places_and_kinds_are_told_apart() -> None:
    one, two = found([SIGN], [0.9], [SIGN], ["nav"], "a"), found([PRICE], [0.9], [SIGN], ["nav"], "b")
    tallies = [metrics.tally(one), metrics.tally(two)]
    by_place = metrics.by_place(tallies, 0.5)
    assert (by_place["a"].precision, by_place["b"].precision) == (1.0, 0.0)
    assert metrics.by_kind(tallies) == {"store": (2, 1)}


def test_bootstrap_interval_of_a_known_spread() -> None:
    drawn = metrics.draws(400, times=500)
    values = np.arange(400) % 2  # a share of one half, standard error 0.025
    low, high = metrics.spread([float(values[row].mean()) for row in drawn]) or (0, 0)
    assert 0.44 < low < 0.46
    assert 0.54 < high < 0.56
    assert metrics.spread([None, None, 0.5]) is None


# --- the rule of ICDAR 2015 ---

WORDS = [box(0, 0, 40, 10), box(60, 0, 40, 10)]


def test_icdar_counts_one_to_one_in_file_order() -> None:
    shifted = box(8, 0, 40, 10)  # IoU with the first word 32 / 48
    assert metrics.iou(shifted, WORDS[0]) == pytest.approx(32 / 48)
    result = metrics.icdar([([shifted, WORDS[0]], WORDS, [False, False])])
    assert result == {
        "precision": 0.5,
        "recall": 0.5,
        "hmean": 0.5,
    }  # the first takes the word, the exact one is false


def test_icdar_leaves_out_detections_on_dont_care() -> None:
    inside, half = box(62, 0, 10, 10), box(40, 0, 40, 10)
    result = metrics.icdar([([WORDS[0], inside, half], WORDS, [False, True])])
    assert result["precision"] == 0.5  # `inside` is left out; exactly half on it is not more than half
    assert result["recall"] == 1.0


def test_icdar_needs_more_than_half_iou() -> None:
    double = box(0, 0, 80, 10)  # IoU with box(0, 0, 40, 10) is exactly one half
    assert metrics.icdar([([double], WORDS[:1], [False])]) == {"precision": 0.0, "recall": 0.0, "hmean": 0.0}
    assert metrics.icdar([([], [], [])]) == {"precision": 0.0, "recall": 0.0, "hmean": 0.0}


def by_shapely(pictures: list) -> dict[str, float]:
    """A short scorer of its own: shapely's polygons, sets instead of lists."""
    shapely = pytest.importorskip("shapely")
    matched = truths = detections = 0
    for polygons, truth, careless in pictures:
        found_, wanted = [shapely.Polygon(p) for p in polygons], [shapely.Polygon(t) for t in truth]
        cares = {j for j, c in enumerate(careless) if not c}
        out = {
            i
            for i, p in enumerate(found_)
            for j in range(len(wanted))
            if j not in cares and p.intersection(wanted[j]).area / p.area > 0.5
        }
        used: set[int] = set()
        for j in sorted(cares):
            for i, p in enumerate(found_):
                if i in out or i in used:
                    continue
                if p.intersection(wanted[j]).area / p.union(wanted[j]).area > 0.5:
                    used.add(i)
                    break
        matched, truths = matched + len(used), truths + len(cares)
        detections += len(found_) - len(out)
    return metrics.summary(matched, detections, truths)


def test_icdar_equals_a_shapely_scorer_on_random_boxes() -> None:
    random = np.random.default_rng(1)
    for _ in range(10):
        truth = [box(*random.uniform(0, 80, 2), *random.uniform(10, 40, 2)) for _ in range(8)]
        polygons = [t + random.normal(0, 3, (1, 2)).astype(np.float32) for t in truth] + [box(5, 5, 30, 30)]
        careless = [bool(c) for c in random.random(8) < 0.3]
        pictures = [(polygons, truth, careless)]
        assert metrics.icdar(pictures) == pytest.approx(by_shapely(pictures), abs=1e-9)


def icdar_pictures(folder: Path) -> list[tuple[list, list, list[bool]]]:
    """Words that nobody here labelled, and detections made by moving and joining some of them."""
    document = json.loads((folder / "reference" / "mmocr_ic15_textdet_test.json").read_text())
    at_hand = {path.name.removeprefix("mmocr_ic15_") for path in (folder / "images").glob("mmocr_ic15_*")}
    random, pictures = np.random.default_rng(2), []
    for entry in document["data_list"]:
        if Path(entry["img_path"]).name not in at_hand:
            continue
        truth = [np.array(i["polygon"], np.float32).reshape(-1, 2) for i in entry["instances"]]
        careless = [bool(i["ignore"]) for i in entry["instances"]]
        moved = [t + random.normal(0, 0.15, 2).astype(np.float32) * np.ptp(t, axis=0) for t in truth]
        pictures.append(([*moved[::2], *truth[1::3]], truth, careless))
    return pictures


@pytest.mark.realdata
def test_icdar_on_the_pictures_at_hand_equals_a_shapely_scorer(data_dir: Path) -> None:
    pictures = icdar_pictures(data_dir / "detect-navtext")
    assert len(pictures) == 7
    ours = metrics.icdar(pictures)
    assert 0.1 < ours["hmean"] < 0.95
    assert ours == pytest.approx(by_shapely(pictures), abs=1e-9)


@pytest.mark.realdata
def test_the_evaluation_file_is_read_whole(data_dir: Path) -> None:
    pictures = dataset.read_coco(data_dir / "detect-navtext" / "navtext_eval.json")
    labels = [truth.label for picture in pictures for truth in picture.truths]
    assert (len(pictures), labels.count("nav"), labels.count("other"), labels.count("ignore")) == (21, 35, 51, 21)
