"""From scores to events, thresholds and probes."""

from pathlib import Path

import numpy as np
import pytest

from nipstool.eeg_pretrain import probe
from nipstool.eeg_pretrain.config import Config
from nipstool.eeg_pretrain.detect import (
    MOST_FALSE_ALARMS,
    choose_threshold,
    counts_at,
    events_of,
    track_of,
    trailing_mean,
)
from nipstool.eeg_pretrain.recording import Recording, Segment, Seizure
from nipstool.eeg_pretrain.simulate import CHAINS, SITES, bipolar, simulate, unipolar
from nipstool.eeg_pretrain.stream import Reading


class Nothing:
    """A recording's source that is never read."""


def recording(seconds: float, *seizures: tuple[float, float]) -> Recording:
    labels = tuple(Seizure(a, b) for a, b in seizures)
    return Recording(Path("a"), "a", None, (), (Segment(0.0, seconds),), labels, True, Nothing())  # type: ignore[arg-type]


def test_a_trailing_mean_is_of_the_seconds_that_there_are() -> None:
    scores = np.array([1.0, 3.0, np.nan, 5.0])
    assert trailing_mean(scores, 2).tolist() == [1.0, 2.0, 3.0, 5.0]
    assert trailing_mean(np.full(3, np.nan), 2).tolist() == [0.0, 0.0, 0.0]


def test_events_are_stretches_above_the_threshold() -> None:
    scores = np.zeros(100)
    scores[20:40] = 0.5
    scores[60:65] = 0.9  # shorter than ten seconds
    (event,) = events_of(scores, 0.5)
    assert (event.onset_s, event.offset_s, event.confidence) == (16.0, 35.0, 0.5)  # less half of the mean's length
    assert events_of(np.zeros(100), 0.5) == []
    assert [(e.onset_s, e.offset_s) for e in events_of(np.ones(30), 0.5)] == [(0.0, 25.0)]


def test_a_track_has_the_mean_of_the_tokens_that_end_in_each_second() -> None:
    config = Config()
    detection = np.arange(10) / 10.0
    rest = np.zeros(10)
    found = Reading(
        2.0, True, detection, rest, np.zeros((10, 5)), np.zeros((10, 0)), rest, rest, np.ones(10, bool)
    )
    track = track_of([found], 6.0, config)
    assert track.model[2:4].tolist() == pytest.approx([0.15, 0.55])
    assert track.model[4] == pytest.approx(0.85)
    assert np.isnan(track.model[[0, 1, 5]]).all()


def test_the_threshold_is_the_best_one_that_is_quiet_enough() -> None:
    day = recording(86_400.0, (10_000.0, 10_060.0), (50_000.0, 50_060.0))
    scores = np.full(86_400, 0.01)
    for start in range(1000, 81_000, 2000):  # forty false alarms a day at 0.3
        scores[start : start + 30] = 0.3
    scores[10_000:10_060], scores[50_000:50_060] = 0.9, 0.6
    chosen = choose_threshold([scores], [day])
    assert chosen is not None
    assert chosen.counts is not None
    assert (chosen.counts.f1, chosen.counts.fp_per_day) == (1.0, 0.0)
    assert 0.3 < chosen.value <= 0.6
    assert counts_at([scores], [day], 0.2).fp_per_day > MOST_FALSE_ALARMS
    assert choose_threshold([scores], [recording(86_400.0)]) is None


def test_of_equal_thresholds_the_one_that_is_quietest_on_the_training_recordings() -> None:
    hours = recording(36_000.0, (5_000.0, 5_060.0), (20_000.0, 20_060.0))
    held, seen = np.full(36_000, 0.001), np.full(36_000, 0.001)
    held[5_000:5_060] = np.linspace(0.02, 0.8, 60)  # the other one is not found
    seen[5_000:5_060], seen[20_000:20_060] = 0.9, 0.9
    for start in range(8_000, 18_000, 1000):  # ten false alarms in ten hours: as loud as is allowed
        seen[start : start + 30] = 0.4
    alone = choose_threshold([held], [hours])
    both = choose_threshold([held], [hours], ([seen], [hours]))
    assert alone is not None
    assert both is not None
    assert alone.counts == both.counts
    assert alone.value == pytest.approx((0.02 + 0.67) / 2, abs=0.03)  # the ramp is above 0.67 for less than 10 s
    assert both.value == pytest.approx((0.4 + 0.67) / 2, abs=0.03)
    for start in range(22_000, 35_000, 1000):  # now it would be too loud there
        seen[start : start + 30] = 0.6
    louder = choose_threshold([held], [hours], ([seen], [hours]))
    assert louder is not None
    assert 0.6 < louder.value < 0.68


def test_a_seizure_that_hardly_showed_in_training_does_not_lower_the_threshold() -> None:
    hours = recording(36_000.0, (5_000.0, 5_060.0), (20_000.0, 20_060.0))
    held, seen = np.full(36_000, 0.001), np.full(36_000, 0.001)
    held[5_000:5_060], held[20_000:20_060] = np.linspace(0.02, 0.8, 60), 0.9
    for start in range(8_000, 18_000, 1000):
        seen[start : start + 30] = 0.1
    seen[5_000:5_060], seen[20_000:20_060] = 0.9, 0.2
    chosen = choose_threshold([held], [hours], ([seen], [hours]))
    assert chosen is not None
    assert chosen.counts is not None
    assert chosen.counts.f1 == 1.0
    assert chosen.value == pytest.approx((0.1 + 0.67) / 2, abs=0.03)


def test_a_detector_that_is_always_on_is_none() -> None:
    dense = recording(3600.0, *((start, start + 30.0) for start in np.arange(100.0, 3600.0, 300.0)))
    scores = np.random.default_rng(0).uniform(0.2, 0.3, 3600)
    always = counts_at([scores], [dense], 0.1)
    assert (always.f1, always.fp_per_day) == (1.0, 0.0)  # as events are counted, with a seizure every five minutes
    chosen = choose_threshold([scores], [dense])
    assert chosen is not None
    assert (scores >= chosen.value).mean() <= 0.5


def test_the_probe_is_penalised_logistic_regression() -> None:
    linear = pytest.importorskip("sklearn.linear_model", reason="the extra bench is not installed")
    random = np.random.default_rng(0)
    X = random.standard_normal((200, 5)) * [1, 2, 3, 4, 5] + 7.0
    y = X @ [1, -0.5, 0.2, 0, 0.1] + random.standard_normal(200) > 5.5
    found = probe.fit(X, y)
    assert found is not None
    Z = (X - X.mean(0)) / X.std(0)
    peer = linear.LogisticRegression(C=1.0, class_weight="balanced", tol=1e-10, max_iter=10_000).fit(Z, y)
    assert found.weights == pytest.approx(peer.coef_[0], abs=1e-5)
    assert found(X) == pytest.approx(peer.predict_proba(Z)[:, 1], abs=1e-5)
    assert probe.fit(X, np.ones(200, bool)) is None


def test_a_probe_never_sees_its_own_fold() -> None:
    random = np.random.default_rng(0)
    X = [random.standard_normal((20, 3)) for _ in range(4)]
    y = [random.uniform(size=20) < 0.5 for _ in range(4)]
    found = probe.cross_fitted(X, y, [0, 1, 0, 1])
    y[3] = ~y[3]
    changed = probe.cross_fitted(X, y, [0, 1, 0, 1])
    same = [np.array_equal(a, b) for a, b in zip(found, changed, strict=True)]
    assert same == [False, True, False, True]


def test_planted_seizures_change_the_rhythm_and_not_the_power() -> None:
    made = simulate(np.random.default_rng(3), 6.0, 2, artefacts_per_hour=0.0)
    assert len(made.seizures) == 2
    onset, duration = made.seizures[0]
    inside = made.signals[:, round(onset * 128) + 400 : round((onset + duration) * 128) - 200]
    outside = made.signals[:, : round(onset * 128)]
    power = inside.var(axis=1).sum() / outside.var(axis=1).sum()
    assert 0.7 < power < 1.4

    def slow(x: np.ndarray) -> np.ndarray:
        spectrum = np.abs(np.fft.rfft(x * np.hanning(x.shape[1]), axis=1)) ** 2
        hertz = np.fft.rfftfreq(x.shape[1], 1 / 128)
        return spectrum[:, (hertz > 1.7) & (hertz < 3.5)].sum(1) / spectrum[:, hertz > 0.5].sum(1)

    assert (slow(inside) / slow(outside)).max() > 2.5
    labels, x = bipolar(made.signals)
    assert (len(labels), labels[0], x.shape[0]) == (sum(len(c) - 1 for c in CHAINS), "Fp1-F7", 18)
    assert np.array_equal(x[0], made.signals[SITES.index("Fp1")] - made.signals[SITES.index("F7")])
    assert np.abs(unipolar(made.signals)[1].sum(axis=0)).max() < 1e-9
