"""A plain EDF file from arrays: for simulated recordings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np

START = datetime(2001, 1, 1)


def write_edf(
    path: Path,
    labels: Sequence[str],
    signals: np.ndarray,
    fs: float,
    *,
    start: datetime = START,
    patient: str = "X X X X",
    record_samples: int | None = None,
    unit: str = "uV",
) -> None:
    """Write (C, n) microvolts as 16-bit EDF; each channel is scaled to its own range.

    Args:
        record_samples: samples a data record, fs (one second) by default; n is padded with the last sample.
    """
    m = record_samples or round(fs)
    signals = np.asarray(signals, np.float64)
    records = -(-signals.shape[1] // m)
    signals = np.pad(signals, ((0, 0), (0, records * m - signals.shape[1])), mode="edge")
    limit = [max(1.0, float(np.ceil(np.abs(row).max()))) for row in signals]
    digital = np.clip(np.round(signals / np.array(limit)[:, None] * 32767), -32767, 32767)
    data = digital.astype("<i2").reshape(len(labels), records, m).transpose(1, 0, 2)
    header = _header(labels, limit, records, m, fs, start, patient, unit)
    path.write_bytes(header + data.tobytes())


def _header(
    labels: Sequence[str],
    limit: Sequence[float],
    records: int,
    m: int,
    fs: float,
    start: datetime,
    patient: str,
    unit: str,
) -> bytes:
    C = len(labels)
    fixed = ["0".ljust(8), patient.ljust(80), "Startdate X X X X".ljust(80), f"{start:%d.%m.%y%H.%M.%S}"]
    fixed += [str(256 * (C + 1)).ljust(8), " " * 44, str(records).ljust(8), f"{m / fs:.8g}"[:8].ljust(8)]
    columns = [
        [label.ljust(16) for label in labels],
        ["".ljust(80)] * C,
        [unit.ljust(8)] * C,
        [f"{-top:.8g}"[:8].ljust(8) for top in limit],
        [f"{top:.8g}"[:8].ljust(8) for top in limit],
        ["-32767".ljust(8)] * C,
        ["32767".ljust(8)] * C,
        ["".ljust(80)] * C,
        [str(m).ljust(8)] * C,
        ["".ljust(32)] * C,
    ]
    text = "".join(fixed) + f"{C:<4d}" + "".join(word for column in columns for word in column)
    return text.encode("ascii")
