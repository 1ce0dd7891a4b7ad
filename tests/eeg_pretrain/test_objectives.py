"""Losses and their targets: hazards by hand, labels on the clock, descriptors of known waves."""

import math
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from nipstool.eeg_pretrain.config import DESCRIPTORS, Config
from nipstool.eeg_pretrain.descriptors import describe
from nipstool.eeg_pretrain.discover import find
from nipstool.eeg_pretrain.objectives import hazard_nll, risk
from nipstool.eeg_pretrain.recording import Recording, Segment, Seizure
from nipstool.eeg_pretrain.simulate import write_demo
from nipstool.eeg_pretrain.targets import on_the_clock, targets_of

HORIZONS = (60.0, 300.0, 600.0)
HAZARDS = (0.1, 0.2, 0.5)
LOGITS = torch.tensor([math.log(p / (1 - p)) for p in HAZARDS], dtype=torch.float64)


@pytest.mark.parametrize(
    ("wait_s", "event", "likelihood"),
    [
        (30.0, True, 0.1),
        (60.0, True, 0.1),  # an onset at the edge belongs to the interval that ends there
        (60.1, True, 0.9 * 0.2),
        (600.0, True, 0.9 * 0.8 * 0.5),
        (601.0, True, 0.9 * 0.8 * 0.5),  # beyond the last horizon: outlived all of them
        (0.0, True, 0.1),
        (59.0, False, 1.0),  # censored in the first interval: nothing is known of it
        (60.0, False, 0.9),
        (299.0, False, 0.9),
        (10_000.0, False, 0.9 * 0.8 * 0.5),
    ],
)
def test_hazard_likelihood_by_hand(wait_s: float, event: bool, likelihood: float) -> None:
    wait = torch.tensor(wait_s, dtype=torch.float64)
    found = hazard_nll(LOGITS, wait, torch.tensor(event), HORIZONS)
    assert float(found) == pytest.approx(-math.log(likelihood), abs=1e-12)


def test_risk_is_what_the_hazards_leave() -> None:
    found = risk(LOGITS).tolist()
    assert found == pytest.approx([0.1, 1 - 0.9 * 0.8, 1 - 0.9 * 0.8 * 0.5])


class Nothing:
    """A recording's source that is never read."""


def recording(name: str, start: datetime | None, seconds: float, *seizures: tuple[float, float]) -> Recording:
    labels = tuple(Seizure(a, b) for a, b in seizures)
    segments = (Segment(0.0, seconds),)
    return Recording(Path(name), "chb01", start, (), segments, labels, True, Nothing())  # type: ignore[arg-type]


NOON = datetime(2020, 1, 1, 12)
CONFIG = Config()


def test_time_to_a_seizure_goes_on_in_the_next_file() -> None:
    first = recording("a.edf", NOON, 3600.0)
    second = recording("b.edf", NOON + timedelta(seconds=3610), 3600.0, (100.0, 130.0))
    known = on_the_clock([second, first])[1]
    found = targets_of(first, known, first.segments[0], 4, CONFIG)
    assert found.wait_s == pytest.approx([3710.0 - 0.25 * k for k in (1, 2, 3, 4)])
    assert found.event.all()
    assert found.asked.all()


def test_a_gap_on_the_clock_censors() -> None:
    first = recording("a.edf", NOON, 3600.0)
    for later in (3700.0, 90_000.0):
        second = recording("b.edf", NOON + timedelta(seconds=later), 3600.0, (100.0, 130.0))
        known = on_the_clock([first, second])[0]
        found = targets_of(first, known, first.segments[0], 2, CONFIG)
        assert found.wait_s == pytest.approx([3599.75, 3599.5])
        assert not found.event.any()


def test_a_gap_within_a_file_censors() -> None:
    one = recording("a.edf", NOON, 400.0, (350.0, 360.0))
    one = replace(one, segments=(Segment(0.0, 100.0), Segment(200.0, 200.0)))
    known = on_the_clock([one])[0]
    before = targets_of(one, known, one.segments[0], 400, CONFIG)
    after = targets_of(one, known, one.segments[1], 800, CONFIG)
    assert (before.wait_s[0], before.event[0]) == (pytest.approx(99.75), False)
    assert (after.wait_s[0], after.event[0]) == (pytest.approx(149.75), True)


def test_labels_of_tokens_around_a_seizure() -> None:
    one = recording("a.edf", None, 4000.0, (10.1, 20.0))
    found = targets_of(one, on_the_clock([one])[0], one.segments[0], 16_000, CONFIG)
    assert found.seizure[40] == pytest.approx(0.6)  # 10.0 to 10.25 s, of which 0.15 s is seizure
    assert found.seizure[39] == 0.0
    assert (found.seizure[41:80] == 1.0).all()
    assert found.seizure[80] == 0.0
    assert int(found.onset.argmax()) == 39  # ends at 10.0 s
    assert found.onset[47] == pytest.approx(math.exp(-0.5 * (1.9 / 2.0) ** 2))
    assert found.asked[39]
    assert not found.asked[40 : (4 * (20 + 1800))].any()  # in the seizure and half an hour after it
    assert found.asked[4 * 1820 + 1]
    assert not found.event[81:].any()


def test_an_unlabelled_recording_asks_nothing() -> None:
    one = replace(recording("a.edf", NOON, 100.0), labelled=False)
    found = targets_of(one, on_the_clock([one])[0], one.segments[0], 8, CONFIG)
    assert not found.known.any()
    assert not found.asked.any()


@pytest.mark.parametrize(
    ("hertz", "band"), [(2, "delta"), (6, "theta"), (10, "alpha"), (20, "beta"), (40, "gamma")]
)
def test_descriptors_of_a_sine(hertz: int, band: str) -> None:
    wave = torch.sqrt(torch.tensor(2.0)) * torch.sin(2 * math.pi * hertz * torch.arange(128) / 128)
    found = dict(zip(DESCRIPTORS, describe(wave, torch.tensor(40.0), 128.0).tolist(), strict=True))
    assert max(DESCRIPTORS[:5], key=found.__getitem__) == band
    assert found["power"] == pytest.approx(math.log(40.0 / 20.0), abs=0.01)  # rms 40 uV, in units of 20 uV
    expected = np.abs(np.diff(np.sqrt(2) * np.sin(2 * np.pi * hertz * np.arange(128) / 128))).mean()
    assert found["line length"] == pytest.approx(math.log(expected), abs=0.01)


def test_the_demo_asks_for_the_time_to_each_of_its_seizures(tmp_path: Path) -> None:
    """What is never far from the next seizure, or always half an hour after one, teaches no risk."""
    write_demo(tmp_path)
    recordings = find([tmp_path / "known"]).recordings
    near, asked = [], 0
    for recording, known in zip(recordings, on_the_clock(recordings), strict=True):
        tokens = int(recording.duration_s / CONFIG.token_s)
        found = targets_of(recording, known, recording.segments[0], tokens, CONFIG)
        before = int(recording.seizures[0].onset_s / CONFIG.token_s)
        assert found.asked[:before].all()
        near.append((found.wait_s[:before] <= 60.0) & found.event[:before])
        asked += int(found.asked.sum())
    together = np.concatenate(near)
    assert len(near) == 12
    assert 0.1 < together.mean() < 0.5
    assert len(together) == pytest.approx(asked, abs=12)  # after a seizure nothing is asked
