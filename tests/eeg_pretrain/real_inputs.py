"""Real recordings that come as columns of text, as EDF files."""

import zipfile
from pathlib import Path

import numpy as np

from nipstool.eeg_pretrain.edf_writer import write_edf

# channels 1 to 21, as EEG-README has them
MALOW = ["Fp1", "Fp2", "F3", "F4", "C3", "C4", "P3", "P4", "O1", "O2", "SP1", "SP2"]
MALOW += ["F7", "F8", "T3", "T4", "T5", "T6", "Fz", "Cz", "Pz"]
BONN_HZ = 173.61
BONN_SETS = {"Z": "A", "O": "B", "N": "C", "F": "D", "S": "E"}  # the letter of a file's name -> the paper's set


def malow(data: Path, folder: Path) -> Path:
    """A seizure of 500 s at 100 Hz, onset at 350 s, without the two channels that its README calls corrupted."""
    names = [name for name in MALOW if not name.startswith("SP")]
    files = [data / "malow_seizure" / f"ch{MALOW.index(name) + 1:02d}.inp" for name in names]
    signals = np.stack([np.loadtxt(file) for file in files])
    path = folder / "malow.edf"
    write_edf(path, [f"EEG {name}" for name in names], signals, 100.0)
    return path


def bonn(data: Path, folder: Path, *, normalised: bool = False, every: int = 1) -> list[Path]:
    """The Bonn records, sorted by their set's letter and number; `normalised` removes each one's variance."""
    with zipfile.ZipFile(data / "bonn" / "bonn.zip") as archive:
        names = sorted(n for n in archive.namelist() if n.lower().endswith(".txt"))
        by_name = sorted((BONN_SETS[Path(n).stem[0].upper()] + Path(n).stem[1:], n) for n in names)
        paths = []
        for name, member in by_name[::every]:
            x = np.array(archive.read(member).split(), float)
            if normalised:
                x = 50.0 * (x - x.mean()) / x.std()
            path = folder / f"{name}.edf"
            write_edf(path, ["EEG"], x[None], BONN_HZ, record_samples=len(x))
            paths.append(path)
    return paths
