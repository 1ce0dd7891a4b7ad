"""Windows of EDF and BDF files against other readers, and what is made of headers that are not quite right."""

import pickle
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nipstool.eeg_pretrain.discover import open_recording
from nipstool.eeg_pretrain.opening import open_file
from nipstool.eeg_pretrain.recording import Recording
from nipstool.kit.errors import DataError, InputMissingError
from tests.eeg_pretrain.edf_bytes import Sig, edf, sine, stamps

Put = Callable[[str, bytes], Path]


def physical(signal: Sig) -> np.ndarray:
    """By the equation of the EDF specification, in float64."""
    gain = (float(signal.pmax) - float(signal.pmin)) / (int(signal.dmax) - int(signal.dmin))
    return float(signal.pmin) + gain * (signal.data.reshape(-1) - int(signal.dmin))


# --- values ---


@pytest.mark.parametrize(
    "name", ["edfio/short_psg.edf", "edfio/short_psg.bdf", "eeglab/test.edf", "eeglab/test.bdf"]
)
def test_windows_equal_those_of_mne_within_one_step(eeg: Path, name: str) -> None:
    import mne

    raw = mne.io.read_raw(eeg / name, preload=False, verbose="ERROR")
    recording = open_file(eeg / name).recording
    fs = recording.channels[recording.of_kind("eeg")[0]].fs
    names = [recording.channels[n].label for n in recording.of_kind("eeg")]
    step = 1e-2 if name.endswith("edf") else 1e-3
    for start in (0.0, 3.5, recording.duration_s - 5.0):
        first = round(start * fs)
        expected = 1e6 * np.asarray(raw.get_data(np.array(names), first, first + round(5 * fs)))
        found = recording.read(start, 5.0)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() < step + 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("bdf", [False, True])
@pytest.mark.parametrize(("start", "length"), [(0.0, 1.0), (0.25, 2.75), (3.0, 0.5), (9.5, 0.5), (4.992, 0.02)])
def test_any_window_has_the_values_of_the_specification(put: Put, bdf: bool, start: float, length: float) -> None:
    signals = [sine("Fp1"), sine("Cz", amplitude=30000), sine("O2", hz=3)]
    recording = open_file(put("a.bdf" if bdf else "a.edf", edf(signals, bdf=bdf))).recording
    first, n = round(start * 128), round(length * 128)
    expected = np.stack([physical(signal)[first : first + n] for signal in signals])
    assert np.allclose(recording.read(start, length), expected, rtol=1e-6, atol=1e-4)
    chosen = recording.read(start, length, [2, 0])
    assert np.allclose(chosen, expected[[2, 0]], rtol=1e-6, atol=1e-4)
    raw = recording.read_raw(start, length, [2, 0])
    assert np.allclose(raw.values * raw.scale[:, None] + raw.offset[:, None], chosen, rtol=1e-6, atol=1e-3)
    assert raw.values.dtype == (np.int32 if bdf else np.int16)


def test_one_channel_of_many_and_a_day_in_one_record(put: Put) -> None:
    signals = [sine(f"F{n}", records=1, samples=8192, hz=n + 1.0) for n in (3, 4, 7, 8)]
    recording = open_file(put("a.edf", edf(signals, record_s="64"))).recording
    found = recording.read(10.0, 0.5, [2])
    assert np.allclose(found[0], physical(signals[2])[1280 : 1280 + 64], atol=1e-3)


def test_signals_of_unequal_length_are_read_at_their_own_rates(put: Put) -> None:
    signals = [sine("Fp1"), sine("ECG", samples=512), sine("Fp2")]
    recording = open_file(put("a.edf", edf(signals))).recording
    assert [(c.kind, c.fs) for c in recording.channels] == [("eeg", 128.0), ("ecg", 512.0), ("eeg", 128.0)]
    assert np.allclose(recording.read(1.0, 2.0, [1])[0], physical(signals[1])[512:1536], atol=1e-3)
    assert np.allclose(
        recording.read(1.0, 2.0), [physical(s)[128:384] for s in (signals[0], signals[2])], atol=1e-3
    )
    with pytest.raises(ValueError, match="different rates"):
        recording.read(0.0, 1.0, [0, 1])


@pytest.mark.parametrize(
    ("unit", "factor"), [("mV", 1e3), ("V", 1e6), ("nV", 1e-3), (b"\xb5V", 1), (b"\xc2\xb5V", 1)]
)
def test_everything_in_volts_comes_out_in_microvolts(put: Put, unit: str | bytes, factor: float) -> None:
    signal = sine("Cz")
    signal.unit = unit
    recording = open_file(put("a.edf", edf([signal]))).recording
    assert np.allclose(recording.read(0, 10)[0], factor * physical(signal), rtol=1e-5, atol=1e-3 * factor)


def test_outside_of_the_recording_there_is_nothing(put: Put) -> None:
    recording = open_file(put("a.edf", edf([sine("Cz")]))).recording
    found = recording.read(-0.5, 11.0)
    assert np.isnan(found[0, :64]).all()
    assert np.isnan(found[0, -64:]).all()
    assert np.isfinite(found[0, 64:-64]).all()
    with pytest.raises(ValueError, match="not within one segment"):
        recording.read_raw(-0.5, 1.0)


def test_a_sensor_that_is_off_gives_nothing(put: Put) -> None:
    saturation = Sig("SpO2", np.full((10, 1), 970), "%", "0", "102.3", "0", "1023")
    saturation.data[3:5] = -1
    saturation.data[6] = 0
    recording = open_file(put("a.edf", edf([sine("Cz"), saturation]))).recording
    found = recording.read(0, 10, recording.of_kind("spo2"))[0]
    assert np.isnan(found[[3, 4, 6]]).all()
    assert np.allclose(found[[0, 1, 2, 5, 7]], 97.0)


def test_a_recording_can_be_sent_to_another_process(put: Put) -> None:
    recording = open_file(put("a.edf", edf([sine("Cz")]))).recording
    copy: Recording = pickle.loads(pickle.dumps(recording))
    assert np.array_equal(copy.read(1, 2), recording.read(1, 2))


# --- time ---


def test_a_gap_separates_segments_and_reads_as_nothing(put: Put) -> None:
    signal = sine("Cz")
    starts = [0, 1, 2, 3, 103.5, 104.5, 105.5, 106.5, 107.5, 108.5]
    recording = open_file(put("a.edf", edf([signal, stamps(starts)], reserved="EDF+D"))).recording
    assert [(s.start_s, s.duration_s) for s in recording.segments] == [(0.0, 4.0), (103.5, 6.0)]
    assert np.allclose(recording.read(103.5, 1)[0], physical(signal)[512:640], atol=1e-3)
    across = recording.read(3.5, 101.0)[0]
    assert np.isfinite(across[:64]).all()
    assert np.isnan(across[64:-128]).all()
    assert np.isfinite(across[-128:]).all()
    assert any("gap" in warning for warning in recording.warnings)


def test_annotations_count_from_the_first_sample_which_may_start_within_a_second(put: Put) -> None:
    events = {2: b"+2.75\x151.5\x14seizure\x14\0", 4: b"+4\x14arousal\x14artefact\x14\0"}
    signals = [sine("Cz"), stamps([n + 0.25 for n in range(10)], events)]
    opened = open_file(put("a.edf", edf(signals, reserved="EDF+C")))
    assert [(a.onset_s, a.duration_s, a.text) for a in opened.annotations] == [
        (2.5, 1.5, "seizure"),
        (3.75, None, "arousal"),
        (3.75, None, "artefact"),
    ]
    assert opened.recording.segments[0].start_s == 0.0


@pytest.mark.parametrize("text", ["Anfall Ü 発作", "crise généralisée"])
def test_annotations_are_read_in_utf_8_and_in_latin_1(put: Put, text: str) -> None:
    encoding = "utf-8" if "発" in text else "latin-1"
    events = {1: b"+1\x14" + text.encode(encoding) + b"\x14\0"}
    opened = open_file(put("a.edf", edf([sine("Cz"), stamps(range(10), events)], reserved="EDF+C")))
    assert [a.text for a in opened.annotations] == [text]


@pytest.mark.parametrize("name", ["edfio/test_subsecond.edf", "edfio/mne_test.edf", "edfio/mne_test.bdf"])
def test_annotations_of_real_files_equal_those_of_mne(eeg: Path, name: str) -> None:
    import mne

    expected = mne.io.read_raw(eeg / name, preload=False, verbose="ERROR").annotations
    found = open_file(eeg / name).annotations
    assert [a.text for a in found] == list(expected.description)
    assert np.allclose([a.onset_s for a in found], expected.onset)


@pytest.mark.parametrize(("date", "time", "known"), [("32.13.12", "00.00.00", False), ("01.02.99", "1:2:3", True)])
def test_a_clock_that_makes_no_sense_is_unknown(put: Put, date: str, time: str, known: bool) -> None:
    recording = open_file(put("a.edf", edf([sine("Cz")], date=date, time=time))).recording
    assert (recording.start_time is not None) == known
    assert any("clock" in warning for warning in recording.warnings) != known


# --- headers that are wrong ---


@pytest.mark.parametrize(("told", "records"), [("-1", 10), ("0", 10), ("4", 10), ("many", 10), ("20", 10)])
def test_the_size_of_the_file_says_how_many_records_there_are(put: Put, told: str, records: int) -> None:
    recording = open_file(put("a.edf", edf([sine("Cz")], records=told))).recording
    assert recording.duration_s == records
    assert recording.warnings


def test_a_record_of_zero_seconds_is_timed_by_its_stamps_or_taken_as_one(put: Put) -> None:
    stamped = edf([sine("Cz"), stamps([n / 2 for n in range(10)])], reserved="EDF+C", record_s="0")
    recording = open_file(put("a.edf", stamped)).recording
    assert (recording.duration_s, recording.channels[0].fs) == (5.0, 256.0)
    recording = open_file(put("b.edf", edf([sine("Cz")], record_s="0"))).recording
    assert (recording.duration_s, recording.channels[0].fs) == (10.0, 128.0)
    assert any("0 s" in warning for warning in recording.warnings)


def test_one_byte_too_many_at_the_end_is_harmless_and_in_the_header_is_seen(put: Put) -> None:
    signal = sine("Cz")
    data = edf([signal])
    for broken in (data + b"\0", data[:300] + b" " + data[300:]):
        recording = open_file(put("a.edf", broken)).recording
        assert np.allclose(recording.read(0, 10)[0], physical(signal), atol=1e-3)


def test_a_header_that_was_saved_as_utf_8_does_not_shift_the_data(put: Put) -> None:
    signals = [sine("Fp1"), sine("Cz")]
    for signal in signals:
        signal.unit = b"\xb5V"
    data = edf(signals)
    header, rest = data[:768], data[768:]
    recording = open_file(put("a.edf", header.decode("latin-1").encode("utf-8") + rest)).recording
    assert np.allclose(recording.read(0, 10), [physical(signal) for signal in signals], atol=1e-3)
    assert any("UTF-8" in warning for warning in recording.warnings)
    destroyed = data[1:].decode("utf-8", "replace").encode("utf-8")
    with pytest.raises(DataError, match="U\\+FFFD"):
        open_file(put("b.edf", data[:1] + destroyed))


@pytest.mark.parametrize("errors", ["replace", "latin-1"])
def test_data_that_were_saved_as_text_are_refused_though_the_header_is_whole(put: Put, errors: str) -> None:
    data = edf([sine("Cz")])
    text = data.decode("latin-1") if errors == "latin-1" else data.decode("utf-8", "replace")
    with pytest.raises(DataError, match="re-saved as text"):
        open_file(put("a.edf", text.encode("utf-8")))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "is empty"),
        (b"0       ", "holds 8 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer"),
        (b"../../.git/annex/objects/aa/bb/MD5E-s1--x.edf", "git-annex pointer"),
        (b"<!DOCTYPE html><html>" + b" " * 300, "web page"),
        (b"PK\x03\x04" + bytes(300), "ZIP"),
        (b"onset\tduration\n" * 40, "neither EDF nor BDF"),
        (edf([sine("Cz")])[:400], "ends within the header"),
        (edf([sine("Cz")])[:600], "no complete data record"),
        (edf([sine("ECG")]), "holds no EEG"),
        (edf([sine("Cz", samples=50)]), "sampled at 50 Hz; expected 64"),
        (edf([Sig("Cz", np.full((4, 128), 7))]), "flat"),
        (edf([sine("Cz")], record_s="-3"), "a record lasts '-3'"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_reason(put: Put, data: bytes, told: str) -> None:
    with pytest.raises(DataError, match=told):
        open_recording(put("a.edf", data))


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match=r"none\.edf: does not exist"):
        open_recording(tmp_path / "none.edf")


def test_a_flat_channel_is_dropped_and_one_that_is_flat_for_a_while_is_kept(put: Put) -> None:
    partly = sine("Fp1", records=40)
    partly.data[:39] = 12
    flat = Sig("Fp2", np.full((40, 128), 12))
    recording = open_file(put("a.edf", edf([sine("Cz", records=40), partly, flat]))).recording
    assert [channel.label for channel in recording.channels] == ["Cz", "Fp1"]
    assert any("flat: Fp2" in warning for warning in recording.warnings)
    assert np.isfinite(recording.read(0, 40)).all()


@pytest.mark.parametrize(("scale", "offset", "odd"), [("0.8", 0, True), ("800", 0, False), ("800", 20000, False)])
def test_a_wrong_unit_shows_in_the_spread_and_an_offset_does_not(
    put: Put, scale: str, offset: int, odd: bool
) -> None:
    signal = sine("Cz", amplitude=300)
    signal.data += offset
    signal.pmin, signal.pmax = f"-{scale}", scale
    signal.unit = "nV" if odd else "uV"
    recording = open_file(put("a.edf", edf([signal]))).recording
    assert any("unlikely amplitudes" in warning for warning in recording.warnings) == odd


def test_random_windows_leave_no_pages_behind(tmp_path: Path) -> None:
    noise = [
        Sig(f"F{n}", np.random.default_rng(n).integers(-3000, 3000, (1800, 512))) for n in (3, 4, 7, 8, 9, 10)
    ]
    (tmp_path / "a.edf").write_bytes(edf(noise))  # 11 MB
    recording = open_file(tmp_path / "a.edf").recording
    starts = np.random.default_rng(0).uniform(0, 1790, 300)
    recording.read(0.0, 10.0)
    before = resident()
    for start in starts:
        recording.read(start, 10.0)
    assert resident() - before < 4 << 20  # a memory map would keep nearly all of it


def resident() -> int:
    """Bytes of this process in memory, pages of files included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_control_characters_within_a_label_are_spaces(put: Put) -> None:
    recording = open_file(put("a.edf", edf([sine("EEG Fp1"), sine("EEG\0C3\x7f")]))).recording
    assert [channel.label for channel in recording.channels] == ["EEG Fp1", "EEG C3"]


def test_a_patients_name_is_nowhere_in_what_is_known(put: Put) -> None:
    from nipstool.eeg_pretrain.inspecting import document, row
    from nipstool.kit.records import to_json

    path = put("a.edf", edf([sine("Cz")], patient="MCH-0234567 F 02-MAY-1951 Haagse_Harry"))
    recording = open_recording(path)
    assert recording.text == {"age": "60", "sex": "f"}
    for told in (to_json(document(recording)), str(row(recording, path.name)), recording.subject):
        assert "Haagse" not in told
        assert "0234567" not in told
