"""Simulated recordings with planted seizures, for tests and for a first try: nothing here is a person's data.

Sources lie under the scalp and reach each electrode by their distance. The background has a 1/f spectrum and an
alpha rhythm at the back. A seizure is a rhythm of spikes and waves that slows from 3 to 2 Hz at one place, while
the background there recedes, so that the power of the channels stays what it was. What is loud are artefacts:
chewing, a loose electrode, a slow movement. None of them is a seizure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy import signal as dsp

from nipstool.eeg_pretrain.edf_writer import write_edf
from nipstool.eeg_pretrain.montage import sites
from nipstool.eeg_pretrain.recording import Point

FS = 128.0
REACH_M = 0.045  # at which a source has exp(-1/2) of its strength
SITES = ("Fp1", "Fp2", "F3", "F4", "C3", "C4", "P3", "P4", "O1", "O2")
SITES += ("F7", "F8", "T7", "T8", "P7", "P8", "Fz", "Cz", "Pz")
CHAINS = (
    ("Fp1", "F7", "T7", "P7", "O1"),
    ("Fp1", "F3", "C3", "P3", "O1"),
    ("Fp2", "F4", "C4", "P4", "O2"),
    ("Fp2", "F8", "T8", "P8", "O2"),
    ("Fz", "Cz", "Pz"),
)
PLACES = ("F7", "F8", "T7", "T8", "P7", "P8", "C3", "C4", "F3", "F4", "P3", "P4")  # where seizures begin
BACKGROUND_UV = 25.0
CUE_HZ = 11.0  # of the rhythm that may precede a seizure


@dataclass(frozen=True)
class Simulated:
    """One recording: (19, n) microvolts against a far reference, and its seizures (onset, duration) in seconds."""

    signals: np.ndarray
    seizures: tuple[tuple[float, float], ...]


def simulate(
    random: np.random.Generator,
    minutes: float,
    seizures: int,
    *,
    artefacts_per_hour: float = 40.0,
    cue_s: float = 0.0,
) -> Simulated:
    """A recording of one simulated person.

    Args:
        random: draws everything.
        minutes: its length.
        seizures: how many are planted, each 25 to 60 s.
        artefacts_per_hour: loud stretches of 4 to 20 s.
        cue_s: so many seconds before each seizure a rhythm of 11 Hz begins at the front.
    """
    n = round(minutes * 60 * FS)
    points = electrodes()
    x = _background(random, n, points)
    spans = _spans(random, n / FS, seizures)
    focus = random.choice(PLACES)
    gain = reach(points, inside(at(focus)))
    for onset, duration in spans:
        _plant(random, x, onset, duration, gain)
        if cue_s:
            _cue(random, x, onset - cue_s, cue_s, points)
    for _ in range(random.poisson(artefacts_per_hour * minutes / 60)):
        _artefact(random, x)
    x += 1.5 * random.standard_normal(x.shape)
    return Simulated(x, tuple(spans))


def electrodes() -> np.ndarray:
    """(19, 3) metres."""
    return np.array([at(name) for name in SITES])


def at(name: str) -> Point:
    """Where a site is, in metres."""
    return sites()[name.lower()]


def inside(point: Sequence[float]) -> np.ndarray:
    """A place 2 cm below a point of the scalp."""
    p = np.asarray(point, float)
    return p * (1.0 - 0.02 / np.linalg.norm(p))


def reach(points: np.ndarray, source: np.ndarray) -> np.ndarray:
    """(E,) how strongly a source of strength 1 shows at each electrode; 1 at the most."""
    gain = np.exp(-0.5 * np.square(np.linalg.norm(points - source, axis=-1) / REACH_M))
    return gain / gain.max()


def _pink(random: np.random.Generator, rows: int, n: int, slope: float) -> np.ndarray:
    """(rows, n) noise of rms 1, power 1 / f^slope above 1 Hz, flat down to 0.5 Hz, none below."""
    f = np.fft.rfftfreq(n, 1 / FS)
    shape = np.where(f < 0.5, 0.0, np.maximum(f, 1.0) ** (-slope / 2))
    bins = (random.standard_normal((rows, len(f))) + 1j * random.standard_normal((rows, len(f)))) * shape
    x = np.fft.irfft(bins, n, axis=1)
    return x / x.std(axis=1, keepdims=True)


def _background(random: np.random.Generator, n: int, points: np.ndarray) -> np.ndarray:
    names = random.choice(sorted(sites()), size=40, replace=False)
    gains = np.stack([reach(points, inside(at(name))) for name in names], axis=1)
    x = gains @ _pink(random, 40, n, random.uniform(1.2, 1.8))
    x *= BACKGROUND_UV * random.uniform(0.8, 1.3) / x.std()
    back = reach(points, inside(at("Pz"))) + reach(points, inside(at("Oz")))
    narrow = dsp.butter(2, np.array([-1.0, 1.0]) + random.uniform(9.0, 11.0), "bandpass", fs=FS, output="sos")
    alpha = np.asarray(dsp.sosfilt(narrow, random.standard_normal(n)))
    return x + back[:, None] * (12.0 * alpha / alpha.std())


def _spans(random: np.random.Generator, seconds: float, count: int) -> list[tuple[float, float]]:
    """Onsets and durations, one in each equal part of the recording."""
    part = seconds / max(count, 1)
    spans = []
    for k in range(count):
        duration = random.uniform(25.0, min(60.0, 0.6 * part))
        spans.append((k * part + random.uniform(0.1 * part, 0.95 * part - duration), duration))
    return [(round(float(a), 2), round(float(d), 2)) for a, d in spans]


def _rise(n: int) -> np.ndarray:
    """0 to 1 in two seconds, and back in the last one."""
    t = np.arange(n) / FS
    return np.clip(np.minimum(t / 2.0, (n / FS - t) / 1.0), 0.0, 1.0)


def _plant(random: np.random.Generator, x: np.ndarray, onset: float, duration: float, gain: np.ndarray) -> None:
    """A slowing spike-and-wave rhythm; where it shows, the background recedes by as much power."""
    a, n = round(onset * FS), round(duration * FS)
    rate = np.linspace(random.uniform(2.9, 3.3), random.uniform(1.9, 2.2), n)
    phase = 2 * np.pi * np.cumsum(rate * (1.0 + 0.04 * random.standard_normal(n))) / FS + random.uniform(0, 6.28)
    wave = np.sin(phase) + 0.5 * np.sin(2 * phase + 0.6) + 0.25 * np.sin(3 * phase + 1.1)
    wave /= wave.std()
    share = 0.8 * _rise(n) * gain[:, None] ** 2  # of the power
    here = x[:, a : a + n]
    usual = x.std(axis=1, keepdims=True)
    x[:, a : a + n] = np.sqrt(1.0 - share) * here + np.sqrt(share) * usual * wave


def _cue(random: np.random.Generator, x: np.ndarray, onset: float, duration: float, points: np.ndarray) -> None:
    a, b = max(0, round(onset * FS)), round((onset + duration) * FS)
    t = np.arange(max(0, b - a)) / FS
    gain = reach(points, inside(at("Fz")))
    x[:, a:b] += gain[:, None] * 25.0 * np.sin(2 * np.pi * CUE_HZ * t + random.uniform(0, 6.28))


def _artefact(random: np.random.Generator, x: np.ndarray) -> None:
    n = round(random.uniform(4.0, 20.0) * FS)
    a = int(random.integers(0, x.shape[1] - n))
    t = np.arange(n) / FS
    kind = random.integers(3)
    if kind == 0:  # chewing: bursts of muscle
        fast = dsp.butter(2, [20.0, 50.0], "bandpass", fs=FS, output="sos")
        burst = np.asarray(dsp.sosfilt(fast, random.standard_normal((x.shape[0], n)), axis=1))
        strength = 60.0 * random.uniform(0.3, 1.0, (x.shape[0], 1)) * (np.sin(2 * np.pi * 1.3 * t) > -0.2)
        x[:, a : a + n] += strength * burst / burst.std()
    elif kind == 1:  # a loose electrode: steps that decay
        steps = np.zeros(n)
        for i in random.integers(0, n, size=max(3, n // 200)):
            steps[i:] += random.choice([-1, 1]) * 250.0 * np.exp(-(t[i:] - t[i]) / 0.3)
        x[random.integers(x.shape[0]), a : a + n] += steps
    else:  # a slow movement
        slow = _pink(random, 1, n, 3.0)[0]
        x[:, a : a + n] += random.uniform(0.2, 1.0, (x.shape[0], 1)) * 100.0 * slow * _rise(n)


def bipolar(x: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The 18 channels of the double banana."""
    pairs = [pair for chain in CHAINS for pair in pairwise(chain)]
    return [f"{a}-{b}" for a, b in pairs], np.stack([x[SITES.index(a)] - x[SITES.index(b)] for a, b in pairs])


def unipolar(x: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The 19 channels against their average."""
    return [f"EEG {name}-Avg" for name in SITES], x - x.mean(axis=0)


def write_set(
    folder: Path,
    subjects: Sequence[str],
    montages: Sequence[str],
    *,
    minutes: float,
    seizures: int,
    seed: int,
    cue_s: float = 0.0,
) -> None:
    """A BIDS dataset with one recording a subject, `montages` bipolar or unipolar each."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"Name": "Simulated recordings with planted seizures", "BIDSVersion": "1.8.0", "DatasetType": "raw"}
    (folder / "dataset_description.json").write_text(json.dumps(about, indent=2) + "\n")
    for number, (subject, montage) in enumerate(zip(subjects, montages, strict=True)):
        random = np.random.default_rng([seed, int(subject)])
        made = simulate(random, minutes, seizures, cue_s=cue_s)
        place = folder / f"sub-{subject}" / "eeg"
        place.mkdir(parents=True, exist_ok=True)
        stem = f"sub-{subject}_task-monitoring"
        labels, x = bipolar(made.signals) if montage == "bipolar" else unipolar(made.signals)
        start = datetime(2001, 1, 1) + timedelta(days=number)
        write_edf(place / f"{stem}_eeg.edf", labels, x, FS, start=start)
        (place / f"{stem}_events.tsv").write_text(_events(made))


def _events(made: Simulated) -> str:
    rows = [f"{onset:.2f}\t{duration:.2f}\tsz\n" for onset, duration in made.seizures]
    whole = made.signals.shape[1] / FS
    return "onset\tduration\teventType\n" + ("".join(rows) or f"0.00\t{whole:.2f}\tbckg\n")


def write_demo(folder: Path) -> None:
    """Twelve people to train on and four more to be judged on, in two montages; a rhythm precedes each seizure.

    One seizure a recording: the time to the next one is not asked for within half an hour after a seizure.
    """
    common = {"minutes": 10.0, "seizures": 1, "seed": 0, "cue_s": 60.0}
    names = [f"{number:02d}" for number in range(1, 17)]
    write_set(folder / "known", names[:12], ["bipolar", "unipolar"] * 6, **common)
    write_set(folder / "unseen", names[12:], ["unipolar", "bipolar"] * 2, **common)


if __name__ == "__main__":
    write_demo(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
