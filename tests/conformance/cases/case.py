"""What a case is: a valid run of one verb, and what the verb can do."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors.numpy import load_file


def nothing(folder: Path) -> None:
    """The inputs of a verb that has none."""


@dataclass(frozen=True)
class Case:
    """A valid run of one verb, in a folder where `make` has put its inputs."""

    command: str
    verb: str | None  # None: the default verb, which the command's name alone runs
    args: tuple[str, ...]  # without -o
    make: Callable[[Path], None] = nothing
    inputs: tuple[str, ...] = ()  # those of args that are input files
    output: str | None = None  # a name to give to -o
    folder: bool = False  # the output is a folder
    json: bool = True
    reads_stdin: bool = False  # an input may be '-'
    writes_stdout: bool = False  # the output may be '-'
    setting: tuple[str, str, str, str] | None = None  # an option; its value as a flag, variable and in TOML
    halves_are_bad: bool = True  # half of an input is no input
    essence: Callable[[Path], object] = Path.read_bytes  # of the output, what its inputs' names do not change

    def __str__(self) -> str:
        return self.command if self.verb is None else f"{self.command}-{self.verb}"

    @property
    def words(self) -> tuple[str, ...]:
        """What to type after `nipstool`, before any argument."""
        return (self.command,) if self.verb is None else (self.command, self.verb)

    @property
    def valid(self) -> tuple[str, ...]:
        """A command line that works."""
        return (*self.words, *self.args, *(("-o", self.output) if self.output is not None else ()))

    def with_output(self, output: str) -> tuple[str, ...]:
        return (*self.words, *self.args, "-o", output)

    def with_input(self, old: str, new: str) -> tuple[str, ...]:
        return tuple(new if word == old else word for word in self.valid)


def tensors(path: Path) -> dict[str, bytes]:
    """The tensors of a safetensors file; its metadata name the inputs."""
    return {name: tensor.tobytes() for name, tensor in load_file(path).items()}
