"""Hidden states made by hand: a signal at one layer is found there, with the R2 that it has."""

import numpy as np
import pytest
import torch

from nipstool.kit.errors import DataError
from nipstool.probe_length.collected import Collected, Origin, load, merged, save
from nipstool.probe_length.comparison import BOTH, POSITION, PROBE
from nipstool.probe_length.fit import fit
from nipstool.probe_length.lengths import no_lengths
from nipstool.probe_length.sample import Sample
from nipstool.probe_length.statistics import Sums, empty
from nipstool.probe_length.transfer import transfer

FOLDS, LAYERS, WIDTH = 5, (0, 1, 2, 3), 6


def made(
    answers: int, seed: int, *, at: int, noise: float = 0.5, folds: int = FOLDS, model: str = "m"
) -> Collected:
    """Answers whose log-length is read from column 0 at layer `at`, with noise, at t = 0; nothing elsewhere."""
    random = np.random.default_rng(seed)
    signal = random.standard_normal(answers)
    length = np.maximum(np.round(np.expm1(4 + signal * 0.5 + noise * random.standard_normal(answers))), 1).astype(
        int
    )
    fold, target = np.arange(answers) % folds, np.log1p(length)
    hidden = random.standard_normal((answers, len(LAYERS), WIDTH))
    hidden[:, at, 0] = signal
    t = random.integers(0, length + 1)
    remaining = np.log1p(length - t)
    drawn = random.standard_normal((answers, len(LAYERS), WIDTH))
    drawn[:, at, 1] = remaining + random.standard_normal(answers) * noise
    features = np.stack([t, np.log1p(t), np.sqrt(t)], 1)
    prompt = random.integers(3, 9, answers)
    counts = no_lengths(folds)
    for k, n in zip(fold, length, strict=True):
        counts.add(int(k), int(n), int(n), False, 1.0)
    counts.rows[:], counts.targets[:] = 0.0, 0.0  # one position was read of each answer
    np.add.at(counts.rows, (fold, t), 1.0)
    np.add.at(counts.targets, (fold, t), remaining)
    one = np.ones(answers)
    sequence = np.concatenate([features, prompt[:, None], np.log1p(prompt)[:, None]], 1)
    return Collected(
        Origin("m", "hash", WIDTH, LAYERS, folds, 5000, "float32", 10**6, None),
        {i: summed(np.concatenate([drawn[:, i], features], 1), remaining, fold, folds) for i in LAYERS},
        {i: summed(hidden[:, i], target, fold, folds) for i in LAYERS},
        summed(sequence, remaining, fold, folds),
        summed(sequence[:, 3:], target, fold, folds),
        counts,
        Sample(
            random.integers(0, 2**60, answers),
            np.arange(answers),
            fold,
            prompt,
            length,
            np.zeros(answers, bool),
            one,
            t,
            length,
            hidden.astype(np.float32),
            drawn.astype(np.float32),
        ),
        {"made": answers},
        answers,
        0,
        0,
    )


def summed(x: np.ndarray, y: np.ndarray, fold: np.ndarray, folds: int) -> Sums:
    sums = empty(x.shape[1], folds)
    for k in range(folds):
        sums.add(k, torch.tensor(x[fold == k]), torch.tensor(y[fold == k]))
    return sums


@pytest.mark.parametrize("at", [1, 3])
def test_a_planted_signal_is_found_at_its_layer(at: int) -> None:
    probe, report = fit(made(3000, at, at=at))
    assert probe.first.layer == probe.lines[PROBE].layer == probe.lines[BOTH].layer == at
    first = next(line for line in report.first if line.name == PROBE)
    assert first.r2 == pytest.approx(0.5, abs=0.02)  # 0.5^2 of 0.5^2 + 0.5^2
    assert first.skill > 0.4
    assert "beats" in report.verdict[2]


def test_no_signal_is_told_as_nothing() -> None:
    found = made(1500, 5, at=1)
    for sums in (*found.first.values(), *found.along.values()):
        sums.b[:, :WIDTH] = sums.s[:, :WIDTH] * (sums.sy / sums.n)[:, None]  # no column goes with the target
    _, report = fit(found)
    assert all(line.skill <= 0.02 for line in report.first if line.name == PROBE)
    assert sum("adds nothing" in text for text in report.verdict) >= 1


def test_coverage_of_new_answers_is_as_promised() -> None:
    probe, _ = fit(made(1500, 6, at=2))
    fresh = made(3000, 7, at=2).sample
    predicted = probe.first(fresh.first[:, 2].astype(float))
    held = [
        lo <= n <= hi
        for z, n in zip(predicted, fresh.length, strict=True)
        for lo, hi in [probe.spread.interval(z, 1e9)]
    ]
    assert 0.88 <= np.mean(held) <= 0.92
    means = [probe.spread.mean(z, 1e9) for z in predicted]
    assert np.mean(means) == pytest.approx(fresh.length.mean(), rel=0.05)


def test_statistics_survive_a_file(tmp_path) -> None:
    found = made(200, 8, at=1)
    save(tmp_path / "a.stats", found, force=False, more={"given": 3})
    again, more = load(tmp_path / "a.stats")
    assert more == {"given": 3}
    assert again.origin == found.origin
    for layer in LAYERS:
        torch.testing.assert_close(again.along[layer].S, found.along[layer].S, rtol=0, atol=0)
    assert np.array_equal(again.sample.drawn, found.sample.drawn)
    assert fit(again)[1].along == fit(found)[1].along


def test_a_signal_at_the_same_place_transfers_and_one_elsewhere_does_not() -> None:
    parts = [("one", made(800, 1, at=1)), ("same", made(800, 2, at=1)), ("other", made(800, 3, at=3))]
    matrix = {one.kind: one for one in transfer(parts)}["probe at t = 0"]
    assert matrix.cells[0][1].r2 == pytest.approx(matrix.cells[0][0].r2, abs=0.06)
    assert matrix.cells[0][2].r2 < 0.02
    assert matrix.cells[0][1].spearman == pytest.approx(0.7, abs=0.08)


def test_what_does_not_belong_together_does_not_merge() -> None:
    with pytest.raises(DataError, match="b: its folds is 4"):
        merged([("a", made(100, 1, at=1)), ("b", made(100, 1, at=1, folds=4))])


def test_there_must_be_something_to_fit() -> None:
    alone = made(100, 1, at=1)
    alone.lengths.ended[1:] = 0
    with pytest.raises(DataError, match="one fold of groups"):
        fit(alone)
    cut = made(100, 1, at=1)
    cut.lengths.cut, cut.lengths.ended = cut.lengths.ended, np.zeros_like(cut.lengths.ended)
    with pytest.raises(DataError, match="all 100 answers were cut off"):
        fit(cut)
    same = made(100, 1, at=1)
    same.lengths.ended = np.zeros_like(same.lengths.ended)
    same.lengths.ended[:, 9] = 20
    with pytest.raises(DataError, match="every answer that ended has 9 tokens"):
        fit(same)


def test_position_alone_is_beaten_where_the_state_knows_more() -> None:
    _, report = fit(made(2000, 9, at=2))
    along = {line.name: line for line in report.along}
    assert along[BOTH].r2 > along[POSITION].r2 + 0.1
    interval = along[BOTH].interval
    assert interval is not None
    assert interval[0] > 0
