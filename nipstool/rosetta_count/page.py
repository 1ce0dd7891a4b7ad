"""The page that `inspect` writes: one HTML file that opens without a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from nipstool.rosetta_count.contexts import Context, Entry, Shown

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; border-top: 1px solid #ddd; padding-top: 1rem; }
h3 { font-size: .9rem; font-weight: 600; margin: .4rem 0; overflow-wrap: anywhere; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1.5rem; }
.context { margin: 0 0 .55rem; font: 12.5px/1.5 ui-monospace, monospace; white-space: pre-wrap;
           overflow-wrap: anywhere; border-left: 3px solid #e69f00; padding-left: .5rem; }
.where { color: #777; font: 11px system-ui, sans-serif; display: block; }
.images { display: flex; flex-wrap: wrap; gap: .5rem; } .images figure { margin: 0; width: 104px; }
.images img { width: 104px; height: 104px; object-fit: contain; background: #eee; image-rendering: pixelated; }
figcaption { font-size: 10px; color: #777; overflow-wrap: anywhere; }
@media (max-width: 55rem) { .pair { grid-template-columns: 1fr; } }
"""
HUE = "230, 159, 0"


def page(entries: Sequence[Entry], title: str, notes: Sequence[str] = ()) -> str:
    """The whole page; every text in it is escaped."""
    head = f"<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
    lines = [head, f"<style>{STYLE}</style></head><body>", f"<h1>{escape(title)}</h1>"]
    lines += [f"<p>{escape(note)}</p>" for note in notes]
    for number, entry in enumerate(entries, 1):
        names = " and ".join(str(shown.neuron) for shown in entry.neurons)
        lines.append(f"<h2>{number}. {escape(names)}, r = {entry.r:.3f}</h2><div class='pair'>")
        lines += [part for shown in entry.neurons for part in _neuron(shown)]
        lines.append("</div>")
    return "\n".join([*lines, "</body></html>\n"])


def _neuron(shown: Shown) -> Iterator[str]:
    yield f"<div><h3>{escape(shown.model)} {shown.neuron}</h3>"
    if any(context.pieces[:1] and context.pieces[0].startswith("data:image/") for context in shown.contexts):
        yield "<div class='images'>"
        yield from map(_image, shown.contexts)
        yield "</div>"
    else:
        highest = max((context.peak for context in shown.contexts), default=0.0)
        yield from (_text(context, highest) for context in shown.contexts)
    yield "</div>"


def _text(context: Context, highest: float) -> str:
    """A context: each token shaded by its value, which it shows when pointed at."""
    words = []
    for piece, value in zip(context.pieces, context.values, strict=True):
        shade = max(0.0, value) / highest if highest > 0 else 0.0
        colour = f" style='background:rgba({HUE},{shade:.2f})'" if shade > 0.02 else ""
        words.append(f"<span title='{value:.6g}'{colour}>{escape(piece)}</span>")
    place = f"data-document='{context.document}' data-first='{context.first}' data-peak='{context.peak:.9g}'"
    where = f"<span class='where'>{escape(context.where)}, highest {context.peak:.4g}</span>"
    return f"<div class='context' {place}>{where}{''.join(words)}</div>"


def _image(context: Context) -> str:
    caption = f"<figcaption>{escape(context.where)}<br>{context.peak:.4g}</figcaption>"
    return (
        f"<figure data-peak='{context.peak:.9g}'><img alt='' src='{escape(context.pieces[0])}'>{caption}</figure>"
    )
