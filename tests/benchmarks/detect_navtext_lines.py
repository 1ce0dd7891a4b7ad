"""Relevance on lines written from knowledge of the world, on boards whose looks say nothing about them.

`detect_navtext_lines.txt` holds two lists of pictures: a name and a category after `@`, then lines with their
label (N navigates, O other), size and text, in the order from top to bottom; an empty line begins a new board.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext import metrics
from nipstool.detect_navtext.boards import board_of
from nipstool.detect_navtext.poi import Names
from nipstool.detect_navtext.relevance import classify, features, load_classifier
from nipstool.detect_navtext.scenes import Label, Scene, typefaces
from nipstool.detect_navtext.scenes.boards import Board, Look, Row, board
from nipstool.detect_navtext.scenes.reading import lines_of
from nipstool.detect_navtext.scenes.style import BRIGHT, DARK, PALE

LINES = Path(__file__).with_suffix(".txt")
VIEWS = 3
LABELS = {"N": "nav", "O": "other"}
PATTERNS = ("flat", "flat", "gradient", "picture")
FACES = [face for fold in typefaces.FOLDS for face in fold]
Random = np.random.Generator


@dataclass(frozen=True)
class Text:
    """One line of a list."""

    label: str
    size: float
    text: str


@dataclass(frozen=True)
class Picture:
    """The texts of one picture, in groups that belong together."""

    name: str
    category: str
    groups: list[list[Text]]


def lists() -> Iterator[tuple[str, list[Picture]]]:
    """The lists by name."""
    for part in LINES.read_text(encoding="utf-8").split("# ")[1:]:
        title, _, rest = part.partition("\n")
        pictures: list[Picture] = []
        for row in rest.splitlines():
            if row.startswith("@"):
                _, name, category = row.split()
                pictures.append(Picture(name, category, [[]]))
            elif not row.strip():
                pictures[-1].groups.append([])
            else:
                label, size, text = row.split(" ", 2)
                pictures[-1].groups[-1].append(Text(LABELS[label], float(size), text))
        yield title, pictures


def cut(groups: list[list[Text]], random: Random) -> list[list[Text]]:
    """The groups cut into boards: mostly before signs, now and then before other text."""
    boards: list[list[Text]] = []
    for group in groups:
        current: list[Text] = []
        for one in group:
            share = 0.7 if one.label == "nav" else 0.5 if current and current[-1].label == "nav" else 0.35
            if current and random.random() < share:
                boards.append(current)
                current = []
            current.append(one)
        if current:
            boards.append(current)
    return boards


def drawn(texts: list[Text], random: Random) -> Board:
    """A board with colours, typeface and pattern by chance, whatever it says."""

    def one(colours: tuple[tuple[int, int, int], ...]) -> tuple[int, int, int]:
        return colours[int(random.integers(len(colours)))]

    pale = random.random() < 0.5
    ink, ground = (one(PALE), one((*DARK, *BRIGHT))) if pale else (one(DARK), one(PALE))
    face, pattern = FACES[int(random.integers(len(FACES)))], PATTERNS[int(random.integers(4))]
    align, margin, leading = int(random.integers(3)) / 2, random.uniform(0.3, 0.9), random.uniform(0.3, 0.9)
    rows = [Row(t.text, t.label, "store", t.size * random.uniform(0.85, 1.2)) for t in texts]
    return board(random, rows, Look(face, ink, ground, pattern, align=align, margin=margin, leading=leading))


def scene(picture: Picture, view: int) -> Scene:
    """A wall with the picture's boards in rows, seen from some distance."""
    random = np.random.default_rng((77, view, sum(map(ord, picture.name))))
    boards = [drawn(texts, random) for texts in cut(picture.groups, random)]
    width = max(int(random.uniform(900, 1500)), *(b.pixels.shape[1] + 60 for b in boards))
    x = y = 20
    lowest, places = 0, []
    for one in boards:
        if x + one.pixels.shape[1] + 20 > width:
            x, y, lowest = 20, y + lowest + int(random.uniform(15, 90)), 0
        places.append((x, y))
        x += one.pixels.shape[1] + int(random.uniform(15, 160))
        lowest = max(lowest, one.pixels.shape[0])
    height = y + lowest + int(random.uniform(20, 200))
    wall = np.array(PALE[int(random.integers(len(PALE)))]) * random.uniform(0.4, 1)
    image = np.clip(wall + random.normal(0, 6, (height, width, 1)), 0, 255).astype(np.uint8)
    image = np.asarray(cv2.GaussianBlur(image, (0, 0), 2), np.uint8)
    scale, labels = random.uniform(0.45, 1.0), []
    for one, at in zip(boards, places, strict=True):
        high, wide = one.pixels.shape[:2]
        image[at[1] : at[1] + high, at[0] : at[0] + wide] = one.pixels[..., :3]
        labels += [
            Label((m.polygon + np.array(at)) * np.float32(scale), m.text, m.label, m.kind) for m in one.marks
        ]
    small = cv2.resize(image, (int(width * scale), int(height * scale)), interpolation=cv2.INTER_AREA)
    soft = cv2.GaussianBlur(small, (0, 0), random.uniform(0.4, 1.0))
    noisy = np.clip(soft + random.normal(0, 4, soft.shape[:2])[..., None], 0, 255).astype(np.uint8)
    return Scene(noisy, picture.name, picture.category, tuple(labels))


def seen(pictures: list[Picture], views: int) -> tuple[NDArray[np.float32], NDArray[np.bool_], list[str]]:
    """The numbers of each line in each view, whether it navigates, and its category."""
    tables, navigates, categories = [], [], []
    for picture in pictures:
        for view in range(views):
            shown = scene(picture, view)
            lines, labels = lines_of(shown, np.random.default_rng((5, view, sum(map(ord, picture.name)))))
            tables.append(features(lines, shown.image, board_of(lines), Names.bundled()))
            navigates += [label.label == "nav" for label in labels]
            categories += [picture.category] * len(labels)
    return np.concatenate(tables), np.array(navigates), categories


def nine_in_ten(scores: NDArray[np.floating], nav: NDArray[np.bool_]) -> float:
    """The score that nine in ten of the lines that navigate reach."""
    return float(np.sort(scores[nav])[int(0.1 * nav.sum())])


def main() -> None:
    """AP, and how much other text is gone at the default and at a recall of .9, in all and by category."""
    least = load_classifier().threshold
    for title, pictures in lists():
        table, nav, categories = seen(pictures, VIEWS)
        scores = classify(table).astype(float)
        ap = metrics.average_precision(nav, scores)
        at_90 = nine_in_ten(scores, nav)
        print(f"{title} list: {nav.sum()} nav, {(~nav).sum()} other in {VIEWS} views; AP {ap:.3f}")
        kept, gone = (scores[nav] >= least).mean(), (scores[~nav] < least).mean()
        print(f"  at the default: recall {kept:.3f}, other gone {gone:.3f}")
        print(f"  at recall .9: other gone {(scores[~nav] < at_90).mean():.3f}")
        for category in dict.fromkeys(categories):
            own = ~nav & (np.array(categories) == category)
            print(f"    {category}: {(scores[own] < at_90).mean():.2f} of {own.sum()}")


if __name__ == "__main__":
    main()
