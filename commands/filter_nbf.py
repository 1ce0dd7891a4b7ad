"""Track what cannot be seen: Neural Bayesian Filtering (NBF) on a stream, one belief a line."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nipstool import options
from nipstool.kit.errors import DataError, UsageError
from nipstool.options import ProgressStyle
from nipstool.terminal import Terminal

if TYPE_CHECKING:
    from nipstool.filter_nbf.evaluate import Evaluation
    from nipstool.filter_nbf.stream import Tally

app = typer.Typer()


def _option(metavar: str, text: str, *names: str, least: float | None = None, most: float | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, min=least, max=most)


# --- of several verbs ---
DOMAIN = (
    "What moves and what is seen of it: arena, grid, linear-gaussian, nile, stochastic-volatility,"
    " landmarks, constant-velocity, or a model of yours."
)
Domain = Annotated[str, _option("NAME|FILE.py[:Class]", DOMAIN)]
PARAM = "A parameter of the domain; JSON, or text. Repeatable."
Param = Annotated[list[str] | None, _option("NAME=VALUE", PARAM, "--param")]
CHECKPOINT = "Trained networks; the domain's own by default, if it has some."
Checkpoint = Annotated[str | None, _option("FILE", CHECKPOINT)]
BeliefName = Annotated[str, _option("nbf|gaussian|pf", "How a belief is held.", "--belief")]
Particles = Annotated[int, _option("N", "Particles a belief.", "-n", "--particles", least=2)]
PAPER = "The paper's loop exactly: always regenerate, keep none, no tempering."
Paper = Annotated[bool, typer.Option("--paper", help=PAPER)]
COV = "Covariance of --belief gaussian; auto shrinks from d = 8."
Cov = Annotated[str, _option("auto|full|shrunk|diag", COV)]
Plot = Annotated[Path | None, _option("FILE.png", "Draw the belief over time.")]

# --- of run ---
Rows = Annotated[str, typer.Argument(metavar="OBS", help="NDJSON or CSV; - is standard input.")]
Regenerate = Annotated[str, _option("ess|always|never", "When particles are drawn anew.")]
Ess = Annotated[float | None, _option("SHARE", "Effective share below which ess acts.", least=0.0, most=1.0)]
Keep = Annotated[float | None, _option("SHARE", "Share kept by systematic resampling.", least=0.0, most=1.0)]
TEMPER = "Update in stages where one would kill most particles."
Temper = Annotated[bool, typer.Option("--temper/--no-temper", help=TEMPER)]
COLUMNS = "What the input calls t, id, an observation. Repeatable."
Columns = Annotated[list[str] | None, _option("FIELD=NAME", COLUMNS, "--columns")]
MaxDt = Annotated[float | None, _option("DT", "Bridge longer times in steps of at most this.")]
Forecast = Annotated[int, _option("H", "Add beliefs 1 to H steps ahead.", least=0)]
Emit = Annotated[str, _option("belief|particles", "particles adds the set itself.")]
StateIn = Annotated[str | None, _option("FILE", "Go on from this state.")]
StateOut = Annotated[str | None, _option("FILE", "Leave the state here at the end.")]
OnError = Annotated[str, _option("skip|stop", "Whether a bad line ends the stream.")]

# --- of train, simulate and evaluate ---
Generator = Annotated[str, _option("gmm|flow", "gmm is a mixture of Gaussians, flow the paper's class.")]
Init = Annotated[str | None, _option("FILE", "Go on from this checkpoint, at half the learning rate.")]
Members = Annotated[int, _option("N", "Members of the family to learn from.", least=2)]
TrainingSteps = Annotated[int, _option("N", "Training steps.", least=1)]
Batch = Annotated[int, _option("N", "Beliefs a training step.", least=2)]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]
TrackRows = Annotated[int, _option("N", "Rows a track.", "-T", "--steps", least=1)]
TrackCount = Annotated[int, _option("N", "Tracks; more than one are interleaved.", least=1)]
Interval = Annotated[float, _option("DT", "Time between two rows of a track.")]
Scenarios = Annotated[int, _option("N", "Fresh scenarios.", least=2)]
ScenarioRows = Annotated[int, _option("N", "Rows a scenario.", "-T", "--steps", least=2)]
Reference = Annotated[int, _option("N", "Particles of each of the two references.", least=100)]
DYNAMICS = "Whose dynamics; auto: family where there is one."
Whose = Annotated[str, _option("auto|own|family|held-out", DYNAMICS)]
TIMING = "Add times, and a particle filter that takes the same time."
Timing = Annotated[bool, typer.Option("--timing", help=TIMING)]


@app.command()
def run(
    domain: Domain,
    obs: Rows = "-",
    param: Param = None,
    belief: BeliefName = "nbf",
    checkpoint: Checkpoint = None,
    particles: Particles = 256,
    paper: Paper = False,
    regenerate: Regenerate = "ess",
    ess: Ess = None,
    keep: Keep = None,
    temper: Temper = True,
    cov: Cov = "auto",
    columns: Columns = None,
    max_dt: MaxDt = None,
    forecast: Forecast = 0,
    emit: Emit = "belief",
    state_in: StateIn = None,
    state_out: StateOut = None,
    on_error: OnError = "skip",
    plot: Plot = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    force: options.Force = False,
    device: options.Device = "cpu",
    seed: options.Seed = 0,
    config: options.Config = None,
) -> None:
    """Filter a stream: one row in, one belief out, in real time.

    Rows are like {"t": 1.5, "id": "a", "obs": {"range": 0.4}, "control": {"px": 0.1}}, or CSV with a header.
    Times may be irregular, observations missing, ids interleaved. An answer holds mean, cov, quantiles, modes,
    ess and loglik.

    \b
    Examples:
      tail -f sensor.ndjson | nipstool filter-nbf --domain model.py | jq .mean
      nipstool filter-nbf --domain nile nile.csv --columns flow=volume
    """
    _one_thread()
    from nipstool.filter_nbf import Contents, RowReader, Tracks, choose_belief, load_domain
    from nipstool.filter_nbf.arguments import COVS, one_of, pairs, parameters, settings_of
    from nipstool.filter_nbf.session import Leavings, run_session
    from nipstool.filter_nbf.state import load_state
    from nipstool.kit.files import check_output
    from nipstool.kit.streams import open_stream

    terminal = Terminal(False, quiet, verbose, "none", data_on_stdout=True)
    one_of("--on-error", on_error, ("skip", "stop"))
    one_of("--emit", emit, ("belief", "particles"))
    settings = settings_of(
        particles,
        belief=belief,
        paper=paper,
        regenerate=regenerate,
        threshold=ess,
        keep=keep,
        temper=temper,
        max_dt=max_dt,
    )
    if plot is not None:
        options.check_plot(plot, force=force, beside=[obs])
    if state_out is not None:
        check_output(state_out, inputs=[obs], force=force)
    dynamics = load_domain(domain, parameters(param), device=_device(device))
    choice = choose_belief(belief, dynamics, checkpoint, cov=one_of("--cov", cov, COVS), watch=not paper)
    tracks = Tracks(dynamics, choice.belief, settings, seed)
    kind = f"{belief} {Path(checkpoint).name}" if checkpoint else belief
    if state_in is not None:
        load_state(state_in, tracks, belief=kind)
    with open_stream(obs) as source:
        tally = run_session(
            source,
            RowReader(dynamics.obs_names, dynamics.control_names, pairs("--columns", columns)),
            tracks,
            _writer(terminal, choice.note),
            Leavings(kind, state_out, plot, force),
            label="stdin" if obs == "-" else obs,
            contents=Contents(forecast, emit == "particles"),
            stop_on_error=on_error == "stop",
            note=terminal.note,
        )
    _report(terminal, tally, "stdin" if obs == "-" else obs)


@app.command()
def train(
    domain: Domain,
    output: options.Output,
    param: Param = None,
    generator: Generator = "gmm",
    init: Init = None,
    scenarios: Members = 1024,
    steps: TrainingSteps = 8000,
    batch: Batch = 128,
    resume: Resume = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    json: options.Json = False,
    force: options.Force = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Train embedding and generator on the beliefs of a family of dynamics: the domain's sample_params.

    \b
    Examples:
      nipstool filter-nbf train --domain arena -o arena.safetensors
      torchrun -m nipstool filter-nbf train --domain model.py -o m.safetensors
    """
    from nipstool.filter_nbf.arguments import one_of, parameters
    from nipstool.filter_nbf.checkpoint import check_fits, load
    from nipstool.filter_nbf.fit import Plan, fit
    from nipstool.filter_nbf.load import load_domain
    from nipstool.kit.distributed import joined
    from nipstool.kit.files import check_output, sha256
    from nipstool.kit.runtime import choose_device

    terminal = Terminal(json, quiet, verbose, progress.value, data_on_stdout=output == "-")
    one_of("--generator", generator, ("gmm", "flow"))
    check_output(output, force=force, inputs=[init] if init is not None else [])
    run = options.start(threads)
    where = choose_device(device)
    dynamics = load_domain(domain, parameters(param), verb="train", device=str(where))
    start = load(init) if init is not None else None
    if start is not None and init is not None:
        check_fits(start, dynamics, init)
        generator = start.about["generator"]
    plan = Plan(generator, scenarios, steps, batch, seed, {"param": param, "init": init})
    with joined(str(where)) as group:
        how: dict[str, Any] = {"start": start, "device": where, "force": force, "resume": resume, "group": group}
        stage = (terminal if group.rank == 0 else Terminal(False, True, 0, "none")).progress
        done = fit(dynamics, plan, output, stage=stage, **how)
    if group.rank > 0:
        return
    result = {"output": output, "beliefs": done.beliefs, "steps": steps, "validation": done.validation}
    result["coverage"] = done.coverage
    if Path(output).is_file():
        inputs = {init: sha256(init)} if init is not None else {}
        run.write(Path(output), device=str(where), seed=seed, inputs=inputs, result=result)
    if terminal.json:
        terminal.document(result)
    rows = [(f"{n} particles", value) for n, value in done.validation.items()]
    if rows:
        terminal.table("Negative log density on held-back scenarios (nats)", ("a belief seen as", "value"), rows)
    if done.coverage is not None:
        terminal.text(f"{done.coverage:.0%} of held-back particles lie within their 90 % intervals")
    terminal.text(f"wrote {output}: {done.beliefs} beliefs of {scenarios} scenarios, {steps} steps")


@app.command()
def simulate(
    domain: Domain,
    steps: TrackRows = 100,
    tracks: TrackCount = 1,
    dt: Interval = 1.0,
    param: Param = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    seed: options.Seed = 0,
    config: options.Config = None,
) -> None:
    """Draw rows from a domain, as NDJSON with the truth, for the filter to find again.

    \b
    Example:
      nipstool filter-nbf simulate --domain arena -T 200 > evader.ndjson
    """
    from nipstool.filter_nbf.arguments import parameters
    from nipstool.filter_nbf.load import load_domain
    from nipstool.filter_nbf.simulate import rows_of

    if not dt > 0:
        raise UsageError(f"--dt {dt}: expected a time above 0")
    dynamics = load_domain(domain, parameters(param), verb="simulate")
    for line in rows_of(dynamics, steps, tracks, dt, seed):
        _write(f"{line}\n")


@app.command()
def evaluate(
    domain: Domain,
    param: Param = None,
    belief: BeliefName = "nbf",
    checkpoint: Checkpoint = None,
    particles: Particles = 128,
    paper: Paper = False,
    cov: Cov = "auto",
    scenarios: Scenarios = 16,
    steps: ScenarioRows = 40,
    reference: Reference = 20_000,
    dynamics: Whose = "auto",
    timing: Timing = False,
    plot: Plot = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    force: options.Force = False,
    seed: options.Seed = 0,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Compare with particle filters of the same size, all against a large reference.

    \b
    Example:
      nipstool filter-nbf evaluate --domain arena --scenarios 16
    """
    _one_thread()
    from nipstool.filter_nbf import choose_belief, load_domain
    from nipstool.filter_nbf.arguments import COVS, one_of, parameters, settings_of
    from nipstool.filter_nbf.evaluate import DYNAMICS, Method, contenders, example
    from nipstool.filter_nbf.evaluate import evaluate as compare
    from nipstool.filter_nbf.pictures import save_comparison

    terminal = Terminal(json, quiet, verbose, progress.value)
    if plot is not None:
        options.check_plot(plot, force=force)
    how = settings_of(particles, belief=belief, paper=paper)
    loaded = load_domain(domain, parameters(param), verb="evaluate")
    kind = dynamics if dynamics != "auto" else "family" if loaded.has("sample_params") else "own"
    one_of("--dynamics", kind, DYNAMICS)
    choice = choose_belief(belief, loaded, checkpoint, cov=one_of("--cov", cov, COVS), watch=not paper)
    if choice.note:
        terminal.note(choice.note)
    methods = contenders(loaded, belief, Method(choice.belief, how), seed, timing=timing)
    with terminal.progress("evaluate") as show:
        found = compare(
            loaded,
            methods,
            scenarios=scenarios,
            steps=steps,
            reference=reference,
            kind=kind,
            seed=seed,
            progress=show,
        )
    _show_scores(terminal, found, list(methods), scenarios, kind, timing)
    if plot is not None:
        rows = example(loaded, {name: methods[name] for name in list(methods)[:2]}, kind, seed)
        save_comparison(plot, rows, loaded, force=force)
        terminal.note(f"wrote {plot}")


def _show_scores(
    terminal: Terminal, found: "Evaluation", names: list[str], scenarios: int, kind: str, timing: bool
) -> None:
    from nipstool.filter_nbf.evaluate import summary

    rows = summary(found, names[1], timing=timing)
    if terminal.json:
        floor = {"evidence_rmse": found.reference_evidence, "energy_distance": found.reference_distance}
        terminal.document({"scenarios": scenarios, "dynamics": kind, "methods": rows, "references": floor})
        return
    keys = ["evidence_rmse", "distance_mean", "distance_median", "distance_p90"]
    columns = ["filter", "evidence RMSE", "energy distance: mean", "median", "p90"]
    if timing:
        keys, columns = [*keys, "ms_per_step"], [*columns, "ms/step"]
    shown = [(name, *(r[key] for key in keys)) for name, r in rows.items()]
    terminal.table(f"{scenarios} scenarios, {kind} dynamics", columns, shown)
    interval = "{:.3f} ({:.3f} to {:.3f})".format
    ratios = [(name, interval(*r["evidence_ratio"]), interval(*r["distance_ratio"])) for name, r in rows.items()]
    terminal.table(
        f"Ratios to {names[1]} (95 % intervals over scenarios)", ("filter", "evidence", "distance"), ratios
    )
    terminal.text(
        f"the two references differ by {found.reference_evidence:.3g} in evidence (RMSE)"
        f" and {found.reference_distance:.3g} in energy distance"
    )


def _report(terminal: Terminal, tally: "Tally", label: str) -> None:
    """What happened, on stderr; lines that could not be used are an error at the end."""
    counts = {name: count for name, count in sorted(tally.events.items()) if count}
    lost = counts.pop("skipped", 0) + counts.pop("failed", 0)
    nans = counts.pop("nan", 0)
    if nans:
        terminal.warn(f"the model gave no number for {nans} particles; they were given no weight")
    if counts.get("late"):
        terminal.warn(f"{counts['late']} late rows were left out")
    if terminal.verbose:
        terminal.note(f"{tally.rows} rows" + "".join(f", {count} {name}" for name, count in counts.items()))
    if lost:
        raise DataError(f"{tally.first_error} ({lost} of {tally.lines} lines could not be used)")
    if not tally.rows:
        raise DataError(f"{label}: has no rows")


def _writer(terminal: Terminal, note: str) -> Callable[[str], None]:
    """Writes answers to stdout; the note comes with the first one, since an error is to be the only line."""
    notes = [note] if note else []

    def write(text: str) -> None:
        while notes:
            terminal.note(notes.pop())
        _write(text)

    return write


def _one_thread() -> None:
    """Before numpy is loaded: the matrices of a belief are small, and threads would only wait for each other."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _device(name: str) -> str:
    if name == "cpu":  # nothing here needs torch then
        return name
    from nipstool.kit.runtime import choose_device

    return str(choose_device(name))
