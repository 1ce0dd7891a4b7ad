"""Along a recording: a stream is the whole, nothing looks ahead, gaps begin anew, and memory stays flat."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nipstool.eeg_pretrain.config import Config, Recipe
from nipstool.eeg_pretrain.corpus import Corpus
from nipstool.eeg_pretrain.discover import open_recording
from nipstool.eeg_pretrain.edf_writer import write_edf
from nipstool.eeg_pretrain.embed import embed
from nipstool.eeg_pretrain.model import Model
from nipstool.eeg_pretrain.recording import Channel, Raw, Recording, Segment
from nipstool.eeg_pretrain.stream import WHOLE_S, Reading, readings
from nipstool.eeg_pretrain.tracks import RunningScale, TokenStream, choose

SMALL = Config(d=16, layers=2, heads=2, latents=2, bilinear=8)
FIELDS = ("detection", "onset", "risk", "embedding", "line_length", "power", "seen")


class Array:
    """A recording's source in memory."""

    def __init__(self, x: np.ndarray, fs: float):
        self._x, self._fs = x, fs

    def read(self, start_s: float, duration_s: float, channels: list[int]) -> np.ndarray:
        first, n = round(start_s * self._fs), round(duration_s * self._fs)
        return self._x[channels, first : first + n]

    def read_raw(self, start_s: float, duration_s: float, channels: list[int]) -> Raw:
        raise NotImplementedError

    def only(self, kept: list[int]) -> "Array":
        return Array(self._x[kept], self._fs)


def in_memory(x: np.ndarray, fs: float, *segments: tuple[float, float], kinds: tuple[str, ...] = ()) -> Recording:
    kinds = kinds or ("eeg",) * len(x)
    channels = tuple(Channel(str(n), kind, None, None, False, fs) for n, kind in enumerate(kinds))
    parts = tuple(Segment(a, b) for a, b in segments or ((0.0, x.shape[1] / fs),))
    return Recording(Path("m.edf"), "m", None, channels, parts, (), False, Array(x.astype(np.float32), fs))


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    model = Model(SMALL).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model


def noise(channels: int, seconds: float, fs: float = 128.0, seed: int = 0) -> np.ndarray:
    return 30.0 * np.random.default_rng(seed).standard_normal((channels, round(seconds * fs)))


def joined(found: list[Reading], name: str) -> np.ndarray:
    return np.concatenate([getattr(reading, name) for reading in found])


def test_a_stream_gives_what_a_whole_gives(model: Model) -> None:
    """Ten minutes of 23 channels in four pieces, at a rate that must be resampled."""
    recording = in_memory(noise(23, 600.0, 100.0), 100.0)
    whole = list(readings(model, recording, piece_s=WHOLE_S))
    parts = list(readings(model, recording, piece_s=170.0))
    assert (len(whole), len(parts)) == (1, 4)
    assert [p.fresh for p in parts] == [True, False, False, False]
    one, other = embed(whole, SMALL), embed(parts, SMALL)
    assert one.embeddings.shape == (60, 32)
    assert np.array_equal(one.start_s, other.start_s)
    assert np.abs(one.embeddings - other.embeddings).max() <= 1e-4
    assert one.embeddings.std(axis=0).min() > 1e-3


def test_raw_samples_after_a_time_change_nothing_before_it(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "a.edf"
    write_edf(path, ["EEG Cz", "EEG Fp1-F7", "EEG O2"], noise(3, 20.0, 200.0), 200.0)
    before = list(readings(model, open_recording(path), piece_s=WHOLE_S))
    data = bytearray(path.read_bytes())
    header, record = 256 * 4, 3 * 200 * 2
    after_12_s = header + 12 * record
    data[after_12_s:] = bytes(len(data) - after_12_s)
    path.write_bytes(data)
    after = list(readings(model, open_recording(path), piece_s=WHOLE_S))
    for name in FIELDS:
        one, other = joined(before, name), joined(after, name)
        assert np.array_equal(one[:48], other[:48]), name  # the tokens that end by 12 s
        assert name == "seen" or not np.array_equal(one[48:], other[48:]), name


def test_a_gap_begins_anew(model: Model) -> None:
    x = noise(2, 30.0)
    x[:, 10 * 128 : 20 * 128] = np.nan
    with_gap = in_memory(x, 128.0, (0.0, 10.0), (20.0, 10.0))
    after = [r for r in readings(model, with_gap) if r.start_s >= 20.0]
    alone = list(readings(model, in_memory(x[:, 20 * 128 :], 128.0)))
    assert after[0].fresh
    assert np.array_equal(joined(after, "embedding"), joined(alone, "embedding"))


def test_missing_samples_mask_tokens(model: Model) -> None:
    x = noise(2, 10.0)
    x[0, 256:300] = np.nan
    found = joined(list(readings(model, in_memory(x, 128.0))), "embedding")
    assert np.isfinite(found).all()
    x[1, 256:300] = np.nan
    seen = joined(list(readings(model, in_memory(x, 128.0))), "seen")
    assert not seen[8:9].any()
    assert seen[12:].all()


def test_embeddings_of_windows_are_means_of_tokens(model: Model) -> None:
    found = list(readings(model, in_memory(noise(2, 12.9), 128.0), piece_s=3.0))
    tokens = joined(found, "embedding")
    made = embed(found, SMALL, window_s=4.0, hop_s=1.5)
    assert made.start_s.tolist() == [0.0, 1.5, 3.0, 4.5, 6.0, 7.5]
    assert made.end_s.tolist() == [4.0, 5.5, 7.0, 8.5, 10.0, 11.5]
    for row, start in zip(made.embeddings, made.start_s, strict=True):
        first = round(start * 4)
        assert np.allclose(row, tokens[first : first + 16].mean(0), atol=1e-6)


def test_the_running_scale_is_the_rms_and_does_not_jump() -> None:
    scale = RunningScale(1, 0.25)
    power = np.full((1, 400), 400.0)
    power[0, 200] = 400.0 * 1e4
    found = scale.push(power, np.ones((1, 400), bool))[0]
    assert found[:200] == pytest.approx(20.0)
    assert 20.0 < found[200] < 20.0 * np.sqrt(1.0 + 0.025 * 24.0)  # a burst counts 25 times the usual, not 10,000
    assert found[-1] == pytest.approx(20.0, rel=0.01)


def test_other_signals_are_read_at_their_own_rates() -> None:
    fs = {"eeg": 128.0, "ecg": 256.0, "spo2": 1.0}
    values = {
        "eeg": noise(1, 8.0)[0],
        "ecg": noise(1, 8.0, 256.0)[0],
        "spo2": np.array([95, 90, 0, -1, 100, 95, 95, 95.0]),
    }

    class Mixed:
        def read(self, start_s: float, duration_s: float, channels: list[int]) -> np.ndarray:
            kind = kinds[channels[0]]
            first, n = round(start_s * fs[kind]), round(duration_s * fs[kind])
            return np.stack([values[kind][first : first + n]] * len(channels)).astype(np.float32)

        def read_raw(self, start_s: float, duration_s: float, channels: list[int]) -> Raw:
            raise NotImplementedError

        def only(self, kept: list[int]) -> "Mixed":
            raise NotImplementedError

    kinds = ["spo2", "eeg", "ecg"]
    channels = tuple(Channel(k, k, None, None, False, fs[k]) for k in kinds)
    recording = Recording(Path("m.edf"), "m", None, channels, (Segment(0.0, 8.0),), (), False, Mixed())
    choice = choose(recording)
    assert choice.numbers == [1, 2, 0]
    tokens = TokenStream(recording, choice, SMALL, recording.segments[0]).take(100)
    assert tokens.x.shape == (3, 32, 32)
    saturation = tokens.x[2, :, 0]
    assert saturation[[0, 4, 16]].tolist() == [0.0, -1.0, 1.0]  # (percent - 95) / 5
    assert tokens.valid[2].tolist() == [True] * 8 + [False] * 8 + [True] * 16  # 0 and below: the sensor is off
    assert tokens.valid[:2].all()


def test_differences_of_unipolar_channels_are_channels(tmp_path: Path) -> None:
    """A window with a channel subtracted is what a bipolar recording of the same electrodes gives."""
    x = noise(3, 20.0)
    write_edf(tmp_path / "u.edf", ["EEG Fp1", "EEG F7", "EEG Cz"], x, 128.0)
    write_edf(tmp_path / "b.edf", ["Fp1-F7"], x[:1] - x[1:2], 128.0)
    recipe = Recipe(split="time")
    one, other = (Corpus([open_recording(tmp_path / f"{n}.edf")], SMALL, recipe, 40) for n in "ub")
    (window,) = one.fixed(one.train, 1)[0]
    chosen = replace(window, channels=np.array([0]), minus=np.array([1]), flip=np.ones(1, np.float32))
    made = one.read(chosen)
    (window,) = other.fixed(other.train, 1)[0]
    expected = other.read(window)
    assert np.array_equal(made.placement.geometry, expected.placement.geometry)
    assert np.abs(made.tokens.x - expected.tokens.x).max() < 0.05  # two 16-bit files, a few uV a bit apart
    assert made.tokens.scale == pytest.approx(expected.tokens.scale, rel=1e-3)
    assert one.unipolar[0].tolist() == [0, 1, 2]
    assert other.unipolar[0].tolist() == []
