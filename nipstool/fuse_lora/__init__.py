"""NP-LoRA (arXiv 2511.11051): fuse LoRAs so that one does not write where the other reads.

>>> from nipstool.fuse_lora import fuse
>>> fusion = fuse("subject.safetensors", ["style.safetensors"], "fused.safetensors", mu=0.5)  # doctest: +SKIP
>>> fusion.totals.overlap  # doctest: +SKIP
0.0066
"""

from nipstool.fuse_lora.compare import Comparison, compare
from nipstool.fuse_lora.fuse import Fusion, convert, fuse
from nipstool.fuse_lora.inspect import FileFacts, inspect
from nipstool.fuse_lora.report import ModuleReport, Totals, grid

__all__ = [
    "Comparison",
    "FileFacts",
    "Fusion",
    "ModuleReport",
    "Totals",
    "compare",
    "convert",
    "fuse",
    "grid",
    "inspect",
]
