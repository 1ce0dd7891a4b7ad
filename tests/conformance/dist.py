"""Packages that register commands, made on the spot: what pip would leave in site-packages, and no more."""

from collections.abc import Mapping
from pathlib import Path


def write_dist(folder: Path, name: str, commands: Mapping[str, str], modules: Mapping[str, str]) -> Path:
    """A package in `folder`: command -> module:attribute, and file name -> source."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{command} = {target}" for command, target in commands.items()]
    (info / "entry_points.txt").write_text("\n".join(["[nipstool.commands]", *lines, ""]))
    for file, source in modules.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(source)
    return folder
