"""Prune language models by Neural Spectral Capacity; plan, score and search architectures without data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nipstool import options
from nipstool.guard import complain
from nipstool.kit.errors import DataError, InputMissingError, UsageError, worse
from nipstool.options import ProgressStyle
from nipstool.terminal import Terminal

if TYPE_CHECKING:
    from nipstool.prune_nsc import Budgets, Plan, Pruned, Settings

app = typer.Typer()
BUDGETS, CHOICES, SCORING = "Budgets", "What may be cut", "How NSC is computed"


def _option(metavar: str, text: str, panel: str | None = None, *names: str, least: int | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, min=least)


Params = Annotated[str | None, _option("N", "At most so many parameters, embeddings included: 5.7B.", BUDGETS)]
Ratio = Annotated[float | None, _option("SHARE", "At most this share of them.", BUDGETS)]
Flops = Annotated[str | None, _option("N", "At most so many forward FLOPs a token: 11G.", BUDGETS)]
KvBytes = Annotated[str | None, _option("N", "At most so many bytes a token in the KV cache.", BUDGETS)]
Ffn = Annotated[float | None, _option("N|SHARE", "One FFN width instead of a budget: 1152, or 0.75.", BUDGETS)]
Units = Annotated[str, _option("ffn|ffn,groups|layers", "FFN channels; also KV groups; or whole layers.", CHOICES)]
Widths = Annotated[str | None, _option("N,N,...", "FFN widths to choose from; default all multiples.", CHOICES)]
MULTIPLE = "FFN widths are multiples of this; 64 from width 1024 on, else 1."
MultipleOf = Annotated[int | None, _option("M", MULTIPLE, CHOICES, least=1)]
KeepFirst = Annotated[int, _option("N", "First layers that are never dropped.", CHOICES, least=0)]
KeepLast = Annotated[int, _option("N", "Last layers that are never dropped.", CHOICES, least=0)]
FORMAT = "hf: one width for all layers, for stock classes. custom: widths of their own, with a class file."
Format = Annotated[str, _option("hf|custom", FORMAT, CHOICES)]
Init = Annotated[str, _option("RULE", "Initial variance: lecun, torch, he, xavier, bert or std=NUMBER.", SCORING)]
Snr = Annotated[float, _option("S", "s in log det(I + s W W^T).", SCORING)]
Spectra = Annotated[str, _option("init|weights", "Closed form at initialisation, or the real weights.", SCORING)]
Seq = Annotated[int, _option("N", "Context length at which FLOPs are counted.", SCORING, least=1)]
CHANNELS = "Keep what matters on text that the model samples from itself, on random tokens, or keep at random."
Channels = Annotated[str, _option("self|noise|random", CHANNELS)]
TOKENS = "Tokens to measure on; default max(12288, 4 x FFN width), for layers 2048."
Tokens = Annotated[int | None, _option("N", TOKENS, least=2)]
Calibration = Annotated[str | None, _option("TEXT", "Measure on this text file instead.")]
Evaluate = Annotated[str | None, _option("TEXT", "Perplexity on this text before and after.", None, "--eval")]
Plot = Annotated[Path | None, _option("FILE.png", "Draw what every layer keeps.")]
RESUME = "Take up what an interrupted run had measured."
Resume = Annotated[bool, typer.Option("--resume", help=RESUME, rich_help_panel=options.COMMON)]
MaxParams = Annotated[str | None, _option("N", "At most so many parameters, embeddings included: 40M.", BUDGETS)]
MaxFlops = Annotated[str | None, _option("N", "At most so many forward FLOPs a token: 100M.", BUDGETS)]
MaxKvBytes = Annotated[str | None, _option("N", "At most so many bytes a token in the KV cache: 4k.", BUDGETS)]
RESULT = "Write the result as JSON; - is standard output."
Output = Annotated[str | None, _option("FILE.json", RESULT, None, "-o", "--output")]
Truth = Annotated[str | None, _option("FIELD", "Rank against this field of the records: scores.glue.")]
ARCH = "config.json, checkpoint folders, FlexiBERT records (JSON array or lines); - is standard input."
Archs = Annotated[list[str], typer.Argument(metavar="ARCH", help=ARCH)]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A checkpoint folder with config.json.")]
PlanModel = Annotated[str, typer.Argument(metavar="MODEL", help="A checkpoint folder, or a config.json alone.")]
Space = Annotated[str, typer.Argument(metavar="SPACE.toml", help="The space; see the method's README.")]


@app.command()
def prune(
    model: Model,
    output: options.NewFolder,
    params: Params = None,
    ratio: Ratio = None,
    flops: Flops = None,
    kv_bytes: KvBytes = None,
    ffn: Ffn = None,
    units: Units = "ffn",
    widths: Widths = None,
    multiple_of: MultipleOf = None,
    keep_first: KeepFirst = 1,
    keep_last: KeepLast = 1,
    format: Format = "hf",
    channels: Channels = "self",
    tokens: Tokens = None,
    calibration: Calibration = None,
    evaluate: Evaluate = None,
    plot: Plot = None,
    init: Init = "lecun",
    snr: Snr = 1.0,
    spectra: Spectra = "init",
    seq: Seq = 2048,
    resume: Resume = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    force: options.Force = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Write a smaller checkpoint that stock transformers loads, from a checkpoint folder and a budget alone.

    NSC-DP decides the widths; text that the model samples from itself says which channels to keep, and the down
    projections are fitted to what was dropped. Then every block is compared with the masked original.

    \b
    Examples:
      nipstool prune-nsc SmolLM2-135M --ratio 0.85 -o SmolLM2-115M --eval test.txt
      nipstool prune-nsc Llama-2-7b --params 5.7B --units layers -o smaller
    """
    terminal = Terminal(json, quiet, verbose, progress.value)
    run = options.start(threads)
    from nipstool.kit.runtime import choose_device
    from nipstool.prune_nsc import prune as prune_model
    from nipstool.prune_nsc import report

    if plot is not None:
        options.check_plot(plot, force=force, beside=[model, output])
    pruned = prune_model(
        model,
        output,
        _budgets(params, ratio, flops, kv_bytes),
        _settings(units, format, ffn, widths, multiple_of, keep_first, keep_last, seq, init, snr, spectra, seed),
        channels=channels,
        tokens=tokens,
        calibration=calibration,
        evaluate=evaluate,
        device=choose_device(device),
        resume=resume,
        force=force,
        stages=terminal,
    )
    run.write(Path(output), device=device, seed=seed, inputs=pruned.inputs, result=report.summary(pruned))
    if json:
        terminal.document(report.summary(pruned))
    if verbose:
        _show_plan(terminal, pruned.plan)
    terminal.table("Before and after", report.CHANGE_COLUMNS, report.change_rows(pruned))
    terminal.text(report.outcome(pruned))
    if plot is not None:
        _draw(plot, pruned, force)
        terminal.note(f"wrote {plot}")


@app.command()
def plan(
    model: PlanModel,
    output: Output = None,
    params: Params = None,
    ratio: Ratio = None,
    flops: Flops = None,
    kv_bytes: KvBytes = None,
    ffn: Ffn = None,
    units: Units = "ffn",
    widths: Widths = None,
    multiple_of: MultipleOf = None,
    keep_first: KeepFirst = 1,
    keep_last: KeepLast = 1,
    format: Format = "hf",
    init: Init = "lecun",
    snr: Snr = 1.0,
    spectra: Spectra = "init",
    seq: Seq = 2048,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    force: options.Force = False,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Say what pruning would keep: one width for all layers, and NSC-DP, side by side. Writes no weights.

    \b
    Example:
      nipstool prune-nsc plan Llama-2-7b/config.json --params 5.7B -o plan.json
    """
    terminal = Terminal(json, quiet, verbose, progress.value, data_on_stdout=output == "-")
    run = options.start(threads)
    from nipstool.prune_nsc import plan as make_plan

    _check(output, model, force)
    settings = _settings(
        units, format, ffn, widths, multiple_of, keep_first, keep_last, seq, init, snr, spectra, seed
    )
    with terminal.progress("spectra") as show:
        _, found = make_plan(model, _budgets(params, ratio, flops, kv_bytes), settings, progress=show)
    for line in found.warnings:
        terminal.warn(line)
    if output != "-":
        _show_plan(terminal, found)
    _deliver(terminal, run, found, output, model, force)


@app.command()
def score(
    archs: Archs,
    truth: Truth = None,
    init: Init = "lecun",
    snr: Snr = 1.0,
    spectra: Spectra = "init",
    seq: Seq = 2048,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Score architectures without data or training: one JSON line each, on standard output.

    With --truth also Kendall's tau of NSC, #Params, #FLOPs and a Frobenius sum: on stderr, with --json inside.

    \b
    Examples:
      nipstool prune-nsc score BERT_benchmark.json --truth scores.glue
      nipstool prune-nsc score Qwen3-0.6B/config.json SmolLM2-135M
    """
    terminal = Terminal(json, quiet, verbose, progress.value, data_on_stdout=not json)
    from nipstool.kit.records import to_json
    from nipstool.prune_nsc import report
    from nipstool.prune_nsc.capacity import Scale
    from nipstool.prune_nsc.score import rank
    from nipstool.prune_nsc.score import score as score_all

    if sum(arch == "-" for arch in archs) > 1:
        raise UsageError("- is named twice, and standard input can be read once")
    if spectra == "weights":
        options.start(threads)
    scores, failed, wrong = [], None, 0
    for arch in archs:
        try:
            for found in score_all([arch], Scale(init, snr), seq=seq, spectra=spectra, truth=truth):
                scores.append(found)
                if not json:
                    print(to_json(found), flush=True)
        except (DataError, InputMissingError) as error:
            failed = worse(failed, error)
            wrong += 1
            if len(archs) > 1:
                complain(str(error))
    for low in [found for found in scores if found.degenerate][:1]:
        terminal.warn(f"{low.id}: mean s sigma^2 is {low.mean_snr:.2g}: NSC degenerates to #Params; raise --snr")
    ranking = rank(scores) if truth is not None and failed is None else None
    if json and scores:
        terminal.document({"architectures": scores, "ranking": ranking})
    if ranking is not None:
        title = f"Kendall's tau against {truth} (near: #Params differ by less than 10 %)"
        terminal.table(title, report.TAU_COLUMNS, report.tau_rows(ranking))
    if failed is not None:
        raise failed if len(archs) == 1 else type(failed)(f"{wrong} of {len(archs)} inputs cannot be scored")


@app.command()
def search(
    space: Space,
    max_params: MaxParams = None,
    max_flops: MaxFlops = None,
    max_kv_bytes: MaxKvBytes = None,
    output: Output = None,
    init: Init = "lecun",
    snr: Snr = 1.0,
    seq: Seq = 2048,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    force: options.Force = False,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Find the architecture with the highest NSC under budgets, and prove that it is.

    \b
    Example:
      nipstool prune-nsc search space.toml --max-params 40M
    """
    terminal = Terminal(json, quiet, verbose, progress.value, data_on_stdout=output == "-")
    run = options.start(threads)
    from nipstool.prune_nsc import report
    from nipstool.prune_nsc.capacity import Scale
    from nipstool.prune_nsc.quantities import count
    from nipstool.prune_nsc.search import read_space
    from nipstool.prune_nsc.search import search as search_space

    _check(output, space, force)
    texts = {"--max-params": max_params, "--max-flops": max_flops, "--max-kv-bytes": max_kv_bytes}
    given = {option[6:].replace("-", "_"): count(option, text) for option, text in texts.items()}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    with terminal.progress("combinations") as show:
        found = search_space(read_space(space), limits, Scale(init, snr), seq=seq, progress=show)
    for line in found.warnings:
        terminal.warn(line)
    if output != "-":
        title = f"Highest NSC (init {init}, snr {snr:g})"
        terminal.table(title, report.SEARCH_COLUMNS, report.search_rows(found))
        terminal.text(report.proof(found))
    _deliver(terminal, run, found, output, space, force)


def _budgets(params: str | None, ratio: float | None, flops: str | None, kv_bytes: str | None) -> "Budgets":
    from nipstool.prune_nsc import Budgets
    from nipstool.prune_nsc.quantities import count

    return Budgets(count("--params", params), ratio, count("--flops", flops), count("--kv-bytes", kv_bytes))


def _settings(
    units: str, format: str, ffn: float | None, widths: str | None, multiple_of: int | None, *rest: Any
) -> "Settings":
    from nipstool.prune_nsc import Settings
    from nipstool.prune_nsc.capacity import Scale
    from nipstool.prune_nsc.quantities import numbers

    keep_first, keep_last, seq, init, snr, spectra, seed = rest
    scale, listed = Scale(init, snr), numbers("--widths", widths)
    return Settings(units, format, ffn, listed, multiple_of, keep_first, keep_last, seq, scale, spectra, seed)


def _check(output: str | None, source: str, force: bool) -> None:
    """Refuse an output that cannot be made before anything is computed for it."""
    from nipstool.kit.files import check_output

    if output is not None:
        check_output(output, inputs=[source], force=force, binary=False)


def _deliver(terminal: Terminal, run: Any, value: Any, output: str | None, source: str, force: bool) -> None:
    """The JSON where it was asked for: in a file with its manifest, or with --json on standard output."""
    from nipstool.kit.files import sha256, write_text
    from nipstool.kit.records import to_json

    if output is not None:
        write_text(output, to_json(value, indent=2) + "\n", force=force)
        if Path(output).is_file():
            file = Path(source, "config.json") if Path(source).is_dir() else Path(source)
            run.write(Path(output), device="cpu", seed=None, inputs={str(file): sha256(file)})
            terminal.text(f"wrote {output}")
    if terminal.json:
        terminal.document(value)


def _show_plan(terminal: Terminal, found: "Plan") -> None:
    from nipstool.prune_nsc import report

    terminal.table(report.plan_title(found), report.PLAN_COLUMNS, report.plan_rows(found))


def _draw(path: Path, pruned: "Pruned", force: bool) -> None:
    from nipstool.kit.files import AtomicFile
    from nipstool.kit.plots import bars
    from nipstool.prune_nsc import report

    labels = [str(i) for i in range(len(pruned.plan.dense.layers))]
    with AtomicFile(path, force=force) as file:
        bars(
            file.file,
            labels,
            report.kept_shares(pruned),
            title=report.picture_title(pruned),
            x_label="layer",
            y_label="kept (share)",
            form=path.suffix.lstrip(".").lower(),
        )
