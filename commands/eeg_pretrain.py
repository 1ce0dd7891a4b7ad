"""Pretrain, embed and judge an EEG model on whatever recordings there are. For research, never for diagnosis."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nipstool import options
from nipstool.options import ProgressStyle
from nipstool.terminal import Terminal

if TYPE_CHECKING:
    from nipstool.eeg_pretrain.outputs import Detected
    from nipstool.kit.manifest import Run

app = typer.Typer()

RESEARCH_ONLY = "for research only, never for diagnosis"

Data = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA", help="EDF, BDF, FIF, SET or BrainVision files, or folders; - is one file on stdin."
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail where a file in a folder cannot be used.")]
MODEL, TRAINING = "The model", "How it is trained"


def _option(metavar: str, text: str, panel: str | None = None, *names: str, least: float | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, min=least)


Preset = Annotated[str, _option("tiny|small|base", "0.5, 12 or 87 million parameters.", MODEL)]
Context = Annotated[float | None, _option("SECONDS", "Length of a training window.", MODEL)]
TEXT_MODEL = "A Hugging Face encoder for what is told of a person, instead of hashed n-grams."
TextModel = Annotated[str | None, _option("FOLDER", TEXT_MODEL, MODEL)]
Steps = Annotated[int | None, _option("N", "Training steps; the preset's by default.", TRAINING, least=1)]
BATCH = "Channel tokens a step, over all processes."
BatchTokens = Annotated[int | None, _option("N", BATCH, TRAINING, least=1)]
Rate = Annotated[float | None, _option("RATE", "The largest learning rate.", TRAINING)]
SPLIT = "What is held out: subjects, or the end of every recording; auto: subjects from 3 on, if labelled."
Split = Annotated[str, _option("auto|subject|time", SPLIT, TRAINING)]
ValShare = Annotated[float | None, _option("SHARE", "How much is held out.", TRAINING)]
EVERY = "Steps between two validations, and two checkpoints."
ValidateEvery = Annotated[int | None, _option("N", EVERY, TRAINING, least=1)]
PATIENCE = "Stop after so many validations without a better loss; 0 never stops."
Patience = Annotated[int, _option("N", PATIENCE, TRAINING, least=0)]
Without = Annotated[
    list[str] | None,
    _option("TERM", "Leave out a loss: detection, onset, hazard, descriptors. Repeatable.", TRAINING),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on from an interrupted run's checkpoint.", rich_help_panel=options.COMMON),
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="float32|bfloat16",
        help="Of the matrix products; gates stay float32.",
        rich_help_panel=options.COMMON,
    ),
]


@app.command()
def train(
    data: Data,
    output: options.NewFolder,
    preset: Preset = "tiny",
    context: Context = None,
    text_model: TextModel = None,
    steps: Steps = None,
    batch_tokens: BatchTokens = None,
    rate: Rate = None,
    split: Split = "auto",
    val_share: ValShare = None,
    validate_every: ValidateEvery = None,
    patience: Patience = 0,
    without: Without = None,
    strict: Strict = False,
    resume: Resume = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    force: options.Force = False,
    device: options.Device = "auto",
    dtype: Dtype = "float32",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Pretrain a causal xLSTM on recordings of any montage: next patch, seizures, time to them, descriptors.

    OUT becomes a folder with the model, its log and pictures, and the detection threshold chosen on held-out
    recordings. On several processes: torchrun --nproc-per-node 2 -m nipstool eeg-pretrain DATA -o OUT.

    \b
    Examples:
      nipstool eeg-pretrain recordings/ -o run --preset tiny
      nipstool eeg-pretrain chb-mit/ siena/ -o run --preset small --resume
    """
    terminal = Terminal(json, quiet, verbose, progress.value)
    run = _start(threads)
    from nipstool.eeg_pretrain.choices import Wishes, settings_of
    from nipstool.eeg_pretrain.verbs import opened, raise_failure
    from nipstool.kit.files import check_output
    from nipstool.kit.runtime import choose_device

    numbers = (context, steps, batch_tokens, rate, val_share, validate_every)
    wishes = Wishes(preset, *numbers, split, patience, tuple(without or ()), dtype)
    check_output(output, force=force, folder=True, inputs=[name for name in data if name != "-"])
    where = choose_device(device)
    settings = settings_of(wishes, seed=seed, device=str(where), text_model=text_model)
    with opened(terminal, data) as found:
        from nipstool.eeg_pretrain.job import fingerprints, run_training

        with terminal.progress("train") as show:
            how: dict[str, Any] = {"force": force, "resume": resume, "progress": show, "note": terminal.warn}
            about = run_training(found.recordings, output, settings, **how)
        if about:
            inputs = fingerprints(found.recordings)
            run.write(Path(output), device=str(where), seed=seed, inputs=inputs, result=about)
            _show_training(terminal, output, about)
    raise_failure(found, data, strict)


def _show_training(terminal: Terminal, output: str, about: dict[str, Any]) -> None:
    from nipstool.eeg_pretrain.report import training_line, training_tables

    if terminal.json:
        terminal.document({"note": RESEARCH_ONLY, "output": output, **about})
        return
    for title, columns, rows in training_tables(about):
        terminal.table(title, columns, rows)
    terminal.text(training_line(output, about))


RunFolder = Annotated[str, typer.Argument(metavar="RUN", help="The folder that train has written.")]
Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="Recordings, or folders; - is one on stdin.")]
Text = Annotated[bool, typer.Option("--text", help="Tell the model what is known of the person beforehand.")]


@app.command()
def embed(
    run: RunFolder,
    files: Files,
    output: options.Output,
    window: Annotated[float, _option("SECONDS", "Length of a window.")] = 10.0,
    hop: Annotated[float, _option("SECONDS", "From one window's start to the next one's.")] = 10.0,
    stream: Annotated[bool, typer.Option("--stream", help="Piece by piece, at flat memory.")] = False,
    text: Text = False,
    strict: Strict = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    force: options.Force = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Embeddings of windows of recordings, as .npz or .safetensors: embeddings [N, d], start and end in s, file.

    \b
    Example:
      nipstool eeg-pretrain embed run recording.edf -o windows.npz
    """
    from nipstool.eeg_pretrain.embed import steps_of
    from nipstool.eeg_pretrain.outputs import check_form, write_embeddings
    from nipstool.eeg_pretrain.verbs import inputs_of, loaded_run, opened, raise_failure
    from nipstool.kit.files import check_output

    started = _start(threads)
    terminal = Terminal(json, quiet, verbose, progress.value, data_on_stdout=output == "-")
    check_output(output, force=force, inputs=[run, *(name for name in files if name != "-")])
    check_form(output)
    loaded, where = loaded_run(run, device)
    steps_of(window, hop, loaded.config)
    from nipstool.eeg_pretrain.apply import embed_recording, texts_for

    with opened(terminal, files) as found, terminal.progress("embed") as show:
        texts = texts_for(loaded, found.recordings, text)
        made = [
            embed_recording(loaded, one, window_s=window, hop_s=hop, stream=stream, text=told, progress=show)
            for one, told in zip(found.recordings, texts, strict=True)
        ]
        named = [(str(one.path), part) for one, part in zip(found.recordings, made, strict=True)]
        rows = write_embeddings(output, named, force=force)
        inputs = inputs_of(loaded, found)
    result = {"output": output, "windows": rows, "width": 2 * loaded.config.d, "recordings": len(made)}
    if Path(output).is_file():
        started.write(Path(output), device=where, seed=None, inputs=inputs, result=result)
    if json:
        terminal.document({"note": RESEARCH_ONLY, **result})
    terminal.text(f"wrote {output}: {rows} windows x {result['width']} of {len(made)} recordings; {RESEARCH_ONLY}")
    raise_failure(found, files, strict)


@app.command()
def detect(
    run: RunFolder,
    files: Files,
    output: Annotated[
        str | None, _option("FOLDER", "Event files (SzCORE .tsv) and risk curves go here.", None, "-o", "--output")
    ] = None,
    threshold: Annotated[float | None, _option("P", "Instead of the one that was chosen in training.")] = None,
    plot: Annotated[Path | None, _option("FILE.png", "Draw probability and risk over time.")] = None,
    text: Text = False,
    strict: Strict = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    force: options.Force = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Seizure events and the risk of one, second by second, at flat memory however long the recording is.

    \b
    Example:
      nipstool eeg-pretrain detect run recording.edf -o events/
    """
    from nipstool.eeg_pretrain.report import EVENT_COLUMNS, detections, event_rows, threshold_line
    from nipstool.eeg_pretrain.verbs import inputs_of, loaded_run, opened, raise_failure
    from nipstool.kit.files import AtomicFolder, check_output

    started = _start(threads)
    terminal = Terminal(json, quiet, verbose, progress.value)
    inputs = [run, *(name for name in files if name != "-")]
    if output is not None:
        check_output(output, force=force, folder=True, inputs=inputs)
    if plot is not None:
        options.check_plot(plot, force=force, beside=inputs)
    loaded, where = loaded_run(run, device)
    from nipstool.eeg_pretrain.apply import detect_recording, require_detector, texts_for
    from nipstool.eeg_pretrain.outputs import write_detections

    require_detector(loaded)
    chosen = loaded.about["thresholds"]["model"]
    value = chosen["value"] if threshold is None else threshold
    with opened(terminal, files) as found, terminal.progress("detect") as show:
        texts = texts_for(loaded, found.recordings, text)
        made = [
            detect_recording(loaded, one, value, text=told, progress=show)
            for one, told in zip(found.recordings, texts, strict=True)
        ]
        hashes = inputs_of(loaded, found)
    if output is not None:
        with AtomicFolder(output, force=force) as part:
            write_detections(part, made, loaded.config, risk=True)
        result = {"events": sum(len(one.events) for one in made), "threshold": value}
        started.write(Path(output), device=where, seed=None, inputs=hashes, result=result)
    if json:
        terminal.document(detections(made, {**chosen, "used": value}))
    terminal.table("Detections", EVENT_COLUMNS, event_rows(made))
    terminal.text(f"{threshold_line(chosen) if threshold is None else f'threshold {value:g}'}; {RESEARCH_ONLY}")
    if plot is not None:
        _draw(plot, made, value, loaded.config.horizons_s, force)
    raise_failure(found, files, strict)


@app.command()
def inspect(
    data: Data,
    strict: Strict = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Say what would be read: montage and positions, units, gaps, labels, problems. One line a file.

    -v gives every remark in full, on a line of its own.

    \b
    Example:
      nipstool eeg-pretrain inspect recordings/
    """
    from nipstool.eeg_pretrain.discover import failure
    from nipstool.eeg_pretrain.inspecting import COLUMNS, document, problem_document, problem_row, row, shown_names
    from nipstool.eeg_pretrain.verbs import opened

    terminal = Terminal(json, quiet, verbose, progress.value)
    with opened(terminal, data, none_is_fine=True) as found:
        pass
    if json:
        files = [*map(document, found.recordings), *map(problem_document, found.problems)]
        terminal.document({"note": RESEARCH_ONLY, "files": files})
    elif found.recordings or found.problems:
        names = shown_names([one.path for one in (*found.recordings, *found.problems)], data)
        count = len(found.recordings)
        rows = [*map(row, found.recordings, names[:count]), *map(problem_row, found.problems, names[count:])]
        terminal.table("What would be read", COLUMNS, rows)
        for recording in found.recordings if verbose else ():
            for remark in (*recording.warnings, *recording.notices):
                terminal.note(f"{recording.path}: {remark}")
    failed = failure(found, data, strict=strict)
    if failed is not None:
        raise failed
    terminal.note(RESEARCH_ONLY)


@app.command()
def evaluate(
    target: Annotated[
        str, typer.Argument(metavar="RUN|PREDICTIONS", help="A run, or a folder of SzCORE event files, or one.")
    ],
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA", help="Labelled recordings, or reference event files; files or folders."),
    ],
    protocol: Annotated[str, _option("szcore|neuroatlas|windows", "What is counted.")] = "szcore",
    probe: Annotated[bool, typer.Option("--probe", help="Fit a linear probe on a run's embeddings too.")] = False,
    folds: Annotated[int, _option("K", "Folds of subjects, for neuroatlas and --probe.", least=2)] = 5,
    text: Text = False,
    strict: Strict = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    device: options.Device = "auto",
    threads: options.Threads = None,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Score a run, or seizure events of any other detector, against labels, beside line length and power.

    szcore counts events and samples, neuroatlas gives Event-Sens@FA, windows AUROC and AUPRC of 10 s.

    \b
    Examples:
      nipstool eeg-pretrain evaluate run recordings/ --probe
      nipstool eeg-pretrain evaluate events/ recordings/ --protocol szcore
    """
    from nipstool.eeg_pretrain.evaluation import PROTOCOLS, report
    from nipstool.eeg_pretrain.report import evaluation_table
    from nipstool.eeg_pretrain.verbs import is_run, judge_predictions, judge_run, raise_failure
    from nipstool.kit.errors import UsageError

    terminal = Terminal(json, quiet, verbose, progress.value)
    if protocol not in PROTOCOLS:
        raise UsageError(f"--protocol {protocol}: expected {', '.join(PROTOCOLS)}")
    if is_run(target):
        _start(threads)
        judged, found = judge_run(terminal, target, data, device, with_probe=probe, with_text=text, folds=folds)
    elif probe or text:
        raise UsageError(f"{target}: is no run; --probe and --text need one")
    else:
        judged, found = judge_predictions(terminal, target, data)
    result = {name: report(found_by, protocol, folds) for name, found_by in judged.items()}
    recordings = len(next(iter(judged.values())))
    if json:
        about = {"note": RESEARCH_ONLY, "protocol": protocol, "recordings": recordings}
        terminal.document({**about, "detectors": result})
    columns, rows = evaluation_table(result, protocol)
    terminal.table(f"{protocol}, {recordings} recordings", columns, rows)
    terminal.note(f"{recordings} recordings; {RESEARCH_ONLY}")
    raise_failure(found, data, strict)


def _start(threads: int | None) -> "Run":
    options.keep_homes_clean()
    return options.start(threads)


def _draw(
    plot: Path, made: "list[Detected]", threshold: float, horizons_s: tuple[float, ...], force: bool
) -> None:
    from nipstool.eeg_pretrain.pictures import draw_detections
    from nipstool.kit.files import AtomicFile

    with AtomicFile(plot, force=force) as out:
        draw_detections(out.file, made, threshold, horizons_s, form=plot.suffix.lstrip(".").lower())
