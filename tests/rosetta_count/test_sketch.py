"""A sketch finds the pairs above min-r that the exact way finds, with the same r, and refuses the rest."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from arrays import Arrays, passed, reference, related

from nipstool.kit.errors import UsageError
from nipstool.rosetta_count.correlate import Best, Pairs, mutual
from nipstool.rosetta_count.count import Subject
from nipstool.rosetta_count.dense import Recorded, Settings
from nipstool.rosetta_count.job import Request, run
from nipstool.rosetta_count.plan import make_plan
from nipstool.rosetta_count.report import rows
from nipstool.rosetta_count.sketch import hashed, ranks, run_sketch
from nipstool.rosetta_count.stream import layers_of
from nipstool.rosetta_count.work import Options

SAMPLES, NEURONS = 20_000, 700


def planted() -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs (i, i) of r from 0.2 to 0.95; beside every third one a rival (i, 350 + i) with r lower by 0.01."""
    generator = torch.Generator().manual_seed(0)

    def noise(n: int) -> torch.Tensor:
        return torch.randn(SAMPLES, n, generator=generator)

    a, b = noise(NEURONS), noise(NEURONS)
    r = torch.linspace(0.2, 0.95, 350)
    b[:, :350] = r * a[:, :350] + (1 - r**2).sqrt() * b[:, :350]
    rival = r[::3] - 0.01
    b[:, 350::3] = rival * a[:, :350:3] + (1 - rival**2).sqrt() * b[:, 350::3]
    # heavy tails; a monotone map leaves the order of r within a pair and its rival
    return torch.sinh(1.2 * a), torch.sinh(1.2 * b) + 5


def sketched(*models: Arrays, min_r: float = 0.3, **settings: object) -> Recorded:
    exact = passed(*models)
    kept = Settings(**settings)  # type: ignore[arg-type]
    return run_sketch(models, exact.neurons, models[0].units, kept, samples=exact.samples, min_r=min_r)


def by_place(pairs: Pairs) -> dict[tuple[int, int], float]:
    return dict(zip(zip(pairs.a.tolist(), pairs.b.tolist(), strict=True), pairs.r.tolist(), strict=True))


def compare(ours: tuple[Best, Best], theirs: tuple[Best, Best], min_r: float = 0.3) -> int:
    """Recall is at least 0.999, nothing else is found, and r are the same; returns how many there are."""
    found, true = (by_place(mutual(*both, min_r=min_r)) for both in (ours, theirs))
    hits = found.keys() & true.keys()
    assert len(hits) >= 0.999 * len(true)
    assert len(found) - len(hits) <= 0.001 * len(true)
    assert max((abs(found[place] - true[place]) for place in hits), default=0.0) < 1e-6
    return len(true)


def test_every_pair_above_min_r_is_found_near_ties_included():
    a, b = planted()
    found = sketched(Arrays(a, 2000), Arrays(b, 2000), repeats=0, rotate=False).pairs[0].observed
    r = reference(a, b)
    best_b, best_a = r.argmax(1), r.argmax(0)
    true = {(i, int(j)): r[i, j] for i, j in enumerate(best_b) if best_a[j] == i and r[i, j] >= 0.3}
    assert len(true) > 250
    rivals = [(i, j) for i, j in true if i < 350 and i % 3 == 0 and r[i].argsort()[-2] == 350 + i]
    assert len(rivals) > 50
    ours = by_place(mutual(*found, min_r=0.3))
    assert len(ours.keys() & true.keys()) >= 0.999 * len(true)
    assert ours.keys() <= true.keys()
    for side, partner in ((found[0], r), (found[1], r.T)):  # every r that is kept, not only of pairs
        known = (side.index[:, 0] >= 0).nonzero()[:, 0]
        exact = partner[known, side.index[known, 0]]
        assert np.abs(side.r[known, 0].numpy() - exact).max() < 1e-6


@pytest.mark.parametrize("k", [1, 3])
def test_controls_are_those_of_the_exact_way(k: int):
    a, b = related(8000, 90, 80, noise=0.2)
    a[:, 3], b[:, 4] = 0, 1
    b[:, 7] = (b[:, 7] > 0.5).float()  # quantised: takes no part, but in the rotation
    b[500:1000] *= 3
    models = (Arrays(a, 700, (50, 40)), Arrays(b, 700, (30, 50)))  # the last unit is shorter
    exact, ours = passed(*models, k=k).pairs[0], sketched(*models, k=k, prefixes=False).pairs[0]
    assert compare(ours.observed, exact.observed) > 20
    assert len(ours.permuted) == len(exact.permuted) == 5
    for mine, theirs in zip(ours.permuted, exact.permuted, strict=True):
        compare(mine, theirs)
    assert ours.rotated is not None
    assert exact.rotated is not None
    assert compare(ours.rotated, exact.rotated) > 10


def test_permuted_pairings_that_hold_pairs_are_found_too():
    """Samples that repeat after two units pair as well when they are shifted by two."""
    a, b = related(500, 40, 30, noise=0.2)
    models = (Arrays(a.repeat(8, 1), 250), Arrays(b.repeat(8, 1), 250))
    exact, ours = passed(*models, repeats=2).pairs[0], sketched(*models, repeats=2, prefixes=False).pairs[0]
    assert compare(ours.permuted[1], exact.permuted[1]) > 10


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.double() + 1e7,
        lambda x: (x + 20 * x.std(0)).bfloat16(),
        lambda x: x + 1e4 * x.std(0),
        lambda x: x * 1e-20,
    ],
)
def test_values_of_any_kind(change):
    models = [Arrays(change(values), 500) for values in related(6000, 40, 30)]
    ours = sketched(*models, repeats=0, rotate=False).pairs[0].observed
    compare(ours, passed(*models).pairs[0].observed)


def test_three_models_each_have_their_pairs():
    a, b = related(4000, 40, 30)
    _, c = related(4000, 40, 20)
    models = (Arrays(a), Arrays(b), Arrays(c))
    for ours, exact in zip(sketched(*models, repeats=1).pairs, passed(*models).pairs, strict=True):
        assert compare(ours.observed, exact.observed) > 5


def test_samples_keep_their_buckets_whatever_the_length_of_a_unit():
    assert hashed(100, 3, 64, 0).tolist() == hashed(1000, 3, 64, 0)[:100].tolist()
    assert hashed(100, 3, 64, 0).tolist() != hashed(100, 4, 64, 0).tolist()
    many = hashed(64_000, 0, 16, 0).bincount(minlength=32)
    assert len(many) == 32
    assert abs(many - 2000).max() < 5 * 2000**0.5


def test_ranks_by_hand():
    own, partner = torch.tensor([4, 4, 2, 4]), torch.tensor([1, 0, 9, 7])
    assert ranks(own, partner, torch.tensor([0.5, 0.5, 0.1, 0.9])).tolist() == [2, 1, 0, 0]


def subject(neurons: int) -> Subject:
    return Subject("m", layers_of([("one", 0, neurons)]))


def plan(method: str = "auto", neurons: int = 3000, samples: int = 60_000, **more: object):
    words = {"repeats": 5, "rotate": True, "untrained": False, "memory": 4 << 30, "method": method}
    return make_plan([subject(neurons)] * 2, samples=samples, **{**words, **more})  # type: ignore[arg-type]


def test_auto_takes_a_sketch_where_it_is_cheaper_and_never_for_a_raw_count():
    assert plan(min_r=0.3).method == "sketch"
    assert plan(min_r=0.5).method == "sketch"
    assert plan(min_r=0.29).method == plan().method == "dense"
    assert plan(min_r=0.3, neurons=30, samples=500).method == "dense"
    assert plan(min_r=0.3, k=9).method == "dense"
    told = plan(min_r=0.3).text
    assert "GFLOP exact" in told
    assert "by a sketch" in told


def test_what_a_sketch_cannot_do_is_refused():
    for more, told in (
        ({"min_r": 0.29}, "at least 0.3, not 0.29"),
        ({}, "at least 0.3, not 0"),
        ({"min_r": 0.5, "k": 9}, "--k 9"),
        ({"min_r": 0.5, "memory": 1 << 20}, "--mem is too small: --method sketch needs"),
    ):
        with pytest.raises(UsageError, match=told):
            plan("sketch", **more)  # type: ignore[arg-type]


def test_a_whole_count_by_a_sketch(tmp_path: Path):
    for name, values in zip("ab", related(3000, 50, 40), strict=True):
        np.save(tmp_path / f"{name}.npy", values.numpy())
    models = (str(tmp_path / "a.npy"), str(tmp_path / "b.npy"))
    found = {}
    for method in ("dense", "sketch"):
        options = Options(min_r=0.3, method=method)
        found[method] = run(Request(models, str(tmp_path / method), acts=True, options=options))
    ours, exact = (json.loads((tmp_path / m / "summary.json").read_text()) for m in ("sketch", "dense"))
    assert ours["method"] == "sketch"
    mine, theirs = ours["pairs"][0], exact["pairs"][0]
    assert mine["counts"]["raw"] is None
    assert mine["counts"]["excess"] is None
    assert theirs["counts"]["raw"] > theirs["counts"]["kept"] > 0
    for kind in ("kept", "thresholded", "fdr"):
        assert mine["counts"][kind] == theirs["counts"][kind]
    for kind in ("kept", "thresholded"):
        assert mine["controls"]["rotated"][kind] == theirs["controls"]["rotated"][kind]
        assert [one[kind] for one in mine["controls"]["permuted"]] == [
            one[kind] for one in theirs["controls"]["permuted"]
        ]
    count = found["sketch"].outcome.count
    assert [row[1] for row in rows(count, count.pairs[0])] == ["not computed"] * 3 + [None]
    assert any("not computed" in note for note in ours["notes"])
    with pytest.raises(UsageError, match="--seed -1"):
        run(Request(models, str(tmp_path / "none"), acts=True, options=Options(seed=-1)))
