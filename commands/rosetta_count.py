"""Count the neurons that networks share, beside honest controls, and fit how the count grows (Rosetta neurons)."""

import io
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nipstool import options
from nipstool.kit.progress import Progress
from nipstool.options import ProgressStyle
from nipstool.terminal import Terminal

if TYPE_CHECKING:
    from nipstool.kit.manifest import Run
    from nipstool.rosetta_count.job import Finished
    from nipstool.rosetta_count.series import Fit
    from nipstool.rosetta_count.sources import Reading

app = typer.Typer()
INPUTS, COUNTING = "What is compared", "How it is counted"


def _option(metavar: str, text: str, panel: str | None = None, *names: str, least: int | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, min=least)


MODELS = "Hugging Face folders, file.py:factory[+WEIGHTS], or with --acts dumps; the first is the anchor."
Models = Annotated[list[str], typer.Argument(metavar="MODEL", help=MODELS)]
ACTS = "The models are dumps: .npy, .safetensors, or a folder of them."
Acts = Annotated[bool, typer.Option("--acts", help=ACTS, rich_help_panel=INPUTS)]
IDS = "Sample ids of a dump's rows, one a line; once for each dump."
DATA = "Text, .jsonl (also .gz, .zst) or a folder of documents; images for vision models; - is standard input."
Data = Annotated[str | None, _option("PATH", DATA, INPUTS)]
TextField = Annotated[str, _option("FIELD", "Where a record's text stands.", INPUTS)]
DomainField = Annotated[str | None, _option("FIELD", "Where a record's label stands; selectivity for it.", INPUTS)]
Ctx = Annotated[int, _option("N", "Tokens of a window.", INPUTS, least=2)]
Tokens = Annotated[int, _option("N", "At most so many of the first model's tokens.", INPUTS, least=8)]
SITES = "Only sites whose name matches; of factories' models outputs of any modules."
Sites = Annotated[str | None, _option("REGEX", SITES, INPUTS)]
ImageSize = Annotated[
    int | None,
    _option("N", "Images are resized to N x N; default the model's own size, of factories 224.", INPUTS, least=1),
]
Dtype = Annotated[str | None, _option("DTYPE", "float32, bfloat16 or float16 instead of the model's own.", INPUTS)]
SampleId = Annotated[list[str] | None, _option("FILE", IDS, INPUTS, "--sample-id")]
Grid = Annotated[str | None, _option("HxW", "Places of an image; default the anchor's coarsest.", INPUTS)]
SPECIAL = "Tokens before and after windows (BOS, CLS, SEP) are samples too, where all models have them."
KeepSpecial = Annotated[bool, typer.Option("--keep-special", help=SPECIAL, rich_help_panel=INPUTS)]
K = Annotated[int, _option("K", "Partners: each among the K nearest of the other.", COUNTING, "--k", least=1)]
MIN_R = "Count pairs with at least this r."
MinR = Annotated[float, typer.Option(min=0.0, max=1.0, metavar="R", help=MIN_R, rich_help_panel=COUNTING)]
NNull = Annotated[int, _option("B", "Permuted repetitions.", COUNTING, least=1)]
Mem = Annotated[str, _option("SIZE", "Memory for sums; what needs more works tile by tile.", COUNTING)]
METHOD = "All sums in memory, tile by tile, or a sketch that finds candidates (--min-r >= 0.3); r is always exact."
Method = Annotated[str, _option("auto|dense|spool|sketch", METHOD, COUNTING)]
COMPAT = "Also best_buddies.json in the schema of the paper's code."
Compat = Annotated[bool, typer.Option("--compat", help=COMPAT, rich_help_panel=COUNTING)]
RESUME = "Take up the sums of an interrupted run."
Resume = Annotated[bool, typer.Option("--resume", help=RESUME, rich_help_panel=options.COMMON)]


Sources = Annotated[
    list[str], typer.Argument(metavar="DIR...|CSV", help="Folders of counts, or one table; - is standard input.")
]
CountKind = Annotated[str, typer.Option("--count", metavar="KIND", help="raw, thresholded, fdr or excess.")]
XKind = Annotated[str, typer.Option("--x", metavar="neurons|params", help="The size; of the anchor.")]
RESULT = "Write the fits as JSON; - is standard output."
FitOutput = Annotated[str | None, typer.Option("-o", "--output", metavar="FILE.json", help=RESULT)]
Plot = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw counts and laws.")]
Folder = Annotated[str, typer.Argument(metavar="DIR", help="The folder of a count.")]
PAGE = "The page; DIR.html by default, - is standard output."
PageOutput = Annotated[str | None, typer.Option("-o", "--output", metavar="FILE.html", help=PAGE)]
Named = Annotated[str | None, _option("L8N859,...", "Neurons of the first model instead.")]
Most = Annotated[int, typer.Option("-n", "--pairs", min=1, metavar="N", help="Pairs shown.")]
Contexts = Annotated[int, _option("N", "Contexts or images of each neuron.", least=1)]
Docs = Annotated[str, typer.Argument(metavar="DOCS", help="Records, one a line; - is standard input.")]
Domain = Annotated[str | None, _option("NAME", "The label that documents should have.")]
KEEP = "Only this share of the records, those with the highest scores."
Keep = Annotated[float | None, typer.Option(min=0.0, max=1.0, metavar="SHARE", help=KEEP)]
TREND_COLUMNS = ("gap of", "slope over log x", "low", "high", "Spearman")


@app.command()
def count(
    models: Models,
    output: options.NewFolder,
    data: Data = None,
    text_field: TextField = "text",
    domain_field: DomainField = None,
    ctx: Ctx = 256,
    tokens: Tokens = 200_000,
    image_size: ImageSize = None,
    sites: Sites = None,
    dtype: Dtype = None,
    acts: Acts = False,
    sample_id: SampleId = None,
    grid: Grid = None,
    keep_special: KeepSpecial = False,
    k: K = 1,
    min_r: MinR = 0.0,
    n_null: NNull = 5,
    mem: Mem = "4G",
    method: Method = "auto",
    compat: Compat = False,
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
    """Count the neurons that two or more networks share, beside permuted, rotated and untrained controls.

    A pair is two neurons that are each other's nearest by the correlation of their activations on the same data.

    \b
    Examples:
      nipstool rosetta-count SmolLM2-135M all-MiniLM-L6 --data corpus.jsonl -o out
      nipstool rosetta-count --acts a.npy b.npy -o shared
    """
    terminal = Terminal(json, quiet, verbose, progress.value)
    run = options.start(threads)
    from nipstool.kit.distributed import joined
    from nipstool.kit.runtime import choose_device
    from nipstool.rosetta_count.job import Request
    from nipstool.rosetta_count.job import run as run_job
    from nipstool.rosetta_count.plan import read_bytes
    from nipstool.rosetta_count.work import Options

    where = choose_device(device)
    request = Request(
        models=tuple(models),
        output=output,
        acts=acts,
        sample_ids=tuple(sample_id or ()),
        grid=grid,
        reading=_reading(
            data, text_field, domain_field, ctx, tokens, sites, dtype, image_size, grid, keep_special
        ),
        options=Options(k, min_r, n_null, seed, read_bytes(mem), method, where),
        compat=compat,
        force=force,
        resume=resume,
    )
    options.keep_homes_clean()
    with joined(str(where)) as group:
        first = group.rank == 0
        stages = _Stages(terminal if first else Terminal(quiet=True))
        found = run_job(request, group=group, stages=stages)
    if first:
        for line in stages.kept:
            terminal.note(line)
        run.write(Path(output), device=str(where), seed=seed, inputs=found.inputs)
        _show(terminal, found, output)


@app.command()
def fit(
    sources: Sources,
    count: CountKind = "thresholded",
    x: XKind = "neurons",
    output: FitOutput = None,
    plot: Plot = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    force: options.Force = False,
    seed: options.Seed = 0,
    config: options.Config = None,
) -> None:
    """Fit how the count grows with size, the controls' growth beside it, and how selectivity changes.

    A table has the columns size,count[,neurons,params,raw,pair,control] and a row for each pair of models.

    \b
    Examples:
      nipstool rosetta-count fit small medium large --plot law.png
      nipstool rosetta-count fit counts.csv --count raw
    """
    from nipstool.kit.files import check_output
    from nipstool.kit.manifest import Run
    from nipstool.rosetta_count import series

    terminal = Terminal(json, quiet, verbose, "none", data_on_stdout=output == "-")
    run = Run(sys.argv)
    if plot is not None:
        options.check_plot(plot, force=force, beside=sources)
    if output is not None:
        check_output(output, inputs=[name for name in sources if name != "-"], force=force, binary=False)
    found = series.fit_rows(series.read_rows_of(sources), count=count, x=x, seed=seed)
    if output != "-":
        title = f"count = a x {x}^alpha, counts: {count}"
        terminal.table(title, series.LAW_COLUMNS, series.law_rows(found.laws))
        if found.parts:
            terminal.table("On parts of the samples", series.LAW_COLUMNS, series.law_rows(found.parts))
        if found.trends:
            terminal.table("Gaps of shared neurons over sizes", TREND_COLUMNS, _trend_rows(found))
        terminal.text("\n".join(series.verdict(found)))
    if output is not None:
        _deliver(run, found, output, sources, force)
    if plot is not None:
        _draw_law(plot, found, force)
        terminal.note(f"wrote {plot}")
    if terminal.json:
        terminal.document(found)


@app.command()
def inspect(
    folder: Folder,
    output: PageOutput = None,
    neurons: Named = None,
    most: Most = 20,
    contexts: Contexts = 8,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    force: options.Force = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Show what shared neurons respond to: one HTML page with their strongest contexts, or images.

    The models and the data of the count are read anew; they must still be where they were.

    \b
    Example:
      nipstool rosetta-count inspect shared -o shared.html
    """
    terminal = Terminal(json, quiet, verbose, progress.value, data_on_stdout=output == "-")
    run = options.start(threads)
    from nipstool.kit.files import check_output, sha256, write_text
    from nipstool.kit.runtime import choose_device
    from nipstool.rosetta_count.contexts import look, parse_neurons
    from nipstool.rosetta_count.page import page

    target = output or f"{folder.rstrip('/')}.html"
    check_output(target, inputs=[folder], force=force, binary=False)
    named = parse_neurons(neurons) if neurons is not None else []
    where = choose_device(device)
    with terminal.progress("look") as show:
        entries = look(folder, neurons=named, most=most, contexts=contexts, device=where, progress=show)
    title = f"Rosetta neurons of {folder}: the {len(entries)} pairs with the highest r"
    write_text(target, page(entries, title), force=force)
    if Path(target).is_file():
        files = [Path(folder, name) for name in ("summary.json", "pairs.csv")]
        run.write(Path(target), device=str(where), seed=None, inputs={str(f): sha256(f) for f in files})
    if json:
        terminal.document({"entries": entries})
    terminal.text(f"wrote {target}: {len(entries)} pairs")


@app.command("filter-data")
def filter_data(
    folder: Folder,
    docs: Docs = "-",
    domain: Domain = None,
    neurons: Named = None,
    keep: Keep = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    device: options.Device = "auto",
    threads: options.Threads = None,
    config: options.Config = None,
) -> None:
    """Score documents by a neuron that knows their domain: each record with a field `score` more, as NDJSON.

    The shared neuron is taken that told the domain best on half of the documents
    of a count that knew their domains.

    \b
    Example:
      nipstool rosetta-count filter-data shared --domain code < docs.jsonl
    """
    terminal = Terminal(False, quiet, verbose, "none", data_on_stdout=True)
    options.start(threads)
    from nipstool.kit.runtime import choose_device
    from nipstool.kit.streams import open_stream
    from nipstool.rosetta_count import filtering
    from nipstool.rosetta_count.contexts import parse_neurons

    named = parse_neurons(neurons) if neurons is not None else []
    told = "stdin" if docs == "-" else docs
    with open_stream(docs) as raw, io.BufferedReader(raw) as source:  # type: ignore[arg-type]
        found = filtering.open_filter(folder, domain, named, choose_device(device))
        records = filtering.scored_records(found, filtering.read_lines(source, told), told)
        if keep is not None:
            records = iter(filtering.best_share(list(records), keep))
        for record in records:
            print(filtering.to_line(record), flush=True)
    choice = found.choice
    terminal.note(f"scored by {', '.join(map(str, choice.neurons))} of {found.model.name}")
    if choice.held_out is not None:
        terminal.note(
            f"its AUROC for {domain}: {choice.selection:.3f} where chosen, {choice.held_out:.3f} held out"
        )


@dataclass(frozen=True)
class _Stages:
    """How long work is shown: a progress for each stage; notes at once on a terminal, else at the end."""

    terminal: Terminal
    kept: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if self.terminal.verbose or (sys.stderr is not None and sys.stderr.isatty()):
            self.terminal.note(text)
        else:
            self.kept.append(text)

    def progress(self, label: str) -> AbstractContextManager[Progress]:
        return self.terminal.progress(label)


def _trend_rows(found: "Fit") -> list[tuple[str, float, float, float, float]]:
    return [(one.measure, one.slope, one.low, one.high, one.rho) for one in found.trends]


def _deliver(run: "Run", found: "Fit", output: str, sources: list[str], force: bool) -> None:
    """The fits as JSON, with their manifest if they went into a file."""
    from nipstool.kit.files import sha256, write_text
    from nipstool.kit.records import to_json

    write_text(output, to_json(found, indent=2) + "\n", force=force)
    if Path(output).is_file():
        files = [Path(name, "summary.json") if Path(name).is_dir() else Path(name) for name in sources]
        run.write(
            Path(output), device="cpu", seed=None, inputs={str(f): sha256(f) for f in files if str(f) != "-"}
        )


def _draw_law(path: Path, found: "Fit", force: bool) -> None:
    from nipstool.kit.files import AtomicFile
    from nipstool.rosetta_count.pictures import draw_law

    with AtomicFile(path, force=force) as file:
        draw_law(file.file, found, path.suffix.lstrip(".").lower())


def _reading(data: str | None, *rest: Any) -> "Reading | None":
    from nipstool.rosetta_count.sources import Reading

    return None if data is None else Reading(data, *rest)


def _show(terminal: Terminal, found: "Finished", output: str) -> None:
    from nipstool.rosetta_count import report

    count = found.outcome.count
    if terminal.json:
        terminal.document(found.document)
    for one in count.pairs:
        terminal.table(report.title(count, one), report.columns(count), report.rows(count, one))
    rows = report.gap_rows(found.document)
    if terminal.verbose and rows:
        terminal.table("Shared neurons (r >= 0.5) beside the other live ones", report.GAP_COLUMNS, rows)
    for line in report.words(count):
        terminal.note(line)
    terminal.text(f"wrote {output}: {sum(one.kept for one in count.pairs)} pairs, {len(count.anchors)} anchors")
