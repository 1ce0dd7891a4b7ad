"""detect-navtext's reading beside rapidocr's: CPU time, equal lines, recall, tiles, names, memory.

Ratios are of CPU time in one run with one thread. `detect_navtext_reading.py [DATA]` takes the folder of the
pictures (by default that in ../shared/data); parts that need it are left out where it is absent.
"""

import json
import logging
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from nipstool.detect_navtext.find import Finder
from nipstool.detect_navtext.lines import Image, Line
from nipstool.detect_navtext.maps import View
from nipstool.detect_navtext.ocr import Reader, Reading
from nipstool.detect_navtext.pictures import read_picture
from nipstool.detect_navtext.poi import Name, Names
from nipstool.detect_navtext.run import Tally, Wanted, look
from nipstool.detect_navtext.sources import Source

LETTERS = "AEFHKMNTWX"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "detect-navtext"


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    done = work()
    return time.process_time() - start, done


def beside_rapidocr(images: list[Image]) -> None:
    """Equal settings (no classifier of orientation, one thread), then with skipping on."""
    from rapidocr import RapidOCR

    logging.disable(logging.INFO)
    threads = {
        "EngineConfig.onnxruntime.intra_op_num_threads": 1,
        "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    }
    peer = RapidOCR(params={"Global.use_cls": False, **threads})
    readers = {"all": Reader(reading=Reading(read="all")), "worth": Reader()}
    for warm in (peer, *(reader.read for reader in readers.values())):
        warm(images[0])
    cpu = dict.fromkeys(("rapidocr", *readers), 0.0)
    total = equal = skipped = 0
    for image in images:
        spent, theirs = seconds(lambda image=image: peer(image))
        cpu["rapidocr"] += spent
        found: dict[str, list[Line]] = {}
        for name, reader in readers.items():
            spent, found[name] = seconds(lambda reader=reader, image=image: reader.read(image))
            cpu[name] += spent
        ours = {(line.text, tuple(line.polygon.astype(int).ravel())) for line in found["all"]}
        for text, box in zip(theirs.txts or (), theirs.boxes if theirs.boxes is not None else (), strict=True):
            total += 1
            equal += (" ".join(text.split()), tuple(np.asarray(box).astype(int).ravel())) in ours
        skipped += sum(line.reason is not None for line in found["worth"])
    print(f"rapidocr {cpu['rapidocr']:.1f} s; {equal} of {total} of its lines equal (text and box)")
    print(f"all lines read    {cpu['all'] / cpu['rapidocr']:.3f} of its CPU time")
    print(f"only those worth  {cpu['worth'] / cpu['rapidocr']:.3f}, {skipped} lines not read")


def recall(folder: Path, reader: Reader) -> None:
    """Navigation text of which at least half is covered by boxes."""
    from shapely.geometry import Polygon
    from shapely.ops import unary_union

    truth = json.loads((folder / "navtext_eval.json").read_text())
    nav = next(one["id"] for one in truth["categories"] if one["name"] == "navtext")
    found = total = 0
    for picture in truth["images"]:
        path = folder / "images" / picture["file_name"]
        if not path.exists():
            continue
        union = unary_union([Polygon(line.polygon).buffer(0) for line in reader.find(read_picture(path))])
        for one in truth["annotations"]:
            if one["image_id"] == picture["id"] and one["category_id"] == nav:
                shape = Polygon(np.array(one["segmentation"][0]).reshape(-1, 2)).buffer(0)
                total += 1
                found += shape.intersection(union).area >= 0.5 * shape.area
    print(f"detection recall of navigation text, --scale auto: {found}/{total} = {found / total:.3f}")


def mosaic(side: int, count: int) -> tuple[Image, list[str]]:
    """A picture of named halls, a grid of count x count of them; no O or I, which are 0 and l in this typeface."""
    image = np.full((side, side, 3), 235, np.uint8)
    step = side // count
    texts = [f"HALL {LETTERS[n // count]}{LETTERS[n % count]}" for n in range(count * count)]
    for n, text in enumerate(texts):
        place = (n % count * step + step // 8, n // count * step + step // 2)
        cv2.putText(
            image, text, place, cv2.FONT_HERSHEY_SIMPLEX, step / 220, (40, 30, 20), max(2, step // 90), cv2.LINE_AA
        )
    return image, texts


def tiles() -> None:
    """A mosaic of 4000 px in tiles and whole, and a sign across each seam."""
    image, texts = mosaic(4000, 10)
    tiled = Reader(reading=Reading(View(tile=1600), read="all")).read(image)
    whole = Reader(reading=Reading(View(scale=4000, tile=4000), read="all")).read(image)
    print(f"mosaic of {len(texts)} signs: tiled {len(tiled)} lines, whole {len(whole)}")
    same = [one.text for one in tiled] == [one.text for one in whole] == texts
    apart = max(float(np.abs(a.polygon - b.polygon).max()) for a, b in zip(tiled, whole, strict=False))
    print(f"the same texts in the same order: {same}; corners differ by at most {apart:.0f} px")


def large() -> None:
    """A picture of 12000 x 9000 pixels: peak memory of this process."""
    image = cv2.resize(mosaic(3000, 6)[0], (12000, 9000)).astype(np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "large.jpg")
        cv2.imwrite(str(path), image)
        del image
        lines = Reader().read(read_picture(path))
    # ru_maxrss would begin with the size of the process that started this one
    peak = int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1e6
    print(f"12000 x 9000: {len(lines)} lines of 36, peak {peak:.2f} GB")


def names() -> None:
    """Lines compared a second with the bundled names, and with a user's own before them, 33,000 in all."""
    chains = Names.bundled()
    random = np.random.default_rng(0)
    texts = [text[: max(4, int(len(text) * random.uniform(0.7, 1.1)))] + "x" for text in chains.texts[:4000]]
    own = [Name(f"{text} {number}") for number, text in enumerate(chains.texts[: 33_000 - len(chains)])]
    for places in (chains, Names([*own, *chains.names])):
        spent, _ = seconds(lambda places=places: places.match(texts))
        print(f"{len(texts) / spent:.0f} lines/s against {len(places)} names")


def resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def many() -> None:
    """1,000 pictures, and a video of 30 minutes, through the whole chain at a small scale."""
    finder = Finder(Reader(reading=Reading(View(scale=192))))
    with tempfile.TemporaryDirectory() as folder:
        image = mosaic(600, 2)[0]
        cv2.imwrite(f"{folder}/a.jpg", image)
        video = cv2.VideoWriter(f"{folder}/v.avi", cv2.VideoWriter.fourcc(*"MJPG"), 2, (600, 600))
        for number in range(30 * 60 * 2):
            video.write(np.roll(image, number, axis=1))
        video.release()
        pictures = [Source(f"{folder}/a.jpg", "picture", True)] * 1000
        for label, sources in (
            ("1,000 pictures", pictures),
            ("30 minutes of video", [Source(f"{folder}/v.avi", "video", True)]),
        ):
            sizes: list[float] = []

            def find(image: Image, sizes: list[float] = sizes) -> Any:
                sizes.append(resident())
                return finder.find(image)

            rows = sum(len(seen.rows) for _, seen in look(sources, find, Wanted(0.0), Tally(), fps=1))
            print(f"{label}: {len(sizes)} frames, {rows} rows, memory grew {max(sizes[20:]) - sizes[20]:.0f} MB")


def main() -> None:
    cv2.setNumThreads(1)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    if "--large" in sys.argv:
        return large()
    if folder.is_dir():
        beside_rapidocr([read_picture(path) for path in sorted((folder / "images").iterdir())])
        recall(folder, Reader(reading=Reading(read="none")))
    else:
        print(f"pictures are not at {folder}: left out what needs them")
    names()
    tiles()
    many()
    import subprocess

    subprocess.run([sys.executable, __file__, "--large"], check=True)  # its own process: its own peak


if __name__ == "__main__":
    main()
