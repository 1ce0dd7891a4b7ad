"""Counts of dumped activations, from files to the folder with the result."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from arrays import pairs_of, reference, related
from safetensors.torch import save_file

from nipstool.kit.errors import DataError, InputMissingError, UsageError
from nipstool.rosetta_count.dumps import open_dumps
from nipstool.rosetta_count.job import Finished, Request, run
from nipstool.rosetta_count.work import Options


@pytest.fixture
def dumps(tmp_path: Path) -> tuple[str, str]:
    a, b = related(1000, 40, 30)
    np.save(tmp_path / "a.npy", a.numpy())
    save_file({"one": b[:, :20].contiguous(), "two": b[:, 20:].contiguous()}, tmp_path / "b.safetensors")
    return str(tmp_path / "a.npy"), str(tmp_path / "b.safetensors")


def count(*models: str, output: Path, **more: object) -> Finished:
    return run(Request(models, str(output), acts=True, **more))  # type: ignore[arg-type]


def test_the_folder_says_what_numpy_says(dumps: tuple[str, str], tmp_path: Path):
    count(*dumps, output=tmp_path / "out", compat=True)
    a, b = related(1000, 40, 30)
    r = reference(a, b)
    with (tmp_path / "out" / "pairs.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {(int(x["neuron_a"]), 20 * int(x["layer_b"]) + int(x["neuron_b"])) for x in rows}
    assert found == pairs_of(r)
    for row in rows:
        i, j = int(row["neuron_a"]), 20 * int(row["layer_b"]) + int(row["neuron_b"])
        assert float(row["r"]) == pytest.approx(r[i, j], abs=1e-6)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    (pair,) = summary["pairs"]
    assert pair["counts"]["raw"] == len(found)
    assert pair["counts"]["thresholded"] == sum(r[i, j] >= 0.5 for i, j in found)
    assert len(pair["controls"]["permuted"]) == 5
    assert pair["controls"]["untrained"] is None
    assert "not available" in summary["untrained"]
    buddies = json.loads((tmp_path / "out" / "best_buddies.json").read_text())
    assert len(buddies) == len(rows)
    assert set(buddies[0]) == {
        *("model1_layer", "model1_neuron", "model2_layer", "model2_neuron"),
        *("correlation", "rank_in_model1", "rank_in_model2"),
    }
    with (tmp_path / "out" / "neurons.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 70


def test_anchors_are_the_intersection(dumps: tuple[str, str], tmp_path: Path):
    a, _ = related(1000, 40, 30)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:25]
    np.save(tmp_path / "c.npy", a[:, order].numpy())  # some neurons of a, in another order
    finished = count(*dumps, str(tmp_path / "c.npy"), output=tmp_path / "out")
    anchors = json.loads((tmp_path / "out" / "anchors.json").read_text())
    first = {int(i) for i in finished.outcome.count.pairs[0].pairs.a}
    assert {one["model1_neuron"] for one in anchors} == first & set(order.tolist())
    for one in anchors:
        partners = one["per_model"]
        assert [p["model"] for p in partners] == [dumps[1], str(tmp_path / "c.npy")]
        assert order[partners[1]["model2_neuron"]] == one["model1_neuron"]
        assert one["avg_correlation"] == pytest.approx(np.mean([p["correlation"] for p in partners]))


def test_rows_are_joined_by_ids(dumps: tuple[str, str], tmp_path: Path):
    a, b = related(1000, 40, 30)
    order = np.random.default_rng(0).permutation(1000)[:900]
    np.save(tmp_path / "b.npy", b.numpy()[order])
    (tmp_path / "ids_a").write_text("".join(f"s{i}\n" for i in range(1000)))
    (tmp_path / "ids_b").write_text("".join(f"s{i}\n" for i in order))
    ids = (str(tmp_path / "ids_a"), str(tmp_path / "ids_b"))
    finished = count(dumps[0], str(tmp_path / "b.npy"), output=tmp_path / "out", sample_ids=ids)
    pairs = finished.outcome.count.pairs[0].pairs
    kept = np.sort(order)
    assert {(int(i), int(j)) for i, j in zip(pairs.a, pairs.b, strict=True)} == pairs_of(
        reference(a[kept], b[kept])
    )
    assert finished.outcome.count.samples == 900


def test_maps_are_sampled_place_by_place_on_the_anchors_grid(tmp_path: Path):
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(60, 5, 4, 4, generator=generator)
    large = torch.nn.functional.interpolate(maps, scale_factor=2, mode="nearest")
    np.save(tmp_path / "a.npy", maps.numpy())
    np.save(tmp_path / "b.npy", large.flip(1).numpy())  # the same, at twice the size, channels reversed
    pairs = (
        count(*(str(tmp_path / n) for n in ("a.npy", "b.npy")), output=tmp_path / "o").outcome.count.pairs[0].pairs
    )
    assert {(int(i), int(j)) for i, j in zip(pairs.a, pairs.b, strict=True)} == {(i, 4 - i) for i in range(5)}
    assert float(pairs.r.min()) == pytest.approx(1, abs=1e-6)


def test_tokens_of_sequences_are_samples(tmp_path: Path):
    values = torch.randn(20, 7, 6, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "a.npy", values.numpy())
    models, units, places = open_dumps([str(tmp_path / "a.npy")] * 2, repeats=5)
    rows = torch.cat([models[0].unit(unit.index) for unit in units])
    assert places == 7
    assert torch.equal(rows, values.reshape(140, 6))


def bad(folder: Path, **arrays: np.ndarray) -> list[str]:
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return [str(folder / f"{name}.npy") for name in arrays]


def test_inputs_that_cannot_be_counted(tmp_path: Path):
    random = np.random.default_rng(0)
    a, b = random.standard_normal((2, 50, 6))
    cases: list[tuple[list[str], type[Exception], str]] = [
        (
            bad(tmp_path, a=a, b=b[:40]),
            DataError,
            "sample counts differ: .*a.npy has 50, .*b.npy has 40; --sample-id",
        ),
        (bad(tmp_path, c=a, d=np.full((50, 6), np.nan)), DataError, "layer d: 6 of 6 neurons are NaN or infinite"),
        (bad(tmp_path, e=a, f=np.zeros((50, 6))), DataError, "layer f has no live neuron"),
        (bad(tmp_path, g=a[:2], h=b[:2]), DataError, "2 samples"),
        (bad(tmp_path, i=a, j=b.ravel()), DataError, r"j.npy: has the shape \[300\]; expected \[N, n\]"),
        (bad(tmp_path, k=a, l=np.array(["x"] * 50)), DataError, "expected one array of numbers"),
        ([str(tmp_path / "a.npy"), str(tmp_path / "none.npy")], InputMissingError, "none.npy"),
        ([str(tmp_path / "a.npy")], UsageError, "1 model named"),
    ]
    for at, (models, kind, told) in enumerate(cases):
        with pytest.raises(kind, match=told):
            count(*models, output=tmp_path / f"out{at}")
        assert not (tmp_path / f"out{at}").exists()


def test_neurons_that_are_not_finite_are_counted_as_neurons(tmp_path: Path):
    a, b = np.random.default_rng(0).standard_normal((2, 3000, 30))
    b[0, 7], b[5, 7], b[3, 9], b[2999, 20] = np.nan, np.nan, np.inf, np.nan
    with pytest.raises(DataError) as error:
        count(*bad(tmp_path, a=a, b=b), output=tmp_path / "out")
    assert re.search(
        r"b.npy: layer b: 2 of 30 neurons are NaN or infinite \(the first is 7\) in the \d+ samples read together",
        str(error.value),
    )


def test_damaged_arrays_are_told_in_our_own_words(tmp_path: Path):
    good = bad(tmp_path, good=np.ones((50, 6)))[0]
    whole = Path(good).read_bytes()
    np.save(tmp_path / "object.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    np.save(tmp_path / "none.npy", np.ones((0, 6)))
    cases = {
        b"\1": r"is no .npy file, it begins with b'\x01'; expected one array of numbers, as numpy.save writes it",
        b"": "is empty",
        whole[:-100]: r"is cut short: shape [50, 6] in float64 takes 2400 bytes, 2300 are there",
        whole[:40]: "is a .npy file whose header is damaged",
        whole[:8]: "header is damaged",
        (tmp_path / "object.npy").read_bytes(): "holds Python objects",
        (tmp_path / "none.npy").read_bytes(): "[0, 6]",
    }
    for data, told in cases.items():
        (tmp_path / "x.npy").write_bytes(data)
        with pytest.raises(DataError) as error:
            open_dumps([str(tmp_path / "x.npy"), good], repeats=1)
        assert told in str(error.value)
        assert "pickle" not in str(error.value)


def test_too_little_memory_says_what_is_needed(dumps: tuple[str, str], tmp_path: Path):
    with pytest.raises(UsageError, match=r"needed for a tile"):
        count(*dumps, output=tmp_path / "out", options=Options(memory=1000))
    with pytest.raises(UsageError, match="--method dense needs"):
        count(*dumps, output=tmp_path / "out", options=Options(memory=1000, method="dense"))


def test_spooled_and_dense_runs_write_the_same_pairs(dumps: tuple[str, str], tmp_path: Path):
    for method in ("dense", "spool"):
        count(*dumps, output=tmp_path / method, options=Options(method=method))
    for name in ("pairs.csv", "anchors.json"):
        ours, theirs = ((tmp_path / method / name).read_text() for method in ("spool", "dense"))
        assert [line.split(",")[:4] for line in ours.splitlines()] == [
            line.split(",")[:4] for line in theirs.splitlines()
        ]
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_the_same_dump_twice_is_a_warning(dumps: tuple[str, str], tmp_path: Path):
    finished = count(dumps[0], dumps[0], output=tmp_path / "out")
    assert any("every neuron will find itself" in note for note in finished.outcome.count.notes)
    assert finished.outcome.count.pairs[0].raw == 40
