"""Event files of SzCORE: written, read back, matched with recordings or with reference files, and judged."""

import importlib
import json
import math
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nipstool.eeg_pretrain.predictions import match, read_predictions, references, stem_of
from nipstool.eeg_pretrain.szcore import Event, EventFile, read_file, to_text
from nipstool.kit.errors import DataError, InputMissingError
from tests.eeg_pretrain.edf_bytes import Sig, edf

app = importlib.import_module("nipstool.commands.eeg_pretrain").app  # found by name, as the command line does
Put = Callable[[str, bytes], Path]
HEADER = "onset\tduration\teventType\tconfidence\tchannels\tdateTime\trecordingDuration\n"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    found = EventFile((Event(12.0, 40.25, 0.875), Event(100.5, 130.0)), 3600.0, datetime(2026, 1, 2, 3, 4, 5))
    path = tmp_path / "sub-01_events.tsv"
    path.write_text(to_text(found))
    back = read_file(path)
    assert (back.duration_s, back.start_time) == (3600.0, found.start_time)
    assert [(e.onset_s, e.offset_s, e.kind) for e in back.events] == [(12.0, 40.25, "sz"), (100.5, 130.0, "sz")]
    assert back.events[0].confidence == 0.875
    assert math.isnan(back.events[1].confidence)


def test_a_recording_without_events_has_a_line_of_background(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(to_text(EventFile((), 60.0)))
    lines = (tmp_path / "a.tsv").read_text().splitlines()
    assert lines == [HEADER.strip(), "0.00\t60.00\tbckg\tn/a\tn/a\tn/a\t60.00"]
    assert read_file(tmp_path / "a.tsv") == EventFile((), 60.0, None)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("5\tn/a\tsz\t1\n", r":2: a seizure without a duration"),
        ("5\t-2\tsz\t1\n", r":2: a seizure ends at 3 s, before its start at 5 s"),
        ("1\t1\tsz\t1\n5\t2\tsz\t1.5\n", r":3: a confidence of 1\.5"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(put: Put, rows: str, told: str) -> None:
    with pytest.raises(DataError, match=told):
        read_file(put("a.tsv", f"onset\tduration\teventType\tconfidence\n{rows}".encode()))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("1e308\t30\tsz\t1\tn/a\tn/a\t3600", "onset '1e308'; expected seconds"),
        ("5\t99999999999999999999\tsz\t1\tn/a\tn/a\t3600", "expected seconds"),
        ("4000\t30\tsz\t1\tn/a\tn/a\t3600", "a seizure at 4000 s, the recording has 3600 s"),
        ("5\t30\tsz\t1\tn/a\tn/a\t2147483648", r"a recordingDuration of 2\.14748e\+09 s; expected at most 1e\+08"),
    ],
)
def test_times_beyond_the_recording_or_any_are_told_and_never_scored(put: Put, row: str, told: str) -> None:
    known, found, _ = references([put("ref/a.tsv", f"{HEADER}{row}\n".encode())])
    assert not known
    (problem,) = found.problems
    assert re.search(told, problem.reason)


def test_a_seizure_that_outlasts_the_recording_ends_with_it(put: Put) -> None:
    row = "3500\t2147483648\tsz\t1\tn/a\tn/a\t3600"
    known, _, _ = references([put("ref/a.tsv", f"{HEADER}{row}\n".encode())])
    assert [(s.onset_s, s.offset_s) for s in known[0].seizures] == [(3500.0, 3600.0)]


@pytest.mark.parametrize(
    ("recording", "events"),
    [
        ("sub-01_ses-02_task-sz_run-00_eeg.edf", "sub-01_ses-02_task-sz_run-00_events.tsv"),
        ("chb01_03.edf", "chb01_03.tsv"),
        ("PN10-7.8.9.edf", "PN10-7.8.9_events.tsv"),
    ],
)
def test_an_event_file_is_named_like_its_recording(recording: str, events: str) -> None:
    assert stem_of(Path(recording)) == stem_of(Path(events))


def test_two_files_about_one_recording_and_none_at_all_are_refused(put: Put, tmp_path: Path) -> None:
    put("p/a.tsv", HEADER.encode())
    put("p/x/a_events.tsv", HEADER.encode())
    with pytest.raises(DataError, match="the same recording"):
        read_predictions(tmp_path / "p")
    with pytest.raises(InputMissingError, match="does not exist"):
        read_predictions(tmp_path / "q")
    (tmp_path / "e").mkdir()
    with pytest.raises(InputMissingError, match="no event files"):
        read_predictions(tmp_path / "e")


def rows(*events: tuple[float, float, float], duration: float = 3600.0) -> bytes:
    """An event file of onset, duration and confidence."""
    lines = [f"{a}\t{d}\tsz\t{c}\tn/a\tn/a\t{duration}\n" for a, d, c in events]
    return (HEADER + "".join(lines or [f"0\t{duration}\tbckg\tn/a\tn/a\tn/a\t{duration}\n"])).encode()


@pytest.fixture
def event_files(put: Put, tmp_path: Path) -> Path:
    """Reference and hypothesis of three recordings of two people, without signals; one prediction is missing."""
    put("ref/sub-a_run-0_events.tsv", rows((600, 60, 1)))
    put("ref/sub-a_run-1_events.tsv", rows())
    put("ref/sub-b_run-0_events.tsv", rows((1000, 30, 1)))
    put("ref/sub-b_run-1_events.tsv", rows((1000, 30, 1)))
    put("hyp/sub-a_run-0_events.tsv", rows((575, 5, 0.9), (2000, 10, 0.4)))
    put("hyp/sub-a_run-1_events.tsv", rows())
    put("hyp/sub-b_run-0_events.tsv", rows((1010, 100, 0.8)))
    put("hyp/sub-c_run-0_events.tsv", rows((1, 1, 1)))
    return tmp_path


def test_event_files_alone_are_enough(event_files: Path) -> None:
    known, _, _ = references([event_files / "ref"])
    matched = match(read_predictions(event_files / "hyp"), known)
    assert [(one.name, one.subject) for one in matched.judged] == [
        ("sub-a_run-0", "sub-a"),
        ("sub-a_run-1", "sub-a"),
        ("sub-b_run-0", "sub-b"),
    ]
    assert matched.missing == ["sub-b_run-1"]
    assert [path.name for path in matched.unused] == ["sub-c_run-0_events.tsv"]


def test_evaluate_prints_the_numbers_of_szcore(event_files: Path) -> None:
    done = CliRunner().invoke(app, ["evaluate", str(event_files / "hyp"), str(event_files / "ref"), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["recordings"], "research only" in document["note"]) == (3, True)
    pooled = document["detectors"]["predictions"]["events"]["pooled"]
    assert (pooled["tp"], pooled["fp"], pooled["ref"]) == (2, 1, 2)
    assert pooled["fp_per_day"] == pytest.approx(8.0)
    mean = document["detectors"]["predictions"]["events"]["mean"]
    assert mean["fp_per_day"] == pytest.approx((12 + 0) / 2)
    assert mean["f1"] == pytest.approx((2 / 3 + 1) / 2)


@pytest.mark.parametrize("protocol", ["neuroatlas", "windows"])
def test_other_protocols_score_windows_by_confidence(event_files: Path, protocol: str) -> None:
    arguments = ["evaluate", str(event_files / "hyp"), str(event_files / "ref"), "--protocol", protocol, "--json"]
    found = json.loads(CliRunner().invoke(app, arguments).stdout)["detectors"]["predictions"]
    if protocol == "windows":
        # 7 of 9 seizure windows have score 0 and 2 have 0.8; so have 1061 and 8 of 1071 others, one 0.4, one 0.9
        assert (found["windows"], found["positive"]) == (1080, 9)
        assert found["auroc"] == pytest.approx((2 * (1061 + 1 + 8 / 2) + 7 * 1061 / 2) / (9 * 1071))
    else:
        assert 0 <= found["event_sens_fa"] <= 1


def tone(rng: np.random.Generator, start: int, stop: int, seconds: int = 900) -> Sig:
    """Noise, and a loud slow rhythm between two seconds."""
    t = np.arange(seconds * 128) / 128
    values = 300 * rng.standard_normal(len(t)) + np.where((t >= start) & (t < stop), 6000, 0) * np.sin(
        6 * np.pi * t
    )
    return Sig("Cz", values.clip(-32000, 32000).round().astype(np.int32).reshape(seconds, 128))


def test_line_length_and_power_stand_beside_predictions_where_there_are_signals(put: Put, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for subject, onset in (("a", 300), ("b", 500), ("c", 600)):
        put(f"d/sub-{subject}_eeg.edf", edf([tone(rng, onset, onset + 60)]))
        put(f"d/sub-{subject}_events.tsv", rows((onset, 60, 1), duration=900))
        put(f"p/sub-{subject}_events.tsv", rows(duration=900))
    put("d/sub-d_eeg.edf", edf([tone(rng, 0, 0)]))
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "p"), str(tmp_path / "d"), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["detectors"]
    assert list(found) == ["predictions", "line length", "power"]
    f1 = {name: numbers["events"]["pooled"]["f1"] for name, numbers in found.items()}
    assert f1["predictions"] == 0.0
    assert f1["power"] == 1.0


def test_inspect_shows_a_line_a_file_and_a_document(put: Put, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    put("d/chb21_01.edf", edf([tone(rng, 0, 0, 20)]))
    put("d/broken.edf", b"hello")
    table = CliRunner().invoke(app, ["inspect", str(tmp_path / "d")])
    assert table.exit_code == 0
    lines = table.stdout.splitlines()
    assert len(lines) == 3
    assert lines[1].split("\t")[:9] == ["chb21_01.edf", "edf", "1", "1", "128", "unipolar", "-", "0:00:20", "1"]
    assert lines[2].split("\t")[:2] == ["broken.edf", "no"]
    document = json.loads(CliRunner().invoke(app, ["inspect", str(tmp_path / "d"), "--json"]).stdout)
    good, bad = document["files"]
    assert (good["subject"], good["placed"], good["channels"][0]["anode"] is not None) == ("chb01", 1, True)
    assert (bad["read"], "holds 5 bytes" in bad["reason"]) == (False, True)
    strict = CliRunner().invoke(app, ["inspect", str(tmp_path / "d"), "--strict"])
    assert isinstance(strict.exception, DataError)
