"""EDF and BDF files byte by byte, so that a test can put in what no library would write."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

FIELDS = (("label", 16), ("transducer", 80), ("unit", 8), ("pmin", 8), ("pmax", 8), ("dmin", 8), ("dmax", 8))
FIELDS = (*FIELDS, ("filter", 80), ("samples", 8), ("reserved", 32))


@dataclass
class Sig:
    """One signal: (records, samples) digital values, or a list of bytes a record for annotations."""

    label: str
    data: np.ndarray
    unit: str | bytes = "uV"
    pmin: str = "-800"
    pmax: str = "800"
    dmin: str = "-32768"
    dmax: str = "32767"
    blocks: Sequence[bytes] = field(default_factory=tuple)


def sine(label: str, records: int = 10, samples: int = 128, hz: float = 10.0, amplitude: float = 2000.0) -> Sig:
    """A tone, which no two channels share in phase."""
    t = np.arange(records * samples) / samples
    values = amplitude * np.sin(2 * np.pi * hz * t + sum(map(ord, label)))
    return Sig(label, values.round().astype(np.int32).reshape(records, samples))


def stamps(starts: Sequence[float], events: dict[int, bytes] | None = None, size: int = 64) -> Sig:
    """The annotation signal: a start a record, and further lists by record."""
    blocks = []
    for number, start in enumerate(starts):
        stamp = f"+{start:g}".encode() + b"\x14\x14\0" + (events or {}).get(number, b"")
        blocks.append(stamp.ljust(size, b"\0"))
    data = np.zeros((len(starts), size // 2), np.int32)
    return Sig("EDF Annotations", data, "", "-1", "1", blocks=blocks)


def edf(
    signals: Sequence[Sig],
    *,
    bdf: bool = False,
    reserved: str = "",
    records: str | None = None,
    record_s: str = "1",
    date: str = "02.03.12",
    time: str = "21.30.00",
    patient: str | bytes = "X X X X",
    header_bytes: str | None = None,
) -> bytes:
    """The bytes of a file."""
    count = signals[0].data.shape[0]
    width = 3 if bdf else 2
    text = [b"\xffBIOSEMI" if bdf else b"0".ljust(8), _pad(patient, 80), _pad("Startdate X X X X", 80)]
    text += [_pad(date, 8), _pad(time, 8), _pad(header_bytes or str(256 * (len(signals) + 1)), 8)]
    text += [_pad(reserved, 44), _pad(records or str(count), 8), _pad(record_s, 8), _pad(str(len(signals)), 4)]
    for name, size in FIELDS:
        for signal in signals:
            samples = str(signal.data.shape[1] * 2 // width if signal.blocks else signal.data.shape[1])
            text.append(_pad({"samples": samples}.get(name, getattr(signal, name, "")), size))
    body = []
    for record in range(count):
        for signal in signals:
            body.append(signal.blocks[record] if signal.blocks else _encode(signal.data[record], width))
    return b"".join(text) + b"".join(body)


def _encode(values: np.ndarray, width: int) -> bytes:
    octets = values.astype("<i4").view(np.uint8).reshape(-1, 4)
    return octets[:, :width].tobytes()


def _pad(text: str | bytes, size: int) -> bytes:
    return (text if isinstance(text, bytes) else text.encode("latin-1")).ljust(size)[:size]
