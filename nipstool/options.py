"""The options that all commands share, spelled once, and the TOML file behind --config.

Precedence: flag > NIPSTOOL_<COMMAND>_<OPTION> > the TOML file named by --config > default. A command
takes from here the options that mean something for it.
"""

import atexit
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nipstool.cli import option_name
from nipstool.kit.errors import UsageError

if TYPE_CHECKING:
    from nipstool.kit.manifest import Run


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
            document = tomllib.load(file)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} is no TOML file: {error}") from error
    try:
        ctx.default_map = _settings(document, ctx)
    except ValueError as error:
        raise typer.BadParameter(f"{path}: {error}") from error
    return path


def _settings(document: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """What the file says for the verb of `ctx`, by parameter. Raises ValueError for a key that means nothing."""
    _check_commands(document, ctx.find_root())
    section = getattr(ctx.command, "section", (ctx.command.name,))
    others = (
        set(ctx.command.capability.verbs) - {ctx.command.name} if hasattr(ctx.command, "capability") else set()
    )
    options = {
        option_name(p): p for p in ctx.command.params if p.param_type_name == "option" and p.name != "config"
    }
    title = f"[{'.'.join(section)}]"
    settings = {}
    for key, value in _table(document, section).items():
        option = options.get(key.replace("_", "-"))
        if option is not None:
            settings[option.name] = _checked(value, option, f"{title} {key}")
        elif not (isinstance(value, dict) and key in others):
            raise ValueError(f"{title} has no option {key!r}{_hint(key, options)}")
    return settings


def _check_commands(document: dict[str, Any], root: Any) -> None:
    """The file may hold tables for several commands, and nothing that belongs to none."""
    if not hasattr(root.command, "list_commands"):  # a verb that runs without the shell around it
        return
    names = root.command.list_commands(root)
    for key, value in document.items():
        if not isinstance(value, dict):
            raise ValueError(f"{key!r} stands outside a command's table")
        if key not in names:
            raise ValueError(f"[{key}] names no command{_hint(key, names)}")


def _table(document: dict[str, Any], section: Iterable[str]) -> dict[str, Any]:
    for word in section:
        document = document.get(word, {})
        if not isinstance(document, dict):
            raise ValueError(f"{word} should be a table")
    return document


def _hint(word: str, words: Iterable[str]) -> str:
    near = get_close_matches(word, list(words), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _checked(value: Any, option: Any, where: str) -> Any:
    """A TOML value, as a list where the option may be repeated. Raises ValueError for tables and dates."""
    several = option.multiple or option.nargs != 1
    if isinstance(value, list) and not several:
        raise ValueError(f"{where} takes one value, not a list")
    words = value if isinstance(value, list) else [value]
    for word in words:
        if not isinstance(word, str | int | float):
            raise ValueError(f"{where} takes text, a number, true or false, not {type(word).__name__}")
    return words if several else value


COMMON = "Common options"

Output = Annotated[
    str, typer.Option("-o", "--output", metavar="OUT", help="Where the result goes; - is standard output.")
]
NewFolder = Annotated[
    str, typer.Option("-o", "--output", metavar="DIR", help="A folder for the result, which is not there yet.")
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
        metavar="auto|plain|json|none",
        help="Progress on stderr: a bar on a terminal, lines, JSON lines, or none.",
        rich_help_panel=COMMON,
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

PICTURES = ("png", "pdf", "svg")


def check_plot(path: Path, *, force: bool, beside: Iterable[str] = ()) -> None:
    """Refuse a picture that could not be written, or would replace one of the files `beside`, before any work."""
    from nipstool.kit.files import check_output

    if path.suffix.lstrip(".").lower() not in PICTURES:
        raise UsageError(f"--plot {path}: expected a name that ends in .png, .pdf or .svg")
    check_output(path, inputs=[name for name in beside if name != "-"], force=force)
    keep_homes_clean()


def sharing(*groups: Callable[..., None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of `groups`, functions of options alone, to a verb; it gets their values as `given`, a dict.

    Where several verbs take the same many options, each is spelled once.
    """

    def add(verb: Callable[..., None]) -> Callable[..., None]:
        own = {name: p for name, p in signature(verb).parameters.items() if name != "given"}
        shared = {name: p for group in groups for name, p in signature(group).parameters.items()}

        @wraps(verb)
        def run(**values: Any) -> None:
            verb(**{name: values[name] for name in own}, given={name: values[name] for name in shared})

        parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in (own | shared).values()]
        run.__dict__["__signature__"] = Signature(parameters)
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return add


def keep_homes_clean() -> None:
    """matplotlib leaves a list of fonts in the home where it has none there yet: then in a temporary folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if "MPLCONFIGDIR" not in os.environ and not os.path.isdir(os.path.join(cache, "matplotlib")):
        os.environ["MPLCONFIGDIR"] = place = tempfile.mkdtemp(prefix="nipstool-")
        atexit.register(shutil.rmtree, place, ignore_errors=True)


def start(threads: int | None) -> "Run":
    """The manifest of this run, its clock started before anything heavy is imported; torch has its threads."""
    from nipstool.kit.manifest import Run

    run = Run(sys.argv)
    from nipstool.kit.runtime import set_threads

    set_threads(threads)
    return run
