"""Where what is found goes: a file, a folder, or pieces of text for a stream."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from json import dumps
from pathlib import Path

from nipstool.detect_navtext.annotate import Fonts, drawn, save_drawn
from nipstool.detect_navtext.find import Sign
from nipstool.detect_navtext.formats import FORMATS, STREAMS, yolo
from nipstool.detect_navtext.pictures import SUFFIXES
from nipstool.detect_navtext.rows import Seen
from nipstool.detect_navtext.run import Draw, Tally
from nipstool.detect_navtext.sources import Frame, Source, is_camera, sources_of
from nipstool.kit.errors import NipsError, OutputError, UsageError
from nipstool.kit.files import AtomicFile, AtomicFolder, check_output, is_stdio, sha256
from nipstool.kit.manifest import Run
from nipstool.kit.parts import reason


def check(output: str, form: str, inputs: Sequence[str], annotate: Path | None, *, force: bool) -> None:
    """Refuse, before any work, an output that could not or should not be written.

    Raises UsageError and OutputError as `files.check_output`.
    """
    if form not in FORMATS:
        raise UsageError(f"--format {form}: expected {', '.join(FORMATS)}")
    files = [name for name in inputs if not is_camera(name)]
    if form == "yolo" and is_stdio(output):
        raise UsageError("--format yolo writes a folder: name it with -o")
    check_output(output, inputs=files, force=force, folder=form == "yolo", binary=False)
    if annotate is not None:
        check_output(annotate, inputs=files, force=True, folder=True)


def write(output: str, form: str, seen: Iterable[Seen], say: Callable[[str], None], *, force: bool) -> None:
    """Write in a format: to a file or folder that appears whole, or, for '-', to `say` piece by piece."""
    if form == "yolo":
        with AtomicFolder(output, force=force) as folder:
            yolo(seen, folder)
    elif is_stdio(output):
        for text in STREAMS[form](seen):
            say(text)
    else:
        with AtomicFile(output, force=force) as out:
            for text in STREAMS[form](seen):
                out.file.write(text.encode(errors="backslashreplace"))


def remember(run: Run, output: str, inputs: Sequence[str], tally: Tally, device: str) -> None:
    """Write the manifest beside an output that is a file or folder: what was run, on which bytes."""
    path = Path(output)
    if is_stdio(output) or not (path.is_file() or path.is_dir()):
        return
    files = [one.name for one in sources_of(inputs) if isinstance(one, Source) and Path(one.name).is_file()]
    run.write(path, device=device, seed=None, inputs={name: sha256(name) for name in files}, result=tally.counts)


def unless_nothing(found: Iterable[Seen], tally: Tally, *, strict: bool) -> Iterator[Seen]:
    """The same, with the run's failure at the end where no picture could be used: then no output is to appear."""
    yield from found
    if not tally.pictures and (failure := tally.failure(strict=strict)) is not None:
        raise failure


def encodable(text: str, encoding: str) -> str:
    """JSON for a stream of an encoding: as it is for UTF-8, with escapes for all others."""
    if encoding.lower().replace("-", "") == "utf8":
        return text
    return re.sub("[^\0-\x7f]", lambda found: dumps(found[0])[1:-1], text)


def pens(
    folder: Path | None, font: Path | None, scale: float, sources: Iterable[Source | NipsError] = ()
) -> tuple[Draw | None, Fonts | None]:
    """What draws into a folder, and its fonts, which know what they could not write; None without a folder.

    Raises OutputError as `drawing`.
    """
    if folder is None:
        return None, None
    fonts = Fonts(font)
    return drawing(folder, fonts, scale, [one.name for one in sources if isinstance(one, Source)]), fonts


def undrawn(fonts: Fonts | None) -> str:
    """What is to be said where some text could not be drawn, else nothing."""
    if fonts is None or not fonts.uncovered:
        return ""
    return "some text has characters that no font here holds; its place shows #NUMBER: give --font FILE"


def drawing(folder: Path, fonts: Fonts, scale: float, names: Iterable[str] = ()) -> Draw:
    """What draws the signs of each frame into a copy in `folder`, NAME.png or NAME_FRAME.png.

    Of several files called NAME the first has that name, the others their whole path. `names` are all the sources
    that there will be: processes that share them draw into one folder.

    Raises OutputError where the folder cannot be made, or a picture cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: {reason(error)}") from error
    owners: dict[str, str] = {}
    for name in names:
        owners.setdefault(_stem(name), name)

    def draw(frame: Frame, signs: Sequence[Sign]) -> None:
        stem = _stem(frame.source)
        if owners.setdefault(stem, frame.source) != frame.source:
            stem = frame.source.strip("./").replace(os.sep, "_").removesuffix(Path(frame.source).suffix)
        name = stem if frame.number is None else f"{stem}_{frame.number:06d}"
        save_drawn(folder / f"{name}{_suffix(frame.source)}", drawn(frame.image, signs, fonts, scale=scale))

    return draw


def _stem(source: str) -> str:
    return "stdin" if source == "-" else Path(source).stem or "camera"


def _suffix(name: str) -> str:
    """JPEG for what was one, PNG for all else."""
    suffix = Path(name).suffix.lower()
    return ".jpg" if suffix in (".jpg", ".jpeg") and suffix in SUFFIXES else ".png"
