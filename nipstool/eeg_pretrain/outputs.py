"""What embed and detect write: arrays in one file, and a folder of event and risk tables."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nipstool.eeg_pretrain.config import NOTICE, Config
from nipstool.eeg_pretrain.detect import Event, Track
from nipstool.eeg_pretrain.embed import Embedded
from nipstool.eeg_pretrain.recording import Recording
from nipstool.eeg_pretrain.szcore import Event as SzEvent
from nipstool.eeg_pretrain.szcore import EventFile, to_text
from nipstool.kit.errors import UsageError
from nipstool.kit.files import AtomicFile, StrPath, is_stdio


@dataclass(frozen=True)
class Detected:
    """A recording, its curves and its events."""

    recording: Recording
    track: Track
    smoothed: np.ndarray
    events: list[Event]


def check_form(path: StrPath) -> None:
    """Refuse a name of neither form before any work: UsageError. Standard output and devices have no form."""
    plain = not is_stdio(path) and (Path(path).is_file() or not Path(path).exists())
    if plain and Path(path).suffix not in (".npz", ".safetensors"):
        raise UsageError(f"{path}: expected a name that ends in .npz or .safetensors")


def write_embeddings(path: StrPath, found: Sequence[tuple[str, Embedded]], *, force: bool) -> int:
    """Rows of all recordings: embeddings [N, d], start, end [N] in seconds, file [N], files (names). Returns N.

    A name that ends in .safetensors gets that, every other one (see check_form) an .npz. In .safetensors, which
    has no text, the names of the files stand in the metadata under "eeg-pretrain", one a line after the notice.
    """
    rows = np.concatenate([one.embeddings for _, one in found])
    arrays = {
        "embeddings": rows,
        "start": np.concatenate([one.start_s for _, one in found]),
        "end": np.concatenate([one.end_s for _, one in found]),
        "file": np.repeat(np.arange(len(found)), [len(one.start_s) for _, one in found]),
    }
    names = [name for name, _ in found]
    with AtomicFile(path, force=force) as out:
        if not is_stdio(path) and Path(path).suffix == ".safetensors":
            from safetensors.numpy import save

            out.file.write(save(arrays, {"eeg-pretrain": NOTICE + "\n" + "\n".join(names)}))
        else:
            out.file.write(npz({**arrays, "files": np.array(names), "notice": np.array(NOTICE)}))
    return len(rows)


def npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """A .npz whose bytes depend on its arrays alone: no times of day are in it."""
    import zipfile

    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            part = io.BytesIO()
            np.lib.format.write_array(part, np.asanyarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), part.getvalue(), zipfile.ZIP_DEFLATED)
    return memory.getvalue()


def stems(recordings: Sequence[Recording]) -> list[str]:
    """A file name for each recording, all different: its own without suffix and `_eeg`."""
    found: list[str] = []
    for recording in recordings:
        stem = re.sub(r"_(eeg|ieeg)$", "", recording.path.stem) if str(recording.path) != "-" else "stdin"
        number, name = 1, stem
        while name in found:
            number += 1
            name = f"{stem}_{number}"
        found.append(name)
    return found


def write_detections(folder: Path, found: Sequence[Detected], config: Config, *, risk: bool) -> None:
    """STEM_events.tsv as SzCORE has it, and with `risk` STEM_risk.csv: a line a second."""
    for stem, one in zip(stems([d.recording for d in found]), found, strict=True):
        (folder / f"{stem}_events.tsv").write_text(events_text(one))
        if risk:
            (folder / f"{stem}_risk.csv").write_text(risk_text(one, config))


def events_text(one: Detected) -> str:
    """The lines of an event file."""
    events = tuple(SzEvent(e.onset_s, e.offset_s, min(1.0, e.confidence)) for e in one.events)
    return to_text(EventFile(events, one.recording.duration_s, one.recording.start_time))


def risk_text(one: Detected, config: Config) -> str:
    """Second, probability of a seizure now, of an onset now, and of an onset within each horizon."""
    names = [f"within_{round(h / 60):d}min" for h in config.horizons_s]
    lines = [",".join(["time", "detection", "onset", *names])]
    for second in range(len(one.smoothed)):
        values = (one.smoothed[second], one.track.onset[second], *one.track.risk[second])
        lines.append(",".join([str(second + 1), *("" if v != v else f"{v:.4f}" for v in values)]))
    return "\n".join(lines) + "\n"
