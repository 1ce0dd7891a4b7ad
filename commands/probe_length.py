"""Read from a language model's hidden states how long its answer will be, before and while it is written."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nipstool import options
from nipstool.options import ProgressStyle
from nipstool.terminal import Terminal

if TYPE_CHECKING:
    from nipstool.probe_length.job import Done
    from nipstool.probe_length.passes import Reading

app = typer.Typer()
DATA, FITTING, RUNNING = "How data is read", "What is fitted", "How the model runs"
Given = dict[str, Any]  # the values of options that several verbs share, by name


def _option(metavar: str, text: str, panel: str | None = None, *names: str, **limits: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **limits)


def _flag(name: str, text: str, panel: str | None) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel)


MODEL = "A model folder and then data; or statistics of earlier passes, all of them."
Model = Annotated[str, typer.Argument(metavar="MODEL|A.stats", help=MODEL)]
Folder = Annotated[str, typer.Argument(metavar="MODEL", help="A model folder.")]
FILES = "Prompts with responses: JSON lines or arrays, .gz, plain text; - is standard input."
Files = Annotated[list[str] | None, typer.Argument(metavar="DATA", help=FILES)]
Answers = Annotated[list[str], typer.Argument(metavar="DATA", help=FILES)]
Prompts = Annotated[str, typer.Argument(metavar="PROMPTS", help="Records or lines; - is standard input.")]
ProbeFile = Annotated[str, typer.Argument(metavar="PROBE", help="What fit wrote.")]
Judged = Annotated[str, typer.Argument(metavar="PROBE|A.stats", help="What fit wrote; or statistics.")]
LENGTHS = "Records with n_response, predicted or p50, maybe arrival; - is standard input."
Lengths = Annotated[str, typer.Argument(metavar="LENGTHS", help=LENGTHS)]
OTHER = "The model's folder, where it is not the one that the probe names. Its hash must be the same."
Other = Annotated[str | None, _option("DIR", OTHER, RUNNING, "--model")]
StatsOnly = Annotated[bool, _flag("--stats-only", "Write the statistics, which merge, and fit nothing.", FITTING)]
Layers = Annotated[str, _option("all|every:K|LIST", "Layers to fit, from 1: 8,16-20.", FITTING)]
Folds = Annotated[int, _option("K", "Folds of groups.", FITTING, min=2)]
Rows = Annotated[int, _option("N", "Sequences in the sample for ranks, intervals and Tobit.", FITTING, min=1)]
CENSORED = "Answers that were cut off: lower bounds at t = 0, or left out."
Censored = Annotated[str, _option("tobit|drop", CENSORED, FITTING)]
SHARE = "Share of answers that lo..hi is to hold."
Coverage = Annotated[float, _option("P", SHARE, FITTING, min=0.01, max=0.999)]
NewCoverage = Annotated[float | None, _option("P", f"{SHARE[:-1]}; the probe's by default.", min=0.01, max=0.999)]
Budget = Annotated[int | None, _option("N", "Add the risk of more than N tokens.", min=0)]
AnswerBad = Annotated[bool, _flag("--skip-bad", "Answer bad lines with their error.", None)]
Group = Annotated[str | None, _option("KEY", "Group by this key instead of group, else the prompt.", DATA)]
FORMAT = "Layout of records: text, ids, messages, sharegpt, alpaca, qa or plain; auto looks at the keys."
Format = Annotated[str, _option("auto|NAME", FORMAT, DATA)]
FIELD = "Where a record's prompt or response stands, dotted: response=out.text. Repeatable."
Field = Annotated[list[str] | None, _option("NAME=KEY", FIELD, DATA, "--field")]
SplitAt = Annotated[str | None, _option("MARK", "A plain text's prompt ends with this.", DATA)]
PromptChars = Annotated[int, _option("N", "Or else after so many characters.", DATA, min=1)]
Template = Annotated[str | None, _option("FILE", "A chat template instead of the tokenizer's.", DATA)]
CAP = "Without finish_reason, answers of so many tokens were cut off."
Cap = Annotated[int | None, _option("N", CAP, DATA, min=1)]
SkipBad = Annotated[bool, _flag("--skip-bad", "Count records that cannot be used, and go on.", DATA)]
BatchTokens = Annotated[int, _option("N", "Tokens a batch, padding included.", RUNNING, min=1)]
Dtype = Annotated[str | None, _option("DTYPE", "float32, bfloat16 or float16.", RUNNING)]
Plot = Annotated[Path | None, _option("FILE.png", "Draw it.")]
Resume = Annotated[bool, _flag("--resume", "Go on from an interrupted pass.", options.COMMON)]
ROWS = "Write every position as NDJSON; - is standard output."
RowsOutput = Annotated[str | None, _option("OUT", ROWS, None, "-o", "--output")]
PATTERN = "Where a retraction begins; repeatable. Some English ones by default."
Pattern = Annotated[list[str] | None, _option("REGEX", PATTERN)]
MARKERS = 'Where retractions begin: records {"id", "t": tokens before it}.'
Markers = Annotated[str | None, _option("FILE", MARKERS)]
Window = Annotated[int, _option("W", "Positions before and after that are compared.", min=1)]
HighLoss = Annotated[float, _option("SHARE", "Only the answers of highest mean loss.", min=0.0, max=1.0)]
Number = Annotated[int, _option("N", "Answers a prompt.", None, "-n", "--n", min=1)]
MaxNew = Annotated[int, _option("N", "Tokens at most.", min=1)]
Temperature = Annotated[float, _option("T", "Of sampling; 0 takes the likeliest token.", min=0.0)]
TopP = Annotated[float, _option("P", "Nucleus of sampling.", min=0.01, max=1.0)]
SYNTHETIC = "Completions of known length instead: count, list, repeat, copy, spell."
Synthetic = Annotated[str | None, _option("KIND,...", SYNTHETIC)]
Many = Annotated[int, _option("N", "How many with --synthetic.", min=1)]
Items = Annotated[str, _option("LOW:HIGH", "Items of each with --synthetic.")]
Load = Annotated[str, _option("L,L,...", "Shares of the slots' time that arrive.")]
Slots = Annotated[str, _option("N,N,...", "Answers that are served at once.")]
MsPerToken = Annotated[float, _option("MS", "Of a token of an answer.", min=0.0)]
PrefillMs = Annotated[float, _option("MS", "Before the first one.", min=0.0)]
Ageing = Annotated[float, _option("A", "Seconds of priority that a second of waiting is worth.", min=0.0)]
Jobs = Annotated[int, _option("N", "Answers drawn for each simulation.", min=100)]


def _reads(
    group: Group = None,
    format: Format = "auto",
    field: Field = None,
    split_at: SplitAt = None,
    prompt_chars: PromptChars = 64,
    chat_template: Template = None,
    cap: Cap = None,
    skip_bad: SkipBad = False,
    batch_tokens: BatchTokens = 8192,
    dtype: Dtype = None,
) -> None:
    """How prompts and responses go through a model."""


def _prompts(format: Format = "auto", chat_template: Template = None, dtype: Dtype = None) -> None:
    """How prompts alone are read."""


def _tells(json: options.Json = False, plot: Plot = None) -> None:
    """Verbs with a report."""


def _runs(
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    force: options.Force = False,
    seed: options.Seed = 0,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Every verb that takes a while."""


def _computes(device: options.Device = "auto", threads: options.Threads = None) -> None:
    """Verbs with a model."""


@app.command()
@options.sharing(_reads, _tells, _runs, _computes)
def fit(
    model: Model,
    output: options.Output,
    data: Files = None,
    stats_only: StatsOnly = False,
    layers: Layers = "all",
    folds: Folds = 5,
    rows: Rows = 5000,
    censored: Censored = "tobit",
    coverage: Coverage = 0.9,
    resume: Resume = False,
    *,
    given: Given,
) -> None:
    """Fit probes in one pass over prompts and responses, and judge them beside what position alone says.

    Under torchrun every process reads its share. Statistics of several passes are named instead of MODEL and DATA.

    \b
    Examples:
      nipstool probe-length Qwen3-0.6B answers.jsonl.gz -o probe.safetensors
      nipstool probe-length Qwen3-0.6B mon.jsonl --stats-only -o mon.stats
      nipstool probe-length mon.stats tue.stats -o probe.safetensors
    """
    terminal = _terminal(given, output)
    from nipstool.probe_length.job import fit_files
    from nipstool.probe_length.passes import Pass, partial_of

    paths = [model, *(data or [])]
    _check_outputs(output, given["plot"], paths, given["force"])
    run = options.start(given["threads"])
    done = fit_files(
        paths,
        output,
        _reading(given),
        Pass(layers, folds, rows, partial_of(output), resume),
        censored="" if stats_only else censored,
        coverage=coverage,
        seed=given["seed"],
        force=given["force"],
        stage=terminal.progress,
    )
    if done is not None:  # else another process of the group writes and tells
        _finish(terminal, run, output, done, given)


@app.command()
@options.sharing(_prompts, _computes)
def predict(
    probe: ProbeFile,
    prompts: Prompts = "-",
    model: Other = None,
    coverage: NewCoverage = None,
    budget: Budget = None,
    skip_bad: AnswerBad = False,
    batch_tokens: BatchTokens = 8192,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    config: options.Config = None,
    *,
    given: Given,
) -> None:
    """Predict how long answers will be: a prompt a line in, a JSON record a line out, at once and in order.

    Records hold p10, p50, p90, mean, and lo..hi, which holds the answer with probability --coverage. A prompt's
    id, n_response and arrival are passed on, as schedule reads them.

    \b
    Examples:
      nipstool probe-length predict probe.safetensors prompts.jsonl
      tail -f q | nipstool probe-length predict probe.safetensors --budget 2048
    """
    terminal = Terminal(False, quiet, verbose, "none", data_on_stdout=True)
    from nipstool.probe_length.job import predict_file

    options.start(given["threads"])
    reading = _reading({**given, "skip_bad": skip_bad, "batch_tokens": batch_tokens})
    skipped = predict_file(probe, prompts, model, coverage, budget, reading, _write)
    if skipped:
        terminal.warn(f"{skipped} prompts could not be used")


@app.command()
@options.sharing(_reads, _tells, _runs, _computes)
def evaluate(
    probe: Judged, data: Answers, model: Other = None, coverage: NewCoverage = None, *, given: Given
) -> None:
    """Judge a probe on answers it has not seen; or, from statistics alone, every dataset's probe on every other.

    \b
    Examples:
      nipstool probe-length evaluate probe.safetensors held-out.jsonl
      nipstool probe-length evaluate chat.stats code.stats counting.stats
    """
    terminal = _terminal(given)
    from nipstool.probe_length.job import evaluate_files, is_statistics, transfer_files

    _check_outputs(None, given["plot"], [probe, *data], given["force"])
    run = options.start(given["threads"])
    if is_statistics(probe):
        done = transfer_files([probe, *data])
    else:
        reading = _reading(given)
        done = evaluate_files(probe, data, model, coverage, reading, seed=given["seed"], stage=terminal.progress)
    _finish(terminal, run, None, done, given)


@app.command()
@options.sharing(_reads, _tells, _runs, _computes)
def trace(
    probe: ProbeFile,
    data: Answers,
    output: RowsOutput = None,
    model: Other = None,
    pattern: Pattern = None,
    markers: Markers = None,
    window: Window = 15,
    high_loss: HighLoss = 1.0,
    *,
    given: Given,
) -> None:
    """Show the estimate at every position of given answers, and how it shifts where an answer is taken back.

    \b
    Examples:
      nipstool probe-length trace probe.safetensors answers.jsonl --plot t.png
      nipstool probe-length trace probe.safetensors answers.jsonl -o rows.jsonl
    """
    terminal = _terminal(given, output)
    from nipstool.probe_length.job import Tracing, trace_files

    inputs = [probe, *data, *([] if markers is None else [markers])]
    _check_outputs(output, given["plot"], inputs, given["force"], binary=False)
    run = options.start(given["threads"])
    how = Tracing(tuple(pattern or ()), markers, window, high_loss, given["seed"])
    done = trace_files(
        probe, data, output, model, _reading(given), how, force=given["force"], stage=terminal.progress
    )
    _finish(terminal, run, output, done, given)


@app.command()
@options.sharing(_prompts, _runs, _computes)
def generate(
    model: Folder,
    output: options.Output,
    prompts: Prompts = "-",
    n: Number = 4,
    max_new: MaxNew = 512,
    temperature: Temperature = 0.8,
    top_p: TopP = 0.95,
    synthetic: Synthetic = None,
    number: Many = 500,
    lengths: Items = "5:50",
    skip_bad: SkipBad = False,
    batch_tokens: BatchTokens = 32768,
    *,
    given: Given,
) -> None:
    """Sample answers to prompts, with their ids and why they ended, for fit; or make some of known length.

    \b
    Examples:
      nipstool probe-length generate Qwen3-0.6B prompts.jsonl -o answers.jsonl
      nipstool probe-length generate Qwen3-0.6B --synthetic count -o c.jsonl
    """
    terminal = _terminal(given, output)
    from nipstool.probe_length.generate import Sampling
    from nipstool.probe_length.job import generate_file

    _check_outputs(output, None, [model, prompts], given["force"], binary=False)
    run = options.start(given["threads"])
    how = Sampling(n, max_new, temperature, top_p, given["seed"], batch_tokens)
    kinds = None if synthetic is None else (synthetic, number, lengths)
    reading = _reading({**given, "skip_bad": skip_bad, "batch_tokens": batch_tokens})
    done = generate_file(
        model, prompts, output, reading, how, kinds, force=given["force"], stage=terminal.progress
    )
    _finish(terminal, run, output, done, given)


@app.command()
@options.sharing(_tells, _runs)
def schedule(
    lengths: Lengths = "-",
    load: Load = "0.5,0.7,0.9",
    slots: Slots = "1,8",
    ms_per_token: MsPerToken = 20.0,
    prefill_ms: PrefillMs = 50.0,
    ageing: Ageing = 0.1,
    jobs: Jobs = 100_000,
    *,
    given: Given,
) -> None:
    """Simulate what serving the shortest predicted answer first would do to latency.

    Without arrival times (in seconds) in the records, arrivals are random, at the given loads.

    \b
    Example:
      nipstool probe-length schedule lengths.jsonl --load 0.7,0.9 --slots 1,16
    """
    terminal = _terminal(given)
    from nipstool.probe_length.job import schedule_file
    from nipstool.probe_length.schedule import Service, regimes

    _check_outputs(None, given["plot"], [lengths], given["force"])
    where = regimes(load, slots)
    service = Service(prefill_ms, ms_per_token, ageing)
    done = schedule_file(lengths, service, where, jobs, seed=given["seed"], stage=terminal.progress)
    _finish(terminal, None, None, done, given)


def _terminal(given: Given, output: str | None = None) -> Terminal:
    style = given["progress"].value
    return Terminal(
        given.get("json", False), given["quiet"], given["verbose"], style, data_on_stdout=output == "-"
    )


def _check_outputs(
    output: str | None, plot: Path | None, inputs: list[str], force: bool, *, binary: bool = True
) -> None:
    from nipstool.kit.files import check_output

    if output is not None:
        check_output(output, inputs=inputs, force=force, binary=binary)
    if plot is not None:
        options.check_plot(plot, force=force, beside=[*inputs, *([output] if output else [])])


def _reading(given: Given) -> "Reading":
    from nipstool.kit.runtime import choose_device
    from nipstool.probe_length.passes import reading_of

    return reading_of(given, choose_device(given["device"]))


def _finish(terminal: Terminal, run: Any, output: str | None, done: "Done", given: Given) -> None:
    """Manifest, document, tables, picture; warnings last, since an error is to be the only line."""
    if output is not None and Path(output).is_file():
        run.write(Path(output), device=done.device, seed=given["seed"], inputs=done.inputs, result=done.document)
    if terminal.json:
        terminal.document(done.document)
    for item in done.shown:
        if isinstance(item, str):
            terminal.text(item)
        else:
            terminal.table(item.title, item.columns, item.rows)
    if given.get("plot") is not None and done.figure is not None:
        from nipstool.probe_length import pictures

        pictures.save(given["plot"], done.figure(), force=given["force"])
        terminal.note(f"wrote {given['plot']}")
    for line in done.warnings:
        terminal.warn(line)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
