"""Scores against the packages that define them, on random events, and against numbers worked out by hand."""

import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from nipstool.eeg_pretrain.evaluation import Judged, folds_of, neuroatlas, report, szcore, windows
from nipstool.eeg_pretrain.false_alarms import Windows, fold_curve, sensitivity_at_false_alarms, sweep
from nipstool.eeg_pretrain.recording import Seizure
from nipstool.eeg_pretrain.scoring import Counts, Interval, events, mean_over_subjects, samples, total
from nipstool.eeg_pretrain.window_metrics import auprc, auroc, label_windows, window_scores

NAMES = ("sensitivity", "precision", "f1", "fp_per_day")


def some_events(rng: np.random.Generator, duration: float) -> list[Interval]:
    """Sorted and apart, of whole or broken seconds, from blips to a quarter of an hour."""
    found, at, digits = [], 0.0, int(rng.integers(0, 4))
    for _ in range(rng.integers(0, 12)):
        onset = at + rng.exponential(duration / 14)
        at = onset + rng.exponential(rng.choice([2, 40, 400]))
        interval = (round(onset, digits), round(at, digits))
        if interval[1] > duration or interval[0] >= interval[1]:
            break
        found.append(interval)
        at = interval[1]
    return found


def test_events_and_samples_equal_timescoring_on_a_thousand_pairs() -> None:
    annotations = pytest.importorskip("timescoring.annotations")
    scoring = pytest.importorskip("timescoring.scoring")
    rng = np.random.default_rng(0)
    detected = 0
    for _ in range(1000):
        duration = float(rng.choice([600, 900, 1234.5, 3600, 7200]))
        pair = some_events(rng, duration), some_events(rng, duration)
        reference, hypothesis = (annotations.Annotation(e, 10, round(duration * 10)) for e in pair)
        for theirs, ours in (
            (scoring.EventScoring(reference, hypothesis), events(*pair, duration)),
            (scoring.SampleScoring(reference, hypothesis), samples(*pair, duration)),
        ):
            expected = (theirs.tp, theirs.fp, theirs.refTrue, theirs.sensitivity, theirs.precision, theirs.f1)
            found = (ours.tp, ours.fp, ours.ref, ours.sensitivity, ours.precision, ours.f1)
            assert np.array_equal([*found, ours.fp_per_day], [*expected, theirs.fpRate], equal_nan=True), pair
        detected += events(*pair, duration).tp
    assert detected > 500  # the pairs do overlap


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [  # sensitivity, precision, F1, false alarms a day; an hour of recording
        ([(600, 660)], [(575, 580), (2000, 2010)], (1.0, 0.5, 2 / 3, 24.0)),
        ([(600, 1300)], [(610, 620)], (1 / 3, 1.0, 0.5, 0.0)),
        ([(600, 660)], [(2000, 2010), (2090, 2100)], (0.0, 0.0, 0.0, 24.0)),
        ([(600, 660)], [(715, 720)], (1.0, 1.0, 1.0, 0.0)),
        ([(600, 660)], [(725, 730)], (0.0, 0.0, 0.0, 24.0)),
        ([], [(725, 730)], (math.nan, 0.0, 0.0, 24.0)),
        ([(600, 660)], [], (0.0, math.nan, 0.0, 0.0)),
        ([], [], (math.nan, math.nan, math.nan, 0.0)),
    ],
)
def test_rules_of_szcore(
    reference: list[Interval], hypothesis: list[Interval], expected: tuple[float, ...]
) -> None:
    found = events(reference, hypothesis, 3600.0)
    assert np.allclose([getattr(found, name) for name in NAMES], expected, equal_nan=True)


def test_the_mean_over_subjects_leaves_out_those_without_a_number() -> None:
    counts = {"a": Counts(1, 0, 1, 86400.0), "b": Counts(0, 2, 4, 86400.0), "c": Counts(0, 0, 0, 86400.0)}
    mean = mean_over_subjects(counts)
    assert (mean["sensitivity"], mean["f1"]) == (0.5, 0.5)
    assert mean["fp_per_day"] == pytest.approx(2 / 3)
    assert total(counts.values()).f1 == pytest.approx(2 / 8)  # pooled, the same detections are worth less


# --- Event-Sens@FA ---


def some_windows(rng: np.random.Generator) -> Windows:
    """Long runs of seizure, and scores that know something of it, with ties."""
    n = int(rng.integers(20, 800))
    labels = np.repeat(rng.random(n // 5 + 1) < 0.1, 5)[:n]
    scores = np.clip(0.4 * labels + 0.7 * rng.random(n), 0, 1).round(int(rng.integers(1, 8)))
    return Windows(labels, scores, np.sort(rng.integers(0, 4, n)), 10.0)


def runs(mask: Sequence[bool], recordings: Sequence[int]) -> list[set[int]]:
    """Windows of each event, found one by one."""
    found: list[set[int]] = []
    for n, inside in enumerate(mask):
        if inside and n and mask[n - 1] and recordings[n] == recordings[n - 1]:
            found[-1].add(n)
        elif inside:
            found.append({n})
    return found


def test_sensitivity_and_false_alarms_are_what_the_definition_says() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        fold = some_windows(rng)
        if not fold.labels.any():
            continue
        sensitivity, rate = sweep(fold)
        reference = runs(list(fold.labels), list(fold.recordings))
        hours = len(fold.labels) * 10 / 3600
        for number in range(0, 200, 13):
            told = runs(list(fold.scores >= number / 199), list(fold.recordings))
            hit = sum(any(event & other for other in told) for event in reference)
            false = sum(not any(event & other for other in reference) for event in told)
            assert sensitivity[number] == pytest.approx(hit / len(reference))
            assert rate[number] == pytest.approx(false / hours)


@pytest.fixture(scope="module")
def theirs(root: Path) -> ModuleType:
    """The file of neuroatlas-bench 0.1.1, where `make bench` has put it; nothing else of the package is used."""
    path = root / "models" / "peers" / "neuroatlas" / "extensions" / "tasks" / "_event_sens_fa.py"
    if not path.is_file():
        pytest.skip("neuroatlas-bench is not in models/peers: make bench puts it there")
    spec = importlib.util.spec_from_file_location("event_sens_fa", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_event_sens_at_fa_equals_neuroatlas(theirs: ModuleType) -> None:
    rng = np.random.default_rng(1)
    for _ in range(8):
        folds = [some_windows(rng) for _ in range(rng.integers(1, 5))]
        curves = [theirs.fold_curve(f.labels, f.scores, f.recordings, window_s=10.0) for f in folds]
        area, sd = theirs.aggregate(curves)
        found = sensitivity_at_false_alarms(folds)
        assert np.allclose([found.area, found.sd], [area, sd], rtol=0, atol=1e-12, equal_nan=True)
        for fold, curve in zip(folds, curves, strict=True):
            assert np.allclose(fold_curve(fold), curve, rtol=0, atol=1e-12, equal_nan=True)


def test_a_perfect_detector_has_a_perfect_curve_and_a_fold_without_seizures_none() -> None:
    labels = np.zeros(3600, bool)
    labels[100:110] = labels[2000:2004] = True
    noise = np.random.default_rng(0).random(3600)
    sure = np.where(labels, 1.0, 0.9 * noise)
    fold = Windows(labels, sure, np.zeros(3600, int))
    found = sensitivity_at_false_alarms([fold, Windows(np.zeros(9, bool), np.ones(9), np.zeros(9, int))])
    assert found.area == 1.0
    assert math.isnan(found.sd)


# --- windows ---


def test_areas_equal_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for digits in (1, 2, 8):
        labels = rng.random(300) < 0.2
        scores = (rng.random(300) + 0.2 * labels).round(digits)
        found = window_scores(labels, scores, 0.6)
        assert found.auroc == pytest.approx(metrics.roc_auc_score(labels, scores), abs=1e-12)
        assert found.auprc == pytest.approx(metrics.average_precision_score(labels, scores), abs=1e-12)
        expected = metrics.balanced_accuracy_score(labels, scores >= 0.6)
        assert found.balanced_accuracy == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("area", [auroc, auprc])
def test_with_one_class_there_is_no_area(area: Callable[[np.ndarray, np.ndarray], float]) -> None:
    assert math.isnan(area(np.ones(4, bool), np.arange(4.0)))
    assert math.isnan(area(np.zeros(4, bool), np.arange(4.0)))


def test_a_window_within_a_long_seizure_is_seizure() -> None:
    found = label_windows([Seizure(12.0, 61.0), Seizure(84.9, 90.0), Seizure(95.0, 105.0)], 11, 10.0)
    assert np.flatnonzero(found).tolist() == [1, 2, 3, 4, 5, 8, 9, 10]
    assert not label_windows([Seizure(84.9, 89.8)], 11, 10.0).any()


# --- protocols ---


def judged(subject: str, scores: Sequence[float], *reference: Seizure) -> Judged:
    """A recording of as many windows as scores, with an event where a score is above one half."""
    told = [(10.0 * n, 10.0 * (n + 1)) for n, score in enumerate(scores) if score > 0.5]
    return Judged(f"{subject}-1", subject, 10.0 * len(scores), reference, tuple(told), np.array(scores))


def test_protocols_count_by_subject_and_never_split_one() -> None:
    folds = folds_of([f"s{n}" for n in (3, 1, 2, 1, 3)], 2)
    assert folds == {"s1": 0, "s2": 1, "s3": 0}
    right = judged("a", [0.1] * 30 + [0.9] * 3 + [0.1] * 30, Seizure(300, 330))
    wrong = judged("b", [0.2] * 30 + [0.8] * 3 + [0.1] * 30, Seizure(10, 20))
    found = szcore([right, wrong, right])
    assert (found.events["a"].tp, found.events["a"].ref, found.events["b"].fp) == (2, 2, 1)
    assert found.summary()["events"]["mean"]["f1"] == 0.5
    assert found.samples["a"].f1 == 1.0
    assert windows([right]).auroc == 1.0
    assert neuroatlas([right, wrong], 2).curve.shape == (80,)
    assert report([right], "windows")["positive"] == 3
