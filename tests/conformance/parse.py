"""What one option is set to when a command line is parsed; the command itself does not run.

python parse.py OPTION WORD...
"""

import json
import sys

from nipstool import cli


def value_of(option: str, args: list[str]) -> object:
    """The parsed value of a verb's option, such as --mu."""
    root = cli.build_app()
    with root.make_context(cli.PROGRAM, []) as ctx:
        name, verb, rest = root.resolve_command(ctx, args)
        param = next(param for param in verb.params if option in param.opts)
        return verb.make_context(name, rest, parent=ctx).params[param.name]


if __name__ == "__main__":
    print(json.dumps(value_of(sys.argv[1], sys.argv[2:]), default=str))
