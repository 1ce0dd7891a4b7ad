"""What the completion scripts of bash, zsh and fish look like, given a description of the commands."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """One option: its spellings, and what may follow it: nothing, one of some words, a file, or any text."""

    names: tuple[str, ...]
    help: str
    metavar: str = ""
    takes_value: bool = False
    words: tuple[str, ...] = ()
    files: bool = False
    repeats: bool = False


@dataclass(frozen=True)
class Verb:
    """One verb: its options, and what its arguments may be."""

    name: str
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...] = ()
    files: bool = False


@dataclass(frozen=True)
class Command:
    """One capability: its verbs, the default one first. A hidden one is completed but not listed."""

    name: str
    help: str
    verbs: tuple[Verb, ...]
    hidden: bool = False

    @property
    def named(self) -> tuple[Verb, ...]:
        """The verbs that are offered by name: none where there is but one."""
        return self.verbs if len(self.verbs) > 1 else ()


@dataclass(frozen=True)
class Tree:
    """All that can be completed."""

    options: tuple[Option, ...]
    commands: tuple[Command, ...]

    @property
    def listed(self) -> list[Command]:
        """The commands that are offered by name."""
        return [command for command in self.commands if not command.hidden]

    @property
    def places(self) -> list[tuple[str, Verb]]:
        """Every verb by its full name: `fuse-lora compare`."""
        return [(f"{command.name} {verb.name}", verb) for command in self.commands for verb in command.verbs]


def _filled(template: str, **parts: str) -> str:
    """The template with each @name@ replaced."""
    return re.sub(r"@(\w+)@", lambda match: parts[match[1]], template)


# --- bash ---


def bash(tree: Tree) -> str:
    """The script for bash (3.2 and newer)."""
    commands = " ".join(shlex.quote(command.name) for command in tree.listed)
    return _filled(
        BASH,
        commands=commands,
        options=_bash_words(tree.options),
        verbs="".join(map(_bash_verbs, tree.commands)),
        places="".join(_bash_place(place, verb) for place, verb in tree.places),
    )


BASH = r"""# Completion of nipstool for bash, written by: nipstool completion bash
_nipstool() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} place='' files='' word
    local -a words=() verbs=()
    COMPREPLY=()
    # bash splits --option=value into three words
    if [[ $cur == '=' ]]; then cur=''; elif [[ $prev == '=' ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi

    if ((COMP_CWORD == 1)); then
        if [[ $cur == -* ]]; then words=(@options@); else words=(@commands@); fi
    else
        case ${COMP_WORDS[1]} in@verbs@
        esac
        place="${COMP_WORDS[1]} ${verbs[0]}"
        for word in "${verbs[@]}"; do
            if [[ $word == "${COMP_WORDS[2]}" ]]; then place="${COMP_WORDS[1]} $word"; fi
        done
    fi
    if ((COMP_CWORD > 2 || ${#verbs[@]} == 1)); then verbs=(); fi # no more to be offered

    case $place in@places@
    esac

    for word in "${words[@]}"; do
        if [[ $word == "$cur"* ]]; then COMPREPLY+=("$word"); fi
    done
    if [[ ! $files ]]; then return; fi
    if [[ $cur == *[\\\'\"\`\$~]* ]]; then # quoted or to be expanded: readline knows how
        if ((${#COMPREPLY[@]} == 0)); then compopt -o default 2>/dev/null; fi
        return
    fi
    compopt -o filenames 2>/dev/null
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$cur")
}
complete -F _nipstool nipstool
"""


def _bash_verbs(command: Command) -> str:
    names = " ".join(shlex.quote(verb.name) for verb in command.verbs)
    return f"\n            {shlex.quote(command.name)}) verbs=({names}) ;;"


def _bash_place(place: str, verb: Verb) -> str:
    words = "".join(f" {shlex.quote(word)}" for word in verb.words)
    lines = [
        f"{shlex.quote(place)})",
        "    case $prev in",
        *(f"        {case}" for case in _bash_values(verb.options)),
        "        *)",
        f"            if [[ $cur == -* ]]; then words=({_bash_words(verb.options)})",
        f'            else words=("${{verbs[@]}}"{words}){" files=1" if verb.files else ""}; fi ;;',
        "    esac ;;",
    ]
    return "".join(f"\n        {line}" for line in lines)


def _bash_values(options: tuple[Option, ...]) -> Iterator[str]:
    """What may follow an option, the options with the same answer together."""
    answers: dict[str, list[str]] = {}
    for option in options:
        if option.takes_value:
            words = f" words=({' '.join(map(shlex.quote, option.words))})" if option.words else ""
            answers.setdefault(" files=1" if option.files else words, []).extend(map(shlex.quote, option.names))
    return (f"{' | '.join(names)}){answer} ;;" for answer, names in answers.items())


def _bash_words(options: tuple[Option, ...]) -> str:
    return " ".join(shlex.quote(name) for option in options for name in option.names)


# --- zsh ---


def zsh(tree: Tree) -> str:
    """The script for zsh: a file _nipstool in fpath, or sourced after compinit."""
    return _filled(
        ZSH,
        commands=_zsh_described((command.name, command.help) for command in tree.listed),
        options=_zsh_described((name, option.help) for option in tree.options for name in option.names),
        verbs="".join(map(_zsh_verbs, tree.commands)),
        places="".join(_zsh_place(place, verb) for place, verb in tree.places),
    )


ZSH = r"""#compdef nipstool
# Completion of nipstool for zsh, written by: nipstool completion zsh
_nipstool() {
    local place ret=1
    local -a verbs
    if (( CURRENT == 2 )); then
        local -a commands=(@commands@)
        local -a options=(@options@)
        if [[ $PREFIX == -* ]]; then _describe -o option options; else _describe command commands; fi
        return
    fi
    case $words[2] in@verbs@
    esac
    place="$words[2] ${verbs[1]%%:*}"
    if (( CURRENT == 3 && $#verbs > 1 )) && [[ $PREFIX != -* ]] && _describe verb verbs; then ret=0; fi
    if (( ${verbs[(I)${(b)words[3]}:*]} )); then place="$words[2] $words[3]"; fi
    case $place in@places@
    esac
    return ret
}
if [[ $funcstack[1] == _nipstool ]]; then _nipstool "$@"; else compdef _nipstool nipstool; fi
"""


def _zsh_described(pairs: Iterator[tuple[str, str]]) -> str:
    return " ".join(shlex.quote(f"{_escaped(name, ':')}:{text}") for name, text in pairs)


def _zsh_verbs(command: Command) -> str:
    verbs = _zsh_described((verb.name, verb.help) for verb in command.verbs)
    return f"\n        {shlex.quote(command.name)}) verbs=({verbs}) ;;"


def _zsh_place(place: str, verb: Verb) -> str:
    specs = [spec for option in verb.options for spec in _zsh_option(option)]
    if verb.words:
        specs.append(f"*:argument:{_zsh_choices(verb.words)}")
    elif verb.files:
        specs.append("*:file:_files")
    lines = "".join(f" \\\n                {shlex.quote(spec)}" for spec in specs)
    return f"\n        {shlex.quote(place)})\n            _arguments -s -S{lines} && ret=0 ;;"


def _zsh_option(option: Option) -> Iterator[str]:
    apart = "*" if option.repeats else f"({' '.join(option.names)})"
    value = ""
    if option.takes_value:
        action = "_files" if option.files else _zsh_choices(option.words) if option.words else " "
        value = f":{_escaped(option.metavar, ':')}:{action}"
    for name in option.names:
        joined = ("=" if name.startswith("--") else "+") if option.takes_value else ""
        yield f"{apart}{name}{joined}[{_escaped(option.help, '[]:')}]{value}"


def _zsh_choices(words: tuple[str, ...]) -> str:
    return "(" + " ".join(re.sub(r"[^\w.+-]", r"\\\g<0>", word) for word in words) + ")"


def _escaped(text: str, characters: str) -> str:
    return re.sub(f"[{re.escape(characters)}\\\\]", r"\\\g<0>", text)


# --- fish ---


def fish(tree: Tree) -> str:
    """The script for fish (3.0 and newer)."""
    start = "__nipstool_at ''"
    lines = [_fish_line(start, words=(command.name,), text=command.help) for command in tree.listed]
    lines += [_fish_option(start, option) for option in tree.options]
    for command in tree.commands:
        begins = f"__nipstool_begins {_fish_quoted(command.name)}"
        lines += [_fish_line(begins, words=(verb.name,), text=verb.help) for verb in command.named]
    for place, verb in tree.places:
        lines += _fish_place(f"__nipstool_at {_fish_quoted(place)}", verb)
    return _filled(FISH, cases="".join(map(_fish_cases, tree.commands)), lines="\n".join(lines))


FISH = r"""# Completion of nipstool for fish, written by: nipstool completion fish
# Whether the words before the cursor lead to this verb
function __nipstool_at
    set -l words (commandline -opc)
    set -l place '?'
    switch "$words[2] $words[3]"
        case ' '
            set place ''@cases@
    end
    test "$place" = "$argv"
end

# Whether the cursor is at the word after this command
function __nipstool_begins
    set -l words (commandline -opc)
    test (count $words) -eq 2; and test "$words[2]" = "$argv"
end

complete -c nipstool -f
@lines@
"""


def _fish_cases(command: Command) -> str:
    places = [f"{command.name} {verb.name}" for verb in command.verbs]
    patterns = [*((place, place) for place in places[1:]), (f"{command.name} *", places[0])]
    return "".join(
        f"\n        case {_fish_quoted(pattern)}\n            set place {_fish_quoted(place)}"
        for pattern, place in patterns
    )


def _fish_place(condition: str, verb: Verb) -> list[str]:
    lines = [_fish_option(condition, option) for option in verb.options]
    if verb.words:
        lines.append(_fish_line(condition, words=verb.words))
    if verb.files:
        lines.append(_fish_line(condition, "-F"))
    return lines


def _fish_option(condition: str, option: Option) -> str:
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    if option.takes_value:
        names.append("-r -F" if option.files else "-x")
    return _fish_line(condition, *names, words=option.words, text=option.help)


def _fish_line(condition: str, *flags: str, words: tuple[str, ...] = (), text: str = "") -> str:
    parts = ["complete -c nipstool -n", _fish_quoted(condition), *flags]
    if words:
        parts += ["-a", _fish_quoted(" ".join(map(_fish_quoted_word, words)))]
    if text:
        parts += ["-d", _fish_quoted(text)]
    return " ".join(parts)


def _fish_quoted_word(word: str) -> str:
    return word if re.fullmatch(r"[\w.+-]+", word) else _fish_quoted(word)


def _fish_quoted(text: str) -> str:
    return "'" + re.sub(r"['\\]", r"\\\g<0>", text) + "'"
