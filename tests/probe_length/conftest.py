"""What several tests of probe-length share: the small real model, a part of its stories, and one fit of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from nipstool.probe_length.collect import Collector, collect
from nipstool.probe_length.collected import Collected, Origin
from nipstool.probe_length.encoding import Sequence, sequences
from nipstool.probe_length.formats import Layout, to_example
from nipstool.probe_length.hidden import Language, open_language


def refuse(told: str) -> None:
    raise AssertionError(told)


def sequences_of(rows: list[dict[str, Any]], language: Language) -> list[Sequence]:
    examples = [to_example(row, f"row {i}", Layout(), "stories") for i, row in enumerate(rows)]
    return list(sequences(examples, language.encoder, refuse))


def collected_of(rows: list[dict[str, Any]], language: Language, layers: tuple[int, ...]) -> Collected:
    collector = collector_of(language, layers)
    collect(sequences_of(rows, language), collector)
    return collector.part()


def collected_alone(rows: list[dict[str, Any]], language: Language, layers: tuple[int, ...]) -> Collected:
    """The same with every sequence in a batch of its own."""
    collector = collector_of(language, layers)
    for sequence in sequences_of(rows, language):
        collector.add([sequence])
    return collector.part()


def collector_of(language: Language, layers: tuple[int, ...]) -> Collector:
    return Collector(language, Origin("model", "hash", language.width, layers, 5, 5000, "float32", 512, None))


@pytest.fixture(scope="session")
def stories_model(data_dir: Path) -> Path:
    return data_dir / "models" / "stories260K"


@pytest.fixture(scope="session")
def language(stories_model: Path) -> Language:
    return open_language(stories_model, dtype=None, device="cpu")


@pytest.fixture(scope="session")
def all_stories(data_dir: Path) -> list[dict[str, Any]]:
    with gzip.open(data_dir / "probe-length" / "stories260K_samples.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="session")
def stories(all_stories: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One answer each of 160 prompts of all lengths."""
    return all_stories[::12][:160]


@pytest.fixture(scope="session")
def found(stories: list[dict[str, Any]], language: Language) -> Collected:
    return collected_of(stories, language, (0, 2, 4))
