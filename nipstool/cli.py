"""The command line: finds commands by entry point without importing them, and runs the default verb.

An entry point of the group `nipstool.commands` names a function (a capability with one verb) or a
`typer.Typer` (its first command is the default verb). Help reads docstrings from source; only the
command that is asked for is imported. typer vendors click and moves its internals between minor
releases: whatever touches them stands in this file.
"""

import ast
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from traceback import print_exception
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import _click
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from nipstool import __version__
from nipstool.guard import complain, debugging, guarded, wants_style
from nipstool.kit.errors import ExitStatus

if TYPE_CHECKING:  # at run time it is imported where it is used: a third of what --version would take
    from importlib.metadata import EntryPoint

GROUP = "nipstool.commands"
OURS = "nipstool"  # the distribution whose commands win a clash of names
PROGRAM = "nipstool"
HELP = """Methods from this year's NeurIPS papers, on real files: one subcommand a method.

The name alone runs a method's main job; its other verbs follow the name.
"""
EPILOG = (
    "Exit status: 0 done, 1 failed, 2 usage, 65 bad data, 66 input missing, 69 a part or device is missing,"
    " 70 internal error, 73 output cannot be made, 75 another run writes this output, 130 interrupted,"
    " 143 terminated."
)
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class BrokenCommandError(_click.exceptions.UsageError):
    """A command whose module cannot be imported, or is none."""


@dataclass(frozen=True)
class Capability:
    """A loaded entry point: the default verb's name, and every verb by name, in the author's order."""

    name: str
    default: str
    verbs: dict[str, "Verb"]


class Verb(TyperCommand):
    """One verb of a capability; knows its place in the environment's and the TOML file's names."""

    capability: Capability
    section: tuple[str, ...] = ()

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        try:
            return super().make_context(info_name, args, parent, **SETTINGS, **extra)
        except _click.exceptions.UsageError as error:
            if error.ctx is None and parent is not None:  # the parser's own errors know no place
                parent.info_name = f"{parent.info_name} {info_name}"
                error.ctx = parent
            raise

    def get_help_option(self, ctx: Any) -> Any:
        return _tidied_help(super().get_help_option(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The plain help in the same sections as the rich one."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            usual = "Arguments" if param.param_type_name == "argument" else "Options"
            title = getattr(param, "rich_help_panel", None) or usual
            if (row := param.get_help_record(ctx)) is not None:
                sections.setdefault(title, []).append(row)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        others = [(n, v) for n, v in self.capability.verbs.items() if v is not self and not v.hidden]
        if not others or self.name != self.capability.default:
            return
        rows = [(f"{self.capability.name} {name}", verb.get_short_help_str(200)) for name, verb in others]
        if self.rich_markup_mode is None:
            with formatter.section("Other verbs"):
                formatter.write_dl(rows)
        else:
            _print_verbs(rows)


def _print_verbs(rows: list[tuple[str, str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold cyan", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print(Panel(table, title="Other verbs", title_align="left", border_style="dim", box=box.ROUNDED))


class Root(TyperGroup):
    """`nipstool`: lists entry points without importing them, and loads the one that is asked for."""

    def get_help_option(self, ctx: Any) -> Any:
        return _tidied_help(super().get_help_option(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(found())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stub with the command's one-line help: enough for the list of commands."""
        entry = found().get(cmd_name)
        return None if entry is None else TyperCommand(cmd_name, help=one_line_help(entry))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The plain list; typer's own cuts long lines off."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one_line_help(entry)) for name, entry in found().items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, rest = args[0], args[1:]
        entry = found().get(name) or hidden().get(name)
        if entry is None:
            self.commands = dict.fromkeys(found())  # typer's "Did you mean" looks here
            return super().resolve_command(ctx, args)
        capability = load(entry, ctx)
        verb, rest = choose_verb(capability, rest, ctx)
        title = name if verb.name == capability.default else f"{name} {verb.name}"
        return title, verb, rest


@cache
def found() -> dict[str, "EntryPoint"]:
    """Every registered command by name, sorted; ours win a clash, with a warning."""
    from importlib.metadata import entry_points

    entries: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, _owner(e) != OURS, _owner(e))):
        if entry.name not in entries:
            entries[entry.name] = entry
        elif _owner(entry) != _owner(entries[entry.name]):
            complain(f"warning: the command {entry.name} of package {_owner(entry)} is hidden by an earlier one")
    return entries


def _owner(entry: "EntryPoint") -> str:
    return entry.dist.name if entry.dist is not None else ""


@cache
def hidden() -> dict[str, "EntryPoint"]:
    """What help does not list and no package registers, since it is about the command line itself."""
    from importlib.metadata import EntryPoint

    return {"completion": EntryPoint("completion", "nipstool.completion:completion", GROUP)}


def one_line_help(entry: "EntryPoint") -> str:
    """The first line of a command's help, read from its source; neither module nor package is imported."""
    try:
        with open(source_of(entry.module), "rb") as source:
            tree = ast.parse(source.read())
    except Exception:  # a broken plug-in must not take the list of commands down with it
        return "(not importable)"
    text = _docstring_of(tree, entry.attr) or ast.get_docstring(tree) or ""
    return text.strip().partition("\n")[0]


def source_of(module: str) -> str:
    """The source file of a module. `importlib.util.find_spec` would import the packages it lies in."""
    places, spec, name = None, None, ""
    for word in module.split("."):
        name = f"{name}.{word}".lstrip(".")
        specs = (finder.find_spec(name, places) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        places = spec.submodule_search_locations if spec is not None else []
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module named {module}")
    return spec.origin


def _docstring_of(tree: ast.Module, attribute: str) -> str | None:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            return ast.get_docstring(node)
    return None


def load(entry: "EntryPoint", ctx: Any) -> Capability:
    """Import one command's module and build its verbs; a broken one is a usage error of one line."""
    try:
        target = entry.load()
        infos = target.registered_commands if isinstance(target, typer.Typer) else [CommandInfo(callback=target)]
        verbs = [build(info) for info in infos]
        if not verbs:
            raise TypeError(f"{entry.value} has no commands")
    except (Exception, SystemExit) as error:  # whatever a third party's import may raise
        reason = f"the command {entry.name} cannot be loaded: {type(error).__name__}: {error}"
        raise BrokenCommandError(reason, ctx) from error
    capability = Capability(entry.name, verbs[0].name or "", {verb.name or "": verb for verb in verbs})
    for verb in verbs:
        verb.capability = capability
        verb.section = (entry.name,) if verb is verbs[0] else (entry.name, verb.name or "")
        for param in verb.params:
            if param.param_type_name == "option":
                param.envvar = environment_name(*verb.section, option_name(param))
    return capability


def option_name(option: Any) -> str:
    """An option as users know it: --energy-rank is energy-rank, whatever the function's parameter is called."""
    return max(option.opts, key=len).lstrip("-")


def environment_name(*words: str) -> str:
    """NIPSTOOL_FUSE_LORA_MU for fuse-lora, mu."""
    return "_".join(("NIPSTOOL", *words)).replace("-", "_").upper()


def build(info: CommandInfo) -> Verb:
    """A verb from typer's description of it."""
    info.cls = Verb
    verb = get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=markup())
    if not isinstance(verb, Verb):
        raise TypeError(f"{info.name} is no plain command")
    for param in verb.params:
        _tidy(param)
    return verb


def _tidy(param: Any) -> None:
    """Help without what nobody asks for: variables (the help of --config says their rule), <bool>, {FILE}."""
    param.show_envvar = False
    if param.param_type_name == "argument":
        param.display_type_rich = lambda ctx: None
        name = param.display_name_raw.removesuffix("...") + ("..." if param.nargs != 1 else "")
        param._usage_display_name = lambda: name if param.required else f"[{name}]"
    elif param.is_flag or param.count:
        param.display_type_rich = lambda ctx: None
        param.show_default = param.show_default and not param.count


def _tidied_help(option: Any) -> Any:
    if option is not None:
        _tidy(option)
    return option


def choose_verb(capability: Capability, args: list[str], ctx: Any) -> tuple[Verb, list[str]]:
    """The verb that the first word names, else the default one; a near miss of a verb is a usage error."""
    first = args[0] if args else ""
    if first in capability.verbs:
        return capability.verbs[first], args[1:]
    near = get_close_matches(first, list(capability.verbs), n=1, cutoff=0.75)
    if near and not first.startswith("-") and not os.path.lexists(first):
        ctx.info_name = f"{PROGRAM} {capability.name}"
        ctx.fail(f"{first!r} is neither a verb nor an existing file: did you mean {near[0]}?")
    return capability.verbs[capability.default], args


def markup() -> Any:
    """Rich help on a terminal that wants it, plain text elsewhere."""
    return "rich" if wants_style(sys.stdout) else None


def show_version(value: bool) -> None:
    """The eager callback of --version."""
    if value:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


def build_app() -> Root:
    """The root of the command tree."""
    shell = get_command_from_info(
        CommandInfo(callback=_root), pretty_exceptions_short=False, rich_markup_mode=None
    )
    for param in shell.params:
        _tidy(param)
    return Root(
        name=PROGRAM,
        help=HELP,
        epilog=EPILOG,
        params=shell.params,
        callback=shell.callback,
        rich_markup_mode=markup(),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command line and exit with its status (see `nipstool.kit.errors.ExitStatus`)."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args == ["--version"]:  # scripts ask this often: no parser is built for it
        status = guarded(lambda: print(PROGRAM, __version__))
    else:
        status = guarded(lambda: run(args))
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the interpreter's end takes a while; no traceback of it
    sys.exit(status)


def run(args: list[str]) -> int:
    """Parse `args` and run the command they name; usage errors become one line and status 2."""
    root = build_app()
    if not args:
        with root.make_context(PROGRAM, ["--help"], resilient_parsing=True, **SETTINGS) as ctx:
            print(root.get_help(ctx), file=sys.stderr)
        return ExitStatus.USAGE
    try:
        with root.make_context(PROGRAM, args, **SETTINGS) as ctx:
            root.invoke(ctx)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort as stop:
        raise KeyboardInterrupt from stop
    except _click.exceptions.ClickException as error:
        return _usage(error)
    return ExitStatus.OK


def _usage(error: Any) -> int:
    if debugging() and error.__cause__ is not None:
        print_exception(error.__cause__)
    context = getattr(error, "ctx", None)
    hint = f"see {context.command_path if context is not None else PROGRAM} --help"
    if isinstance(error, BrokenCommandError):
        hint = "NIPSTOOL_DEBUG=1 shows where"
    complain(f"{error.format_message()} ({hint})")
    return error.exit_code
