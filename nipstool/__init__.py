"""One command line for this year's NeurIPS methods. Each method is a module of its own, usable from a notebook."""

__version__ = "0.1.0"
