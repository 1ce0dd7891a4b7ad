"""The causal path: nothing from the future or of the chunks, no trace of an offset, and the right filter."""

import numpy as np
import pytest
from scipy import signal as dsp

from nipstool.eeg_pretrain.signal import CausalPath

RATES = [
    (256.0, 128.0),
    (512.0, 128.0),
    (250.0, 128.0),
    (100.0, 128.0),
    (173.61, 128.0),
    (128.0, 128.0),
    (400.0, 256.0),
]


def noise(channels: int, n: int, seed: int = 0) -> np.ndarray:
    """White, 30 uV."""
    return 30 * np.random.default_rng(seed).standard_normal((channels, n))


def filter_whole(samples: np.ndarray, fs_in: float, fs_out: float) -> np.ndarray:
    """All of it through a fresh path at once."""
    return CausalPath(fs_in, fs_out, samples.shape[0]).push(samples)


@pytest.mark.parametrize(("fs_in", "fs_out"), RATES)
def test_chunks_of_any_size_give_the_same_bits(fs_in: float, fs_out: float) -> None:
    x = noise(3, 3000)
    x[1, :700] = np.nan
    x[2, 1200:1300] = np.nan
    whole = CausalPath(fs_in, fs_out, 3).push(x)
    rng = np.random.default_rng(1)
    path, parts, start = CausalPath(fs_in, fs_out, 3), [], 0
    while start < x.shape[1]:
        size = int(rng.choice([1, 2, 17, 130, 500]))
        parts.append(path.push(x[:, start : start + size]))
        start += size
    assert np.array_equal(np.concatenate(parts, axis=1), whole, equal_nan=True)


@pytest.mark.parametrize(("fs_in", "fs_out"), RATES)
def test_no_output_depends_on_an_input_that_ends_after_it(fs_in: float, fs_out: float) -> None:
    x = noise(2, 2000)
    changed = x.copy()
    at = 1234
    changed[:, at:] += 1e6
    a, b = filter_whole(x, fs_in, fs_out), filter_whole(changed, fs_in, fs_out)
    assert a.shape[1] == int(np.floor(2000 * round(fs_out * 100) / round(fs_in * 100)))
    before = int(np.floor(at * fs_out / fs_in + 1e-9))  # outputs that end by the start of the change
    assert np.array_equal(a[:, :before], b[:, :before])
    assert not np.array_equal(a[:, before : before + 20], b[:, before : before + 20])


def test_at_one_rate_it_is_the_butterworth_filter_of_scipy() -> None:
    x = noise(2, 4000)
    sos = dsp.butter(4, [0.5, 0.45 * 128], "bandpass", fs=128, output="sos")
    zi = dsp.sosfilt_zi(sos)[:, None, :] * x[None, :, :1]
    expected, _ = dsp.sosfilt(sos, x, axis=1, zi=zi)
    assert np.allclose(filter_whole(x, 128, 128), expected, atol=1e-3)


@pytest.mark.parametrize(("fs_in", "fs_out"), [(256.0, 128.0), (250.0, 128.0), (512.0, 128.0), (100.0, 128.0)])
def test_a_tone_keeps_its_size_and_comes_as_late_as_it_says(fs_in: float, fs_out: float) -> None:
    hz, t = 12.0, np.arange(round(20 * fs_in)) / fs_in
    path = CausalPath(fs_in, fs_out, 1)
    found = path.push(50 * np.sin(2 * np.pi * hz * t)[None])[0]
    ends = (np.arange(len(found)) + 1) / fs_out - 1 / fs_in - path.delay_s
    late = slice(len(found) // 2, None)
    phasor = 2 * np.mean(found[late] * np.exp(-2j * np.pi * hz * ends[late])) * 1j
    sos = dsp.butter(4, [0.5, 0.45 * min(fs_in, fs_out)], "bandpass", fs=fs_out, output="sos")
    _, response = dsp.freqz_sos(sos, np.array([hz]), fs=fs_out)  # pyright: ignore
    assert abs(phasor / 50 - np.asarray(response)[0]) < 5e-3


def test_what_the_new_rate_cannot_hold_is_gone() -> None:
    t = np.arange(20 * 512) / 512
    aliased = 100 * np.sin(2 * np.pi * 118 * t)[None]  # would come out as 10 Hz
    assert np.abs(filter_whole(aliased, 512, 128)[:, 256:]).max() < 0.5


def test_an_amplifiers_offset_leaves_no_trace() -> None:
    x = noise(1, 2560)
    a, b = filter_whole(x, 256, 128), filter_whole(x + 220_000.0, 256, 128)
    assert np.abs(a - b).max() < 1e-3


def test_a_missing_sample_is_missing_and_harms_no_other() -> None:
    x = noise(2, 2560)
    x[0, 1000:1010] = np.nan
    found = filter_whole(x, 256, 128)
    gone = np.flatnonzero(np.isnan(found[0]))
    lag = round(CausalPath(256, 128, 1).delay_s * 128)
    assert gone.min() >= 1000 // 2 + lag - 1
    assert gone.max() <= 1010 // 2 + lag
    assert np.isfinite(found[1]).all()
    assert np.abs(found[0][gone.max() + 1 :]).max() < 300


def test_reset_forgets_and_a_state_goes_on() -> None:
    x, path = noise(2, 2000), CausalPath(250, 128, 2)
    first = path.push(x)
    path.reset()
    assert np.array_equal(path.push(x), first)
    path.reset()
    path.push(x[:, :777])
    other = CausalPath(250, 128, 2)
    other.load(path.state())
    assert np.array_equal(other.push(x[:, 777:]), path.push(x[:, 777:]))


def test_a_chunk_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \(2, n\)"):
        CausalPath(256, 128, 2).push(np.zeros((3, 10)))
