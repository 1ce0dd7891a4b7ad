"""Files with one trick each, every one in a process of its own; and headers damaged at random."""

import multiprocessing
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nipstool.eeg_pretrain.discover import failure, find, open_recording
from nipstool.eeg_pretrain.recording import Recording
from nipstool.kit.errors import DataError, NipsError
from tests.eeg_pretrain.edf_bytes import edf, sine, stamps

LIMIT_S = 10
Put = Callable[[str, bytes], Path]


@dataclass(frozen=True)
class Outcome:
    """What became of a file; `check` looks at a recording in the process that read it."""

    read: bool
    warning: str = ""  # a piece of the only warning; empty: none
    labels: tuple[str, ...] = ("FP1-F7", "F7-T7", "T8-P8", "ECG")
    check: Callable[[Recording], bool] = lambda recording: True


def spread(recording: Recording) -> float:
    """Of the first channel, in microvolts."""
    return float(np.std(recording.read(0, recording.duration_s)[0]))


OUTCOMES: dict[str, Outcome] = {
    "latin1_patient": Outcome(True),
    "edfplus_utf8_ann": Outcome(True, check=lambda r: len(r.seizures) == 1),
    "phys_swapped": Outcome(True, check=lambda r: r.read_raw(0, 1).scale[0] < 0),
    "ok_dup_labels": Outcome(True, check=lambda r: any("T8-P8 occurs 2 times" in n for n in r.notices)),
    "bad_date": Outcome(True, "clock is unknown", check=lambda r: r.start_time is None),
    "comma_decimal": Outcome(True, "decimal commas", check=lambda r: 28 < spread(r) < 32),
    "nrec_minus1": Outcome(True, "the file holds 20", check=lambda r: r.duration_s == 20),
    "truncated_3rec": Outcome(True, "ends early: 3", check=lambda r: r.duration_s == 3),
    "truncated_midrecord": Outcome(True, "ends early: 19", check=lambda r: r.duration_s == 19),
    "mixed_rates": Outcome(
        True, "different rates", check=lambda r: [c.fs for c in r.channels] == [256] * 3 + [512]
    ),
    "dash_labels": Outcome(True, "dropped 2 channels without a name", ("T8-P8", "ECG")),
    "physmin_eq_physmax": Outcome(True, "physical minimum and maximum", ("F7-T7", "T8-P8", "ECG")),
    "digmin_eq_digmax": Outcome(True, "digital minimum and maximum", ("F7-T7", "T8-P8", "ECG")),
    "edfplusD_gap100s": Outcome(True, "2 segments", check=lambda r: r.duration_s == 120 and len(r.segments) == 2),
    "header_only": Outcome(False, "no complete data record"),
    "not_edf": Outcome(False, "neither EDF nor BDF"),
    "zero_bytes": Outcome(False, "is empty"),
}


def outcome_of(path: Path, expected: Outcome) -> str:
    """What differs from what is expected; empty for nothing."""
    found = find([path])
    if not expected.read:
        error = failure(found, [path])
        reasons = [problem.reason for problem in found.problems]
        fits = isinstance(error, DataError) and error.status == 65 and expected.warning in reasons[0]
        return "" if fits and not found.recordings else f"{found}"
    (recording,) = found.recordings
    if [channel.label for channel in recording.channels] != list(expected.labels):
        return f"channels {recording.channels}"
    if len(recording.warnings) != bool(expected.warning):
        return f"warnings {recording.warnings}"
    if expected.warning and expected.warning not in recording.warnings[0]:
        return f"warning {recording.warnings}"
    return "" if expected.check(recording) else f"{recording}"


def answer(queue: Any, path: Path, expected: Outcome) -> None:
    """In the child."""
    queue.put(outcome_of(path, expected))


@pytest.mark.realdata
@pytest.mark.parametrize("name", OUTCOMES)
def test_a_file_with_a_trick_becomes_what_it_should(eeg: Path, name: str) -> None:
    context = multiprocessing.get_context("fork")  # a child that imports nothing anew
    queue = context.SimpleQueue()
    child = context.Process(target=answer, args=(queue, eeg / "malformed" / f"{name}.edf", OUTCOMES[name]))
    child.start()
    child.join(LIMIT_S)
    hung = child.is_alive()
    child.kill()
    assert not hung
    assert child.exitcode == 0
    assert queue.get() == ""


def test_every_file_of_the_folder_has_an_expected_outcome(eeg: Path) -> None:
    assert {path.stem for path in (eeg / "malformed").glob("*.edf")} == set(OUTCOMES)


# --- damage at random ---

NUMBERS = (b"-1", b"0", b"99999999", b"1e99", b"nan", b"inf", b"", b"0.000001", b"1", b"\xc2\xb5V", b"1e-300")


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A file with a few bytes or fields of its header changed, taken out or put in, or cut short."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        header = min(256 * (int(data[252:256]) + 1), len(found))
        place, kind = rng.randrange(max(header, 1)), rng.random()
        if kind < 0.5:
            found[place : place + 1] = bytes([rng.randrange(256)])
        elif kind < 0.85:
            found[place // 8 * 8 : place // 8 * 8 + 8] = rng.choice(NUMBERS).ljust(8)
        elif kind < 0.9:
            del found[place : place + 1]
        elif kind < 0.95:
            found.insert(place, rng.randrange(256))
        else:
            del found[rng.randrange(max(len(found), 1)) :]
    return bytes(found)


def read_damaged(path: Path, data: bytes) -> str:
    """'read', or the one line of why not. Anything else that is raised is a bug."""
    path.write_bytes(data)
    try:
        recording = open_recording(path)
        for number in range(min(3, len(recording.channels))):
            seconds = min(2.0, 1000 / recording.channels[number].fs)
            recording.read(recording.duration_s * 0.4, seconds, [number])
    except NipsError as error:
        return str(error)
    return "read"


def seeds() -> list[bytes]:
    """Whole files of each kind."""
    signals = [sine("Fp1", records=6), sine("Cz", records=6), sine("ECG", records=6, samples=256)]
    gap = [0, 1, 2, 50.25, 51.25, 52.25]
    events = {1: b"+1.5\x150.5\x14seizure\x14\0"}
    return [
        edf(signals),
        edf([*signals, stamps(range(6), events)], reserved="EDF+C"),
        edf([*signals, stamps(gap, events)], reserved="EDF+D"),
        edf(signals, bdf=True),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_damaged_headers_neither_crash_nor_hang(tmp_path: Path, seed: int) -> None:
    rng, whole = random.Random(seed), seeds()[seed]
    outcomes = []
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for _ in range(250):
        signal.alarm(LIMIT_S)
        outcomes.append(read_damaged(tmp_path / "a.edf", damaged(whole, rng)))
        signal.alarm(0)
    assert 50 < outcomes.count("read") < 250  # both ways are taken
    assert all("\n" not in outcome for outcome in outcomes)
