"""From words on a command line to what finds the signs; words that make no sense are a UsageError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nipstool.detect_navtext.find import Box, Finder, Sign
from nipstool.detect_navtext.kinds import kind_by_words, wanted
from nipstool.detect_navtext.lines import KINDS, Image
from nipstool.detect_navtext.maps import STRIDE, View
from nipstool.detect_navtext.models import Models, bundled, in_folder
from nipstool.detect_navtext.ocr import Reader, Reading
from nipstool.detect_navtext.poi import Names
from nipstool.detect_navtext.poi_files import read_places
from nipstool.detect_navtext.relevance import Classifier, classifier_in, load_classifier
from nipstool.detect_navtext.run import Find, Wanted
from nipstool.kit.errors import DataError, UsageError

READ = ("worth", "all", "none")


@dataclass(frozen=True)
class Choices:
    """How signs are to be found, as the user said it.

    Attributes:
        scale: `auto` or the longest side in pixels. tile: `auto`, `off` or a side. roi: x,y,w,h.
        min_height: N or N%. read: one of READ. poi: files of places.
        min_score: None for the classifier's threshold. kinds: none for all.
        models: folder of OCR models. detector, classifier: files in the place of the bundled ones.
        navocr: a detector of NavOCR's. vlm: folder of an image-text model.
    """

    scale: str = "auto"
    tile: str = "auto"
    roi: str | None = None
    min_height: str = "0"
    read: str = "worth"
    poi: Sequence[Path] = ()
    min_score: float | None = None
    kinds: Sequence[str] = ()
    models: Path | None = None
    detector: Path | None = None
    classifier: Path | None = None
    navocr: Path | None = None
    vlm: Path | None = None
    threads: int = 1
    device: str = "cpu"


def finder_of(choices: Choices) -> tuple[Find, Wanted]:
    """What finds the signs in a picture, and which of them are wanted.

    Raises:
        UsageError: words that mean nothing. InputMissingError, DataError, UnavailableError: files they name.
    """
    kinds = _kinds(choices.kinds)
    roi = region(choices.roi)
    if choices.navocr is not None:
        return _navocr(choices, roi), Wanted(choices.min_score or 0.0, kinds)
    reading = Reading(_view(choices), *_least_height(choices.min_height), _read(choices.read))
    found = in_folder(choices.models) if choices.models is not None else bundled()
    detector = Models(choices.detector, None) if choices.detector is not None else None
    reader = Reader(found, detector=detector, threads=choices.threads, device=choices.device, reading=reading)
    classifier = _classifier(choices)
    embed = None
    if choices.vlm is not None:
        from nipstool.detect_navtext.vlm import load_embedder

        embed = load_embedder(choices.vlm, device=choices.device)
    finder = Finder(reader, places(choices.poi), classifier, embed=embed, threshold=choices.min_score, roi=roi)
    return finder.find, Wanted(finder.threshold, kinds)


def _classifier(choices: Choices) -> Classifier:
    """The one that is named (a file of its own, or a trained detector that holds one), else the one that a trained
    detector brings, else the shipped one."""
    source = choices.classifier or choices.detector
    if source is not None and source.suffix.lower() == ".onnx":
        from nipstool.detect_navtext.detector import ALONE, metadata
        from nipstool.detect_navtext.detector import classifier_in as bytes_in

        data = bytes_in(source)
        if data is not None:
            found = classifier_in(data, f"the classifier in {source}")
            alone = choices.detector is None and metadata(source).get(ALONE)
            return replace(found, threshold=float(alone)) if alone else found
        if choices.classifier is not None:
            raise DataError(f"{source}: holds no relevance classifier; expected one that train has adapted")
    return load_classifier(choices.classifier)


def places(files: Sequence[Path]) -> Names:
    """The bundled names, and before them those of the user's files."""
    if not files:
        return Names.bundled()
    own = [name for file in files for name in read_places(file)]
    return Names([*own, *Names.bundled().names])


def _navocr(choices: Choices, roi: Box | None) -> Find:
    from nipstool.detect_navtext.find import cut, moved
    from nipstool.detect_navtext.navocr import NavOcr
    from nipstool.detect_navtext.recognise import Recogniser

    assert choices.navocr is not None
    found = in_folder(choices.models) if choices.models is not None else bundled()
    reads = _read(choices.read) != "none" and found.recogniser is not None
    words = Recogniser(found.recogniser, found.characters, threads=choices.threads) if reads else None  # pyright: ignore[reportArgumentType]
    chain = NavOcr(choices.navocr, words, threads=choices.threads, device=choices.device)

    def find(image: Image) -> list[Sign]:
        part, shift = cut(image, roi)
        lines = [moved(line, shift) for line in chain.read(part)]
        return [Sign(line, line.det_score, kind_by_words(line.text), None, {}, n) for n, line in enumerate(lines)]

    return find


def _kinds(words: Sequence[str]) -> frozenset[str]:
    try:
        return wanted(words)
    except ValueError as error:
        raise UsageError(f"--kinds {error}: expected some of {', '.join(KINDS)}") from error


def _read(word: str) -> str:
    if word not in READ:
        raise UsageError(f"--read {word}: expected {', '.join(READ)}")
    return word


def _view(choices: Choices) -> View:
    return View(_side("--scale", choices.scale, "auto"), _tile(choices.tile))


def _side(option: str, word: str, auto: str) -> int | None:
    if word == auto:
        return None
    if not word.isdigit() or int(word) < STRIDE:
        raise UsageError(f"{option} {word}: expected {auto} or a side of at least {STRIDE} pixels")
    return int(word)


def _tile(word: str) -> int:
    if word == "off":
        return 0
    return _side("--tile", word, "auto") or View().tile


def _least_height(word: str) -> tuple[float, float]:
    """Pixels, and a share of the picture's height."""
    number = word.removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"--min-height {word}: expected pixels, or a share of the picture like 2%")
    return (0.0, value / 100) if word.endswith("%") else (value, 0.0)


def region(word: str | None) -> Box | None:
    """The region that `x,y,w,h` means, in pixels or, all at most 1, in shares of the picture."""
    if word is None:
        return None
    try:
        x, y, w, h = (float(part) for part in word.split(","))
    except ValueError:
        x = y = w = h = -1.0
    if not (x >= 0 and y >= 0 and w > 0 and h > 0 and max(x, y, w, h) < 1e9):
        raise UsageError(f"--roi {word}: expected x,y,w,h in pixels, or in shares of the picture from 0 to 1")
    return (x, y, w, h)
