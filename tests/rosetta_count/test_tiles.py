"""Sums tile by tile find what sums in memory find."""

from pathlib import Path

import pytest
import torch
from arrays import Arrays, passed, related

from nipstool.rosetta_count.correlate import Best, mutual
from nipstool.rosetta_count.dense import Recorded, Settings
from nipstool.rosetta_count.spool import spool
from nipstool.rosetta_count.tiles import column_groups, run_tiles


@pytest.fixture
def models() -> list[Arrays]:
    a, b = related(1500, 600, 90)
    a[:, 3], b[:, 4] = 0, 1
    return [Arrays(a, 100, (300, 300)), Arrays(b, 100, (40, 30, 20))]


def tiled(models: list[Arrays], folder: Path, memory: int, **settings: object) -> Recorded:
    spooled, frames, neurons, samples = spool(models, models[0].units, folder)
    kept = Settings(**settings)  # type: ignore[arg-type]
    return run_tiles(spooled, frames, neurons, models[0].units, kept, samples=samples, memory=memory)


def same(ours: tuple[Best, Best], theirs: tuple[Best, Best]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        both = mine.r.isfinite() & other.r.isfinite()
        assert torch.equal(mine.r.isfinite(), other.r.isfinite())
        assert float((mine.r[both] - other.r[both]).abs().max()) < 1e-7
    assert [t.tolist() for t in (mutual(*ours).a, mutual(*ours).b)] == [
        t.tolist() for t in (mutual(*theirs).a, mutual(*theirs).b)
    ]


@pytest.mark.parametrize("k", [1, 3])
def test_tiles_find_what_a_dense_pass_finds(models: list[Arrays], tmp_path: Path, k: int, monkeypatch):
    monkeypatch.setattr("nipstool.rosetta_count.tiles.WIDE", 50)  # two groups of layers, and several of rows
    monkeypatch.setattr("nipstool.rosetta_count.tiles.tile_rows", lambda *a: 256)
    assert len(column_groups(models[1].layers)) == 2
    dense, tiles = passed(*models, k=k), tiled(models, tmp_path, 1 << 20, k=k)
    same(tiles.pairs[0].observed, dense.pairs[0].observed)
    for ours, theirs in zip(tiles.pairs[0].permuted, dense.pairs[0].permuted, strict=True):
        same(ours, theirs)
    assert tiles.pairs[0].rotated is not None
    assert dense.pairs[0].rotated is not None
    same(tiles.pairs[0].rotated, dense.pairs[0].rotated)
    last = max(dense.pairs[0].prefixes)
    same(tiles.pairs[0].prefixes[last], dense.pairs[0].prefixes[last])
    assert tiles.samples == dense.samples == 1500


def test_a_spool_keeps_the_dtype_and_is_not_computed_twice(models: list[Arrays], tmp_path: Path):
    halves = [Arrays(m.values.bfloat16(), m.rows, m.widths) for m in models]
    spooled, *_ = spool(halves, halves[0].units, tmp_path)
    assert spooled[0].unit(3).dtype == torch.bfloat16
    assert torch.equal(spooled[0].unit(3), halves[0].unit(3))
    assert torch.equal(spooled[0].columns(3, slice(5, 9)), halves[0].unit(3)[:, 5:9])

    class Broken(Arrays):
        def unit(self, index: int) -> torch.Tensor:
            raise AssertionError("computed again")

    again = [Broken(m.values, m.rows, m.widths) for m in halves]
    spool(again, halves[0].units, tmp_path)
