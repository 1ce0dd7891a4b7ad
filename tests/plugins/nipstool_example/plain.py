"""The smallest command: one function."""

from typing import Annotated

import typer


def shout(
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="What to say.")],
    times: Annotated[int, typer.Option(min=1, metavar="N", help="How often to say it.")] = 1,
) -> None:
    """Say words in capitals.

    \b
    Example:
      nipstool example-shout hello --times 2
    """
    for _ in range(times):
        print(" ".join(words).upper())
