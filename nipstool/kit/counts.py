"""Counts as people write them."""


def counted(count: int, noun: str) -> str:
    """A number with its noun, "1 picture" and "2 pictures", for nouns that take an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
