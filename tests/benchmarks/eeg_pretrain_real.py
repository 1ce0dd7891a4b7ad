"""Next-patch R2 and linear probes on real recordings, after a fixed number of steps.

    eeg_pretrain_real.py [STEPS [SEEDS]]

One model on eeglab, malow, psg and Bonn (each Bonn record's variance removed). R2 = 1 - SSE / sum(x^2) of the
next 0.25 s, pooled over channels, on the last fifth of each recording, beside a ridge regression and an AR(16)
fitted to each data set. Then Bonn E against the rest, five folds, beside band powers, hand features and AR
coefficients. Bonn's sets differ by person and electrode: a check of the embeddings, not of detection.
"""

import os
import statistics
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nipstool.eeg_pretrain import probe
from nipstool.eeg_pretrain.batches import signals_of
from nipstool.eeg_pretrain.config import HISTORY, PRESETS, RECIPES
from nipstool.eeg_pretrain.corpus import Corpus, Item
from nipstool.eeg_pretrain.discover import find
from nipstool.eeg_pretrain.model import Model
from nipstool.eeg_pretrain.stream import WHOLE_S, readings
from nipstool.eeg_pretrain.tracks import Tokens, read_tokens, whole_tokens
from nipstool.eeg_pretrain.train import Trainer
from nipstool.eeg_pretrain.window_metrics import auroc
from tests.eeg_pretrain.real_inputs import bonn, malow

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("NIPSTOOL_TEST_DATA", ROOT.parent / "shared" / "data")) / "eeg-pretrain"
CONFIG, RECIPE = PRESETS["tiny"], replace(RECIPES["tiny"], split="time", batch_tokens=5500)
ORDER, FOLDS, FEW, DRAWS = 16, 5, 5, 20


def tokens_of(corpus: Corpus, item: Item) -> Tokens:
    """All tokens of an item's segment."""
    recording, choice = corpus.recordings[item.number], corpus.choices[item.number]
    return read_tokens(recording, choice, CONFIG, item.segment, 0, whole_tokens(item.segment, CONFIG), 0)


def name_of(corpus: Corpus, item: Item) -> str:
    """Which data set an item belongs to."""
    stem = corpus.recordings[item.number].path.stem
    return stem if stem in ("malow", "short_psg", "eeglab_data") else "bonn"


def ratios(sums: dict[str, tuple[float, float]]) -> dict[str, float]:
    return {name: 1.0 - error / power for name, (error, power) in sums.items()}


def add(sums: dict[str, tuple[float, float]], name: str, error: float, power: float) -> None:
    before = sums.get(name, (0.0, 0.0))
    sums[name] = before[0] + error, before[1] + power


@torch.no_grad()
def model_r2(model: Model, corpus: Corpus) -> dict[str, float]:
    """Of the held-out fifth, by data set."""
    sums: dict[str, tuple[float, float]] = {}
    for item in corpus.validation:
        tokens = tokens_of(corpus, item)
        signals = signals_of([tokens], [corpus.choices[item.number].placement], "cpu")
        outputs, _ = model(signals)
        y = signals.x[:, :, item.first :].double()
        guess = (outputs.next_patch * signals.scale[..., None])[:, :, item.first - 1 : -1].double()
        add(sums, name_of(corpus, item), float((y - guess).square().sum()), float(y.square().sum()))
    return ratios(sums)


def linear_r2(corpus: Corpus, order: int | None) -> dict[str, float]:
    """Ridge regression on the last second (order None), or an autoregression run on, fitted to each data set."""
    by_name: dict[str, list[tuple[np.ndarray, int]]] = {}
    for item in corpus.train:
        by_name.setdefault(name_of(corpus, item), []).append((tokens_of(corpus, item).x.astype(float), item.last))
    sums: dict[str, tuple[float, float]] = {}
    for name, stretches in by_name.items():
        A = _ridge(stretches) if order is None else _autoregression(stretches, order)
        for x, cut in stretches:
            past, following = _pairs(x[:, cut - HISTORY :])
            error = np.square(following - past @ A).sum()
            add(sums, name, float(error), float(np.square(following).sum()))
    return ratios(sums)


def _pairs(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(C, T, P) -> past (n, HISTORY P) and next patch (n, P)."""
    T = x.shape[1] - HISTORY
    past = np.concatenate([x[:, j : j + T] for j in range(HISTORY)], -1)
    return past.reshape(-1, past.shape[-1]), x[:, HISTORY:].reshape(-1, x.shape[-1])


def _ridge(stretches: list[tuple[np.ndarray, int]]) -> np.ndarray:
    pairs = [_pairs(x[:, :cut]) for x, cut in stretches]
    XX = np.sum([a.T @ a for a, _ in pairs], axis=0)
    XY = np.sum([a.T @ b for a, b in pairs], axis=0)
    return np.linalg.solve(XX + 1e-3 * np.trace(XX) / len(XX) * np.eye(len(XX)), XY)


def _autoregression(stretches: list[tuple[np.ndarray, int]], order: int) -> np.ndarray:
    """The map from the last second to the next patch that an AR model of this order gives when run on."""
    R = np.zeros(order + 1)
    for x, cut in stretches:
        line = x[:, :cut].reshape(len(x), -1)
        R += [float((line[:, : line.shape[1] - lag] * line[:, lag:]).sum()) for lag in range(order + 1)]
    toeplitz = R[np.abs(np.subtract.outer(np.arange(order), np.arange(order)))]
    a = np.linalg.solve(toeplitz + 1e-6 * R[0] * np.eye(order), R[1:])
    width, P = HISTORY * CONFIG.patch, CONFIG.patch
    line = np.eye(width)
    for _ in range(P):
        line = np.column_stack([line, line[:, -order:][:, ::-1] @ a])
    return line[:, width:]


def embeddings(model: Model, corpus: Corpus, numbers: list[int]) -> np.ndarray:
    """The mean token embedding of each recording."""
    found = [next(readings(model, corpus.recordings[n], piece_s=WHOLE_S)).embedding.mean(0) for n in numbers]
    return np.array(found)


def peers(corpus: Corpus, numbers: list[int]) -> dict[str, np.ndarray]:
    """Features of each recording: 5 log band shares, 9 hand features, 12 AR coefficients."""
    bands, hand, ar = [], [], []
    for n in numbers:
        item = next(i for i in corpus.train if i.number == n)
        x = tokens_of(corpus, item).x[0].ravel().astype(float)
        x = (x - x.mean()) / x.std()
        power, hertz = np.abs(np.fft.rfft(x)) ** 2, np.fft.rfftfreq(len(x), 1 / CONFIG.fs)
        edges = (1.0, 4.0, 8.0, 13.0, 30.0, 45.0)
        share = [power[(hertz >= a) & (hertz < b)].sum() / power.sum() for a, b in pairwise(edges)]
        bands.append(np.log(share))
        d, dd = np.diff(x), np.diff(x, 2)
        mobility = d.std() / x.std()
        hand.append([*np.log(share), np.abs(d).mean(), mobility, dd.std() / d.std() / mobility, (x**4).mean()])
        R = np.array([float((x[: len(x) - lag] * x[lag:]).sum()) for lag in range(13)])
        toeplitz = R[np.abs(np.subtract.outer(np.arange(12), np.arange(12)))]
        ar.append(np.linalg.solve(toeplitz + 1e-6 * R[0] * np.eye(12), R[1:]))
    return {"5 log band powers": np.array(bands), "9 hand features": np.array(hand), "AR(12)": np.array(ar)}


def fold_auroc(X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Mean AUROC over five folds (index mod 5), and over draws of five ictal and twenty other labels."""
    fold = np.arange(len(y)) % FOLDS
    scores = []
    for k in range(FOLDS):
        fitted = probe.fit(X[fold != k], y[fold != k])
        assert fitted is not None
        scores.append(auroc(y[fold == k], fitted(X[fold == k])))
    random, few = np.random.default_rng(0), []
    for _ in range(DRAWS):
        chosen = np.concatenate(
            [
                random.choice(np.flatnonzero(y), FEW, replace=False),
                random.choice(np.flatnonzero(~y), 4 * FEW, replace=False),
            ]
        )
        rest = np.setdiff1d(np.arange(len(y)), chosen)
        fitted = probe.fit(X[chosen], y[chosen])
        assert fitted is not None
        few.append(auroc(y[rest], fitted(X[rest])))
    return float(np.mean(scores)), float(np.mean(few))


def main(steps: int = 450, seeds: int = 3) -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "bonn")
        place.mkdir()
        bonn(DATA, place, normalised=True)
        paths = [
            DATA / "eeglab" / "eeglab_data.set",
            DATA / "edfio" / "short_psg.edf",
            malow(DATA, Path(folder)),
            place,
        ]
        recordings = find(paths).recordings
        recipe = replace(RECIPE, steps=steps)
        corpus = Corpus(recordings, CONFIG, recipe, CONFIG.context)
        numbers = [n for n, r in enumerate(recordings) if r.path.parent == place]
        ictal = np.array([recordings[n].path.stem.startswith("E") for n in numbers])
        rows = {"ridge": [linear_r2(corpus, None)], f"AR({ORDER})": [linear_r2(corpus, ORDER)], "model": []}
        probes = {name: [fold_auroc(X, ictal)] for name, X in peers(corpus, numbers).items()}
        probes |= {"model, untrained": [], "model": []}
        for seed in range(seeds):
            trainer = Trainer(corpus, CONFIG, recipe, seed, torch.device("cpu"), False)
            probes["model, untrained"].append(fold_auroc(embeddings(trainer.model.eval(), corpus, numbers), ictal))
            while trainer.step < steps:
                trainer.advance()
            rows["model"].append(model_r2(trainer.average, corpus))
            probes["model"].append(fold_auroc(embeddings(trainer.average.eval(), corpus, numbers), ictal))
        print(f"next-patch R2, {steps} steps, median of {seeds} seeds")
        for name, found in rows.items():
            print(name, {k: round(statistics.median(one[k] for one in found), 4) for k in found[0]})
        print("Bonn E against the rest, AUROC: five folds; 5 + 20 labels")
        for name, found in probes.items():
            print(name, *(f"{statistics.median(column):.3f}" for column in zip(*found, strict=True)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
