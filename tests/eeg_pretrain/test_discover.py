"""From names to recordings: folders, subjects, positions beside the file, and what is said of the rest."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nipstool.eeg_pretrain.discover import failure, find, open_recording, subject_of
from nipstool.eeg_pretrain.inspecting import shown_names
from nipstool.kit.errors import DataError, InputMissingError
from tests.eeg_pretrain.edf_bytes import edf, sine

Put = Callable[[str, bytes], Path]


def test_folders_are_looked_through_and_each_file_comes_once(put: Put, tmp_path: Path) -> None:
    for name in ("b/2.edf", "b/1.EDF", "a/deep/3.bdf", ".git/4.edf", "a/notes.txt"):
        put(name, edf([sine("Cz")], bdf=name.endswith("bdf")))
    named = tmp_path / "b" / "2.edf"
    found = find([named, tmp_path, tmp_path / "b" / ".." / "b" / "1.EDF"])
    assert [recording.path.name for recording in found.recordings] == ["2.edf", "1.EDF", "3.bdf"]
    assert found.problems == []


def test_named_files_fail_and_walked_ones_warn(put: Put, tmp_path: Path) -> None:
    good, bad = put("d/good.edf", edf([sine("Cz")])), put("d/bad.edf", b"")
    folder = tmp_path / "d"
    assert failure(find([folder]), [folder]) is None
    strict = failure(find([folder]), [folder], strict=True)
    assert isinstance(strict, DataError)
    assert str(strict) == f"{bad}: is empty; expected EDF or BDF"
    assert isinstance(failure(find([good, bad]), [good, bad]), DataError)
    absent = tmp_path / "absent.edf"
    assert isinstance(failure(find([good, absent]), [good, absent]), InputMissingError)
    both = failure(find([bad, absent]), [bad, absent])
    assert isinstance(both, DataError)
    assert "2 of 2 files" in str(both)


def test_derivatives_and_sources_of_a_data_set_are_left_alone_unless_named(put: Put, tmp_path: Path) -> None:
    data = edf([sine("Cz")])
    for name in ("raw", "derivatives/clean", "sourcedata/old", "sets/a/sourcedata/x", "sets/b/derivatives/y"):
        put(f"d/{name}.edf", data)
    put("d/sets/a/dataset_description.json", b"{}")
    folder = tmp_path / "d"
    found = find([folder])
    assert [one.path.stem for one in found.recordings] == ["raw", "y"]
    assert set(found.skipped) == {folder / "derivatives", folder / "sourcedata", folder / "sets/a/sourcedata"}
    assert [one.path.stem for one in find([folder / "derivatives"]).recordings] == ["clean"]
    both = find([folder, folder / "sourcedata"])
    assert [one.path.stem for one in both.recordings] == ["raw", "y", "old"]
    assert folder / "sourcedata" not in both.skipped


def test_equal_names_are_told_apart_by_their_folders() -> None:
    paths = [Path(name) for name in ("d/a/x.edf", "d/b/x.edf", "d/b/y.edf", "e/b/x.edf", "-")]
    assert shown_names(paths[:3], ["d"]) == ["a/x.edf", "b/x.edf", "y.edf"]
    assert shown_names(paths, ["d/", "e", "-"]) == ["a/x.edf", "d/b/x.edf", "y.edf", "e/b/x.edf", "-"]
    assert shown_names(paths[:2], ["d/a", "d/b/x.edf"]) == ["x.edf", "d/b/x.edf"]


def test_inspect_tells_of_folders_it_leaves_alone_once(put: Put, tmp_path: Path) -> None:
    for name in ("a/x", "b/x", "derivatives/x", "derivatives/y"):
        put(f"d/{name}.edf", edf([sine("Cz")]))
    words = [sys.executable, "-m", "nipstool", "eeg-pretrain", "inspect", "d"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()[1:]] == ["a/x.edf", "b/x.edf"]
    assert done.stderr.count("d/derivatives: is not read") == 1


def test_with_nothing_left_there_is_always_a_reason(put: Put, tmp_path: Path) -> None:
    put("d/bad.edf", b"hello")
    assert isinstance(failure(find([tmp_path / "d"]), [tmp_path / "d"]), DataError)
    (tmp_path / "empty").mkdir()
    assert isinstance(failure(find([tmp_path / "empty"]), [tmp_path / "empty"]), InputMissingError)


@pytest.mark.parametrize(
    ("path", "subject"),
    [
        *(("chb01/chb01_03.edf", "chb01"), ("chb21/chb21_03.edf", "chb01"), ("chb17/chb17a_03.edf", "chb17")),
        *(("PN10/PN10-7.8.9.edf", "PN10"), ("x/aaaaaool_s004_t001.edf", "aaaaaool"), ("P_ID64_r1.edf", "P_ID64")),
        *(("sub-007/ses-01/eeg/sub-007_ses-01_task-sz_eeg.edf", "sub-007"), ("monday.edf", "monday")),
    ],
)
def test_whose_recording_it_is(path: str, subject: str) -> None:
    assert subject_of(Path(path)) == subject


def test_the_patient_field_tells_one_person_from_another(put: Put) -> None:
    same = [put(f"{n}.edf", edf([sine("Cz")], patient="17 F 02-MAY-1951 X")) for n in range(2)]
    other = put("2.edf", edf([sine("Cz")], patient="18 F 02-MAY-1951 X"))
    subjects = [open_recording(path).subject for path in (*same, other)]
    assert subjects[0] == subjects[1] != subjects[2]


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e3])
def test_positions_of_bids_win_over_the_table_in_any_unit(put: Put, scale: float) -> None:
    rows = "".join(
        f"{name}\t{x * scale}\t{y * scale}\t{z * scale}\n" for name, x, y, z in (("A1", 0.01, 0.05, 0.08),)
    )
    put("sub-01_electrodes.tsv", f"name\tx\ty\tz\n{rows}A2\tn/a\tn/a\tn/a\n".encode())
    path = put("sub-01_task-x_eeg.edf", edf([sine("A1"), sine("A2"), sine("A17")]))
    recording = open_recording(path)
    assert recording.channels[0].anode == pytest.approx((0.01, 0.05, 0.08))
    assert [channel.anode for channel in recording.channels[1:]] == [None, None]


def test_edf_needs_neither_torch_nor_mne(put: Put) -> None:
    path = put("a.edf", edf([sine("Cz")]))
    code = (
        "import sys; from nipstool.commands.eeg_pretrain import app; from typer.testing import CliRunner;"
        f"out = CliRunner().invoke(app, ['inspect', {str(path)!r}]); assert out.exit_code == 0, out.output;"
        "print(sorted({'torch', 'mne', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
