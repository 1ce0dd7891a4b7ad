"""Text that every Python has, as documents of two domains: the standard library's help topics, and its code.

`python -m nipstool.rosetta_count.pydocs FOLDER` writes docs.jsonl (the topics) and domains.jsonl (both).
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MODULES = (
    "argparse",
    "ast",
    "calendar",
    "configparser",
    "csv",
    "dataclasses",
    "difflib",
    "fractions",
    "gettext",
    "heapq",
    "inspect",
    "locale",
    "mailbox",
    "optparse",
    "pathlib",
    "pickle",
    "shutil",
    "statistics",
    "tarfile",
    "textwrap",
    "typing",
    "zipfile",
)
LEAST, MOST = 200, 1500  # characters of a document


def topics() -> Iterator[str]:
    """The help topics that pydoc shows."""
    from pydoc_data.topics import topics as found

    yield from found.values()


def functions(names: Sequence[str] = MODULES) -> Iterator[str]:
    """Functions and classes of modules as they are written, their docstrings cut out."""
    for name in names:
        module = __import__(name)
        text = Path(module.__file__ or "").read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                source = ast.get_source_segment(text, node) or ""
                doc = ast.get_docstring(node, clean=False)
                yield source.replace(doc, "") if doc else source


def documents() -> Iterator[dict[str, Any]]:
    """Records with text, domain and id, of like lengths in both domains."""
    for domain, texts in (("docs", topics()), ("code", functions())):
        for number, text in enumerate(text for text in texts if len(text) >= LEAST):
            yield {"text": text[:MOST], "domain": domain, "id": f"{domain}-{number}"}


def write(path: Path, records: Iterator[dict[str, Any]]) -> None:
    """Records as JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def main() -> None:
    """Write both files into the folder that the command line names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "docs.jsonl", ({"text": text, "id": number} for number, text in enumerate(topics())))
    write(folder / "domains.jsonl", documents())


if __name__ == "__main__":
    main()
