"""From labels to places: which channel is EEG, and where its electrodes are, never guessed.

Positions are those of the 10-05 system (`sites.tsv`). The labels of one file are judged together: A1 and C3 of a
BioSemi cap or of a depth electrode are not the sites of that name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files

from nipstool.eeg_pretrain.recording import Channel, Point

VOLTS = {"v": 1e6, "mv": 1e3, "uv": 1.0, "nv": 1e-3, "": 1.0}
"""Microvolts in each unit of voltage. No unit is taken as microvolts, as most writers mean it."""

NOT_EEG: tuple[tuple[str, str], ...] = (  # first that fits the label, in order
    ("ecg", r"e[ck]g.*|ml[i]{1,3}|i{1,3}|av[rlf]"),
    ("spo2", r"spo2.*|sao2.*|osat|o2 ?sat.*|saturation"),
    ("hr", r"hr|heart ?rate.*|pulse ?rate|beat|pr"),
    ("pleth", r"plet\w*|ppg.*|pulse.*|plethysm.*"),
    ("emg", r"emg.*|chin\d*.*|(l|r|left|right)[ ._-]?(leg|tib|arm|delt)\w*.*|leg.*|tib.*|ergo-\w+"),
    ("eog", r"(eeg )?(eog|[lr]oc|[lr]eog|e[12]\W?m[12]|[hv]eog).*|eog.*"),
    ("resp", r"resp.*|airflow.*|flow.*|thor\w*.*|abdo\w*.*|chest.*|nasal.*|snore.*|cannula.*|effort.*|breath.*"),
    ("temperature", r"temp.*"),
    ("status", r"status|stim?.*|sti ?\d+|trig\w*|trigger.*|event.*|marker.*|mk|mrk|annotations?|counter.*"),
    (
        "other",
        r"photic.*|dc\d*|dc\d*-.*|ibi|bursts?|suppr|-+\d*|\.+|\d+|[a-d]|vns.*|accel?\w*|acc[ _-]?[xyz]|gyr\w*"
        r"|mag[xyz]|(cq|eq|pow|mot|mc|bat)_.*|aux.*|batt\w*|gsr.*|eda|position|light.*|sound.*|mic.*|exg\d+|x\d+|misc.*"
        r"|g[xyz]|packet.*|sample.*|time.*|cms|drl|gnd|ground|ref|raw_cq|interpolated|reference|etco2.*|co2.*|cpap.*",
    ),
)
REFERENCES = (
    r"ref\d*|le|ar|avg?|average|car|cs2|org|gnd|g\d+|lap|sd|m|a1a2|a1\+a2|m1m2|m1\+m2|a12|lm|linked.*|rf|vref"
)
_OLD = re.compile(r"t[12]|sp[12]|sph[12]|pg[12]|[cp][34]p|oor\w+", re.I)  # electrodes without a 10-05 place
_NAMELESS = re.compile(
    r"(eeg|ch|chan|channel|pol|seeg|ieeg)\b.*|eeg\W.*|eeg", re.I
)  # called EEG, or nothing at all
_CONTACT = re.compile(r"[A-Za-z]{1,4}'?\d{1,3}")
_FAMILY = re.compile(r"([A-Za-z]+)'?(\d+)$")
_UNMISTAKABLE = re.compile(r"fp[12z]|[fcpo]z|af[z3478]", re.I)


@dataclass(frozen=True)
class Place:
    """What a label says: the kind, the two electrodes by name, and whether it is a difference of two."""

    kind: str
    anode: str = ""
    cathode: str = ""
    bipolar: bool = False


@cache
def sites() -> dict[str, Point]:
    """The 10-05 sites by name in lower case, in metres."""
    table = files("nipstool.eeg_pretrain").joinpath("sites.tsv").read_text("utf-8")
    found = {}
    for line in table.splitlines():
        if not line.startswith("#"):
            name, x, y, z = line.split("\t")
            found[name.lower()] = (float(x) / 1e3, float(y) / 1e3, float(z) / 1e3)
    return found


@lru_cache(maxsize=4096)  # the same few labels come with every file of a dataset
def clean(label: str) -> str:
    """A label without what recorders wrap around the electrode's name: 'EEG Fp1-REF-0' is Fp1-REF."""
    text = re.sub(r"\s+", " ", label.replace("\u2013", "-").replace("\u2212", "-")).strip()
    text = re.sub(r"^(eeg|pol|seeg|ieeg|bp|eeg\d+)(?=[ :_-]+[A-Za-z$])[ :_-]+", "", text, flags=re.I)
    text = re.sub(r"(?<=[A-Za-z0-9])\.+$", "", text)
    stem = re.sub(r"-\d$", "", text)
    return stem if re.split(r"-", stem)[0].lower() in sites() else text


@lru_cache(maxsize=4096)
def read_label(label: str, unit: str = "uV") -> Place:
    """What one label says by itself. A site's name in a unit that is no voltage is no EEG."""
    text, lower = clean(label), label.strip().lower()
    kind = _not_eeg(lower, text.lower())
    if kind:
        return Place(kind)
    anode, cathode = _halves(text)
    if volts(unit) is None or not (_is_electrode(anode) or _NAMELESS.match(lower)):
        return Place("other")
    return Place("eeg", anode, cathode, bipolar=bool(cathode))


def _not_eeg(lower: str, cleaned: str) -> str:
    """The kind of a label that names something else, with or without EEG before it; '' for what may be EEG."""
    for kind, pattern in NOT_EEG:
        if re.fullmatch(pattern, cleaned) and not (cleaned != lower and cleaned.isdigit()):
            return kind
    return ""


def _halves(text: str) -> tuple[str, str]:
    """Anode and cathode by name; no cathode for a single electrode and for one against a common reference."""
    parts = [part.strip(" .") for part in re.split(r"\s*[-\u2013/:]\s*|_", text) if part.strip(" .")]
    if len(parts) != 2 or not _is_electrode(parts[0]):
        return (parts[0] if parts and _is_electrode(parts[0]) else text, "")
    if re.fullmatch(REFERENCES, parts[1], re.I) or not _is_electrode(parts[1]):
        return parts[0], ""
    return parts[0], parts[1]


def _is_electrode(name: str) -> bool:
    return name.lower() in sites() or bool(_OLD.fullmatch(name) or _CONTACT.fullmatch(name))


def volts(unit: str) -> float | None:
    """Microvolts in a unit, or None for one that is no voltage. A micro sign may be garbled: '.V', '?V'."""
    text = unit.strip().lower().replace("\u00b5", "u").replace("\u03bc", "u")
    if text in VOLTS:
        return VOLTS[text]
    if re.fullmatch(r"[^a-z0-9]{1,3}v|microvolts?|uvolts?|\u00c2uv", text):
        return 1.0
    return {"volt": 1e6, "volts": 1e6, "millivolt": 1e3, "millivolts": 1e3}.get(text)


def unplaced(labels: Sequence[str]) -> frozenset[str]:
    """The electrode names, in lower case, that look like 10-05 sites in this file and are not.

    A family of letters (A1, A2, ...) with a number that 10-05 does not have is a BioSemi, EGI or depth set, and
    none of its members has a place. Where there is little else beside single letters, those have none either.
    """
    families: dict[str, set[int]] = {}
    names: set[str] = set()
    chains: set[str] = set()
    for label in labels:
        place = read_label(label)
        chains |= _chain(place)
        for name in (place.anode, place.cathode):
            match = _FAMILY.match(name)
            names.add(name.lower())
            if place.kind == "eeg" and match and (not _OLD.fullmatch(name) or match[1].lower() == "t"):
                families.setdefault(match[1].lower(), set()).add(int(match[2]))
    foreign = {letters for letters, numbers in families.items() if not _all_sites(letters, numbers)} | chains
    contacts = sum(len(families[letters]) for letters in foreign)
    scalp = any(_UNMISTAKABLE.fullmatch(n) for n in names if re.sub(r"\d", "", n) not in foreign)
    if contacts >= 4:
        for letters, numbers in families.items():
            if len(letters) == 1 and (not scalp or {1, 2, 3} <= numbers):
                foreign.add(letters)
    return frozenset(f"{letters}{number}" for letters in foreign for number in families[letters])


def _chain(place: Place) -> set[str]:
    """The family of F2-F3: neighbours on a depth electrode, while on the scalp they lie on either side."""
    first, second = _FAMILY.match(place.anode), _FAMILY.match(place.cathode)
    if first is None or second is None or first[1].lower() != second[1].lower():
        return set()
    low, high = sorted((int(first[2]), int(second[2])))
    return {first[1].lower()} if high == low + 1 and low % 2 == 0 else set()


def _all_sites(letters: str, numbers: set[int]) -> bool:
    return all(f"{letters}{number}" in sites() for number in numbers - ({1, 2} if letters == "t" else set()))


def place_channels(
    labels: Sequence[str],
    units: Sequence[str],
    rates: Sequence[float],
    known: dict[str, Point] | None = None,
    said: Sequence[str] | None = None,
) -> tuple[Channel, ...]:
    """The channels of a file from its labels, units and rates.

    `known` are positions that the file or a sidecar gives, in metres by label in lower case: they win over the
    table, and are the only ones for sets whose names are no sites. `said` are the kinds that the file gives:
    anything but "eeg" is believed, and "eeg" where the label does not name something else.
    """
    given = known or {}
    without = unplaced([label for label, unit in zip(labels, units, strict=True) if volts(unit) is not None])
    table = {name: point for name, point in sites().items() if name not in without} | given
    sleep = not any(clean(label).lower().startswith("e3") for label in labels)  # E1 and E2 alone are the eyes
    found = []
    for label, unit, fs, kind in zip(labels, units, rates, said or [""] * len(labels), strict=True):
        place = read_label(label, unit)
        if kind and (
            kind != "eeg" or (place.kind == "other" and not _not_eeg(label.lower(), clean(label).lower()))
        ):
            place = Place(kind, clean(label))
        if sleep and place.anode.lower() in ("e1", "e2"):
            place = Place("eog")
        anode = given.get(label.lower()) or table.get(place.anode.lower()) if place.kind == "eeg" else None
        channel = Channel(label, place.kind, anode, table.get(place.cathode.lower()), place.bipolar, fs)
        found.append(channel if volts(unit) is not None else replace(channel, unit=unit))
    return tuple(found)
