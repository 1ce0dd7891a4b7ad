"""What one option is set to when a command line is parsed; the command itself does not run.

As a program: reads [[variables, words], ...] as JSON from stdin, prints the values of the option in its argument.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

Line = tuple[Mapping[str, str], Sequence[str]]  # variables set, words after `nipstool`


def parsed(option: str, lines: Sequence[Line], **changes: Any) -> list[Any]:
    """The values of an option, such as --mu, that some command lines give; `changes` go to subprocess.run."""
    from tests.conformance.shell import environment

    done = subprocess.run(
        [sys.executable, __file__, option],
        input=json.dumps(lines),
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        **changes,
    )
    return json.loads(done.stdout)


def value_of(option: str, words: list[str]) -> Any:
    """The value of a verb's option, found as the command line finds it."""
    from nipstool import cli

    root = cli.build_app()
    with root.make_context(cli.PROGRAM, []) as ctx:
        name, verb, rest = root.resolve_command(ctx, words)
        param = next(param for param in verb.params if option in param.opts)
        return verb.make_context(name, rest, parent=ctx).params[param.name]


if __name__ == "__main__":
    values = []
    for variables, words in json.load(sys.stdin):
        os.environ.update(variables)
        values.append(value_of(sys.argv[1], words))
        for variable in variables:
            del os.environ[variable]
    print(json.dumps(values))
