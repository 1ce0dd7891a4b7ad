"""The house rules, read from the syntax trees. Each rule gives its violations as `file:line: what`.

Arrows go down only: commands -> method -> kit, with the command line's own files beside the commands.
Below, every rule is also given a small file that breaks it, and one that does not.
"""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

HEAVY = {"torch", "numpy", "scipy", "mne", "cv2", "transformers", "safetensors.torch", "matplotlib"}
PROGRESS = "nipstool/kit/progress.py"  # the one file of the kit that writes to a screen
MAX_FILE, MAX_FUNCTION = 400, 60
USUAL_FUNCTION, ONE_LONGER_IN = 30, 10
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One file, by its name in the repository."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def module(self) -> str:
        """Its dotted name once installed: commands/x.py is nipstool.commands.x."""
        dotted = self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return f"nipstool.{dotted}" if dotted.split(".")[0] == "commands" else dotted

    @property
    def room(self) -> str:
        """Where it lives: kit, shell, commands, or the name of a method."""
        parts = self.module.split(".")
        return parts[1] if len(parts) > 2 or (self.name.endswith("/__init__.py") and len(parts) > 1) else "shell"

    def at(self, node: ast.AST, what: str) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 1)}: {what}"


Rule = Callable[[Sequence[Source]], list[str]]


@pytest.fixture(scope="module")
def product(root: Path) -> list[Source]:
    """The code that is shipped."""
    return read(root, "nipstool", "commands")


def read(root: Path, *folders: str) -> list[Source]:
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    return [Source(path.relative_to(root).as_posix(), path.read_text()) for path in paths]


# --- reading a tree ---


def imports(source: Source, nodes: Iterator[ast.AST] | None = None) -> Iterator[tuple[ast.AST, str]]:
    """Every module that may be imported, absolute; `from a import b` gives both a and a.b."""
    for node in nodes or ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(source, node)
            yield node, base
            yield from ((node, f"{base}.{alias.name}") for alias in node.names)


def absolute(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = source.module.split(".") + ["x"] * source.name.endswith("__init__.py")
    return ".".join([*package[: -node.level], *([node.module] if node.module else [])])


def on_import(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: no function bodies, no `if TYPE_CHECKING`."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, FunctionNode | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def under(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def functions(source: Source) -> Iterator[FunctionNode]:
    return (node for node in ast.walk(source.tree) if isinstance(node, FunctionNode))


def length(node: FunctionNode) -> int:
    """Lines of the body. Signature and docstring say what the function does: more of those must cost nothing."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1 if body else 0


def public(body: Sequence[ast.stmt]) -> Iterator[FunctionNode | ast.ClassDef]:
    """Public functions, classes and methods; the methods of a class with a base are the base's to describe."""
    for node in body:
        if isinstance(node, FunctionNode | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef) and not node.bases:
                yield from public(node.body)


# --- the rules ---


def arrows_go_down(files: Sequence[Source]) -> list[str]:
    return [
        file.at(node, f"{file.room} imports {name}")
        for file in files
        if file.room not in ("shell", "commands")
        for node, name in imports(file)
        if under(name, "nipstool") and name not in ("nipstool", "nipstool.__version__")
        if not under(name, "nipstool.kit", f"nipstool.{file.room}")
    ]


def the_shell_knows_no_method(files: Sequence[Source]) -> list[str]:
    rooms = {f"nipstool.{file.room}" for file in files} - {"nipstool.kit", "nipstool.shell"}
    return [
        file.at(node, f"the command line imports {name}")
        for file in files
        if file.room == "shell"
        for node, name in imports(file)
        if under(name, *rooms)
    ]


def nothing_imports_commands(files: Sequence[Source]) -> list[str]:
    return [
        file.at(node, f"imports {name}: commands are loaded by name")
        for file in files
        for node, name in imports(file)
        if under(name, "commands", "nipstool.commands")
    ]


def no_screen_below(files: Sequence[Source]) -> list[str]:
    return [
        file.at(node, f"{file.room} imports {name}")
        for file in files
        if file.room not in ("shell", "commands")
        for node, name in imports(file)
        if under(name, "typer", "rich", "click", "matplotlib.pyplot")
        if not (under(name, "rich") and file.name == PROGRESS)
    ]


def no_print_and_no_exit_below(files: Sequence[Source]) -> list[str]:
    banned = {"print", "input", "exit", "quit", "sys.exit", "os._exit", "SystemExit"}
    return [
        file.at(node, f"{file.room} calls {name}")
        for file in files
        if file.room not in ("shell", "commands")
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Call | ast.Raise) and (name := called(node)) in banned
        if not (file.name == PROGRESS and name == "print" and writes_to_a_stream(node))
    ]


def called(node: ast.Call | ast.Raise) -> str:
    target = node.func if isinstance(node, ast.Call) else node.exc
    return ast.unparse(target) if target is not None else ""


def writes_to_a_stream(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and any(word.arg == "file" for word in node.keywords)


def no_environment_below(files: Sequence[Source]) -> list[str]:
    banned = {f"os.{name}" for name in ("environ", "environb", "getenv", "getenvb", "putenv")}
    return [
        file.at(node, f"{file.room} uses {name}")
        for file in files
        if file.room not in ("shell", "commands")
        for node, name in (*imports(file), *attributes(file))
        if name in banned
    ]


def attributes(source: Source) -> Iterator[tuple[ast.AST, str]]:
    return ((node, ast.unparse(node)) for node in ast.walk(source.tree) if isinstance(node, ast.Attribute))


def no_standard_streams_in_methods(files: Sequence[Source]) -> list[str]:
    return [
        file.at(node, f"{file.room} uses {name}")
        for file in files
        if file.room not in ("kit", "shell", "commands")
        for node, name in (*imports(file), *attributes(file))
        if name in ("sys.stdin", "sys.stdout", "sys.stderr")
    ]


def starting_is_light(files: Sequence[Source]) -> list[str]:
    """Through all modules of ours that the command line and the commands import when they are imported."""
    modules = {file.module: file for file in files}
    waiting = [file for file in files if file.room in ("shell", "commands")]
    seen = {file.name for file in waiting}
    violations = []
    while waiting:
        file = waiting.pop()
        for node, name in imports(file, on_import(file.tree)):
            if under(name, *HEAVY):
                violations.append(file.at(node, f"imports {name} when nipstool starts"))
            parents = (".".join(name.split(".")[:n]) for n in range(1, name.count(".") + 2))
            reached = [modules[parent] for parent in parents if parent in modules]
            waiting += [other for other in reached if other.name not in seen]
            seen |= {other.name for other in reached}
    return violations


def functions_are_short(files: Sequence[Source]) -> list[str]:
    return [
        file.at(node, f"{node.name} has {length(node)} lines, the most is {MAX_FUNCTION}")
        for file in files
        for node in functions(file)
        if length(node) > MAX_FUNCTION
    ]


def most_functions_are_shorter(files: Sequence[Source]) -> list[str]:
    every = [(length(node), file.at(node, node.name)) for file in files for node in functions(file)]
    long = [f"{where} has {lines} lines" for lines, where in sorted(every, reverse=True) if lines > USUAL_FUNCTION]
    return long if len(long) > len(every) // ONE_LONGER_IN else []


def files_are_short(files: Sequence[Source]) -> list[str]:
    counts = ((file, len(file.text.splitlines())) for file in files)
    return [f"{file.name}:{MAX_FILE + 1}: the file has {n} lines" for file, n in counts if n > MAX_FILE]


def public_things_are_described(files: Sequence[Source]) -> list[str]:
    bare = [f"{file.name}:1: the module has no docstring" for file in files if not ast.get_docstring(file.tree)]
    return bare + [
        file.at(node, f"{node.name} has no docstring")
        for file in files
        for node in public(file.tree.body)
        if not ast.get_docstring(node)
    ]


def parameters_are_annotated(files: Sequence[Source]) -> list[str]:
    return [
        file.at(parameter, f"{node.name}: the parameter {parameter.arg} has no type")
        for file in files
        for node in functions(file)
        for parameter in parameters(node)
        if parameter.annotation is None and parameter.arg not in ("self", "cls")
    ]


def parameters(node: FunctionNode) -> list[ast.arg]:
    args = node.args
    variable = [arg for arg in (args.vararg, args.kwarg) if arg is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *variable]


def no_file_is_called_utils(files: Sequence[Source]) -> list[str]:
    names = {"utils", "util", "helpers", "misc", "common"}
    return [f"{file.name}:1: says nothing by its name" for file in files if names & set(file.module.split("."))]


def no_path_of_one_machine(files: Sequence[Source]) -> list[str]:
    path = re.compile(r"(?<![\w.}>])/(?:work|root|home|Users)/\w")
    return [
        f"{file.name}:{number}: a path of one machine"
        for file in files
        for number, line in enumerate(file.text.splitlines(), 1)
        if path.search(line)
    ]


# --- each rule, on our code, on a file that breaks it, and on one that does not ---

METHOD, KIT, COMMAND, SHELL = "nipstool/m/core.py", "nipstool/kit/files.py", "commands/m.py", "nipstool/cli.py"
OTHER = {"nipstool/other/__init__.py": ""}
LONG, LONGER = "def f() -> None:\n" + "    f()\n" * 31, "def f() -> None:\n" + "    f()\n" * 61
DESCRIBED = (
    '"""."""\nclass A:\n    """."""\n    def f(self) -> None:\n        """."""\n    def _g(self) -> None: ...\n'
)
Files = dict[str, str]

# rule, files in which line 2 of the first one breaks it, files which keep it
CASES: list[tuple[Rule, Files, Files]] = [
    (arrows_go_down, {KIT: "\nfrom .. import m"}, {KIT: "from .parts import x\nfrom nipstool import __version__"}),
    (arrows_go_down, {KIT: "\nimport nipstool.cli"}, {METHOD: "import nipstool.kit.files"}),
    (arrows_go_down, {METHOD: "\nfrom nipstool.other import x"}, {METHOD: "from nipstool.kit import files"}),
    (arrows_go_down, {METHOD: "\ndef f(): from ..other import x"}, {METHOD: "from . import y"}),
    (arrows_go_down, {METHOD: "\nfrom nipstool import options"}, {COMMAND: "from nipstool import options"}),
    (
        the_shell_knows_no_method,
        {SHELL: "\nfrom nipstool import other", **OTHER},
        {COMMAND: "import nipstool.other", **OTHER},
    ),
    (nothing_imports_commands, {SHELL: "\nfrom nipstool import commands"}, {SHELL: "import nipstool.commander"}),
    (nothing_imports_commands, {COMMAND: "\nimport commands.other"}, {SHELL: "load('nipstool.commands.m')"}),
    (no_screen_below, {METHOD: "\ndef f(): import rich.table"}, {COMMAND: "import rich.table"}),
    (no_screen_below, {KIT: "\nimport typer"}, {PROGRESS: "from rich import progress"}),
    (no_screen_below, {METHOD: "\nfrom matplotlib import pyplot"}, {METHOD: "import matplotlib.figure"}),
    (no_print_and_no_exit_below, {METHOD: "\nprint(1)"}, {SHELL: "print(1)"}),
    (no_print_and_no_exit_below, {KIT: "\nraise SystemExit"}, {KIT: "raise ValueError"}),
    (no_print_and_no_exit_below, {KIT: "\nsys.exit(2)"}, {PROGRESS: "print(1, file=s)"}),
    (no_environment_below, {KIT: "\nx = os.environ['A']"}, {KIT: "x = os.cpu_count()"}),
    (no_environment_below, {METHOD: "\nfrom os import getenv"}, {SHELL: "from os import getenv"}),
    (no_standard_streams_in_methods, {METHOD: "\nsys.stderr.write('')"}, {KIT: "sys.stdin.buffer"}),
    (starting_is_light, {COMMAND: "\nimport torch.nn"}, {COMMAND: "def f(): import torch"}),
    (
        starting_is_light,
        {KIT: "\nimport numpy as np", SHELL: "from nipstool.kit.files import x"},
        {KIT: "import numpy"},
    ),
    (starting_is_light, {SHELL: "\nclass A: import scipy.signal"}, {SHELL: "if TYPE_CHECKING: import torch"}),
    (functions_are_short, {METHOD: "\n" + LONGER}, {METHOD: LONGER.replace("    f()", '    """\n    ."""', 1)}),
    (most_functions_are_shorter, {METHOD: "\n" + LONG}, {METHOD: LONG + "def g() -> None: ...\n" * 9}),
    (public_things_are_described, {METHOD: '"""."""\ndef f() -> None: ...'}, {METHOD: DESCRIBED}),
    (parameters_are_annotated, {METHOD: "\ndef _f(*a): ..."}, {METHOD: "class A:\n  def f(self, *, b: int): ..."}),
    (
        no_path_of_one_machine,
        {METHOD: "\nx = '" + "/ro" + "ot/x'"},
        {METHOD: "x = 'https://a.org" + "/wo" + "rk/x'"},
    ),
    (files_are_short, {METHOD: "\n" * 401}, {METHOD: "\n" * 400}),
    (no_file_is_called_utils, {"nipstool/m/utils.py": ""}, {METHOD: ""}),
]
RULES = list(dict.fromkeys(case[0] for case in CASES))
FIXED_LINE: dict[Rule, int] = {files_are_short: 401, no_file_is_called_utils: 1}  # rules about whole files


@pytest.mark.parametrize("rule", RULES)
def test_our_code_keeps_the_rule(rule: Rule, product: list[Source]) -> None:
    violations = rule(product)
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize("rule", [files_are_short, no_file_is_called_utils, no_path_of_one_machine])
def test_our_tests_keep_the_rule(rule: Rule, root: Path) -> None:
    violations = rule(read(root, "tests"))
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize(("rule", "broken", "kept"), CASES)
def test_the_rule_finds_what_breaks_it_and_nothing_else(rule: Rule, broken: Files, kept: Files) -> None:
    violations = rule([Source(name, text) for name, text in broken.items()])
    where = f"{next(iter(broken))}:{FIXED_LINE.get(rule, 2)}: "
    assert violations
    assert all(violation.startswith(where) for violation in violations), violations
    assert rule([Source(name, text) for name, text in kept.items()]) == []
