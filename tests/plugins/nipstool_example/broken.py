"""A command that cannot be imported."""

raise RuntimeError("this module is broken\non purpose")
