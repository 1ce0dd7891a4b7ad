"""Files shared by several processes: each writes its part, the first one joins them in the order of the inputs."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nipstool.detect_navtext.rows import Seen
from nipstool.detect_navtext.run import Tally
from nipstool.kit.distributed import Group
from nipstool.kit.files import AtomicFile
from nipstool.kit.records import to_json


@contextmanager
def gathered(
    found: Iterable[tuple[int, Seen]], tally: Tally, output: str, group: Group
) -> Iterator[Iterator[Seen]]:
    """What all processes found, on the first of them, in the order of the inputs; of a group of one, as it comes.

    The tally of every process becomes that of all.
    """
    if group.size == 1:
        yield (seen for _, seen in found)
        return
    path = part_name(output, group.rank)
    try:
        write_part(path, found)
        add_up(tally, group.gather(tally))  # and none goes on before all parts are there
        yield joined_parts([part_name(output, rank) for rank in range(group.size)])
        group.gather(None)
    finally:
        path.unlink(missing_ok=True)


def add_up(tally: Tally, tallies: Sequence[Tally]) -> None:
    """Make one tally the sum of all."""
    tally.pictures = sum(one.pictures for one in tallies)
    tally.signs = sum(one.signs for one in tallies)
    tally.held_back = sum(one.held_back for one in tallies)
    tally.failures = [failure for one in tallies for failure in one.failures]


def part_name(output: str, rank: int) -> Path:
    """Where a process keeps its part of an output."""
    path = Path(output)
    return path.with_name(f".{path.name}.rank{rank}")


def write_part(path: Path, found: Iterable[tuple[int, Seen]]) -> None:
    """Write what was found, with the number of each input among all."""
    with AtomicFile(path, force=True) as out:
        for number, seen in found:
            out.file.write((to_json({"input": number, "seen": seen}) + "\n").encode())


def joined_parts(paths: Sequence[Path]) -> Iterator[Seen]:
    """What stands in the parts, in the order of the inputs; one line of each in memory."""
    for _, _, seen in heapq.merge(
        *(_lines(path, rank) for rank, path in enumerate(paths)), key=lambda item: item[:2]
    ):
        yield Seen(**seen)


def _lines(path: Path, rank: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            yield record["input"], rank, record["seen"]
