"""Fuse LoRAs without interference (NP-LoRA), measure how much they interfere, inspect and convert them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nipstool import options
from nipstool.guard import complain
from nipstool.kit.errors import NipsError, UsageError, worse
from nipstool.options import ProgressStyle
from nipstool.terminal import Terminal

if TYPE_CHECKING:
    from nipstool.fuse_lora import Comparison, FileFacts, Fusion, ModuleReport, Totals
    from nipstool.kit.manifest import Run

app = typer.Typer()

Mu = Annotated[
    str,
    typer.Option(
        metavar="NUMBER|inf|auto",
        help="Strength of the projection: 0 is the plain sum, inf removes the content from the style's directions,"
        " auto chooses it per module so that --leak is met.",
    ),
]
Leak = Annotated[
    float, typer.Option(metavar="SHARE", help="With --mu auto: share of the content's energy that may stay there.")
]
K = Annotated[
    int | None, typer.Option("--k", min=1, metavar="N", help="Protect only the N strongest style directions.")
]
Energy = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="Protect the style directions that hold this share of its energy."),
]
DropDora = Annotated[
    bool, typer.Option("--drop-dora", help="Ignore DoRA's scales (this changes what the LoRA does).")
]
AllowUnknown = Annotated[
    bool, typer.Option("--allow-unknown", help="Leave out tensors that nobody can place instead of refusing.")
]
FORMATS, DTYPES = "kohya|diffusers|peft|bfl", "float32|float16|bfloat16"
Format = Annotated[str | None, typer.Option(metavar=FORMATS, help="Format of the output; default the content's.")]
Dtype = Annotated[str | None, typer.Option(metavar=DTYPES, help="Dtype of the output; default the content's.")]
InputFormat = Annotated[
    str | None, typer.Option(metavar=FORMATS, help="Format of the output; default the input's.")
]
InputDtype = Annotated[str | None, typer.Option(metavar=DTYPES, help="Dtype of the output; default the input's.")]
Rank = Annotated[int | None, typer.Option(min=1, metavar="R", help="Truncate every module to rank R, optimally.")]
EnergyRank = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Truncate every module to the rank that holds this share.")
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE.png", help="Draw where they interfere: blocks x module kinds.")
]


@app.command()
def fuse(
    content: Annotated[str, typer.Argument(metavar="CONTENT", help="The LoRA that gives way; - for stdin.")],
    styles: Annotated[
        list[str], typer.Argument(metavar="STYLE", help="The LoRAs whose directions are protected.")
    ],
    output: options.Output,
    mu: Mu = "0.5",
    leak: Leak = 0.001,
    k: K = None,
    energy: Energy = None,
    weight: Annotated[
        list[float] | None,
        typer.Option("-w", "--weight", metavar="W", help="Weight of each file, in their order; default 1."),
    ] = None,
    rank: Rank = None,
    energy_rank: EnergyRank = None,
    include: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Only modules whose canonical name matches."),
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Leave out modules whose canonical name matches.")
    ] = None,
    modules_to_save: Annotated[
        str | None,
        typer.Option(metavar="content|style", help="Whose full weights to keep where both bring some, unequal."),
    ] = None,
    drop_dora: DropDora = False,
    allow_unknown: AllowUnknown = False,
    format: Format = None,
    dtype: Dtype = None,
    plot: Plot = None,
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
    """Fuse LoRAs into one file: the content gives way where a style reads its input (NP-LoRA).

    Reads kohya, diffusers, PEFT, BFL and other formats, LoHa and LoKr, in any mix of formats.
    Prints how much they interfere, beside what chance would give.

    \b
    Examples:
      nipstool fuse-lora cat.safetensors oil.safetensors -o fused.safetensors
      nipstool fuse-lora cat.safetensors oil.safetensors -o hard.safetensors \\
          --mu inf --plot where.png
    """
    terminal = Terminal(json, quiet, verbose, progress.value, data_on_stdout=output == "-")
    from nipstool.fuse_lora import fuse as fuse_loras
    from nipstool.kit.manifest import Run
    from nipstool.kit.runtime import float_dtype

    run = Run(sys.argv)

    if plot is not None:
        options.check_plot(plot, force=force, beside=[content, *styles, output])
    with terminal.progress("fuse") as show:
        fusion = fuse_loras(
            content,
            styles,
            output,
            mu=_mu(mu),
            leak=leak,
            k=k,
            energy=energy,
            weights=weight,
            rank=rank,
            energy_rank=energy_rank,
            include=include,
            exclude=exclude,
            modules_to_save=modules_to_save,
            drop_dora=drop_dora,
            allow_unknown=allow_unknown,
            format=format,
            dtype=float_dtype(dtype),
            device=device,
            threads=threads,
            force=force,
            progress=show,
        )
    _finish(terminal, run, fusion, output, device, seed, fused=True)
    if plot is not None:
        _draw(plot, fusion.modules, fusion.totals, "content energy on the style's directions", force)
        terminal.note(f"wrote {plot}")


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A LoRA; - for stdin.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another LoRA.")],
    mu: Mu = "0.5",
    leak: Leak = 0.001,
    k: K = None,
    energy: Energy = None,
    drop_dora: DropDora = False,
    allow_unknown: AllowUnknown = False,
    plot: Plot = None,
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
    """Say how much two LoRAs interfere, in both directions, and what every mu would do. Writes no LoRA.

    \b
    Example:
      nipstool fuse-lora compare cat.safetensors oil.safetensors
    """
    terminal = Terminal(json, quiet, verbose, progress.value)
    from nipstool.fuse_lora import compare as compare_loras

    if plot is not None:
        options.check_plot(plot, force=force, beside=[a, b])
    with terminal.progress("compare") as show:
        found = compare_loras(
            a,
            b,
            mu=_mu(mu),
            leak=leak,
            k=k,
            energy=energy,
            drop_dora=drop_dora,
            allow_unknown=allow_unknown,
            device=device,
            threads=threads,
            progress=show,
        )
    _show_comparison(terminal, found)
    if plot is not None:
        one = found.forward
        _draw(
            plot, one.modules, one.totals, f"energy of {Path(one.content).name} on {Path(one.style).name}", force
        )
        terminal.note(f"wrote {plot}")


@app.command()
def inspect(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="LoRA files or folders; - for stdin.")],
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = 0,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    progress: options.Progress = ProgressStyle.auto,
    config: options.Config = None,
) -> None:
    """Say what LoRA files are: format, family, ranks, spectra, trigger words, and what is wrong with them.

    -v lists every module.

    \b
    Example:
      nipstool fuse-lora inspect oil.safetensors
    """
    terminal = Terminal(json, quiet, verbose, progress.value)
    from nipstool.fuse_lora import inspect as inspect_lora

    found, failed = [], None
    for file in files:
        try:
            with terminal.progress(f"inspect {Path(file).name}") as show:
                facts = inspect_lora(file, progress=show)
        except NipsError as error:
            failed = worse(failed, error)
            if len(files) > 1:
                complain(str(error))
            continue
        found.append(facts)
        _show_facts(terminal, facts)
    if json and found:
        terminal.document({"files": found})
    if failed is not None:
        raise (
            failed if len(files) == 1 else type(failed)(f"{len(files) - len(found)} of {len(files)} files failed")
        )


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A LoRA; - for stdin.")],
    output: options.Output,
    format: InputFormat = None,
    rank: Rank = None,
    energy_rank: EnergyRank = None,
    drop_dora: DropDora = False,
    allow_unknown: AllowUnknown = False,
    dtype: InputDtype = None,
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
    """Write a LoRA in another format, dtype or rank. LoHa and LoKr become plain LoRA, without loss where possible.

    \b
    Example:
      nipstool fuse-lora convert oil.safetensors -o peft-oil --format peft
    """
    terminal = Terminal(json, quiet, verbose, progress.value, data_on_stdout=output == "-")
    from nipstool.fuse_lora import convert as convert_lora
    from nipstool.kit.manifest import Run
    from nipstool.kit.runtime import float_dtype

    run = Run(sys.argv)

    with terminal.progress("convert") as show:
        fusion = convert_lora(
            source,
            output,
            format=format,
            rank=rank,
            energy_rank=energy_rank,
            drop_dora=drop_dora,
            allow_unknown=allow_unknown,
            dtype=float_dtype(dtype),
            device=device,
            threads=threads,
            force=force,
            progress=show,
        )
    _finish(terminal, run, fusion, output, device, seed)


def _mu(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise UsageError(f"--mu {text}: expected a number of 0 or more, inf or auto")
    return value


def _draw(path: Path, modules: "tuple[ModuleReport, ...]", total: "Totals", title: str, force: bool) -> None:
    from nipstool.fuse_lora import grid
    from nipstool.kit.files import AtomicFile
    from nipstool.kit.plots import heatmap

    rows, columns, values = grid(modules)
    with AtomicFile(path, force=force) as file:
        heatmap(
            file.file,
            values,
            rows,
            columns,
            title=title,
            subtitle=f"overlap {total.overlap:.4f} in all, chance {total.chance:.4f}: ratio {total.ratio:.2f}",
            colour_label="overlap energy (share)",
            reference=total.chance,
            reference_label="chance",
            form=path.suffix.lstrip(".").lower(),
        )


def _finish(
    terminal: Terminal, run: "Run", fusion: "Fusion", output: str, device: str, seed: int, *, fused: bool = False
) -> None:
    """Show what was done, how files that were fused interfere too, and leave the manifest."""
    from nipstool.fuse_lora import tables

    for line in fusion.warnings:
        terminal.warn(line)
    for line in fusion.notes:
        terminal.note(line)
    for key in fusion.listed:
        terminal.warn(f"left out {key}: nobody can place it")
    if output != "-" and (Path(output).is_file() or Path(output).is_dir()):
        result = tables.fusion_document(fusion, modules=False)
        run.write(Path(output), device=device, seed=seed, inputs=fusion.inputs, result=result)
    if terminal.json:
        terminal.document(tables.fusion_document(fusion))
        return
    if fused:
        _show_modules(terminal, fusion.modules)
        terminal.text(tables.total_sentence(fusion.totals))
    terminal.text(tables.result_sentence(fusion))


def _show_modules(terminal: Terminal, modules: "tuple[ModuleReport, ...]") -> None:
    """Blocks by default, every module with -v."""
    from nipstool.fuse_lora import tables

    if terminal.verbose:
        terminal.table("Interference by module", *tables.by_module(modules))
    else:
        terminal.table("Interference by block", *tables.by_block(modules))


def _show_comparison(terminal: Terminal, found: "Comparison") -> None:
    from nipstool.fuse_lora import tables

    for one in (found.forward, found.backward):
        for line in one.warnings:
            terminal.warn(f"{one.content} with {one.style} as style: {line}")
    if terminal.json:
        terminal.document(tables.comparison_document(found))
        return
    for one in (found.forward, found.backward):
        terminal.text(f"content {one.content}, style {one.style}")
        _show_modules(terminal, one.modules)
        terminal.text(tables.total_sentence(one.totals))
        terminal.table("What every mu would do", *tables.sweep_table(one.sweep))


def _show_facts(terminal: Terminal, facts: "FileFacts") -> None:
    from nipstool.fuse_lora import tables

    terminal.table(facts.path, *tables.facts_table(facts))
    if terminal.verbose:
        terminal.table("Modules", *tables.module_facts_table(facts))
