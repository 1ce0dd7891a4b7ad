"""Find the text that tells a robot where it is (NavOCR): signs out of pictures, videos and cameras."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nipstool import options
from nipstool.kit.errors import UsageError
from nipstool.options import ProgressStyle
from nipstool.terminal import Terminal

if TYPE_CHECKING:
    from nipstool.detect_navtext.annotate import Fonts
    from nipstool.detect_navtext.run import Tally
    from nipstool.kit.distributed import Group

app = typer.Typer()
LOOKING, CHOOSING, MODELS, WRITING = "Looking", "Which signs", "Models", "Writing"


def _option(metavar: str, text: str, panel: str | None = None, *names: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **more)


INPUTS = "Pictures, folders, videos, cam:0, rtsp://...; - is a picture or video on standard input."
Inputs = Annotated[list[str], typer.Argument(metavar="INPUT", help=INPUTS)]
FORMAT = "ndjson has a line a sign; ros2 a Detection2DArray a picture; yolo a folder."
Format = Annotated[str, _option("ndjson|json|csv|coco|yolo|ros2", FORMAT, WRITING)]
Annotate = Annotated[Path | None, _option("DIR", "Draw the signs into copies of the pictures here.", WRITING)]
Font = Annotated[Path | None, _option("FILE", "Font of --annotate; then the system's, then DejaVu.", WRITING)]
FontScale = Annotated[float, _option("X", "Size of the letters of --annotate.", WRITING, min=0.2, max=10)]
Poi = Annotated[
    list[Path] | None, _option("FILE", "Places: OSM GeoJSON, Overpass JSON, CSV, or a name a line.", CHOOSING)
]
MinScore = Annotated[float | None, _option("SCORE", "Least nav_score.", CHOOSING, min=0.0, max=1.0)]
All = Annotated[
    bool, typer.Option("--all", help="Give all text, scored: --min-score 0.", rich_help_panel=CHOOSING)
]
Kinds = Annotated[list[str] | None, _option("KIND,...", "Only these: store, room, floor, exit ...", CHOOSING)]
Scale = Annotated[str, _option("auto|N", "Longest side at which text is looked for.", LOOKING)]
Tile = Annotated[str, _option("auto|off|N", "Large pictures are read in tiles of this side.", LOOKING)]
Roi = Annotated[str | None, _option("X,Y,W,H", "Look only here: pixels, or shares from 0 to 1.", LOOKING)]
MinHeight = Annotated[str, _option("N|N%", "Leave out lines lower than this.", LOOKING)]
Read = Annotated[str, _option("worth|all|none", "Read what is legible, everything or nothing.", LOOKING)]
Fps = Annotated[float, _option("N", "Frames a second of videos and cameras; 0: all.", LOOKING, min=0.0)]
TRACK = "One row a sign of a video, with voted text; or one a frame."
Track = Annotated[bool, typer.Option("--track/--no-track", help=TRACK, rich_help_panel=LOOKING)]
OcrModels = Annotated[Path | None, _option("DIR", "Other OCR models: *det*.onnx, *rec*.onnx.", MODELS)]
Detector = Annotated[Path | None, _option("FILE.onnx", "Another text detector, as `train` makes it.", MODELS)]
Classifier = Annotated[Path | None, _option("FILE", "Another relevance classifier, as `train` fits it.", MODELS)]
Vlm = Annotated[Path | None, _option("DIR", "Weigh in a local CLIP or SigLIP folder.", MODELS)]
Navocr = Annotated[Path | None, _option("FILE.onnx", "Run NavOCR's own detector and chain.", MODELS)]
Strict = Annotated[bool, typer.Option("--strict", help="Fail where a file in a folder cannot be used.")]


@app.command()
def detect(
    inputs: Inputs,
    output: options.Output = "-",
    format: Format = "ndjson",
    min_score: MinScore = None,
    all_text: All = False,
    kinds: Kinds = None,
    poi: Poi = None,
    scale: Scale = "auto",
    tile: Tile = "auto",
    roi: Roi = None,
    min_height: MinHeight = "0",
    read: Read = "worth",
    fps: Fps = 5.0,
    track: Track = True,
    ocr_models: OcrModels = None,
    detector: Detector = None,
    classifier: Classifier = None,
    vlm: Vlm = None,
    navocr: Navocr = None,
    annotate: Annotate = None,
    font: Font = None,
    font_scale: FontScale = 1.0,
    strict: Strict = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    force: options.Force = False,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Find signs: room names, floors, shops, exits, directions; advertisements and prices are scored away.

    \b
    Examples:
      nipstool detect-navtext corridor.jpg
      nipstool detect-navtext photos/ --poi campus.geojson --annotate drawn/
    """
    from nipstool.detect_navtext import output as outputs
    from nipstool.detect_navtext.choices import Choices, finder_of
    from nipstool.detect_navtext.run import Tally, look
    from nipstool.detect_navtext.shares import gathered
    from nipstool.detect_navtext.sources import sources_of
    from nipstool.kit.manifest import Run
    from nipstool.kit.runtime import available_threads

    run = Run(sys.argv)
    piped = output == "-"
    terminal = Terminal(json and not piped, quiet, verbose, progress.value, data_on_stdout=piped)
    form = "json" if json and piped else format
    outputs.check(output, form, [*inputs, *map(str, poi or ())], annotate, force=force)
    choices = Choices(
        scale, tile, roi, min_height, read, poi or (), 0.0 if all_text else min_score, kinds or (),
        ocr_models, detector, classifier, navocr, vlm, threads or available_threads(), device,
    )  # fmt: skip
    find, wanted = finder_of(choices)
    sources = list(sources_of(inputs))
    draw, fonts = outputs.pens(annotate, font, font_scale, sources)
    tally = Tally()
    with _group(output) as group, terminal.progress("look") as show:
        found = look(
            sources, find, wanted, tally, fps=fps or None, track=track, draw=draw,
            progress=show, share=(group.rank, group.size),
        )  # fmt: skip
        with gathered(found, tally, output, group) as seen:
            if group.rank == 0:
                outputs.write(output, form, outputs.unless_nothing(seen, tally, strict=strict), _say, force=force)
    if group.rank == 0:
        outputs.remember(run, output, inputs, tally, device)
        _report(terminal, tally, output, wanted.threshold, fonts)
        _fail(terminal, tally, strict)


Images = Annotated[list[str] | None, typer.Argument(metavar="IMAGE", help="Pictures and folders.")]
Folder = Annotated[str, typer.Option("-o", "--output", metavar="DIR", help="The folder to write.")]
Synthetic = Annotated[int, _option("N", "Render so many sign scenes instead of, or beside, pictures.", min=0)]
POSITIVE = "From this nav_score a line is nav."
Positive = Annotated[float, _option("SCORE", POSITIVE, None, "--nav-from", min=0.0, max=1.0)]
NEGATIVE = "Up to this nav_score a line is other; between the two it is ignored."
Negative = Annotated[float, _option("SCORE", NEGATIVE, None, "--other-to", min=0.0, max=1.0)]
Share = Annotated[float, _option("SHARE", "About so many of the pictures are for validation.", min=0.0, max=0.9)]
PLACE = "Pictures whose names begin so are of one place. Repeatable; by default what stands before a number."
Place = Annotated[list[str] | None, _option("PREFIX", PLACE)]


@app.command("build-dataset")
def build_dataset(
    output: Folder,
    images: Images = None,
    synthetic: Synthetic = 0,
    poi: Poi = None,
    nav_from: Positive = 0.6,
    other_to: Negative = 0.4,
    val: Share = 0.2,
    place: Place = None,
    ocr_models: OcrModels = None,
    vlm: Vlm = None,
    strict: Strict = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    force: options.Force = False,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Make a dataset of nav, other and ignore from pictures and a map, or from rendered scenes: COCO and YOLO.

    OCR, names on the map, words and layout label what is sure; all else is ignored, never taken for a negative.
    Places, and pictures that are nearly the same, are kept together in train or val.

    \b
    Example:
      nipstool detect-navtext build-dataset photos/ --poi campus.csv -o dataset
    """
    from nipstool.detect_navtext.choices import Choices
    from nipstool.detect_navtext.making import Job, make
    from nipstool.kit.files import check_output
    from nipstool.kit.manifest import Run
    from nipstool.kit.runtime import available_threads

    terminal = Terminal(json, quiet, 0, progress.value)
    run = Run(sys.argv)
    options.keep_homes_clean()
    if not (images or synthetic):
        raise UsageError("nothing to make a dataset of: name pictures, or give --synthetic N")
    if other_to > nav_from:
        raise UsageError(f"--other-to {other_to:g} lies above --nav-from {nav_from:g}: no line could be ignored")
    check_output(output, inputs=images or [], force=force, folder=True)
    count = threads or available_threads()
    choices = Choices(poi=poi or (), models=ocr_models, vlm=vlm, threads=count, device=device)
    job = Job(images or [], synthetic, nav_from, other_to, val, place or (), seed=seed)
    with terminal.progress("pictures") as show:
        built, tally = make(Path(output), job, choices, force=force, warn=terminal.warn, progress=show)
    run.write(Path(output), device=device, seed=seed, inputs={}, result=built)
    if json:
        terminal.document(built)
    rows = [[s, built.places[s], built.pictures[s], *built.labels[s].values()] for s in built.pictures]
    terminal.table("Dataset", ("split", "places", "pictures", "nav", "other", "ignore"), rows)
    _fail(terminal, tally, strict)


Dataset = Annotated[str, typer.Argument(metavar="DIR", help="A dataset as build-dataset writes it.")]
Model = Annotated[str, typer.Option("-o", "--output", metavar="MODEL.onnx", help="The detector to write.")]
Steps = Annotated[int, _option("N", "Gradient steps.", min=1)]
Card = Annotated[Path | None, _option("FILE.md", "Write the model card as a file, too.")]
Base = Annotated[
    bool, typer.Option("--base/--no-base", help="Start from the package's weights, or from random ones.")
]
TEACHER = "Learn the text map from the OCR detector's too, not from the labels alone."
Teacher = Annotated[bool, typer.Option("--teacher/--no-teacher", help=TEACHER)]


@app.command()
def train(
    dataset: Dataset,
    output: Model,
    steps: Steps = 150,
    card: Card = None,
    base: Base = True,
    teacher: Teacher = True,
    poi: Poi = None,
    ocr_models: OcrModels = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    force: options.Force = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Train a compact detector on a dataset and fit the relevance classifier to its places; export both as ONNX.

    The model card, in its metadata or by --card a file, says what it reached on the places for validation.

    \b
    Example:
      nipstool detect-navtext train dataset -o campus.onnx
      nipstool detect-navtext photos/ --detector campus.onnx
    """
    from nipstool.detect_navtext import training
    from nipstool.detect_navtext.choices import places
    from nipstool.detect_navtext.learn import FROM_NOTHING, Course
    from nipstool.kit.manifest import Run
    from nipstool.kit.runtime import choose_device, set_threads

    terminal = Terminal(json, quiet, 0, progress.value)
    run = Run(sys.argv)
    training.check_outputs(output, card, dataset, force=force)
    count = set_threads(threads)
    course = Course(steps, seed=seed) if base else Course(steps, seed=seed, rate=FROM_NOTHING)
    taught = training.teacher_of(ocr_models, threads=count) if teacher else None
    made = training.train(
        Path(dataset), course, names=places(poi or ()), teacher=taught, base=base,
        device=choose_device(device), stage=terminal.progress,
    )  # fmt: skip
    inputs = training.write_model(output, card, made, Path(dataset), force=force)
    if Path(output).is_file():
        run.write(Path(output), device=device, seed=seed, inputs=inputs, result=made.results)
    if json:
        terminal.document({"results": made.results, "adapted": made.adapted, "apart": made.apart})
    terminal.table("On the places for validation", ("what", "value"), [[n, v] for n, v in made.results.items()])
    if not made.adapted:
        terminal.warn("too few lines of one label: the shipped relevance classifier stays as it is")


Truth = Annotated[str, typer.Argument(metavar="GT.json", help="COCO labels: navtext, other, ignore.")]
PREDICTED = "Detections as NDJSON, JSON or COCO; or an ONNX model of train's, which is then run."
Predicted = Annotated[str, typer.Argument(metavar="PRED|MODEL", help=PREDICTED)]
Least = Annotated[
    float | None, _option("SCORE", "Least nav_score that counts; by default the classifier's.", min=0.0, max=1.0)
]
Pictures = Annotated[Path | None, _option("DIR", "Where the pictures of GT.json lie, for a model.")]
Report = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="FILE.json", help="Write all as JSON; - is standard output."),
]


@app.command()
def evaluate(
    truth: Truth,
    predicted: Predicted,
    output: Report = None,
    min_score: Least = None,
    place: Place = None,
    images: Pictures = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    force: options.Force = False,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Measure detections against labels: precision, recall, F1, AP by coverage; ICDAR's rule; places, kinds.

    Detections must hold all text (detect --all): what is dropped is measured against what was found.

    \b
    Example:
      nipstool detect-navtext photos/ --all -o found.ndjson
      nipstool detect-navtext evaluate labels.json found.ndjson
    """
    from nipstool.detect_navtext import evaluation
    from nipstool.kit.files import check_output, write_text
    from nipstool.kit.manifest import Run
    from nipstool.kit.records import to_json
    from nipstool.kit.runtime import available_threads

    run = Run(sys.argv)
    terminal = Terminal(json, quiet, 0, progress.value, data_on_stdout=output == "-")
    if output is not None:
        check_output(output, inputs=[truth, predicted], force=force, binary=False)
    with terminal.progress("pictures") as show:
        result = evaluation.run(
            truth,
            predicted,
            min_score,
            place or (),
            images,
            threads or available_threads(),
            seed=seed,
            progress=show,
        )
    if result.absent:
        terminal.warn(f"{result.absent} detections are in pictures that {truth} does not name, and left out")
    if output is not None:
        write_text(output, to_json(result, indent=2) + "\n", force=force)
        evaluation.remember(run, output, (truth, predicted), seed)
    if json:
        terminal.document(result)
    if output != "-":
        terminal.table("By place", evaluation.PLACE_COLUMNS, evaluation.place_rows(result))
        terminal.table("By kind", evaluation.KIND_COLUMNS, evaluation.kind_rows(result))
        terminal.text(evaluation.outcome(result))


def _say(text: str) -> None:
    """Write JSON to standard output at once."""
    from nipstool.detect_navtext.output import encodable

    sys.stdout.write(encodable(text, sys.stdout.encoding or "utf-8"))
    sys.stdout.flush()


def _report(terminal: Terminal, tally: "Tally", output: str, threshold: float, fonts: "Fonts | None") -> None:
    """What was found and what was held back, said so that nothing is lost silently."""
    from nipstool.detect_navtext.output import undrawn

    if terminal.json:
        terminal.document({"output": output, **tally.counts})
    elif output != "-":
        terminal.text(f"wrote {output}: {tally.told(threshold)}")
    elif tally.held_back or terminal.verbose:
        terminal.note(tally.told(threshold))
    if text := undrawn(fonts):
        terminal.note(text)


@contextmanager
def _group(output: str) -> "Iterator[Group]":
    """The processes that torchrun started, or this one alone."""
    from nipstool.kit.distributed import Group, joined

    if "TORCHELASTIC_RUN_ID" not in os.environ:  # asking torch itself would import it
        yield Group()
        return
    if output == "-":
        raise UsageError("torchrun shares the files among processes: name the output with -o")
    with joined() as group:
        yield group


def _fail(terminal: Terminal, tally: "Tally", strict: bool) -> None:
    """Say what could not be used: a warning each, save the one that the run ends with."""
    failure = tally.failure(strict=strict)
    for error, _ in tally.failures:
        if failure is None or not str(failure).startswith(str(error)):
            terminal.warn(str(error))
    if failure is not None:
        raise failure
