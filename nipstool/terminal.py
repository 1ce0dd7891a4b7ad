"""What a command shows: tables, one JSON document, notes and warnings. stdout carries data alone."""

import json
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TextIO

from nipstool.guard import complain, wants_style
from nipstool.kit.errors import NipsError, UsageError
from nipstool.kit.progress import Progress, progress_on

Cell = str | float | int | None


@dataclass(frozen=True)
class Terminal:
    """Where a command's words go. `data_on_stdout` says that the output itself is written there."""

    json: bool = False
    quiet: bool = False
    verbose: int = 0
    progress_style: str = "auto"
    data_on_stdout: bool = False

    def __post_init__(self) -> None:
        if self.json and self.data_on_stdout:
            raise UsageError("--json and -o - both want standard output: give -o a file, or leave --json out")

    def note(self, text: str) -> None:
        """A line for people on stderr."""
        if not self.quiet:
            complain(text)

    def warn(self, text: str) -> None:
        """A line on stderr about a result that may not be what the user wanted."""
        if not self.quiet:
            complain(f"warning: {text}")

    def document(self, value: Any) -> None:
        """One JSON document on stdout; it stays JSON where stdout cannot carry every character."""
        from nipstool.kit.records import to_json

        text = to_json(value, indent=2)
        if (self._stream().encoding or "utf-8").lower().replace("-", "") != "utf8":
            text = re.sub("[^\0-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)
        self._say(text)

    def text(self, text: str) -> None:
        """Lines of a report: on stdout, or on stderr where the data itself goes to stdout."""
        if not self.json and not (self.quiet and self.data_on_stdout):
            self._say(text)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """A table: rich on a terminal, tab-separated with a header line elsewhere."""
        if self.json or (self.quiet and self.data_on_stdout):
            return
        stream = self._stream()
        if stream.isatty():
            _rich_table(stream, title, columns, rows)
        else:
            lines = ["\t".join(columns), *("\t".join(_cell(c) for c in row) for row in rows)]
            self._say("\n".join(lines))

    def progress(self, label: str) -> AbstractContextManager[Progress]:
        """The progress callable that a core function takes."""
        style = "none" if self.quiet and self.progress_style == "auto" else self.progress_style
        return progress_on(sys.stderr, label, style)

    def _stream(self) -> TextIO:
        stream = sys.stderr if self.data_on_stdout else sys.stdout
        if stream is None:
            raise NipsError("standard output is closed, and the result goes there")
        return stream

    def _say(self, text: str) -> None:
        print(text, file=self._stream())


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("\t", " ").replace("\n", " ")


def _rich_table(stream: TextIO, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        numeric = any(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(_cell(c)) for c in row))
    Console(file=stream, color_system="auto" if wants_style(stream) else None).print(table)
