"""FIF, EEGLAB and BrainVision: values, places, pieces, and headers that name files by their former names."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nipstool.eeg_pretrain.discover import find, is_recording, open_recording
from nipstool.eeg_pretrain.montage import sites
from nipstool.eeg_pretrain.signal import CausalPath
from nipstool.kit.errors import DataError, InputMissingError

Put = Callable[[str, bytes], Path]
SAMPLES = 2560
HEADER = """Brain Vision Data Exchange Header File Version 1.0
; a comment
[Common Infos]
Codepage=UTF-8
DataFile={data}
MarkerFile={markers}
DataFormat=BINARY
DataOrientation=MULTIPLEXED
NumberOfChannels=3
SamplingInterval=3906.25

[Binary Infos]
BinaryFormat=INT_16

[Channel Infos]
Ch1=Fp1,,0.5,{unit}
Ch2=Cz,,0.5,{unit}
Ch3=EOG\\1left,,0.5,{unit}
"""
MARKERS = """Brain Vision Data Exchange Marker File, Version 1.0
[Common Infos]
DataFile=old.eeg
[Marker Infos]
Mk1=New Segment,,1,1,0,20200101120000000000
Mk2=Comment,seizure onset,513,1,0
Mk3=New Segment,,1281,1,0,20200101130000000000
"""


def brainvision(
    put: Put, *, data: str = "a.eeg", markers: str = "a.vmrk", unit: str = "µV", mark: bool = True
) -> Path:
    """Three channels at 256 Hz; gives the header's path."""
    values = np.random.default_rng(0).integers(-200, 200, (SAMPLES, 3), dtype=np.int16)
    put("a.eeg", values.astype("<i2").tobytes())
    if mark:
        put("a.vmrk", MARKERS.encode())
    return put("a.vhdr", HEADER.format(data=data, markers=markers, unit=unit).encode())


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"data": "old.eeg", "markers": "old.vmrk"},
        {"unit": ""},
        {"mark": False},
        {"mark": False, "markers": ""},
        {"data": "$b.eeg", "markers": "$b.vmrk"},
    ],
)
def test_brainvision_is_read_also_after_it_was_renamed(put: Put, how: dict) -> None:
    recording = open_recording(brainvision(put, **how))
    values = np.random.default_rng(0).integers(-200, 200, (SAMPLES, 3), dtype=np.int16)
    assert [(c.label, c.kind) for c in recording.channels] == [("Fp1", "eeg"), ("Cz", "eeg"), ("EOG,left", "eog")]
    assert np.allclose(recording.read(1.0, 2.0), 0.5 * values[256:768, :2].T, atol=1e-3)
    assert recording.channels[1].anode == sites()["cz"]
    pieces = [(s.start_s, s.duration_s) for s in recording.segments]
    assert pieces == ([(0.0, 5.0), (5.0, 5.0)] if how.get("mark", True) else [(0.0, 10.0)])


def test_brainvision_without_its_data_names_what_is_missing(put: Put) -> None:
    path = put("a.vhdr", HEADER.format(data="a.eeg", markers="a.vmrk", unit="µV").encode())
    with pytest.raises((InputMissingError, DataError), match=r"a\.eeg"):
        open_recording(path)


@pytest.fixture(scope="module")
def fif(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four seconds with a stretch that acquisition skipped, a position of its own and a stimulus channel."""
    import mne

    info = mne.create_info(["C3", "STI 014", "ECG"], 256.0, ["eeg", "stim", "ecg"])  # pyright: ignore[reportArgumentType]
    data = np.random.default_rng(0).standard_normal((3, 1024)) * 1e-5
    raw = mne.io.RawArray(data, info, verbose="ERROR")
    raw.set_montage(mne.channels.make_dig_montage({"C3": (-0.05, 0.0, 0.07)}, coord_frame="head"))
    raw.set_annotations(mne.Annotations([1.0, 2.5], [0.5, 1.0], ["BAD_ACQ_SKIP", "sz_foc"]))
    path = tmp_path_factory.mktemp("fif") / "a_raw.fif"
    raw.save(path, verbose="ERROR")
    return path


def test_fif_has_its_own_positions_and_skips_what_was_skipped(fif: Path) -> None:
    recording = open_recording(fif)
    assert [channel.kind for channel in recording.channels] == ["eeg", "status", "ecg"]
    assert recording.channels[0].anode == pytest.approx((-0.05, 0.0, 0.07), abs=1e-6)
    assert [(s.start_s, s.duration_s) for s in recording.segments] == [(0.0, 1.0), (1.5, 2.5)]
    assert [(s.onset_s, s.offset_s, s.kind) for s in recording.seizures] == [(2.5, 3.5, "sz_foc")]
    expected = 1e1 * np.random.default_rng(0).standard_normal((3, 1024))
    found = recording.read(0.0, 4.0)[0]
    assert np.allclose(found[:256], expected[0, :256], atol=1e-3)
    assert np.isnan(found[256:384]).all()
    assert np.allclose(found[384:], expected[0, 384:], atol=1e-3)


def test_what_is_not_a_number_stays_missing_on_the_way_to_the_model(tmp_path: Path) -> None:
    import mne

    data = np.random.default_rng(0).standard_normal((3, 2560)) * 1e-5
    data[0, 500:600] = np.nan
    data[1] = np.nan
    raw = mne.io.RawArray(data, mne.create_info(["C3", "C4", "Cz"], 256.0, "eeg"), verbose="ERROR")
    raw.save(tmp_path / "a_raw.fif", verbose="ERROR")
    recording = open_recording(tmp_path / "a_raw.fif")
    assert [channel.label for channel in recording.channels] == ["C3", "Cz"]  # C4 was never there
    found = CausalPath(256, 128, len(recording.channels)).push(recording.read(0, 10))
    assert 45 <= np.isnan(found[0]).sum() <= 55
    assert np.isfinite(found[1]).all()


@pytest.mark.realdata
def test_a_real_eeglab_file_equals_mne_and_has_its_positions(eeg: Path) -> None:
    import mne

    path = eeg / "eeglab" / "eeglab_data.set"
    raw = mne.io.read_raw_eeglab(path, verbose="ERROR")
    recording = open_recording(path)
    numbers = recording.of_kind("eeg")
    assert len(numbers) == 30  # two of 32 are EOG
    names = [recording.channels[number].label for number in numbers]
    assert np.allclose(
        recording.read(100, 2), 1e6 * np.asarray(raw.get_data(np.array(names), 12800, 13056)), atol=1e-3
    )
    assert all(recording.channels[number].anode for number in numbers)
    assert recording.duration_s == pytest.approx(238.3, abs=0.1)


def test_a_header_that_tells_of_too_many_channels_is_refused_at_once(put: Put) -> None:
    text = HEADER.format(data="a.eeg", markers="a.vmrk", unit="µV")
    assert "NumberOfChannels=3\n" in text
    path = put("a.vhdr", text.replace("NumberOfChannels=3\n", "NumberOfChannels=2147483648\n").encode())
    with pytest.raises(DataError, match="tells of 2147483648 channels; expected at most 10000"):
        open_recording(path)


@pytest.mark.parametrize(("name", "data"), [("a.set", b"no file of EEGLAB"), ("a_raw.fif", b""), ("a.vhdr", b"x")])
def test_a_broken_file_is_a_problem_of_one_line(put: Put, name: str, data: bytes) -> None:
    (problem,) = find([put(name, data)]).problems
    assert "\n" not in problem.reason
    assert problem.reason.startswith("cannot be read")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        *(
            ("a.edf", True),
            ("A.EDF", True),
            ("a.bdf", True),
            ("a_raw.fif", True),
            ("a_raw_split-02_raw.fif", False),
        ),
        *(
            ("a-ave.fif", False),
            ("a.set", True),
            ("a.fdt", False),
            ("a.vhdr", True),
            ("a.eeg", False),
            ("a.tsv", False),
        ),
    ],
)
def test_names_of_recordings(name: str, read: bool) -> None:
    assert is_recording(Path(name)) == read
