"""filter-nbf on a real robot: MRCLAM6, robot 1, from a global start, by odometry and landmarks.

    filter_nbf_robot.py

The first 300 s, with their truth, are for calibration: lag, scales and offsets of odometry and sensor by
regression, then how much more noise than the residuals have the filter is told of: by the density of the true
place. The rest is scored. Needs the real inputs.
"""

import itertools
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nipstool.filter_nbf import Bootstrap, Kernel, RowReader, Settings, Tracks, load_domain
from nipstool.filter_nbf.beliefs import Belief
from nipstool.filter_nbf.weights import moments

DATA = Path(os.environ.get("NIPSTOOL_TEST_DATA", Path(__file__).parents[3] / "shared" / "data")) / "filter-nbf"
TUNED_S, SETTLED_S = 300.0, 60.0
GRID_S = 0.1  # odometry, a hundred rows a second, is averaged over this
TIMES = (2.0, 3.0, 4.0, 6.0)  # the residuals' spread, of sensor and odometry: their errors are no white noise
OUTLIERS = (0.02, 0.05)  # share of measurements


def say(*words: object) -> None:
    print(*words, flush=True)


@dataclass(frozen=True)
class Recording:
    """odometry (N, 3) t, speed, turn; seen (M, 4) t, landmark, range, bearing; truth (K, 4) t, x, y, heading."""

    odometry: np.ndarray
    seen: np.ndarray
    truth: np.ndarray
    landmarks: dict[int, np.ndarray]

    def pose(self, t: np.ndarray) -> np.ndarray:
        """(..., 3) true place and heading, not wrapped."""
        columns = (self.truth[:, 1], self.truth[:, 2], np.unwrap(self.truth[:, 3]))
        return np.stack([np.interp(t, self.truth[:, 0], column) for column in columns], axis=-1)


def recording() -> Recording:
    """Measurement.dat names barcodes; the first five subjects are robots."""
    folder = DATA / "MRCLAM6"
    subject = {int(b): int(s) for s, b in np.loadtxt(folder / "Barcodes.dat")}
    seen = np.loadtxt(folder / "Robot1_Measurement.dat")
    seen[:, 1] = [subject.get(int(code), 0) for code in seen[:, 1]]
    landmarks = {int(row[0]): row[1:3] for row in np.loadtxt(folder / "Landmark_Groundtruth.dat")}
    odometry = np.loadtxt(folder / "Robot1_Odometry.dat")
    truth = np.loadtxt(folder / "Robot1_Groundtruth.dat")
    return Recording(odometry, seen[seen[:, 1] >= 6], truth, landmarks)


def wrapped(angle: np.ndarray) -> np.ndarray:
    return (angle + np.pi) % (2.0 * np.pi) - np.pi


def line(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Slope, offset and residual spread of y on x."""
    slope, offset = np.polyfit(x, y, 1)
    return float(slope), float(offset), float((y - slope * x - offset).std())


def travelled(odometry: np.ndarray, column: int, start: np.ndarray, span: float) -> np.ndarray:
    """The integral of a column of the odometry from `start` on."""
    t = odometry[:, 0]
    total = np.concatenate([[0.0], np.cumsum(odometry[:-1, column] * np.diff(t))])
    return np.interp(start + span, t, total) - np.interp(start, t, total)


def calibration(of: Recording, end: float) -> tuple[float, dict[str, float]]:
    """The odometry's lag in seconds, and the domain's parameters, from what was recorded before `end`."""
    start = np.arange(of.odometry[0, 0] + 1.0, end - 11.0, 0.5)

    def turns(lag: float, span: float) -> tuple[float, float, float]:
        true = of.pose(start + span)[:, 2] - of.pose(start)[:, 2]
        return line(travelled(of.odometry, 2, start - lag, span), true)

    lag = min(np.arange(0.0, 0.6, 0.1), key=lambda lag: turns(lag, 2.0)[2])
    turn_scale, turn_bias, _ = turns(lag, 2.0)
    way = np.linalg.norm(of.pose(start + 2.0)[:, :2] - of.pose(start)[:, :2], axis=1)
    told = travelled(of.odometry, 1, start - lag, 2.0)
    speed_scale = float((way @ told) / (told @ told))
    seen = of.seen[of.seen[:, 0] < end]
    pose = of.pose(seen[:, 0])
    away = np.array([of.landmarks[int(s)] for s in seen[:, 1]]) - pose[:, :2]
    reach = np.hypot(*away.T)
    share, bias, range_sd = line(reach, seen[:, 2] - reach)
    bearing = wrapped(seen[:, 3] - (np.arctan2(away[:, 1], away[:, 0]) - pose[:, 2]))
    found = {"speed_scale": speed_scale, "speed_sd": (way - speed_scale * told).std() / 2.0**0.5}
    found |= {"turn_scale": turn_scale, "turn_bias": turn_bias / 2.0, "turn_sd": turns(lag, 10.0)[2] / 10.0**0.5}
    found |= {"range_share": share, "range_bias": bias, "range_sd": range_sd}
    found |= {"bearing_bias": bearing.mean(), "bearing_sd": bearing.std()}
    return float(lag), {name: round(float(value), 4) for name, value in found.items()}


def rows_of(of: Recording, lag: float) -> list[dict[str, Any]]:
    """Odometry as controls, landmarks as observations, in the order of time."""
    t = np.arange(of.odometry[0, 0], of.odometry[-1, 0], GRID_S)
    speed, turn = (travelled(of.odometry, column, t - lag, GRID_S) / GRID_S for column in (1, 2))
    rows: list[dict[str, Any]] = [
        {"t": a, "control": {"speed": v, "turn": w}} for a, v, w in zip(t, speed, turn, strict=True)
    ]
    for at, subject, reach, bearing in of.seen:
        rows.append({"t": at, "obs": {"landmark": subject, "range": reach, "bearing": bearing}})
    return sorted(rows, key=lambda row: row["t"])


def score(
    of: Recording,
    rows: list[dict[str, Any]],
    params: dict[str, float],
    start: float,
    seeds: int,
    belief: Belief,
    settings: Settings,
) -> np.ndarray:
    """(seeds, 3) from `start` on, once a second: median error (m), share of 90 % regions that hold the truth, mean
    negative log density of the true place under the belief's Gaussian.

    Seeds are ids of one stream: their draws have keys of their own.
    """
    landmarks = {str(name): place.tolist() for name, place in of.landmarks.items()}
    domain = load_domain("landmarks", {"landmarks": landmarks, **params})
    tracks = Tracks(domain, belief, settings)
    reader, ids = RowReader(domain.obs_names, domain.control_names), [str(seed) for seed in range(seeds)]
    last, found = -np.inf, []
    for record in rows:
        row = reader._from_record(record)
        tracks.advance([replace(row, track=name) for name in ids])
        if record["t"] < start or record["t"] - last < 1.0:
            continue
        last = record["t"]
        sets = [tracks.tracks[name] for name in ids]
        mean, cov = moments(np.stack([s.x for s in sets])[..., :2], np.exp([s.logw for s in sets]))
        cov += 1e-8 * np.eye(2)
        away = of.pose(last)[:2] - mean
        far = (away * np.linalg.solve(cov, away[..., None])[..., 0]).sum(-1)
        surprise = 0.5 * far + 0.5 * np.log(np.linalg.det(cov)) + np.log(2.0 * np.pi)
        found.append((np.hypot(*away.T), far <= 4.605, surprise))  # the 90 % quantile of chi-square, 2 d
    error, inside, surprise = np.array(found, dtype=float).transpose(1, 2, 0)
    return np.stack([np.median(error, -1), inside.mean(-1), surprise.mean(-1)], axis=-1)


def main(seeds: int = 4, n: int = 1000) -> None:
    of = recording()
    first = of.odometry[0, 0]
    lag, base = calibration(of, first + TUNED_S)
    say(f"calibration: odometry lags {lag:.1f} s; {base}")
    rows = rows_of(of, lag)
    early = [row for row in rows if row["t"] <= first + TUNED_S]
    plain = Settings(n, temper=False)
    best: tuple[float, dict[str, float]] | None = None
    for sensor, process, outliers in itertools.product(TIMES, TIMES, OUTLIERS):
        params = base | {"outliers": outliers, "speed_share": 0.0, "turn_share": 0.0}
        params |= {name: sensor * base[name] for name in ("range_sd", "bearing_sd")}
        params |= {name: process * base[name] for name in ("speed_sd", "turn_sd")}
        found = score(of, early, params, first + SETTLED_S, seeds, Bootstrap(), plain).mean(0)
        noise = f"sensor x {sensor}, process x {process}, outliers {outliers}"
        say(f"  {noise}: error {found[0]:.3f} m, coverage {found[1]:.2f}, surprise {found[2]:.2f}")
        best = (found[2], params) if best is None or found[2] < best[0] else best
    assert best is not None
    for name, belief, settings in (("pf", Bootstrap(), plain), ("tempered kernel", Kernel(), Settings(n))):
        for seed, row in enumerate(score(of, rows, best[1], first + TUNED_S, seeds, belief, settings)):
            say(f"{name}, n = {n}, seed {seed}, after 300 s: median error {row[0]:.3f} m, coverage {row[1]:.2f}")


if __name__ == "__main__":
    main()
