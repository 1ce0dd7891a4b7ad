"""The names in LoRA files: read any trainer's spelling into one, and write it in another. Keys and shapes only."""

from .layout import Layout, Module, Shape, read_layout
from .spell import fusion_of, native_fused, part_rows, spell, swaps_halves, writable_formats
from .suffixes import suffixes

__all__ = [
    "Layout",
    "Module",
    "Shape",
    "fusion_of",
    "native_fused",
    "part_rows",
    "read_layout",
    "spell",
    "suffixes",
    "swaps_halves",
    "writable_formats",
]
