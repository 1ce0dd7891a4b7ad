"""The verbs of the shell itself and of the plug-in in tests/plugins."""

from pathlib import Path

from tests.conformance.cases.case import Case


def some_text(folder: Path) -> None:
    (folder / "notes.txt").write_text("".join(f"line {number} of the notes\n" for number in range(200)))


CASES = [
    Case("completion", None, ("bash",), json=False),
    Case("example-shout", None, ("hello", "--times", "2"), json=False),
    Case(
        "example-copy",
        None,
        ("notes.txt",),
        some_text,
        inputs=("notes.txt",),
        output="copy.txt",
        reads_stdin=True,
        writes_stdout=True,
        halves_are_bad=False,
        setting=("--tag", "flag", "variable", "file"),
    ),
    Case(
        "example-copy",
        "count",
        ("notes.txt",),
        some_text,
        inputs=("notes.txt",),
        reads_stdin=True,
        halves_are_bad=False,
        setting=("--json", "", "1", "true"),
    ),
]
