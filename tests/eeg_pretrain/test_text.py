"""What may be told about a person, and that no label ever is."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nipstool.eeg_pretrain.discover import open_recording
from nipstool.eeg_pretrain.text import FIELDS, find_text, prefix
from tests.eeg_pretrain.edf_bytes import edf, sine, stamps

Put = Callable[[str, bytes], Path]
ANSWER = "zanzibar"  # planted in each file that holds labels
EVENTS = "onset\tduration\teventType\tage\tmedication\tnote\n1\t2\tsz\t9\tzanzibar\tzanzibar\n"
LABEL_FILES = {
    "chb05-summary.txt": "Age: 9\nNote: zanzibar\nFile Name: chb05_01.edf\nNumber of Seizures in File: 0\n",
    "chb05_01.edf.seizures": ANSWER,
    "chb05_01_events.tsv": EVENTS,
    "chb05_01.seizures.tsv": EVENTS,
    "chb05_01.csv_bi": "# medication: zanzibar\nchannel,start_time,stop_time,label,confidence\n",
    "chb05_01.csv": "# note: zanzibar\nchannel,start_time,stop_time,label,confidence\n",
    "chb05_01_a1.tsv": "# Gender: zanzibar\n# Medication: zanzibar\n1\t2\tFIA\tzanzibar\n",
    "Seizures-list-chb05.txt": "Age: 9\nNote: zanzibar\n",
}


@pytest.mark.parametrize("name", LABEL_FILES)
def test_no_label_file_is_a_source_of_text(put: Put, name: str) -> None:
    put(name, LABEL_FILES[name].encode())
    put("SUBJECT-INFO", b"Case\tGender\tAge (years)\n\nchb05\tF\t 7\n")
    path = put("chb05_01.edf", edf([sine("Fp1-F7")]))
    assert find_text(path) == {"age": "7", "sex": "f"}


def test_annotations_do_not_enter_the_text(put: Put) -> None:
    events = {1: b"+1\x142 medication: zanzibar\x14\0", 2: b"+2\x151\x14seizure left temporal\x14\0"}
    path = put("a.edf", edf([sine("Cz"), stamps(range(10), events)], reserved="EDF+C"))
    assert open_recording(path).text == {}


def test_the_columns_of_a_table_that_tell_the_answer_stay_there(put: Put) -> None:
    put(
        "ds/participants.tsv",
        b"participant_id\tage\tsex\tseizure_count\tlocalisation\tdiagnosis\tmedication\n"
        b"sub-01\t33\tF\t12\tleft temporal\tfocal epilepsy\tlamotrigine\n",
    )
    path = put("ds/sub-01/eeg/sub-01_task-x_eeg.edf", edf([sine("Cz")]))
    assert open_recording(path).text == {"age": "33", "sex": "f", "medication": "lamotrigine"}


@pytest.mark.realdata
def test_siena_and_chb_tell_age_and_sex_alone(eeg: Path) -> None:
    folder = eeg / "epilepsy2bids" / "data"
    assert find_text(folder / "siena" / "PN00" / "PN00-1.edf") == {"age": "55", "sex": "m"}
    assert find_text(folder / "chbmit" / "chb05" / "chb05_06.edf") == {"age": "7", "sex": "f"}
    assert find_text(folder / "seizeit" / "P_ID64" / "P_ID64_r3.edf") == {}


def test_a_report_gives_only_what_was_known_before(put: Put) -> None:
    put(
        "a.txt",
        b"CLINICAL HISTORY: zanzibar\nMEDICATIONS: Keppra 500 mg. Three seizures in April.\n"
        b"DESCRIPTION OF THE RECORD: zanzibar\nIMPRESSION: zanzibar, frequent spikes\n"
        b"Indication: syncope\n",
    )
    assert find_text(put("a.edf", b"")) == {"medication": "Keppra 500 mg.", "indication": "syncope"}


@pytest.mark.parametrize(
    "sentence",
    [
        *(
            "Seizure at 3:40.",
            "12 Anfälle.",
            "Focal onset.",
            "Left mesial sclerosis.",
            "Spikes over T3.",
            "Sz x2.",
        ),
        *("Epileptiform discharges.", "IAS type.", "Tonic posturing.", "Had a fit.", "Impression: abnormal."),
    ],
)
def test_sentences_that_tell_the_answer_are_left_out_of_notes(put: Put, sentence: str) -> None:
    put("a.txt", f"Slept badly. {sentence} Drank coffee.".encode())
    put("a.json", json.dumps({"indication": f"Fatigue. {sentence}", "seizures": 4, "Diagnosis": ANSWER}).encode())
    found = find_text(put("a.edf", b""))
    assert found["indication"] == "Fatigue."
    if ":" not in sentence:
        assert found["note"] == "Slept badly. Drank coffee."


def test_what_is_no_age_or_sex_is_not_told(put: Put) -> None:
    put("a.json", json.dumps({"age": "n/a", "sex": "zanzibar", "medication": ["x"], "note": None}).encode())
    assert find_text(put("a.edf", b"")) == {}


def test_the_prefix_has_the_fields_in_one_order() -> None:
    given = {field: field.upper() for field in reversed(FIELDS)}
    expected = "age: AGE; sex: SEX; medication: MEDICATION; indication: INDICATION; note: NOTE"
    assert prefix(given | {"seizures": ANSWER}) == expected
