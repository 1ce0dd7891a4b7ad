"""Run the demo of each capability and gather what they show on one page: python docs/demo.py NAME...

For every NAME it runs `make demo-NAME`, shows its output and keeps it as demo/NAME/output.txt; then
demo/index.html shows the commands, their output and the pictures they left. It opens from disk and
loads nothing from elsewhere.
"""

import html
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from nipstool.cli import found, one_line_help

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "demo"
PICTURES = (".png", ".jpg")
DRAWN = 3  # pictures shown of each folder that was drawn into
COMMAND = re.compile(r"^(\S*/)?(nipstool|python) ")
BAR = re.compile(r"\r(?=.)")  # a progress bar draws over itself

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { line-height: 1.2; } h2 { border-top: 1px solid var(--line); padding-top: 1.5rem; margin-top: 2.5rem; }
nav a { display: inline-block; margin-right: 1rem; }
pre, .rows { background: var(--soft); padding: .5rem .8rem; margin: 0; overflow-x: auto; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .82rem; } .said { margin-top: 1rem; }
table { border-collapse: collapse; font-size: .82rem; } td, th { padding: .1rem 1.2rem .1rem 0; text-align: left; }
th { border-bottom: 1px solid var(--line); } td { font-variant-numeric: tabular-nums; white-space: nowrap; }
pre b { color: #0072b2; } @media (prefers-color-scheme: dark) { pre b { color: #56b4e9; } }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
figure { margin: 0; } figure.wide { grid-column: 1 / -1; }
figcaption { font-size: .85rem; overflow-wrap: anywhere; }
figure img { max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line); }
"""


@dataclass(frozen=True)
class Shown:
    """What one demo said and how long it took."""

    name: str
    output: str
    seconds: float

    @property
    def folder(self) -> Path:
        return DEMO / self.name


def main(names: list[str]) -> None:
    """Every demo in turn; the first that fails ends it with its status."""
    shown = [run(name) for name in names]
    DEMO.mkdir(exist_ok=True)
    (DEMO / "index.html").write_text(page(shown), encoding="utf-8")
    took = ", ".join(f"{one.name} {one.seconds:.0f} s" for one in shown)
    print(f"\n{took}; {sum(one.seconds for one in shown):.0f} s in all\nopen {DEMO / 'index.html'}")


def run(name: str) -> Shown:
    """Run one demo, showing its output as it comes."""
    print(f"\n=== {name} ===", flush=True)
    start = time.monotonic()
    make = [os.environ.get("MAKE", "make"), "--no-print-directory", f"demo-{name}"]
    process = subprocess.Popen(make, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(BAR.split(line)[-1])
    if process.wait() != 0:
        sys.exit(process.returncode)
    shown = Shown(name, "".join(lines), time.monotonic() - start)
    (shown.folder / "output.txt").write_text(shown.output, encoding="utf-8")
    return shown


def page(shown: list[Shown]) -> str:
    """The whole page."""
    links = "".join(f'<a href="#{one.name}">{one.name}</a>' for one in shown)
    took = sum(one.seconds for one in shown) / 60
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>nipstool: the demo</title><style>{STYLE}</style></head><body>"
        f"<h1>nipstool: what the demo made</h1><p>{len(shown)} capabilities in {took:.1f} minutes on "
        f"{os.cpu_count()} processors.</p><nav>{links}</nav>{''.join(map(section, shown))}</body></html>\n"
    )


def section(one: Shown) -> str:
    """One capability: its commands and what they printed, its pictures, its pages."""
    figures = "".join(map(figure, pictures(one.folder)))
    return (
        f'<h2 id="{one.name}">{one.name}</h2><p>{html.escape(one_line_help(found()[one.name]))}</p>'
        f'<div class="pictures">{figures}</div>'
        f"{''.join(map(link, sorted(one.folder.rglob('*.html'))))}"
        f'<div class="said">{"".join(said(one.output.splitlines()))}</div><p>{one.seconds:.0f} s</p>'
    )


def said(lines: list[str]) -> Iterator[str]:
    """What was printed: tab-separated rows of one width as a table, the rest line by line."""
    for tabs, group in itertools.groupby(lines, key=lambda line: line.count("\t")):
        if tabs == 0:
            yield f"<pre>{chr(10).join(map(marked, group))}</pre>"
            continue
        head, *rows = (map(html.escape, line.split("\t")) for line in group)
        body = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows)
        yield f'<div class="rows"><table><tr><th>{"</th><th>".join(head)}</th></tr>{body}</table></div>'


def marked(line: str) -> str:
    """A line of output; a command that make ran stands out, as a user would type it."""
    if not COMMAND.match(line):
        return html.escape(line)
    typed = re.sub(r"\S*/bin/(?=nipstool|python)", "", line)
    return f"<b>$ {html.escape(typed)}</b>"


def pictures(folder: Path) -> list[Path]:
    """Plots first, then a few of what was drawn into pictures; not the inputs."""
    plots = sorted(path for path in folder.iterdir() if path.suffix in PICTURES)
    drawn = [sorted(p for p in sub.rglob("*") if p.suffix in PICTURES) for sub in sorted(folder.glob("drawn*"))]
    inside = sorted(p for sub in folder.glob("shared*") for p in sub.glob("*.png"))
    return [*plots, *inside, *(path for group in drawn for path in group[:DRAWN])]


def figure(path: Path) -> str:
    """A picture that opens in full; a wide one has the whole row."""
    with Image.open(path) as picture:
        wide = ' class="wide"' if picture.width > 2 * picture.height else ""
    name = html.escape(path.relative_to(DEMO).as_posix())
    shown = f'<a href="{name}"><img src="{name}" alt="{name}" loading="lazy"></a>'
    return f"<figure{wide}>{shown}<figcaption>{name}</figcaption></figure>"


def link(path: Path) -> str:
    name = html.escape(path.relative_to(DEMO).as_posix())
    return f'<p><a href="{name}">{name}</a></p>'


if __name__ == "__main__":
    main(sys.argv[1:])
