"""The reader of eeg-pretrain beside mne and pyedflib: time and memory; and its scoring beside timescoring.

    make bench            everything
    .venv/bin/python tests/benchmarks/eeg_pretrain_reader.py [windows|opening|memory|damage|scoring|neuroatlas]

Times are medians of CPU seconds of one thread; ratios come from one run. Nothing here decides a test.
"""

import importlib.util
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the tests' own makers of files

from nipstool.eeg_pretrain.opening import open_file, read_edf  # noqa: E402

LABELS = [
    *(
        "FP1-F7",
        "F7-T7",
        "T7-P7",
        "P7-O1",
        "FP1-F3",
        "F3-C3",
        "C3-P3",
        "P3-O1",
        "FP2-F4",
        "F4-C4",
        "C4-P4",
        "P4-O2",
    ),
    *("FP2-F8", "F8-T8", "T8-P8", "P8-O2", "FZ-CZ", "CZ-PZ", "P7-T7", "T7-FT9", "FT9-FT10", "FT10-T8", "C3-C4"),
]
FS, HOUR_S = 256, 3600
NEUROATLAS = "neuroatlas-bench==0.1.1"  # its requirements exclude ours: only one file of it, numpy only, is used


def cpu_ms(work: Callable[[], object], runs: int = 15) -> float:
    """Median CPU time of a call, after one that does not count."""
    work()
    times = []
    for _ in range(runs):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)


def write_hour(path: Path) -> None:
    """An hour of 23 channels with a hundred annotations, as edfio writes it."""
    import edfio

    rng = np.random.default_rng(0)
    signals = [
        edfio.EdfSignal(
            50 * rng.standard_normal(HOUR_S * FS),
            FS,
            label=label,
            physical_dimension="uV",
            physical_range=(-400, 400),
        )
        for label in LABELS
    ]
    annotations = [edfio.EdfAnnotation(30.0 * n, None, f"event {n}") for n in range(100)]
    edfio.Edf(signals, annotations=annotations).write(path)


def windows(folder: Path) -> None:
    """Random windows of 10 s, all channels."""
    import mne
    import pyedflib

    path = folder / "hour.edf"
    write_hour(path)
    recording = open_file(path).recording
    raw = mne.io.read_raw_edf(path, preload=False, verbose="ERROR")
    reader = pyedflib.EdfReader(str(path))
    starts = np.random.default_rng(1).integers(0, HOUR_S - 10, 100).tolist()

    def each(read: Callable[[int], object]) -> Callable[[], None]:
        """Read them one after the other, keeping none."""

        def every() -> None:
            for start in starts:
                read(start)

        return every

    ours = cpu_ms(each(lambda s: recording.read(s, 10.0))) / 100
    packed = cpu_ms(each(lambda s: recording.read_raw(s, 10.0))) / 100
    lazy = cpu_ms(each(lambda s: raw.get_data(start=FS * s, stop=FS * (s + 10))), 5) / 100
    single = cpu_ms(each(lambda s: [reader.readSignal(c, FS * s, FS * 10) for c in range(23)]), 5) / 100
    print(f"window of 10 s: {ours:.3f} ms, as int16 {packed:.3f}, mne {lazy:.3f}, pyedflib {single:.3f}")
    print(f"  {lazy / ours:.1f} times as fast as mne (wanted: 5), {single / ours:.1f} as pyedflib (wanted: 8)")
    found, expected = recording.read(100.0, 10.0), 1e6 * np.asarray(raw.get_data(start=25600, stop=28160))
    print(
        f"  largest difference from mne {np.abs(found - expected).max():.1e} uV; one step is {800 / 65535:.1e} uV"
    )


def opening(folder: Path) -> None:
    """Header, annotations of 3600 records and places of the channels; and with a look at the signals."""
    import mne

    path = folder / "hour.edf"
    write_hour(path)
    header, whole = cpu_ms(lambda: read_edf(path), 25), cpu_ms(lambda: open_file(path), 25)
    theirs = cpu_ms(lambda: mne.io.read_raw_edf(path, preload=False, verbose="ERROR"), 15)
    print(f"opening: {header:.2f} ms, with a look at the signals {whole:.2f} ms, mne {theirs:.2f} ms")
    print(f"  {theirs / header:.1f} and {theirs / whole:.1f} times as fast as mne (wanted: 10)")


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from nipstool.eeg_pretrain.opening import open_file
def pages():
    rows = dict(line.split(":") for line in open("/proc/self/status") if line.startswith("Rss") or "VmRSS" in line)
    return {name: int(value.split()[0]) / 1024 for name, value in rows.items()}
recording = open_file(Path(sys.argv[1])).recording
rng = np.random.default_rng(0)
recording.read(0.0, 10.0)
before = pages()
for start in rng.uniform(0, recording.duration_s - 10, int(sys.argv[2])):
    recording.read(float(start), 10.0)
after = pages()
print(" ".join(f"{name} +{after[name] - before[name]:.1f} MiB" for name in ("VmRSS", "RssAnon", "RssFile")))
"""


def write_day(path: Path, hours: int = 24) -> None:
    """A day of 23 channels: one minute of noise, again and again."""
    from tests.eeg_pretrain.edf_bytes import Sig, edf

    rng = np.random.default_rng(0)
    minute = [Sig(label, rng.integers(-3000, 3000, (60, FS))) for label in LABELS]
    data = edf(minute, records=str(60 * 60 * hours))
    header = 256 * (len(LABELS) + 1)
    with path.open("wb") as file:
        file.write(data[:header])
        for _ in range(60 * hours):
            file.write(data[header:])


def memory(folder: Path) -> None:
    """Growth of the process over 4000 random windows of a day-long file (1 GB)."""
    path = folder / "day.edf"
    write_day(path)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path), "4000"], capture_output=True, text=True, check=True
    )
    print(f"4000 random windows of 24 h x 23 channels: {done.stdout.strip()} (wanted: at most 60)")


def damage(folder: Path) -> None:
    """Ten thousand damaged headers: what they become, and the slowest."""
    from tests.eeg_pretrain.test_malformed import damaged, read_damaged, seeds

    rng, whole = random.Random(7), seeds()
    slowest, read = 0.0, 0
    for n in range(10_000):
        data = damaged(whole[n % len(whole)], rng)
        start = time.perf_counter()
        read += read_damaged(folder / "a.edf", data) == "read"
        slowest = max(slowest, time.perf_counter() - start)
    print(f"10000 damaged headers: {read} read, {10_000 - read} refused in a line, the slowest in {slowest:.2f} s")


def scoring(folder: Path) -> None:
    """A day with 40 events on either side."""
    from timescoring.annotations import Annotation
    from timescoring.scoring import EventScoring, SampleScoring

    from nipstool.eeg_pretrain.scoring import events, samples

    rng, day = np.random.default_rng(0), 86_400
    onsets = (np.arange(40) * 2000.0 + rng.uniform(0, 1500, (2, 40))).round(1)
    true, told = (
        [(float(a), float(a + length)) for a in row] for row, length in zip(onsets, (60, 45), strict=True)
    )
    ours = cpu_ms(lambda: (events(true, told, day), samples(true, told, day)))

    def theirs() -> None:
        reference, hypothesis = (Annotation(e, 10, day * 10) for e in (true, told))
        EventScoring(reference, hypothesis)
        SampleScoring(reference, hypothesis)

    peer = cpu_ms(theirs)
    print(f"scoring a day: {ours:.2f} ms, timescoring {peer:.2f} ms: {peer / ours:.1f} times as fast")


def neuroatlas(folder: Path) -> None:
    """Event-Sens@FA beside the file of neuroatlas-bench that defines it."""
    from nipstool.eeg_pretrain.false_alarms import sensitivity_at_false_alarms
    from tests.eeg_pretrain.test_scoring import some_windows

    peers = ROOT / "models" / "peers"
    place = peers / "neuroatlas" / "extensions" / "tasks" / "_event_sens_fa.py"
    if not place.is_file():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(peers), NEUROATLAS], check=True)
    spec = importlib.util.spec_from_file_location("event_sens_fa", place)
    assert spec is not None
    assert spec.loader is not None
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(100):
        folds = [some_windows(rng) for _ in range(rng.integers(1, 5))]
        curves = [theirs.fold_curve(f.labels, f.scores, f.recordings, window_s=10.0) for f in folds]
        found = sensitivity_at_false_alarms(folds)
        pairs = zip((found.area, found.sd), theirs.aggregate(curves), strict=True)
        worst = max(worst, *(abs(a - b) if a == a or b == b else 0.0 for a, b in pairs))
    print(f"Event-Sens@FA of 100 random sets of folds: largest difference from {NEUROATLAS} {worst:.1e}")


PARTS = {"windows": windows, "opening": opening, "memory": memory, "damage": damage}
PARTS |= {"scoring": scoring, "neuroatlas": neuroatlas}


def main(names: list[str]) -> None:
    """Run the parts that are named, or all."""
    for name in names or PARTS:
        with tempfile.TemporaryDirectory(prefix="nipstool-bench-") as folder:
            PARTS[name](Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
