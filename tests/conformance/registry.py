"""What is registered: every verb with its arguments and options, read from the command line itself.

Run as a program it prints JSON, so that the test process imports no command.
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Param:
    """An argument or option of a verb."""

    name: str
    spellings: list[str]
    help: str
    is_option: bool
    required: bool


@dataclass(frozen=True)
class Verb:
    """A registered verb; `verb` is None for the default one, which the command's name alone runs."""

    command: str
    verb: str | None
    package: str
    params: list[Param]

    @property
    def words(self) -> list[str]:
        """What to type after `nipstool`."""
        return [self.command] if self.verb is None else [self.command, self.verb]

    def has(self, option: str) -> bool:
        return any(option in param.spellings for param in self.params)


@dataclass(frozen=True)
class Registry:
    """All verbs, and the commands that cannot be loaded."""

    verbs: list[Verb]
    broken: list[str]


@cache
def registered(environment: tuple[tuple[str, str], ...]) -> Registry:
    """The registry as a process with this environment sees it."""
    done = subprocess.run([sys.executable, __file__], env=dict(environment), capture_output=True, check=True)
    read = json.loads(done.stdout)
    verbs = [Verb(**{**verb, "params": [Param(**param) for param in verb["params"]]}) for verb in read["verbs"]]
    return Registry(verbs, read["broken"])


def _list() -> Registry:
    from nipstool import cli

    verbs, broken = [], []
    for name, entry in (cli.found() | cli.hidden()).items():
        try:
            capability = cli.load(entry, None)
        except cli.BrokenCommandError:
            broken.append(name)
            continue
        package = entry.dist.name if entry.dist is not None else cli.OURS
        for verb in capability.verbs.values():
            word = None if verb.name == capability.default else verb.name
            verbs.append(Verb(name, word, package, [_param(param) for param in verb.params]))
    return Registry(verbs, broken)


def _param(param: Any) -> Param:
    is_option = param.param_type_name == "option"
    return Param(param.name, [*param.opts, *param.secondary_opts], param.help or "", is_option, param.required)


if __name__ == "__main__":
    print(json.dumps(asdict(_list())))
