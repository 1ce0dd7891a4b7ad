"""Completion scripts for bash, zsh and fish, written from the commands that are installed.

The scripts are static: pressing TAB starts no Python. A script made after a plug-in was installed knows
the plug-in's commands too.
"""

import os
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from nipstool import shells
from nipstool.cli import PROGRAM, build_app, found, hidden, load, one_line_help
from nipstool.guard import complain
from nipstool.shells import Command, Option, Tree, Verb

HELP_OPTION = ("-h", "--help")


class Shell(StrEnum):
    """The shells a script can be written for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell to write the script for.")]) -> None:
    """Print a shell's completion script.

    \b
    Examples:
      nipstool completion bash \\
          > ~/.local/share/bash-completion/completions/nipstool
      nipstool completion zsh > "${fpath[1]}/_nipstool"
      nipstool completion fish > ~/.config/fish/completions/nipstool.fish
    """
    print(script(shell), end="")


def script(shell: Shell) -> str:
    """The completion script of one shell, with all commands that are registered now."""
    write = {Shell.bash: shells.bash, Shell.zsh: shells.zsh, Shell.fish: shells.fish}
    return write[shell](tree())


# --- what there is to complete ---


def tree() -> Tree:
    """Load every command; one that cannot be loaded is left out with a warning."""
    root = build_app()
    with root.make_context(PROGRAM, [], resilient_parsing=True) as ctx:
        loaded = [_command(entry, ctx) for entry in (*found().values(), *hidden().values())]
    return Tree(_options(root.params), tuple(command for command in loaded if command is not None))


def _command(entry: Any, ctx: Any) -> Command | None:
    try:
        capability = load(entry, ctx)
    except Exception as error:  # whatever a third party's import may raise
        complain(f"warning: {error}")
        return None
    shown = [verb for name, verb in capability.verbs.items() if name == capability.default or not verb.hidden]
    return Command(entry.name, one_line_help(entry), tuple(map(_verb, shown)), entry.name in hidden())


def _verb(verb: Any) -> Verb:
    arguments = [param for param in verb.params if param.param_type_name == "argument"]
    words = tuple(word for param in arguments for word in _words(param))
    options = _options([param for param in verb.params if param.param_type_name == "option"])
    return Verb(verb.name, _first_line(verb.help), options, words, any(not _words(p) for p in arguments))


def _options(params: list[Any]) -> tuple[Option, ...]:
    shown = [param for param in params if not param.hidden]
    return (*(option for param in shown for option in _spellings(param)), Option(HELP_OPTION, "Show help."))


def _spellings(param: Any) -> Iterator[Option]:
    takes_value = not (param.is_flag or param.count)
    text = _first_line(param.help)
    metavar = param.metavar or param.name.upper()
    words, repeats = (_words(param) if takes_value else ()), bool(param.multiple or param.count)
    yield Option(tuple(param.opts), text, metavar, takes_value, words, takes_value and _is_file(param), repeats)
    if param.secondary_opts:  # --no-x
        yield Option(tuple(param.secondary_opts), text)


def _words(param: Any) -> tuple[str, ...]:
    """The values to choose from: those of an enumeration, or the literal ones of a metavar: auto|cpu|cuda:N."""
    choices, metavar = param.type_descriptor.choices, param.metavar or ""
    if choices is not None:
        words = [str(getattr(choice, "value", choice)) for choice in choices]
        return tuple(word for word in words if re.fullmatch(r"[\w.,+-]+", word))  # what no shell has to quote
    words = metavar.split("|") if "|" in metavar else []
    return tuple(word for word in words if re.fullmatch(r"[a-z0-9.+-]+", word))


def _is_file(param: Any) -> bool:
    kind = param.type_descriptor
    typed = kind.is_path or kind.is_file or kind.envvar_list_splitter == os.pathsep
    return typed or re.search(r"\b(FILE|OUT|DIR|FOLDER|PATH)\b", param.metavar or "") is not None


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
