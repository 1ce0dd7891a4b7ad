"""Further files that commands read, beside the inputs of the conformance suite, to be damaged as those are."""

import csv
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.conformance.cases.case import Case
from tests.conformance.cases.detect_navtext import a_picture
from tests.conformance.cases.eeg_pretrain import a_recording
from tests.conformance.cases.filter_nbf import some_rows
from tests.conformance.cases.fuse_lora import some_loras
from tests.conformance.cases.probe_length import some_probe
from tests.conformance.cases.rosetta_count import some_dumps

ROOT = Path(__file__).resolve().parents[2]
STATE, NETWORKS, OWN = "state.safetensors", "nile.safetensors", "own.safetensors"
NILE = ("--domain", "nile", "--particles", "16", "--on-error", "stop")


def run(folder: Path, *words: str) -> None:
    """A command that makes an input."""
    subprocess.run([sys.executable, "-m", "nipstool", *words], cwd=folder, check=True, capture_output=True)


def two_statistics(folder: Path) -> None:
    """The statistics of two nights."""
    some_probe(folder)
    shutil.copy(folder / "a.stats", folder / "b.stats")


def a_table(folder: Path) -> None:
    """The river's years as a table."""
    some_rows(folder)
    rows = [json.loads(line) for line in (folder / "rows.ndjson").read_text().splitlines()]
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ("t", "flow"))
        writer.writeheader()
        writer.writerows(rows)


def a_state(folder: Path) -> None:
    """The river, and what was believed after its first years."""
    some_rows(folder)
    run(folder, "filter-nbf", "rows.ndjson", *NILE, "--state-out", STATE)


def a_checkpoint(folder: Path) -> None:
    """The river, and networks trained on it for two steps."""
    some_rows(folder)
    words = ("--domain", "nile", "--scenarios", "2", "--steps", "2", "--batch", "2")
    run(folder, "filter-nbf", "train", *words, "-o", NETWORKS)


def places(folder: Path) -> None:
    """A sign, and the places around it in four forms."""
    a_picture(folder)
    (folder / "places.csv").write_text("name,kind\nRoom 7,room\nCafé Müller,store\nPlatform 3,platform\n")
    (folder / "places.txt").write_text("Room 7\nCafé Müller\n")
    tags = {"name": "Café Müller", "amenity": "cafe", "addr:street": "Hauptstraße"}
    feature = {"type": "Feature", "id": "node/1", "properties": tags, "geometry": None}
    (folder / "places.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    element = {"type": "node", "id": 1, "lat": 1.0, "lon": 2.0, "tags": tags}
    (folder / "places.json").write_text(json.dumps({"elements": [element]}))


def a_classifier(folder: Path) -> None:
    """A sign, and a relevance classifier."""
    a_picture(folder)
    shutil.copy(
        ROOT / "nipstool" / "detect_navtext" / "data" / "relevance.safetensors", folder / "own.safetensors"
    )


def a_peft_folder(folder: Path) -> None:
    """A LoRA as PEFT keeps it."""
    some_loras(folder)
    run(folder, "fuse-lora", "convert", "content.safetensors", "-o", "peft", "--format", "peft")


def arrays(folder: Path) -> None:
    """Activations as numpy writes them."""
    some_dumps(folder)
    random = np.random.default_rng(1)
    for name, width in (("a", 12), ("b", 10)):
        np.save(folder / f"{name}.npy", random.standard_normal((120, width)).astype(np.float32))


def a_labelled_recording(write: Callable[[Path], None]) -> Callable[[Path], None]:
    """A recording in a folder with a file of labels."""

    def make(folder: Path) -> None:
        a_recording(folder)
        (folder / "data").mkdir()
        (folder / "r.edf").rename(folder / "data" / "chb01_01.edf")
        write(folder / "data")

    return make


def seizures_file(folder: Path) -> None:
    """One seizure as wfdb writes it, in samples of a resolution of its own."""
    note = b"## time resolution: 128"
    words = [22 << 10, 63 << 10 | len(note)]
    data = struct.pack("<2H", *words) + note + b"\0" * (len(note) % 2)
    data += struct.pack("<2H", 32 << 10 | 128, 33 << 10 | 256) + b"\0\0"
    (folder / "chb01_01.edf.seizures").write_bytes(data)


def summary(folder: Path) -> None:
    """One seizure in a summary of CHB-MIT."""
    lines = ("Data Sampling Rate: 256 Hz", "File Name: chb01_01.edf", "Number of Seizures in File: 1")
    times = ("Seizure Start Time: 1 seconds", "Seizure End Time: 2 seconds")
    (folder / "chb01-summary.txt").write_text("\n".join((*lines, *times)) + "\n")


def events(folder: Path) -> None:
    """One seizure in a table."""
    (folder / "chb01_01_events.tsv").write_text("onset\tduration\ttrial_type\n1.0\t1.0\tsz\n")


def tusz(folder: Path) -> None:
    """One seizure as TUSZ writes it."""
    text = "# version = csv_v1.0.0\nchannel,start_time,stop_time,label,confidence\nTERM,1.0,2.0,seiz,1.0\n"
    (folder / "chb01_01.csv_bi").write_text(text)


def brainvision(folder: Path) -> None:
    """A recording of BrainVision, read by mne."""
    (folder / "data").mkdir()
    values = np.random.default_rng(0).normal(0, 300, (2560, 2)).astype("<i2")
    (folder / "data" / "r.eeg").write_bytes(values.tobytes())
    header = (
        "Brain Vision Data Exchange Header File Version 1.0\n[Common Infos]\nCodepage=UTF-8\nDataFile=r.eeg\n"
        "MarkerFile=r.vmrk\nDataFormat=BINARY\nDataOrientation=MULTIPLEXED\nNumberOfChannels=2\n"
        "SamplingInterval=3906.25\n[Binary Infos]\nBinaryFormat=INT_16\n[Channel Infos]\n"
        "Ch1=Fp1,,0.1,µV\nCh2=O2,,0.1,µV\n"
    )
    (folder / "data" / "r.vhdr").write_text(header, encoding="utf-8")
    markers = "[Common Infos]\nDataFile=r.eeg\n[Marker Infos]\nMk1=Comment,seizure,128,1,0\n"
    start = "Brain Vision Data Exchange Marker File, Version 1.0\n"
    (folder / "data" / "r.vmrk").write_text(start + markers, encoding="utf-8")


def architectures(folder: Path) -> None:
    """Architectures in lines."""
    record = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
    rows = [{**record, "model_type": "bert", "vocab_size": 64, "id": n} for n in range(3)]
    (folder / "archs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _labels(name: str, write: Callable[[Path], None]) -> Case:
    make = a_labelled_recording(write)
    return Case("eeg-pretrain", "inspect", ("data",), make, inputs=(f"data/{name}",))


SIGN = ("sign.png", "--read", "none")
MORE = [
    Case("probe-length", None, ("a.stats", "b.stats"), two_statistics, ("a.stats",), "p.safetensors"),
    Case("probe-length", "evaluate", ("a.stats", "b.stats"), two_statistics, ("a.stats",)),
    Case("filter-nbf", None, ("rows.csv", *NILE), a_table, ("rows.csv",)),
    Case(
        "filter-nbf",
        None,
        ("rows.ndjson", *NILE, "--state-in", "state.safetensors"),
        a_state,
        ("state.safetensors",),
    ),
    Case(
        "filter-nbf",
        None,
        ("rows.ndjson", *NILE, "--checkpoint", "nile.safetensors"),
        a_checkpoint,
        ("nile.safetensors",),
    ),
    *(
        Case("detect-navtext", None, (*SIGN, "--poi", f"places.{suffix}"), places, (f"places.{suffix}",), "found")
        for suffix in ("csv", "txt", "geojson", "json")
    ),
    Case(
        "detect-navtext",
        None,
        (*SIGN, "--classifier", "own.safetensors"),
        a_classifier,
        ("own.safetensors",),
        "found",
    ),
    Case("fuse-lora", "inspect", ("peft",), a_peft_folder, ("peft",)),
    Case("rosetta-count", None, ("a.npy", "b.npy", "--acts"), arrays, ("a.npy",), "shared", folder=True),
    _labels("chb01_01.edf.seizures", seizures_file),
    _labels("chb01-summary.txt", summary),
    _labels("chb01_01_events.tsv", events),
    _labels("chb01_01.csv_bi", tusz),
    Case("eeg-pretrain", "inspect", ("data",), brainvision, ("data/r.vhdr", "data/r.vmrk")),
    Case("prune-nsc", "score", ("archs.jsonl",), architectures, ("archs.jsonl",)),
]
