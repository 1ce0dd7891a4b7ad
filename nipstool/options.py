"""The options that all commands share, spelled once, and the TOML file behind --config.

Precedence: flag > NIPSTOOL_<COMMAND>_<OPTION> > the TOML file named by --config > default. A command
takes from here the options that mean something for it.
"""

import tomllib
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class ProgressStyle(StrEnum):
    """How progress is shown on stderr."""

    auto = "auto"
    plain = "plain"
    json = "json"
    none = "none"


def _read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Put the command's table of the TOML file behind its options; an unknown key is a usage error."""
    if path is None or ctx.resilient_parsing:
        return path
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} is no TOML file: {error}") from error
    known = {p.name: p for p in ctx.command.params if p.param_type_name == "option" and p.name != "config"}
    ctx.default_map = _settings(table, ctx.command, known, path)
    return path


def _settings(table: dict[str, Any], command: Any, known: dict[str, Any], path: Path) -> dict[str, Any]:
    section: tuple[str, ...] = getattr(command, "section", (command.name,))
    for word in section:
        table = table.get(word, {})
        if not isinstance(table, dict):
            raise typer.BadParameter(f"{path}: [{'.'.join(section)}] should be a table")
    verbs = set(command.capability.verbs) - {command.name} if hasattr(command, "capability") else set()
    settings = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in known:
            settings[name] = value
        elif not (isinstance(value, dict) and key in verbs):
            near = get_close_matches(name, [str(n) for n in known], n=1)
            hint = f"; did you mean {near[0].replace('_', '-')}?" if near else ""
            raise typer.BadParameter(f"{path}: [{'.'.join(section)}] has no option {key!r}{hint}")
    return settings


COMMON = "Common options"

Output = Annotated[
    str, typer.Option("-o", "--output", metavar="OUT", help="Where the result goes; - is standard output.")
]
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON document on standard output, no tables.", rich_help_panel=COMMON),
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Say nothing but errors on stderr.", rich_help_panel=COMMON)
]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help="Say more on stderr.", rich_help_panel=COMMON)
]
Force = Annotated[bool, typer.Option("--force", help="Replace an output that exists.", rich_help_panel=COMMON)]
Device = Annotated[
    str,
    typer.Option(metavar="auto|cpu|cuda|cuda:N|mps", help="Where tensors are computed.", rich_help_panel=COMMON),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="CPU threads; all cores by default.", rich_help_panel=COMMON),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of every random choice.", rich_help_panel=COMMON)]
Progress = Annotated[
    ProgressStyle,
    typer.Option(
        help="Progress on stderr: a bar on a terminal, lines, JSON lines, or none.", rich_help_panel=COMMON
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.toml",
        is_eager=True,
        callback=_read_config,
        help="Defaults from the command's table in this file. Flags win, then NIPSTOOL_<COMMAND>_<OPTION>.",
        rich_help_panel=COMMON,
    ),
]
