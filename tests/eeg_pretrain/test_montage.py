"""Which channels are EEG and where their electrodes are, on the labels of real headers and on traps."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from nipstool.eeg_pretrain.edf_header import read_header
from nipstool.eeg_pretrain.montage import place_channels, read_label, sites
from nipstool.eeg_pretrain.opening import has_place, open_file
from nipstool.eeg_pretrain.recording import Channel

NOT_EEG = {  # of the 307 real headers
    *(
        "EKG EKG",
        "SPO2",
        "HR",
        "PLET",
        "MK",
        "1",
        "2",
        "3",
        "23",
        "31",
        "33",
        "61",
        "62",
        "63",
        "64",
        "A",
        "B",
        "C",
    ),
    *(
        "D",
        "ECG",
        "EEG EKG-LE",
        "EEG EKG1-REF",
        "EEG LOC-REF",
        "EEG ROC-REF",
        "EMG-REF",
        "PHOTIC-REF",
        "PHOTIC PH",
    ),
    *("IBI", "BURSTS", "SUPPR", *(f"DC{n}-DC" for n in range(1, 9))),
}
PLACED = {"chbmit": 22, "siena": 33, "tuh": 43, "seizeit": 19}  # distinct labels of 10-05 sites; T8-P8 comes twice


def channels(labels: Sequence[str], unit: str = "uV") -> dict[str, Channel]:
    """By label."""
    found = place_channels(labels, [unit] * len(labels), [256.0] * len(labels))
    return dict(zip(labels, found, strict=True))


@pytest.mark.realdata
@pytest.mark.parametrize("dataset", PLACED)
def test_labels_of_real_headers_are_placed_and_nothing_else_is_taken_for_eeg(eeg: Path, dataset: str) -> None:
    placed, kinds = set(), {}
    for path in sorted((eeg / "epilepsy2bids" / "data" / dataset).rglob("*.edf")):
        signals = [signal for signal in read_header(path).signals if not signal.is_annotation]
        found = place_channels([s.label for s in signals], [s.unit for s in signals], [256.0] * len(signals))
        placed |= {channel.label for channel in found if channel.kind == "eeg" and has_place(channel)}
        kinds |= {channel.label: channel.kind for channel in found}
    assert len(placed) == PLACED[dataset]
    assert {label for label, kind in kinds.items() if kind != "eeg"} == NOT_EEG & kinds.keys()


@pytest.mark.parametrize(
    ("label", "anode", "cathode"),
    [
        ("FP1-F7", "fp1", "f7"),
        ("T8-P8-0", "t8", "p8"),
        ("P7-T7", "p7", "t7"),
        ("EEG Fpz-Cz", "fpz", "cz"),
        ("EEG A2-A1", "a2", "a1"),
        ("C3/A2", "c3", "a2"),
    ],
)
def test_a_bipolar_label_has_two_places(label: str, anode: str, cathode: str) -> None:
    channel = channels([label])[label]
    assert (channel.anode, channel.cathode, channel.bipolar) == (sites()[anode], sites()[cathode], True)


@pytest.mark.parametrize(
    ("label", "site"),
    [
        *(("EEG Fp1", "fp1"), ("EEG FP1-REF", "fp1"), ("Fp1-Avg", "fp1"), ("POL Fp1", "fp1"), ("Fc5.", "fc5")),
        *(("EEG T3-LE", "t7"), ("T5", "p7"), ("Cz-AA", "cz"), ("EEG Fp2-Ref-0", "fp2"), ("F7-CS2", "f7")),
        *(("AFF5h", "aff5h"), ("EEG:Pz", "pz"), ("C4_AVG", "c4"), ("O2-M1M2", "o2")),
    ],
)
def test_a_unipolar_label_has_one_place(label: str, site: str) -> None:
    channel = channels([label])[label]
    assert channel.anode == pytest.approx(sites()[site], abs=1e-4)
    assert (channel.kind, channel.cathode, channel.bipolar) == ("eeg", None, False)


@pytest.mark.parametrize("label", ["EEG SP1-REF", "EEG T1-REF", "EEG 26-REF", "Sph1", "OorLiTop", "EEG Channel-1"])
def test_eeg_without_a_known_place_has_none(label: str) -> None:
    channel = channels([label])[label]
    assert (channel.kind, channel.anode, channel.cathode, channel.bipolar) == ("eeg", None, None, False)


@pytest.mark.parametrize(
    "label",
    [
        *(
            "CQ_AF3",
            "EQ_AF3",
            "POW_AF3_Theta",
            "EEG EOG-CPz",
            "EEG ECG",
            "VNS",
            "LOC-ROC",
            "SaO2",
            "Resp oro-nasal",
        ),
        *("EMG submental", "Temp rectal", "Event marker", "-", ".", "DC01", "Status", "II", "EXG1", "sine 8 Hz"),
    ],
)
def test_other_signals_are_no_eeg(label: str) -> None:
    assert channels([label])[label].kind != "eeg"


@pytest.mark.parametrize("unit", ["bpm", "%", "DegC", "Ohm", "dB"])
def test_a_site_in_a_unit_that_is_no_voltage_is_no_eeg(unit: str) -> None:
    assert channels(["Fp1"], unit)["Fp1"].kind == "other"


BIOSEMI = [f"{letter}{n}" for letter in "ABCD" for n in range(1, 33)]
EGI = [f"E{n}" for n in range(1, 129)]
DEPTH = ["C3", "F3", "LA1", "LA2", "H4", "H5"]
SHAFTS = [f"F{n}-F{n + 1}" for n in range(1, 10)]


@pytest.mark.parametrize(
    "labels", [BIOSEMI, [*BIOSEMI[:16], "Status"], EGI, DEPTH, SHAFTS, ["C1", "C2", "C3", "C8"]]
)
def test_names_of_caps_and_depth_electrodes_are_not_sites(labels: list[str]) -> None:
    found = channels(labels)
    assert not [label for label, channel in found.items() if channel.anode is not None]


def test_beside_a_depth_electrode_the_scalp_keeps_its_places() -> None:
    found = channels([*(f"C{n}" for n in range(1, 9)), "Fp1", "F3", "Cz", "Pz"])
    assert [label for label, channel in found.items() if channel.anode is not None] == ["Fp1", "F3", "Cz", "Pz"]


def test_ears_and_old_temporal_names_are_known_beside_the_rest() -> None:
    found = channels(["Fp1", "A1", "A2", "T3", "T4", "T5", "T6", "T1", "T2"])
    assert [label for label, channel in found.items() if channel.anode is None] == ["T1", "T2"]


def test_positions_that_the_file_gives_win() -> None:
    known = {"a1": (0.01, 0.02, 0.03), "cz": (0.0, 0.0, 0.11)}
    labels = ["A1", "A2", "A32", "Cz"]
    found = place_channels(labels, ["uV"] * 4, [256.0] * 4, known)
    assert [channel.anode for channel in found] == [known["a1"], None, None, known["cz"]]


@pytest.mark.realdata
def test_real_caps_have_no_places_and_avg_is_no_electrode(eeg: Path) -> None:
    cap = open_file(eeg / "edfio" / "mne_test.edf").recording
    assert not any(channel.anode for channel in cap.channels)
    unipolar = open_file(eeg / "szcore" / "bipolar.edf").recording
    assert not any(channel.bipolar for channel in unipolar.channels)
    assert all(channel.anode for channel in unipolar.channels)


def test_the_table_is_the_10_05_system_as_mne_has_it() -> None:
    import mne

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the montage is about to be renamed
        montage = mne.channels.make_standard_montage("standard_1005")
    expected = {name.lower(): xyz for name, xyz in montage.get_positions()["ch_pos"].items()}
    assert sites().keys() == expected.keys()
    assert max(np.abs(np.array(xyz) - expected[name]).max() for name, xyz in sites().items()) <= 5.1e-5
    left, right = sites()["f7"], sites()["f8"]
    assert left[0] < 0 < right[0]
    assert left[1] > 0 > sites()["o1"][1]


def test_a_label_is_read_the_same_whatever_its_case() -> None:
    for label in ("fp1-f7", "FP1-F7", "Fp1-F7"):
        place = read_label(label)
        assert (place.anode.lower(), place.cathode.lower()) == ("fp1", "f7")
