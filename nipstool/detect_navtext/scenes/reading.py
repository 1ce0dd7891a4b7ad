"""Rendered lines as an OCR would give them: boxes a little off, letters misread, small text not read at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nipstool.detect_navtext.lines import Line
from nipstool.detect_navtext.scenes import Label, Scene

Random = np.random.Generator

UNREAD = 9.0  # pixels: about where reading fails more often than not
LOOKALIKES = {"O": "0", "0": "O", "I": "l", "l": "1", "S": "5", "B": "8", "é": "e", "ü": "u", "rn": "m", "E": "F"}


def lines_of(scene: Scene, random: Random) -> tuple[list[Line], list[Label]]:
    """The lines that an OCR might find in a scene from top to bottom, and the label of each."""
    pairs = [(_read(label, random), label) for label in scene.labels if random.random() > _missed(label)]
    pairs.sort(key=lambda pair: (round(float(pair[0].polygon[0, 1]) / 8), float(pair[0].polygon[0, 0])))
    return [line for line, _ in pairs], [label for _, label in pairs]


def _missed(label: Label) -> float:
    """How likely a line is not found."""
    return 0.5 if _height(label) < UNREAD / 2 else 0.02


def _height(label: Label) -> float:
    return Line(label.polygon, None, None, 0.0).height


def _read(label: Label, random: Random) -> Line:
    polygon, height = label.polygon, _height(label)
    middle = polygon.mean(axis=0)
    across = (polygon[1] - polygon[0] + polygon[2] - polygon[3]) / 2
    unit = across / max(float(np.linalg.norm(across)), 1e-6)
    normal = np.array([-unit[1], unit[0]])
    margin = height * random.uniform(0.05, 0.25, 2)
    grown = [
        corner
        + unit * margin[0] * np.sign((corner - middle) @ unit)
        + normal * margin[1] * np.sign((corner - middle) @ normal)
        for corner in polygon
    ]
    box = (np.array(grown) + random.normal(0, 0.04 * height, (4, 2))).astype(np.float32)
    found = round(float(np.clip(random.normal(0.85, 0.07), 0.5, 0.99)), 5)
    sure = 1 / (1 + np.exp(-(height - UNREAD) / 1.5))  # how well letters of this height are read
    if random.random() > 0.1 + 0.9 * sure:
        return Line(box, None, None, found, "too-small")
    text, wrong = misread(label.text, random, 0.01 + 0.25 * (1 - sure))
    score = round(float(np.clip(random.normal(0.97, 0.03) - 1.5 * wrong, 0.3, 0.999)), 5)
    return Line(box, text, score, found)


def misread(text: str, random: Random, share: float) -> tuple[str, float]:
    """`text` with about this share of its characters wrong or missing, and the share that is."""
    signs: list[str] = []
    wrong = 0
    for sign in text:
        if random.random() >= share:
            signs.append(sign)
            continue
        wrong += 1
        if random.random() < 0.6:
            signs.append(LOOKALIKES.get(sign, "abcdefghijklmnoprstu"[int(random.integers(20))]))
    return "".join(signs) or text[:1], wrong / max(1, len(text))


def unknown(lines: Sequence[Line], random: Random, share: float) -> list[Line]:
    """The lines with this share of their words exchanged for words that nobody knows, of the same lengths."""
    return [_anonymous(line, random) if line.text and random.random() < share else line for line in lines]


def _anonymous(line: Line, random: Random) -> Line:
    vowels, others = "aeiou", "bcdfghklmnprstvz"
    signs = []
    for i, sign in enumerate(line.text or ""):
        new = (vowels if i % 2 else others)[int(random.integers(len(vowels if i % 2 else others)))]
        signs.append(new.upper() if sign.isupper() else new if sign.isalpha() and sign.isascii() else sign)
    return Line(line.polygon, "".join(signs), line.text_score, line.det_score, line.reason)


def framed(scene: Scene, random: Random) -> Scene:
    """The scene as somebody would photograph a part of it: a window around one of its lines, of any size.

    Where a line stands in a picture, and how large it is there, then says less about what it is.
    """
    height, width = scene.image.shape[:2]
    if not scene.labels:
        return scene
    share = random.uniform(0.15, 0.8)
    size = np.array([width, height]) * share
    middle = scene.labels[int(random.integers(len(scene.labels)))].polygon.mean(axis=0)
    low = np.clip(middle - size * random.uniform(0.15, 0.85, 2), 0, np.array([width, height]) - size).astype(int)
    high = low + size.astype(int)
    kept = []
    for label in scene.labels:
        inside = ((label.polygon > low) & (label.polygon < high)).all(axis=1)
        if inside.any():
            label_ = label.label if inside.all() else "ignore"
            kept.append(Label((label.polygon - low).astype(np.float32), label.text, label_, label.kind))
    image = np.ascontiguousarray(scene.image[low[1] : high[1], low[0] : high[0]])
    return Scene(image, scene.place, scene.setting, tuple(kept))
