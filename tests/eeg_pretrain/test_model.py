"""The model: what it must not depend on (order, names, polarity, the future), and that a stream is a whole."""

from dataclasses import replace
from hashlib import blake2b

import numpy as np
import pytest
import torch

from nipstool.eeg_pretrain.config import MODALITIES, Config
from nipstool.eeg_pretrain.model import Memory, Model, Outputs, Signals
from nipstool.eeg_pretrain.recording import Channel
from nipstool.eeg_pretrain.simulate import at
from nipstool.eeg_pretrain.tokenizer import place
from nipstool.eeg_pretrain.words import numbers

SMALL = Config(d=16, layers=2, heads=2, latents=2, bilinear=8)


@pytest.fixture(scope="module")
def model() -> Model:
    """A model whose every part does something: those that start at 0 are drawn."""
    torch.manual_seed(0)
    model = Model(SMALL).double().eval()
    for p in model.parameters():
        with torch.no_grad():
            p += 0.1 * torch.randn_like(p)
    return model


def channel(label: str, kind: str = "eeg") -> Channel:
    names = label.split("-")
    places = [at(name) if kind == "eeg" and name != "X" else None for name in names]
    return Channel(label, kind, places[0], places[1] if len(names) > 1 else None, len(names) > 1, 128.0)


def signals(labels: list[str], T: int = 12, *, kinds: list[str] | None = None, seed: int = 0) -> Signals:
    random = torch.Generator().manual_seed(seed)
    placement = place(
        [channel(label, kind) for label, kind in zip(labels, kinds or ["eeg"] * len(labels), strict=True)]
    )
    x = 20.0 * torch.randn(1, len(labels), T, 32, generator=random, dtype=torch.float64)
    return Signals(
        x,
        15.0 + 10.0 * torch.rand(1, len(labels), T, generator=random, dtype=torch.float64),
        torch.ones(1, len(labels), T, dtype=torch.bool),
        torch.from_numpy(placement.geometry)[None].double(),
        torch.from_numpy(placement.sign)[None].double(),
        torch.from_numpy(placement.kind)[None],
    )


def pick(given: Signals, rows: list[int]) -> Signals:
    return Signals(*(part[:, rows] for part in given))


def run(model: Model, given: Signals, memory: Memory | None = None) -> Outputs:
    with torch.no_grad():
        return model(given, memory)[0]


def assert_same(one: Outputs, other: Outputs, tolerance: float = 1e-12, rows: list[int] | None = None) -> None:
    """Equal outputs; those of channels after `rows` are picked from the first."""
    for name, a, b in zip(Outputs._fields, one, other, strict=True):
        if rows is not None and name in ("next_patch", "spread", "descriptors"):
            a = a[:, rows]
        assert float((a - b).abs().max()) <= tolerance, name


LABELS = ["Fp1-F7", "F7-T7", "C3-P3", "Cz", "O2"]


def test_the_order_of_channels_changes_nothing(model: Model) -> None:
    given, order = signals(LABELS), [3, 0, 4, 2, 1]
    assert_same(run(model, given), run(model, pick(given, order)), rows=order)


def test_masked_channels_change_nothing(model: Model) -> None:
    given = signals(LABELS)
    valid = given.valid.clone()
    valid[:, [1, 4]] = False
    x = torch.where(valid[..., None], given.x, torch.nan)
    masked = run(model, given._replace(x=x, valid=valid))
    without = run(model, pick(given, [0, 2, 3]))
    assert_same(masked, without, rows=[0, 2, 3])


def test_a_swapped_bipolar_channel_is_the_same_channel(model: Model) -> None:
    given = signals(["Fp1-F7", "C3-P3", "Cz"])
    swapped = signals(["F7-Fp1", "C3-P3", "Cz"])
    x = given.x.clone()
    x[:, 0] *= -1.0
    one, other = run(model, given), run(model, swapped._replace(x=x))
    flipped = one.next_patch.clone()
    flipped[:, 0] *= -1.0
    assert_same(one._replace(next_patch=flipped), other)
    assert not torch.equal(one.next_patch[:, 1], one.next_patch[:, 0])


def test_a_place_matters_and_a_name_does_not(model: Model) -> None:
    here = run(model, signals(["Fp1-F7", "Cz"]))
    there = run(model, signals(["O1-P7", "Cz"]))
    assert float((here.embedding - there.embedding).abs().max()) > 1e-4
    old, new = channel("T7"), replace(channel("T7"), label="EEG T3-REF")
    assert np.array_equal(place([old]).geometry, place([new]).geometry)


def test_an_unknown_place_is_not_the_middle_of_the_head(model: Model) -> None:
    unknown = place([channel("X")])
    assert unknown.geometry[0, 6] == 0.0
    middle = place([replace(channel("X"), anode=(0.0, 0.0, 0.0))])
    one, other = (
        signals(["Cz"])._replace(geometry=torch.from_numpy(p.geometry)[None].double()) for p in (unknown, middle)
    )
    assert float((run(model, one).embedding - run(model, other).embedding).abs().max()) > 1e-4


def test_the_future_changes_no_past_output(model: Model) -> None:
    given = signals(LABELS)
    before = run(model, given)
    x, scale, valid = given.x.clone(), given.scale.clone(), given.valid.clone()
    x[:, :, 7:] = 1e4
    scale[:, :, 7:] = 3.0
    valid[:, 2, 9:] = False
    after = run(model, given._replace(x=x, scale=scale, valid=valid))
    for name, a, b in zip(Outputs._fields, before, after, strict=True):
        axis = 2 if name in ("next_patch", "spread", "descriptors") else 1
        assert torch.equal(a.narrow(axis, 0, 7), b.narrow(axis, 0, 7)), name
        assert not torch.equal(a, b), name


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_a_stream_is_the_whole(model: Model, cut: int) -> None:
    given = signals(LABELS)
    parts = [Signals(*(p[:, :, s] if p.ndim > 2 and p.shape[2] == 12 else p for p in given)) for s in cuts(cut)]
    with torch.no_grad():
        whole, _ = model(given)
        memory, found = None, []
        for part in parts:
            outputs, memory = model(part, memory)
            found.append(outputs)
    for name, expected, *got in zip(Outputs._fields, whole, *found, strict=True):
        axis = 2 if name in ("next_patch", "spread", "descriptors") else 1
        assert float((torch.cat(got, axis) - expected).abs().max()) <= 1e-12, name


def cuts(size: int) -> list[slice]:
    return [slice(a, min(a + size, 12)) for a in range(0, 12, size)]


def test_a_loud_recording_is_told_from_a_quiet_one(model: Model) -> None:
    given = signals(LABELS)
    loud = given._replace(x=4.0 * given.x, scale=4.0 * given.scale)
    one, other = run(model, given), run(model, loud)
    assert float((one.embedding - other.embedding).abs().max()) > 1e-4


def test_other_modalities_join_and_are_no_eeg(model: Model) -> None:
    labels, kinds = ["Cz", "O2", "ECG", "SpO2"], ["eeg", "eeg", "ecg", "spo2"]
    given = signals(labels, kinds=kinds)
    assert [MODALITIES[k] for k in given.kind[0]] == kinds
    absent = given.valid.clone()
    absent[:, 2:] = False
    with_both, without = run(model, given), run(model, given._replace(valid=absent))
    assert float((with_both.detection - without.detection).abs().max()) > 1e-6
    assert_same(without, run(model, pick(given, [0, 1])), rows=[0, 1])  # missing is masked, not zero


def test_text_is_a_prefix_that_no_words_leave_out(model: Model) -> None:
    given = signals(LABELS)
    words = torch.from_numpy(numbers([{"sex": "F", "age": "11"}]))
    told = run(model, given, model.begin(5, words))
    assert float((told.detection - run(model, given).detection).abs().max()) > 1e-6
    silent = torch.from_numpy(numbers([{}]))
    assert_same(run(model, given, model.begin(5, silent)), run(model, given))


def test_bf16_keeps_gates_and_memories_in_float32() -> None:
    torch.manual_seed(0)
    model = Model(SMALL)
    given = Signals(*(part.float() if part.is_floating_point() else part for part in signals(LABELS)))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        half, memory = model(given)
    assert {part.dtype for state in memory.layers for part in state} == {torch.float32}
    full = run(model, given)
    error = (half.embedding.float() - full.embedding).norm() / full.embedding.norm()
    assert 0.0 < float(error) < 0.1


def test_hashed_grams_are_the_same_on_every_machine() -> None:
    found = numbers([{"age": "11"}, {"age": "11", "note": "carbamazepine since May"}])
    assert found[0, 0] == int(blake2b(b"age:11", digest_size=4).hexdigest(), 16) % 4096
    assert (found[0, 1:] == -1).all()
    assert set(found[0][found[0] >= 0]) <= set(found[1])
