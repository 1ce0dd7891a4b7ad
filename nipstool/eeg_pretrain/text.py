"""What may be told to a model in words before the recording begins: an allow-list, and nothing else.

Age, sex, medication, indication, and a note that was written before. Label files are never opened here; and
since notes and indications are free text, every sentence of theirs that speaks of seizures, their kind, their
place or of what was found in an EEG is left out.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

from nipstool.eeg_pretrain.label_tables import number, read_text, rows_of
from nipstool.kit.records import parse_json

FIELDS = ("age", "sex", "medication", "indication", "note")
_NAMES = {
    "age": ("age", "age_years", "age (years)", "patientage", "participantage"),
    "sex": ("sex", "gender", "patientsex", "participantsex"),
    "medication": ("medication", "medications", "meds", "drugs", "aed", "asm"),
    "indication": ("indication", "reason", "reason for study", "reason for referral", "referral"),
    "note": ("note", "notes before", "note before", "pre-recording note"),
}
_FIELD_OF = {name: field for field, names in _NAMES.items() for name in names}
_ANSWERS = re.compile(
    r"seiz|ictal|epilep|convuls|anfall|anfäll|crise|crisis|\bsz|\bfits?\b|spell|status|locali[sz]|laterali[sz]|lobe|temporal"
    r"|frontal|parietal|occipital|\bfoc|hemispher|generali[sz]|tonic|clonic|absence|myoclon|onset|spike|sharp|discharge"
    r"|slowing|\baura|impression|conclusion|\bleft\b|\bright\b|bilateral|\bIAS\b|\bWIAS\b|FBTC|F-BTC|\bFI?AS?\b",
    re.I,
)
MAX_CHARACTERS = 2000  # of one field


def find_text(path: Path, patient: str = "", start: datetime | None = None) -> dict[str, str]:
    """The fields of FIELDS that are known about a recording, nearest source first.

    X.txt and X.json beside the recording, participants.tsv of a BIDS dataset, SUBJECT-INFO of CHB-MIT,
    subject_info.csv of Siena (age and sex alone), the patient field of an EDF+ header (age and sex alone).
    """
    found: dict[str, str] = {}
    stem = path.name.removesuffix("".join(path.suffixes[-1:]))
    for source in (path.with_name(f"{stem}.json"), path.with_name(f"{stem}.txt")):
        if source.is_file():
            read = _from_json if source.suffix == ".json" else _from_note
            found = _allowed(read(source)) | found
    for table, key in _tables(path):
        found = _allowed(_from_table(table, key)) | found
    return _allowed(_from_patient(patient, start)) | found


def prefix(text: dict[str, str]) -> str:
    """The fields as one line, in the order of FIELDS.

    >>> prefix({"sex": "f", "age": "11"})
    'age: 11; sex: f'
    """
    return "; ".join(f"{field}: {text[field]}" for field in FIELDS if text.get(field))


def screened(text: str) -> str:
    """Free text without the sentences that could tell the answer.

    >>> screened("Fell asleep late. Three seizures last night. Takes valproate.")
    'Fell asleep late. Takes valproate.'
    """
    sentences = re.split(r"(?<=[.!?;])\s+|\n+", text)
    kept = (sentence.strip() for sentence in sentences if sentence.strip() and not _ANSWERS.search(sentence))
    return " ".join(kept)[:MAX_CHARACTERS]


def _allowed(given: dict[str, Any]) -> dict[str, str]:
    """The fields of the allow-list, each in one form."""
    found: dict[str, str] = {}
    for name, value in given.items():
        field = _FIELD_OF.get(str(name).strip().lower())
        if field is None or not isinstance(value, str | int | float) or isinstance(value, bool):
            continue
        text = _FORMS[field](str(value).strip()) if field in _FORMS else screened(str(value))
        if text and text.lower() not in ("n/a", "nan", "none", "unknown"):
            found.setdefault(field, text)
    return found


def _age(text: str) -> str:
    """Whole years, and tenths for infants and toddlers."""
    years = number(re.sub(r"\s*(y|years?|yrs?|yo)\.?$", "", text.lower()))
    return f"{years:.3g}" if years is not None and 0 <= years <= 120 else ""


def _sex(text: str) -> str:
    return {"f": "f", "female": "f", "m": "m", "male": "m", "o": "o", "other": "o"}.get(text.lower(), "")


_FORMS = {"age": _age, "sex": _sex}


def _from_json(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_text(path))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _from_note(path: Path) -> dict[str, Any]:
    """Lines of 'name: text' for the allowed names; a file without any such heading is a note as a whole.

    A clinical report has headings, and was written after the recording: none of its other sections is read.
    """
    text = read_text(path)
    heading = re.compile(r"^[ \t]*([A-Za-z][A-Za-z ()-]{1,40}):[ \t]*", re.M)
    marks = list(heading.finditer(text))
    if not marks:
        return {"note": text}
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return {mark[1].lower().strip(): text[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)}


def _tables(path: Path) -> list[tuple[Path, str]]:
    """Tables about all subjects that exist above a recording, and its subject in them."""
    found = []
    subject = re.search(r"(sub-[A-Za-z0-9]+)", path.name)
    case = re.match(r"(chb\d\d|PN\d\d)", path.name)
    for folder in list(path.absolute().parents)[:5]:
        if subject:
            found.append((folder / "participants.tsv", subject[1]))
        if case:
            found += [(folder / name, case[1]) for name in ("SUBJECT-INFO", "subject_info.csv")]
    return [(table, key) for table, key in found if table.is_file()]


def _from_table(path: Path, key: str) -> dict[str, Any]:
    for _, row in rows_of(path):
        if key in (row.get("participant_id"), row.get("patient_id"), row.get("case")):
            return dict(row)
    return {}


def _from_patient(patient: str, start: datetime | None) -> dict[str, Any]:
    """Age and sex from 'code sex dd-MMM-yyyy name' of EDF+, or from the 'Age:33' of TUSZ. The name stays there."""
    words = patient.split()
    found: dict[str, Any] = {}
    if len(words) > 1 and words[1] in ("F", "M"):
        found["sex"] = words[1]
    told = re.search(r"\bAge:(\d{1,3})\b", patient)
    if told:
        found["age"] = told[1]
    elif len(words) > 2 and start is not None:
        try:
            born = datetime.strptime(words[2].title(), "%d-%b-%Y")
        except ValueError:
            return found
        found["age"] = (start - born).days // 365.2425
    return found
