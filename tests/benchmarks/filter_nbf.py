"""filter-nbf against particle filters, exact answers and real recordings.

    filter_nbf.py [exact|offfamily|dimension|arena|heldout|untrained|long]

`exact` needs the real inputs.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nipstool.filter_nbf import (
    Bootstrap,
    Gaussian,
    Settings,
    load_domain,
    prior,
    simulate,
    step,
)
from nipstool.filter_nbf.checkpoint import Checkpoint, shipped
from nipstool.filter_nbf.draws import Draws, KeyedGenerator
from nipstool.filter_nbf.embedding import initial_encoder
from nipstool.filter_nbf.evaluate import Method, evaluate, filtered, ratio_interval, summary
from nipstool.filter_nbf.evaluate import contenders as contenders_of
from nipstool.filter_nbf.family import snapshots
from nipstool.filter_nbf.learned import Learned
from nipstool.filter_nbf.mixture import initial_mixture
from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.simulate import Scenario
from nipstool.filter_nbf.weights import mean_of

DATA = Path(os.environ.get("NIPSTOOL_TEST_DATA", Path(__file__).parents[3] / "shared" / "data")) / "filter-nbf"


NILE_40, LINEAR_6 = -260.400326890, -7.473857564  # by the tests' Kalman filter, of the first rows


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


def random_networks(trained: Checkpoint) -> Method:
    rng = np.random.default_rng(0)
    random = initial_encoder(4, 0, rng) | initial_mixture(4, rng)
    raw = trained.params | {name: value.astype(float) for name, value in random.items()}
    return Method(Learned(Checkpoint(raw, trained.about), watch=False), Settings(128))


def untrained(scenarios: int = 64, reference: int = 5_000, seeds: int = 4) -> None:
    """Random networks beside the trained ones over several seeds, in what a single lost target does not rule."""
    domain, trained = load_domain("arena"), checkpoint()
    kinds = {"trained": Method(Learned(trained), Settings(128)), "random": random_networks(trained)}
    methods = {f"{name} {seed}": method for name, method in kinds.items() for seed in range(seeds)}
    found = evaluate(domain, methods, scenarios=scenarios, reference=reference, seed=2026, every=8).scores
    errors = {name: np.abs([found[f"{name} {seed}"].evidence for seed in range(seeds)]) for name in kinds}
    for name, error in errors.items():
        distance = np.mean([found[f"{name} {seed}"].distance for seed in range(seeds)])
        rmse = np.sqrt((error**2).mean(1)).round(2)
        say(
            f"{name}: evidence RMSE by seed {rmse}, error: mean {error.mean():.2f}, median {np.median(error):.2f};"
        )
        say(f"  energy distance {distance:.4f}")
    a, b = errors["random"].mean(0), errors["trained"].mean(0)
    ratio = "{:.2f} ({:.2f} to {:.2f})".format(*ratio_interval(a, b, lambda v: float(np.mean(v))))
    say(f"ratio of mean errors {ratio}; worse in {(a > b).mean():.0%} of scenarios")


def compare(kind: str, scenarios: int, reference: int) -> None:
    domain, trained = load_domain("arena"), checkpoint()
    methods = contenders_of(domain, "nbf", Method(Learned(trained), Settings(128)), 0, timing=True)
    methods["nbf, random networks"] = random_networks(trained)
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


def log_evidence(dynamics: Dynamics, y: np.ndarray, settings: Settings, seed: int) -> float:
    scenario = Scenario(np.empty((len(y), 0)), y, np.zeros((len(y), 0)))
    key = KeyedGenerator(seed, "")
    return sum(gain for _, gain, _ in filtered(dynamics, Method(Bootstrap(), settings), scenario, key))


def evidence_ratio(name: str, y: np.ndarray, true: float, n: int, threshold: float, seeds: int) -> None:
    """The mean of exp(evidence - exact) over seeds is 1, whatever the rule of resampling."""
    settings, dynamics = Settings(n, threshold=threshold, temper=False), load_domain(name)
    ratio = np.exp([log_evidence(dynamics, y, settings, seed) - true for seed in range(seeds)])
    error = ratio.std(ddof=1) / np.sqrt(seeds)
    say(
        f"{name}, {len(y)} rows, n = {n}, threshold {threshold}, {seeds} seeds: exp(evidence - exact) is"
        f" {ratio.mean():.3f} +- {error:.3f}, {(ratio.mean() - 1.0) / error:+.1f} standard errors"
    )


def exact(seeds: int = 32) -> None:
    """Evidence of the particle filter against exact figures.

    Never resampled, the mean square of a weight is e^22 times its squared mean after the Nile's 100 rows, by a
    Kalman filter with half the noise, and e^184 after those of the other series: no n that fits in memory would
    do. After 40 and 6 rows it is e^11 and e^10, which a million particles can tell.
    """
    flow = np.loadtxt(DATA / "nile.csv", delimiter=",", skiprows=1)[:, 1:]
    linear = np.loadtxt(DATA / "linGauss_T100.txt")[:, None]
    evidence_ratio("nile", flow[:40], NILE_40, 1_000_000, 0.0, seeds)
    evidence_ratio("linear-gaussian", linear[:6], LINEAR_6, 1_000_000, 0.0, seeds)
    for threshold in (0.5, 1.0):
        evidence_ratio("nile", flow, -639.711715, 2000, threshold, seeds)
        evidence_ratio("linear-gaussian", linear, -149.381241204, 4000, threshold, seeds)
    words = [line.split() for line in (DATA / "GBP_vs_USD_9798.txt").read_text().splitlines()[2:]]
    rate = np.array([float(row[3]) for row in words if len(row) == 4])
    returns = 100.0 * np.diff(np.log(rate))[:, None]
    volatility = load_domain("stochastic-volatility")
    runs = [log_evidence(volatility, returns, Settings(4096, temper=False), seed) for seed in range(8)]
    found = float(np.logaddexp.reduce(runs) - np.log(len(runs)))
    say(f"stochastic volatility, n = 4096, 8 seeds: {found:.3f}, off by {found + 492.721167:+.3f}")


if __name__ == "__main__":
    every = {f.__name__: f for f in (exact, offfamily, dimension, arena, heldout, untrained, long)}
    for name in sys.argv[1:] or every:
        say(f"-- {name}")
        every[name]()
