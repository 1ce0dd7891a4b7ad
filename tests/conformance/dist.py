"""Packages that register commands, made on the spot: what pip would leave in site-packages, and no more."""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.shell import environment


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


def installed(folder: Path, commands: Mapping[str, str], modules: Mapping[str, str]) -> dict[str, str]:
    """What to set in the environment so that a package made in `folder` is installed too."""
    place = write_dist(folder / "site", "example-other", commands, modules)
    return {"PYTHONPATH": os.pathsep.join([environment()["PYTHONPATH"], str(place)])}
