"""Seizure labels in every form: real ones against what epilepsy2bids reads, and made ones with traps."""

import ast
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nipstool.eeg_pretrain.discover import find, open_recording
from nipstool.eeg_pretrain.labels import Labels, find_labels
from nipstool.eeg_pretrain.recording import Seizure
from nipstool.kit.errors import DataError
from tests.eeg_pretrain.edf_bytes import edf, sine, stamps

Put = Callable[[str, bytes], Path]


def told(labels: Labels | None) -> list[tuple[float, float]]:
    """Onsets and lengths."""
    assert labels is not None
    return [(s.onset_s, round(s.offset_s - s.onset_s, 6)) for s in labels.seizures]


@pytest.mark.realdata
def test_real_annotation_files_are_read_as_epilepsy2bids_reads_them(eeg: Path) -> None:
    folder = eeg / "epilepsy2bids"
    paths = {path.name: path for path in (folder / "data").rglob("*.edf")}
    expected = {}
    for line in (folder / "expected_seizures.txt").read_text().splitlines():
        name, _, seizures = line.partition(" ")
        expected[name] = ast.literal_eval(seizures)
    found = {}
    for name in expected:
        labels = find_labels(paths[name], 256.0)
        assert labels is not None
        found[name] = [(s.onset_s, round(s.offset_s - s.onset_s, 2), s.kind) for s in labels.seizures]
    assert len(found) == 33
    assert found == expected


@pytest.mark.realdata
def test_a_listed_recording_without_seizures_is_labelled_and_has_none(eeg: Path) -> None:
    labels = find_labels(eeg / "epilepsy2bids" / "data" / "chbmit" / "chb05" / "chb05_01.edf", 256.0)
    assert labels is not None
    assert labels.seizures == ()


CHB = """File Name: chb12_27.edf
File Start Time: 23:30:00
File End Time: 24:30:00
Number of Seizures in File: 2
Seizure 1 Start Time: 916 seconds
Seizure 1 End Time: 951 seconds
Seizure 2 Start Time:              1097 seconds
Seizure 2 End Time: {end} seconds

File Name: chb12_28.edf
Number of Seizures in File: 0
"""


def test_a_chb_summary_lists_each_file_on_its_own(put: Put) -> None:
    put("chb12-summary.txt", CHB.format(end=1124).encode())
    assert told(find_labels(put("chb12_27.edf", b""), 256.0)) == [(916, 35), (1097, 27)]
    assert told(find_labels(put("chb12_28.edf", b""), 256.0)) == []
    assert find_labels(put("chb12_29.edf", b""), 256.0) is None


def test_an_end_before_its_start_is_an_error_with_its_line(put: Put) -> None:
    put("chb12-summary.txt", CHB.format(end=1096).encode())
    path = put("chb12_27.edf", edf([sine("Fp1-F7")]))
    with pytest.raises(
        DataError, match=r"chb12-summary\.txt:8: a seizure ends at 1096 s, before its start at 1097 s"
    ):
        find_labels(path, 256.0)
    problems = find([path]).problems
    assert len(problems) == 1
    assert ":8: " in problems[0].reason


SIENA = """PN06
Seizure n 1
File name: PNO6-1.edf
Registration start time: 04.21.22
Registration end time: 07.26.33
Seizure start time: 05.54.25
Seizure end time: 05.55.29

Seizure n 2
File name: PN06-2.edf
Registration start time:2 3.50.10
Seizure start time: 00:10:10
Seizure end time:00:11:10

Seizure n 3
Seizure start time: 01.10.10
Seizure end time: 02.10.40
"""


def test_siena_lists_are_read_through_their_typing_errors(put: Put) -> None:
    put("Seizures-list-PN06.txt", SIENA.encode())
    assert told(find_labels(put("PN06-1.edf", b""), 512.0)) == [(5583, 64)]
    assert told(find_labels(put("PN06-2.edf", b""), 512.0)) == [(1200, 60), (4800, 30)]
    assert find_labels(put("PN06-3.edf", b""), 512.0) is None


@pytest.mark.parametrize("listed", ["PN11-.edf", "PN11.edf", "PN11-1.edf", "pn11-1.EDF"])
def test_a_siena_file_that_is_named_in_part_is_the_first(put: Put, listed: str) -> None:
    text = SIENA.replace("PNO6-1.edf", listed).replace("PN06-2", "PN11-2")
    put("Seizures-list-PN11.txt", text.encode())
    assert told(find_labels(put("PN11-1.edf", b""), 512.0)) == [(5583, 64)]


BIDS = "onset\tduration\teventType\tconfidence\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BIDS + "0.0\t3600\tbckg\tn/a\n", []),
        (BIDS + "10.5\t20\tsz_foc_ia\t1\n100\t5\timpd\t1\n", [(10.5, 20)]),
        (BIDS + "n/a\t20\tsz\t1\nnan\t3\tsz\t1\n30\t2\tsz\t1\n", [(30, 2)]),
        ("\ufeff" + BIDS.replace("\n", "\r\n") + "30\t2\tsz\t1\r\n\r\n", [(30, 2)]),
        ("onset\tduration\ttrial_type\n5\t0\tseizure_start\n25\t0\tseizure_end\n", [(5, 20)]),
        ("onset\tduration\ttrial_type\n5\tn/a\tseizure\n25\tn/a\tseizure\n", [(5, 20)]),
        (
            "onset\tduration\ttrial_type\tchannel\n5\t10\tsz\tFp1\n8\t10\tsz\tFp2\n40\t1\tsz\tCz\n",
            [(5, 13), (40, 1)],
        ),
        ("start,end,label\n5,15,seiz\n20,30,bckg\n", [(5, 10)]),
        ("onset\tduration\teventType\n-3\t5\tsz\n", [(-3, 5)]),
        ("onset\tduration\ttrial_type\n3\t5\tpost-ictal\n9\t5\tno seizure\n", []),
    ],
)
def test_tables_of_events_are_read_in_all_their_forms(
    put: Put, text: str, expected: list[tuple[float, float]]
) -> None:
    put("sub-01_task-x_events.tsv", text.encode())
    assert told(find_labels(put("sub-01_task-x_eeg.edf", b""), 256.0)) == expected


def test_two_marks_far_apart_are_not_one_seizure(put: Put) -> None:
    put("a_events.tsv", b"onset\tduration\ttrial_type\n5\t0\tseizure 1\n4000\t0\tseizure 2\n9000\t0\tseizure 2\n")
    labels = find_labels(put("a_eeg.edf", b""), 256.0)
    assert told(labels) == []
    assert labels is not None
    assert len(labels.warnings) == 3


@pytest.mark.parametrize("columns", ["onset\tduration\tstage", "onset\tduration"])
def test_a_table_that_does_not_say_what_its_rows_are_is_no_list_of_seizures(put: Put, columns: str) -> None:
    put("a.tsv", f"{columns}\n5\t30\n".encode())
    assert find_labels(put("a.edf", b""), 256.0) is None


def test_events_of_an_experiment_are_no_labels(put: Put) -> None:
    put("a_events.tsv", b"onset\tduration\ttrial_type\n5\t1\ttarget\n")
    assert find_labels(put("a_eeg.edf", b""), 256.0) is None


def test_a_table_names_the_line_of_a_seizure_that_runs_backwards(put: Put) -> None:
    put("a_events.tsv", (BIDS + "1\t2\tsz\t1\n9\t-4\tsz\t1\n").encode())
    with pytest.raises(DataError, match=r"a_events\.tsv:3: a seizure ends at 5 s, before its start at 9 s"):
        find_labels(put("a_eeg.edf", b""), 256.0)


TUSZ_HEAD = "channel,start_time,stop_time,label,confidence\n"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("chb12_27_events.tsv", BIDS + "abc\t5\tsz\t1\n", "2: onset 'abc'; expected seconds"),
        ("chb12_27_events.tsv", BIDS + "1\t2\tsz\t1\n\t5\tsz\t1\n", "3: onset ''; expected seconds"),
        ("chb12_27_events.tsv", BIDS + "4\tlong\tsz\t1\n", "2: duration 'long'; expected seconds"),
        ("chb12_27_events.tsv", BIDS + "4\t\tsz\t1\n", "2: duration ''; expected seconds"),
        ("chb12_27_events.tsv", BIDS + "4\tinf\tsz\t1\n", "2: duration 'inf'; expected seconds"),
        ("chb12_27.seizures.tsv", "onset\tduration\n4\n", "2: duration ''; expected seconds"),
        ("chb12_27.tsv", "start,end,label\n5,late,seiz\n", "2: end 'late'; expected seconds"),
        ("chb12_27.csv_bi", TUSZ_HEAD + "TERM,1,2,bckg,1\nTERM,n/a,9,seiz,1\n", "3: start_time 'n/a'; expected"),
        ("chb12_27.csv", TUSZ_HEAD + "F7-T3,1,x,fnsz,1\n", "2: stop_time 'x'; expected seconds"),
        ("chb12_27_a1.tsv", "# x\n100\tsoon\tFIA\n", "2: end 'soon'; expected seconds"),
        ("chb12_27_a1.tsv", "# x\nabc\tx\tFA\n", "2: start 'abc'; expected seconds"),
        ("chb12_27_a1.tsv", "start\tend\n1\t2\tFA\nabc\tx\tFA\n", "3: start 'abc'; expected seconds"),
        ("chb12-summary.txt", CHB.format(end="abc"), "8: end 'abc seconds'; expected seconds"),
        (
            "chb12-summary.txt",
            "".join(CHB.format(end=1).splitlines(keepends=True)[:5]),
            " the seizure that starts at 916 s has no end",
        ),
        (
            "Seizures-list-chb12.txt",
            SIENA.replace("PNO6-1", "chb12_27-1").replace("05.54.25", "early"),
            "7: a seizure without a clock time",
        ),
    ],
)
def test_a_time_that_cannot_be_read_is_an_error_with_its_line(put: Put, name: str, text: str, told: str) -> None:
    listed = put(name, text.encode())
    path = put("chb12_27-1.edf" if name.startswith("Seizures") else "chb12_27.edf", edf([sine("Fp1-F7")]))
    found = find([path])
    assert found.recordings == []
    assert found.problems[0].reason.startswith(f"{listed}:{told}")


def test_rows_of_other_things_may_have_any_time(put: Put) -> None:
    put("a_events.tsv", (BIDS + "abc\tlong\tbckg\t1\n\t\timpd\t1\n3\t4\tsz\t1\n").encode())
    assert told(find_labels(put("a_eeg.edf", b""), 256.0)) == [(3, 4)]


@pytest.mark.parametrize(
    ("row", "remark"),
    [
        ("4\tn/a\tsz\t1\n", "a seizure starts at 4 s without an end"),
        ("n/a\t4\tsz\t1\n", "a_events.tsv:2: a seizure without an onset is left out"),
    ],
)
def test_a_seizure_at_an_unknown_time_does_not_make_a_recording_free_of_seizures(
    put: Put, row: str, remark: str
) -> None:
    put("a_events.tsv", (BIDS + row).encode())
    path = put("a_eeg.edf", edf([sine("Cz")]))
    recording = open_recording(path)
    assert (recording.labelled, recording.seizures) == (False, ())
    assert remark in recording.warnings
    put("a_events.tsv", (BIDS + row + "6\t1\tsz\t1\n").encode())
    recording = open_recording(path)
    assert recording.labelled
    assert [(s.onset_s, s.offset_s) for s in recording.seizures] == [(6, 7)]


@pytest.mark.parametrize("name", ["chb01_03_events.tsv", "chb01_03_a1.tsv", "chb01_03.edf.seizures"])
def test_an_empty_label_file_is_told_of_and_labels_nothing(put: Put, name: str) -> None:
    put(name, b"")
    recording = open_recording(put("chb01_03.edf", edf([sine("Cz")])))
    assert not recording.labelled
    assert f"{name}: is empty; expected seizures" in recording.warnings


def test_tusz_channels_are_merged_and_background_is_none(put: Put) -> None:
    rows = "# version = csv_v1.0.0\n#\nchannel,start_time,stop_time,label,confidence\n"
    rows += "FP1-F7,10.0,20.0,fnsz,1.0\nF7-T3,12.5,31.25,fnsz,1.0\nF7-T3,40,50,bckg,1.0\nO1-P3,60,61,elec,1\n"
    put("aaaaaaaa_s001_t000.csv", rows.encode())
    assert told(find_labels(put("aaaaaaaa_s001_t000.edf", b""), 256.0)) == [(10, 21.25)]


@pytest.mark.parametrize("rate", [None, 128])
def test_seizures_files_are_read_as_wfdb_writes_them(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int | None
) -> None:
    wfdb = pytest.importorskip("wfdb")
    monkeypatch.chdir(tmp_path)
    samples = np.array([1000, 3560, 400_000, 460_000, 90_000_000, 90_000_256])
    wfdb.wrann("chb01_03", "seizures", samples, symbol=["[", "]"] * 3, fs=rate)
    (tmp_path / "chb01_03.seizures").rename(tmp_path / "chb01_03.edf.seizures")
    labels = find_labels(put("chb01_03.edf", b""), 256.0)
    fs = rate or 256
    expected = [(a / fs, (b - a) / fs) for a, b in samples.reshape(3, 2)]
    assert told(labels) == [(a, round(b, 6)) for a, b in expected]


def test_annotations_within_the_file_count_where_nothing_lies_beside_it(put: Put) -> None:
    events = {2: b"+2.5\x143 Seizure onset\x14\0", 5: b"+5.5\x14seizure END\x14\0+5.75\x14eyes open\x14\0"}
    path = put("a.edf", edf([sine("Cz"), stamps(range(10), events)], reserved="EDF+C"))
    recording = open_recording(path)
    assert [(s.onset_s, s.offset_s) for s in recording.seizures] == [(2.5, 5.5)]
    put("a.seizures.tsv", b"onset\tduration\n1\t2\n")
    assert [(s.onset_s, s.offset_s) for s in open_recording(path).seizures] == [(1, 3)]


def test_labels_past_the_end_are_cut_with_a_warning(put: Put) -> None:
    put("a_events.tsv", (BIDS + "8\t20\tsz\t1\n50\t5\tsz\t1\n-2\t3\tsz\t1\n").encode())
    recording = open_recording(put("a_eeg.edf", edf([sine("Cz")])))
    assert [(s.onset_s, s.offset_s) for s in recording.seizures] == [(0, 1), (8, 10)]
    assert sum("is cut to" in warning for warning in recording.warnings) == 2
    assert sum("lies outside" in warning for warning in recording.warnings) == 1


TUSZ = "# v\nchannel,start_time,stop_time,label,confidence\nTERM,10.0,20.0,seiz,1.0\nTERM,30,40,bckg,1.0\n"
SEIZEIT = "# Source: x\n\n100\t130\tFIA\tHem:L\n400\tNone\tFA\tHem:R\n"
FILES = {
    "chb12-summary.txt": CHB.format(end=1124),
    "Seizures-list-chb12.txt": SIENA.replace("PNO6-1", "chb12_27"),
    "chb12_27_events.tsv": BIDS + "10.5\t20\tsz_foc_ia\t1\n40\t5\tsz\t1\n",
    "chb12_27.csv_bi": TUSZ,
    "chb12_27_a1.tsv": SEIZEIT,
    "chb12_27.edf.seizures": "\x01\x58\x00\xec\x20\x00\x10\x27\x00\x80\x64\x84\x00\x00",
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_label_files_give_labels_or_one_line(put: Put, name: str) -> None:
    rng, whole = random.Random(0), FILES[name].encode("latin-1")
    path = put("chb12_27.edf", b"")
    outcomes: list[Seizure] = []
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 3, 10])):
            place = rng.randrange(len(data))
            data[place : place + rng.choice([0, 1, 1, 8])] = bytes(
                rng.choice(b"\0\t\n:.-9Zn\xff\x94") for _ in "x"
            )
        put(name, bytes(data))
        seizures, problem = outcome(path)
        assert "\n" not in problem
        assert not problem or name in problem
        outcomes += seizures
    assert all(np.isfinite([s.onset_s, s.offset_s]).all() and s.onset_s <= s.offset_s for s in outcomes)


def outcome(path: Path) -> tuple[list[Seizure], str]:
    """Seizures, or the one line of why not. Anything else that is raised is a bug."""
    try:
        labels = find_labels(path, 256.0)
    except DataError as error:
        return [], str(error)
    return (list(labels.seizures) if labels is not None else []), ""
