"""Copy and count the lines of text files."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from nipstool import options
from nipstool.kit.errors import DataError
from nipstool.kit.files import AtomicFile, check_output, is_stdio, sha256, spooled_input
from nipstool.kit.manifest import Run
from nipstool.terminal import Terminal

app = typer.Typer()

Source = Annotated[str, typer.Argument(metavar="FILE", help="A text file; - is standard input.")]


def read_lines(source: str) -> list[str]:
    """The lines of a UTF-8 file; DataError where it has none or is no text."""
    with spooled_input(source) as path:
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        except UnicodeDecodeError as error:
            raise DataError(f"{source!r} is no UTF-8 text: {error}") from error
    if not lines:
        raise DataError(f"{source!r} is empty; expected lines of text")
    return lines


@app.command()
def copy(
    source: Source,
    output: options.Output,
    tag: Annotated[str, typer.Option(help="A word for the report.")] = "plain",
    slowly: Annotated[bool, typer.Option("--slowly", help="Wait a second after each line.")] = False,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    config: options.Config = None,
) -> None:
    """Copy a text file.

    \b
    Examples:
      nipstool example-copy notes.txt -o copy.txt
      cat notes.txt | nipstool example-copy - -o - | wc -l
    """
    run = Run(sys.argv)
    terminal = Terminal(json=json, quiet=quiet, data_on_stdout=is_stdio(output))
    check_output(output, inputs=[source], force=force, binary=False)
    lines = read_lines(source)
    with AtomicFile(output, force=force) as out:
        for line in lines:
            out.file.write(line.encode())
            if slowly:
                out.file.flush()
                time.sleep(1)
    if Path(output).is_file():
        inputs = {} if is_stdio(source) else {source: sha256(source)}
        run.write(Path(output), device="cpu", seed=None, inputs=inputs, tag=tag)
    if json:
        terminal.document({"lines": len(lines), "tag": tag})
    terminal.text(f"{len(lines)} lines copied ({tag})")


@app.command()
def count(source: Source, json: options.Json = False, config: options.Config = None) -> None:
    """Count the lines of a text file.

    \b
    Example:
      nipstool example-copy count notes.txt
    """
    lines = read_lines(source)
    terminal = Terminal(json=json)
    if json:
        terminal.document({"lines": len(lines)})
    terminal.table("Lines", ["file", "lines"], [[source, len(lines)]])
