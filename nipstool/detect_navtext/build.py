"""Datasets from pictures and a map, without anybody drawing a box; and from rendered scenes.

OCR finds the lines; the map, the words and the layout say how sure it is that a line tells where one is. What is
sure becomes nav or other, all between is ignored: a sign taken for clutter would teach a detector to miss signs.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from nipstool.detect_navtext import dataset
from nipstool.detect_navtext.dataset import Picture, Truth
from nipstool.detect_navtext.find import Sign
from nipstool.detect_navtext.lines import Image, Polygon
from nipstool.detect_navtext.pictures import decoded
from nipstool.detect_navtext.scenes import FOLDS, Scene, fold_of, render
from nipstool.detect_navtext.sources import Source
from nipstool.kit.errors import DataError, InputMissingError, NipsError
from nipstool.kit.parts import reason
from nipstool.kit.progress import Progress, silent
from nipstool.kit.records import to_json

NEAR = 6  # of the 64 bits of two pictures' hashes: so many may differ in two views of one thing
VIEWS = 2  # of a rendered place
MARGIN = 0.2  # of a rendered line's height, around its letters; PP-OCR's boxes have about 0.3
COLUMNS = ("image", "split", "place", "made", "source", "sha256", "licence")
JPEG = b"\xff\xd8\xff"


@dataclass(frozen=True, eq=False)
class Shot:
    """A labelled picture that is to go into a dataset.

    Attributes:
        data: the file's bytes if they can be kept as they are, else None, and the picture is written as PNG.
        made: `photograph` or `rendered`.
        origin: the file it came from, or what rendered it.
        is_val: which split it must be in; None leaves it to chance.
    """

    name: str
    image: Image
    truths: tuple[Truth, ...]
    place: str
    made: str
    origin: str
    sha256: str
    data: bytes | None = None
    is_val: bool | None = None


@dataclass(frozen=True)
class Built:
    """What is in a dataset: pictures and places of each split, lines of each label, kinds of navigation text."""

    pictures: dict[str, int]
    places: dict[str, int]
    labels: dict[str, dict[str, int]]
    kinds: dict[str, int]
    near_duplicates: int


def label_of(score: float, *, is_read: bool, positive: float, negative: float) -> str:
    """nav, other, or ignore where nobody is sure: between the two scores, or where the text was not read."""
    if not is_read:
        return "ignore"
    return "nav" if score >= positive else "other" if score <= negative else "ignore"


def rendered(count: int, seed: int, brands: Sequence[str], *, progress: Progress = silent) -> Iterator[Shot]:
    """`count` views of rendered places; those of the last fold of places, with their own typefaces, walls and ways
    of hanging signs, are for validation. `seed` chooses the places."""
    places = [1000 * seed + number for number in range(-(-count // VIEWS))]
    if len(places) < FOLDS and len(places) > 1:
        places[-1] += FOLDS - len(places)  # a small dataset has one place of the last fold too
    for number in range(count):
        place, view = places[number // VIEWS], number % VIEWS
        yield shot_of(render(place, view, brands=brands), view, is_val=fold_of(place) == FOLDS - 1)
        progress(number + 1, count)


def shot_of(scene: Scene, view: int, *, is_val: bool) -> Shot:
    """A rendered scene as a picture of a dataset."""
    data = cv2.imencode(".jpg", scene.image, [int(cv2.IMWRITE_JPEG_QUALITY), 95])[1].tobytes()
    limits = np.array([scene.image.shape[1], scene.image.shape[0]], np.float32)
    truths = tuple(
        Truth(np.clip(with_margin(t.polygon), 0, limits), t.label, t.kind if t.label == "nav" else "", t.text)
        for t in scene.labels
    )
    name, origin = f"{scene.place}_{view}.jpg", f"scene {scene.place} view {view}"
    return Shot(name, scene.image, truths, scene.place, "rendered", origin, _hash(data), data, is_val)


def with_margin(polygon: Polygon) -> Polygon:
    """A line's outline with the room around its letters that outlines of OCR, and of people, have."""
    top_left, top_right, bottom_right, bottom_left = polygon
    along = top_right - top_left + bottom_right - bottom_left
    down = bottom_left - top_left + bottom_right - top_right
    room = MARGIN * float(np.linalg.norm(down)) / 2
    along, down = (room * side / max(float(np.linalg.norm(side)), 1e-6) for side in (along, down))
    return (polygon + np.stack([-along - down, along - down, along + down, down - along])).astype(np.float32)


def photograph(name: str, data: bytes, image: Image, truths: tuple[Truth, ...], place: str, origin: str) -> Shot:
    """A picture from a file with its labels. A JPEG that is not turned by its EXIF data is kept as it is."""
    same = data.startswith(JPEG) and _is_upright(data, image)
    suffix = ".jpg" if same else ".png"
    return Shot(
        Path(name).stem + suffix, image, truths, place, "photograph", origin, _hash(data), data if same else None
    )


def _is_upright(data: bytes, image: Image) -> bool:
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    plain = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    return plain is not None and np.array_equal(plain, image)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(
    shots: Iterable[Shot],
    folder: Path,
    *,
    share: float = 0.2,
    licence: str = "",
    warn: Callable[[str], None] = lambda _: None,
) -> Built:
    """Write a dataset into an empty folder; what is in memory is one picture and the labels of all.

    Args:
        share: of the pictures, about so many are for validation, in places of their own.
        warn: told what is left out.

    Raises:
        DataError: no picture came.
    """
    store = folder / "images"
    store.mkdir()
    pictures: list[Picture] = []
    wanted: dict[str, bool] = {}
    hashes: list[int] = []
    seen: set[str] = set()
    for shot in shots:
        if shot.sha256 in seen:
            warn(f"{shot.origin}: is the same file as one before it, and left out")
            continue
        seen.add(shot.sha256)
        name = _free_name(shot.name, store)
        (store / name).write_bytes(shot.data if shot.data is not None else _png(shot.image))
        hashes.append(picture_hash(shot.image))
        source = {"made": shot.made, "source": shot.origin, "sha256": shot.sha256, "licence": licence}
        pictures.append(Picture(name, shot.image.shape[1], shot.image.shape[0], shot.truths, shot.place, source))
        if shot.is_val is not None:
            wanted[shot.place] = shot.is_val
    if not pictures:
        raise DataError("no picture could be used; a dataset needs one")
    groups, near = together([p.place for p in pictures], hashes)
    split = _split(groups, [p.place for p in pictures], wanted, share)
    for name in dataset.SPLITS:
        _write_split(folder, name, [p for p, one in zip(pictures, split, strict=True) if one == name])
    _write_provenance(folder, pictures, split)
    (folder / "data.yaml").write_text(dataset.data_yaml(), encoding="utf-8")
    return _summary(pictures, split, near)


def _free_name(name: str, folder: Path) -> str:
    path, number = Path(name), 1
    while (folder / name).exists():
        number += 1
        name = f"{path.stem}-{number}{path.suffix}"
    return name


def _png(image: Image) -> bytes:
    return cv2.imencode(".png", image)[1].tobytes()


def picture_hash(image: Image) -> int:
    """64 bits: whether each of 8 x 8 patches is lighter than its right neighbour (dHash)."""
    small = cv2.resize(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), (9, 8), interpolation=cv2.INTER_AREA)
    bits = (small[:, :-1] > small[:, 1:]).ravel()
    return int("".join("1" if bit else "0" for bit in bits), 2)


def together(places: Sequence[str], hashes: Sequence[int]) -> tuple[list[int], int]:
    """A group number for every picture, and how many pairs are nearly the same.

    Pictures of one place are in one group, and so are places that share nearly the same picture.
    """
    parents = list(range(len(places)))
    first: dict[str, int] = {}
    for i, place in enumerate(places):
        _join(parents, first.setdefault(place, i), i)
    near = 0
    for i in range(len(hashes)):
        for j in range(i):
            if (hashes[i] ^ hashes[j]).bit_count() <= NEAR:
                near += 1
                _join(parents, i, j)
    return [_root(parents, i) for i in range(len(places))], near


def _root(parents: list[int], i: int) -> int:
    while parents[i] != i:
        i = parents[i] = parents[parents[i]]
    return i


def _join(parents: list[int], i: int, j: int) -> None:
    a, b = _root(parents, i), _root(parents, j)
    parents[max(a, b)] = min(a, b)


def _split(groups: Sequence[int], places: Sequence[str], wanted: dict[str, bool], share: float) -> list[str]:
    if wanted:
        return ["val" if wanted.get(place, False) else "train" for place in places]
    found = dataset.splits(Counter(str(group) for group in groups), share)
    return [found[str(group)] for group in groups]


def _write_split(folder: Path, split: str, pictures: Sequence[Picture]) -> None:
    for part in ("labels", "polygons", "images"):
        (folder / part / split).mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        (folder / "images" / picture.name).rename(folder / "images" / split / picture.name)
        stem = Path(picture.name).stem
        (folder / "labels" / split / f"{stem}.txt").write_text(dataset.yolo(picture), encoding="utf-8")
        corners = dataset.yolo(picture, corners=True)
        (folder / "polygons" / split / f"{stem}.txt").write_text(corners, encoding="utf-8")
    annotations = folder / "annotations"
    annotations.mkdir(exist_ok=True)
    named = [replace(p, name=f"images/{split}/{p.name}") for p in pictures]
    (annotations / f"{split}.json").write_text(to_json(dataset.coco(named)), encoding="utf-8")


def _write_provenance(folder: Path, pictures: Sequence[Picture], split: Sequence[str]) -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for picture, one in zip(pictures, split, strict=True):
        source: Any = picture.source
        row = [source[column] for column in COLUMNS[3:]]
        table.writerow([f"images/{one}/{picture.name}", one, picture.place, *row])
    (folder / "provenance.csv").write_text(text.getvalue(), encoding="utf-8")


def _summary(pictures: Sequence[Picture], split: Sequence[str], near: int) -> Built:
    of: dict[str, list[Picture]] = {name: [] for name in dataset.SPLITS}
    for picture, one in zip(pictures, split, strict=True):
        of[one].append(picture)
    labels = {
        name: {
            label: sum(t.label == label for p in group for t in p.truths) for label in ("nav", "other", "ignore")
        }
        for name, group in of.items()
    }
    kinds = Counter(t.kind or "unsaid" for p in pictures for t in p.truths if t.label == "nav")
    return Built(
        {name: len(group) for name, group in of.items()},
        {name: len({p.place for p in group}) for name, group in of.items()},
        labels,
        dict(sorted(kinds.items())),
        near,
    )


def photographs(
    sources: Iterable[Source | NipsError],
    find: Callable[[Image], Sequence[Sign]],
    *,
    positive: float = 0.6,
    negative: float = 0.4,
    prefixes: Sequence[str] = (),
    failed: Callable[[NipsError, bool], None],
    progress: Progress = silent,
) -> Iterator[Shot]:
    """Pictures from files, labelled by what finds signs in them.

    Args:
        find: scores every line of text of a picture, and says what kind it would be.
        positive, negative: from which score a line is nav, and up to which it is other.
        prefixes: beginnings of file names that name places; else `place` says.
        failed: told of inputs that cannot be used, and whether the user named them.
    """
    for number, source in enumerate(sources, 1):
        progress(number, 0)
        if isinstance(source, NipsError):
            failed(source, True)
            continue
        try:
            if source.kind != "picture":
                raise DataError(f"{source.name}: is no picture; a dataset is made from pictures")
            data = bytes_of(source.name)
            image = decoded(data, source.name)
        except (DataError, InputMissingError) as error:
            failed(error, source.named)
            continue
        truths = tuple(_labelled(sign, positive, negative) for sign in find(image))
        name = Path(source.name).name
        yield photograph(name, data, image, truths, place(source.name, prefixes), source.name)


def bytes_of(path: str) -> bytes:
    """A file's bytes. Raises InputMissingError where it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputMissingError(f"{path}: {reason(error)}; expected a picture") from error


def place(path: str, prefixes: Sequence[str] = ()) -> str:
    """Where a picture was taken: the prefix that it has, else what its name says before a number."""
    name = Path(path).name
    return max((p for p in prefixes if name.startswith(p)), key=len, default="") or dataset.place_of(name)


def _labelled(sign: Sign, positive: float, negative: float) -> Truth:
    line = sign.line
    label = label_of(sign.nav_score, is_read=bool(line.text), positive=positive, negative=negative)
    kind = sign.kind if label == "nav" else ""
    return Truth(line.polygon, label, kind, line.text, sign.nav_score, sign.evidence)
