"""filter-nbf against particle filters, exact answers and real recordings.

    filter_nbf.py [exact|robot|offfamily|dimension|arena|heldout|long]

`exact` and `robot` need the real inputs.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nipstool.filter_nbf import (
    Bootstrap,
    Gaussian,
    RowReader,
    Settings,
    Tracks,
    load_domain,
    prior,
    simulate,
    step,
)
from nipstool.filter_nbf.checkpoint import Checkpoint, shipped
from nipstool.filter_nbf.draws import Draws, KeyedGenerator
from nipstool.filter_nbf.embedding import initial_encoder
from nipstool.filter_nbf.evaluate import Method, evaluate, filtered, summary
from nipstool.filter_nbf.evaluate import contenders as contenders_of
from nipstool.filter_nbf.family import snapshots
from nipstool.filter_nbf.learned import Learned
from nipstool.filter_nbf.mixture import initial_mixture
from nipstool.filter_nbf.simulate import Scenario
from nipstool.filter_nbf.weights import mean_of, moments

DATA = Path(os.environ.get("NIPSTOOL_TEST_DATA", Path(__file__).parents[3] / "shared" / "data")) / "filter-nbf"


def say(*words: object) -> None:
    print(*words, flush=True)


def checkpoint() -> Checkpoint:
    found = shipped(load_domain("arena"))
    assert found is not None
    return found


def arena(scenarios: int = 64, reference: int = 5_000) -> None:
    """Evidence and energy distance on fresh scenarios of the family; a random checkpoint too."""
    compare("family", scenarios, reference)


def heldout(scenarios: int = 64, reference: int = 5_000) -> None:
    """The same on dynamics that no training scenario had."""
    compare("held-out", scenarios, reference)


def compare(kind: str, scenarios: int, reference: int) -> None:
    domain, trained = load_domain("arena"), checkpoint()
    rng = np.random.default_rng(0)
    random = initial_encoder(4, 0, rng) | initial_mixture(4, rng)
    raw = trained.params | {name: value.astype(float) for name, value in random.items()}
    methods = contenders_of(domain, "nbf", Method(Learned(trained), Settings(128)), 0, timing=True)
    methods["nbf, random networks"] = Method(Learned(Checkpoint(raw, trained.about), watch=False), Settings(128))
    found = evaluate(domain, methods, scenarios=scenarios, reference=reference, kind=kind, seed=2026, every=2)
    say(f"{kind}: {scenarios} scenarios; the references differ by {found.reference_evidence:.2f} nats (RMSE)")
    for name, row in summary(found, "particle filter, n = 128").items():
        say(" ", name, json.dumps({key: np.round(value, 4).tolist() for key, value in row.items()}))


def rotated(isotropic: bool, seed: int, d: int = 16) -> tuple[Any, Scenario, np.ndarray]:
    rng = np.random.default_rng([9, seed])
    U, V = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
    Q = 0.25 * np.eye(d) if isotropic else U @ np.diag(np.logspace(-1.2, 0.3, d)) @ U.T
    R = 0.25 * np.eye(d) if isotropic else V @ np.diag(np.logspace(0.2, -1, d)) @ V.T
    domain = load_domain("linear-gaussian", {"A": (0.9 * np.eye(d)).tolist(), "Q": Q.tolist(), "R": R.tolist()})
    scenario = simulate(domain, 30, rng)
    m, P, means = np.zeros(d), domain.model.P0, []
    for k, y in enumerate(scenario.y):
        if k:
            m, P = 0.9 * m, 0.81 * P + Q
        gain = P @ np.linalg.inv(P + R)
        m, P = m + gain @ (y - m), P - gain @ P
        means.append(m)
    return domain, scenario, np.array(means)


def error(domain: Any, scenario: Scenario, exact: np.ndarray, method: Method, seed: int) -> tuple[float, float]:
    """RMSE of the posterior mean per coordinate, and stages a step."""
    key, cloud, squares, stages = KeyedGenerator(seed, "d"), None, [], 0
    nothing = np.zeros((1, 0))
    for k, y in enumerate(scenario.y):
        draws = Draws([key.at(k)])
        cloud = prior(domain, method.settings.n, draws) if cloud is None else cloud
        dt = np.array([1.0 if k else np.nan])
        cloud, outcome = step(domain, method.belief, method.settings, cloud, dt, nothing, y[None], nothing, draws)
        squares.append(np.mean((mean_of(cloud.x, np.exp(cloud.logw))[0] - exact[k]) ** 2))
        stages += int(outcome.stages[0])
    return float(np.sqrt(np.mean(squares))), stages / len(scenario.y)


def dimension(seeds: int = 8) -> None:
    """d = 16 with every axis different, in random rotations; and isotropic. Against equal particle evaluations."""
    for isotropic in (False, True):
        for cov in ("full", "shrunk", "diag"):
            rows = []
            for seed in range(seeds):
                domain, scenario, exact = rotated(isotropic, seed)
                mine, stages = error(domain, scenario, exact, Method(Gaussian(cov), Settings(256)), seed)
                plain = Method(Bootstrap(), Settings(round(256 * stages), temper=False))
                rows.append((mine, error(domain, scenario, exact, plain, seed)[0], stages))
            mine, other, stages = np.mean(rows, 0)
            what = "isotropic" if isotropic else "rotated"
            say(f"d = 16 {what}, {cov}: {mine:.3f}, particle filter {other:.3f}, ratio {mine / other:.3f}")


def long(scenarios: int = 16, steps: int = 2000, reference: int = 10_000) -> None:
    """No drift: energy distance in the last 200 steps against steps 100 to 300."""
    domain = load_domain("arena")
    methods = {"nbf": Method(Learned(checkpoint()), Settings(128))}
    found = evaluate(domain, methods, scenarios=scenarios, steps=steps, reference=reference, seed=77, every=10)
    by_step = found.scores["nbf"].by_step
    early, late = by_step[:, 10:30].mean(), by_step[:, -20:].mean()
    say(f"T = {steps}, {scenarios} scenarios: {early:.4f} early, {late:.4f} late, ratio {late / early:.3f}")


def offfamily(count: int = 150) -> None:
    """AUROC of the off-family score: beliefs of the family against rings, sine curves, mixtures, a far shift."""
    domain = load_domain("arena")
    belief, rng = Learned(checkpoint(), watch=False), np.random.default_rng(5)
    family = snapshots(domain, max(10, count // 10), 4242).sets.astype(float)

    def scores(made: Callable[[], np.ndarray]) -> np.ndarray:
        found = []
        for _ in range(count):
            x = made()[None]
            logw = np.full((1, 128), -np.log(128))
            fresh = belief.generate(domain, x, logw, 128, Draws([rng]))
            found.append(belief.score(domain, x, logw, fresh)[0])
        return np.array(found)

    def plain() -> np.ndarray:
        return family[rng.integers(len(family)), rng.permutation(320)[:128]]

    def curve(ring: bool) -> np.ndarray:
        x = plain().copy()
        t = rng.uniform(0, 2 * np.pi, 128)
        radius, phase = rng.uniform(0.3, 0.8), rng.uniform(0, 2 * np.pi)
        place = (
            [radius * np.cos(t), radius * np.sin(t)] if ring else [t / np.pi - 1, radius * np.sin(2 * t + phase)]
        )
        x[:, :2] = np.stack(place, -1) + 0.01 * rng.standard_normal((128, 2))
        return x

    def mixture() -> np.ndarray:
        return np.concatenate([plain()[:64], plain()[:64]])

    usual = scores(plain)
    kinds = {"ring": lambda: curve(True), "sine": lambda: curve(False), "mixture": mixture}
    for name, made in (kinds | {"far shift": lambda: plain() + np.array([0.6, 0.6, 0.0, 0.0])}).items():
        say(f"{name}: AUROC {(scores(made)[:, None] > usual).mean():.3f}")


def log_evidence(domain: str, y: np.ndarray, settings: Settings, seed: int) -> float:
    dynamics = load_domain(domain)
    scenario = Scenario(np.empty((len(y), 0)), y, np.zeros((len(y), 0)))
    return sum(gain for _, gain, _ in filtered(dynamics, Method(Bootstrap(), settings), scenario, key(seed)))


def key(seed: int) -> KeyedGenerator:
    return KeyedGenerator(seed, "")


def exact(seeds: int = 32) -> None:
    """Evidence of the particle filter against exact figures.

    Without resampling, 32 seeds cannot tell it from 100 rows; the tests do from 20.
    """
    flow = np.loadtxt(DATA / "nile.csv", delimiter=",", skiprows=1)[:, 1:]
    for threshold in (0.5, 1.0):
        settings = Settings(2000, threshold=threshold, temper=False)
        ratio = np.exp([log_evidence("nile", flow, settings, seed) + 639.711715 for seed in range(seeds)])
        error = ratio.std(ddof=1) / np.sqrt(seeds)
        say(
            f"nile, n = 2000, threshold {threshold}, {seeds} seeds: exp(evidence - exact) is {ratio.mean():.3f}"
            f" +- {error:.3f}, {(ratio.mean() - 1.0) / error:+.1f} standard errors"
        )
    words = [line.split() for line in (DATA / "GBP_vs_USD_9798.txt").read_text().splitlines()[2:]]
    rate = np.array([float(row[3]) for row in words if len(row) == 4])
    returns = 100.0 * np.diff(np.log(rate))[:, None]
    runs = [log_evidence("stochastic-volatility", returns, Settings(4096, temper=False), s) for s in range(8)]
    found = float(np.logaddexp.reduce(runs) - np.log(len(runs)))
    say(f"stochastic volatility, n = 4096, 8 seeds: {found:.3f}, off by {found + 492.721167:+.3f}")


def robot_rows(end_s: float) -> list[dict[str, Any]]:
    """MRCLAM6 robot 1: odometry as controls, landmarks as observations, in the order of time."""
    folder = DATA / "MRCLAM6"
    barcode = {int(b): int(s) for s, b in np.loadtxt(folder / "Barcodes.dat")}
    rows = [{"t": t, "control": {"speed": v, "turn": w}} for t, v, w in np.loadtxt(folder / "Robot1_Odometry.dat")]
    for t, code, reach, bearing in np.loadtxt(folder / "Robot1_Measurement.dat"):
        subject = barcode.get(int(code), 0)
        if subject >= 6:  # the first five are robots
            rows.append({"t": t, "obs": {"landmark": subject, "range": reach, "bearing": bearing}})
    rows.sort(key=lambda row: row["t"])
    first = rows[0]["t"]
    return [row for row in rows if row["t"] <= first + end_s]


def robot(seeds: int = 4, n: int = 1000) -> None:
    """Noise chosen on the first 300 s (smallest error with coverage in 80 to 97 %), scored on the rest."""
    rows = robot_rows(1e9)
    first = rows[0]["t"]
    best: tuple[float, dict[str, float]] | None = None
    for scale in (2.0, 3.0, 4.0):
        for process in (1.0, 3.0):
            params = robot_params(scale, process)
            miss, cover = robot_score(params, [r for r in rows if r["t"] <= first + 300], 60.0, n, 1)[0]
            say(f"  tuning: sensor x {scale}, process x {process}: median {miss:.3f} m, coverage {cover:.2f}")
            cost = miss + max(0.0, 0.80 - cover, cover - 0.97)
            best = (cost, params) if best is None or cost < best[0] else best
    assert best is not None
    for seed, (miss, cover) in enumerate(robot_score(best[1], rows, 300.0, n, seeds)):
        say(f"MRCLAM6, n = {n}, seed {seed}, after 300 s: median error {miss:.3f} m, coverage {cover:.2f}")


def robot_params(scale: float, process: float) -> dict[str, float]:
    return {
        "range_sd": 0.079 * scale,
        "bearing_sd": 0.0116 * scale * 2,
        "range_bias": 0.039,
        "speed_sd": 0.01 * process,
        "speed_share": 0.05 * process,
        "turn_sd": 0.02 * process,
        "turn_share": 0.05 * process,
    }


def robot_score(
    params: dict[str, float], rows: list[dict[str, Any]], start: float, n: int, seeds: int
) -> list[tuple[float, float]]:
    """By seed, from `start` s on: median position error, and the share of 90 % regions that hold the truth.

    Regions are ellipses (chi-square, 2 d). Seeds are ids of one stream: their draws have keys of their own.
    """
    truth = np.loadtxt(DATA / "MRCLAM6" / "Robot1_Groundtruth.dat")
    landmarks = str(DATA / "MRCLAM6" / "Landmark_Groundtruth.dat")
    domain = load_domain("landmarks", {"landmarks": landmarks, **params})
    tracks = Tracks(domain, Bootstrap(), Settings(n, temper=False))
    reader = RowReader(domain.obs_names, domain.control_names)
    first, last, misses, inside = rows[0]["t"], -1e9, [], []
    for record in rows:
        row = reader._from_record(record)
        tracks.advance([replace(row, track=str(seed)) for seed in range(seeds)])
        if record["t"] - first < start or record["t"] - last < 1.0:
            continue
        last = record["t"]
        sets = [tracks.tracks[str(seed)] for seed in range(seeds)]
        mean, cov = moments(np.stack([s.x for s in sets])[..., :2], np.exp([s.logw for s in sets]))
        away = np.array([np.interp(last, truth[:, 0], truth[:, j]) for j in (1, 2)]) - mean
        misses.append(np.hypot(*away.T))
        far = (away * np.linalg.solve(cov + 1e-12 * np.eye(2), away[..., None])[..., 0]).sum(-1)
        inside.append(far <= 4.605)
    return list(zip(np.median(misses, 0).tolist(), np.mean(inside, 0).tolist(), strict=True))


if __name__ == "__main__":
    every = {f.__name__: f for f in (exact, robot, offfamily, dimension, arena, heldout, long)}
    for name in sys.argv[1:] or every:
        say(f"-- {name}")
        every[name]()
