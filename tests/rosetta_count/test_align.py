"""Tokens of different tokenizers meet on spans of bytes."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nipstool.rosetta_count.align import align
from nipstool.rosetta_count.tokens import Tokens, by_offsets, byte_alphabet, spelled

TEXTS = [
    "日本語のテキスト、絵文字😀👩‍👩‍👧 end ünïcode  \n\n x",
    "plain English, with  two spaces and a tab\t.",
    "한국어 문장과 🇰🇷 깃발",
    "",
    " lead",
    "العربية with mixed кириллица",
]


def tokens(pieces: list[str]) -> Tokens:
    """Tokens that lie side by side."""
    stop = np.cumsum([len(piece.encode()) for piece in pieces]).astype(np.int64)
    return Tokens(np.arange(len(pieces)), np.concatenate([[0], stop[:-1]]).astype(np.int64), stop)


def by_loops(
    models: list[list[Tokens]], sizes: list[int]
) -> list[list[tuple[int, int, tuple[tuple[int, ...], ...]]]]:
    """The rule, said with sets and loops: of each document (start, stop, each model's tokens) of every span."""
    found = []
    for document, size in enumerate(sizes):
        shared = None
        for model in models:
            own = {0, size}
            for start, stop in zip(model[document].start.tolist(), model[document].stop.tolist(), strict=True):
                own |= {start, stop}
            shared = own if shared is None else shared & own
        edges = sorted(shared or ())
        spans = []
        for start, stop in pairwise(edges):
            inside = []
            for model in models:
                one = model[document]
                rows = zip(one.start.tolist(), one.stop.tolist(), strict=True)
                inside.append(tuple(i for i, (s, e) in enumerate(rows) if s < e and start <= s < stop))
            if all(inside):
                spans.append((start, stop, tuple(inside)))
        found.append(spans)
    return found


def check(models: list[list[Tokens]], sizes: list[int]) -> None:
    """Our spans and pools are those of the loops."""
    aligned = align(models, sizes)
    at = 0
    offsets = [np.concatenate([[0], np.cumsum([len(t.ids) for t in model])]) for model in models]
    for document, spans in enumerate(by_loops(models, sizes)):
        for start, stop, inside in spans:
            assert (aligned.document[at], aligned.start[at], aligned.stop[at]) == (document, start, stop)
            for model, rows in enumerate(inside):
                assert (np.flatnonzero(aligned.sample[model] == at) - offsets[model][document]).tolist() == list(
                    rows
                )
            at += 1
    assert at == len(aligned.document)
    assert all(int((sample >= at).sum()) == 0 for sample in aligned.sample)


def test_the_example_of_the_paper():
    a, b = tokens(["cla", "ud", "e", "co", "de"]), tokens(["clau", "d", "e", "co", "d", "e"])
    aligned = align([[a], [b]], [10])
    spans = ["claudecode"[s:e] for s, e in zip(aligned.start, aligned.stop, strict=True)]
    assert spans == ["claud", "e", "co", "de"]
    assert aligned.sample[0].tolist() == [0, 0, 1, 2, 3]
    assert aligned.sample[1].tolist() == [0, 0, 1, 2, 3, 3]


def test_a_span_without_a_token_of_some_model_is_no_sample():
    a = tokens(["ab", "  ", "cd"])
    b = Tokens(np.arange(2), np.array([0, 4]), np.array([2, 6]))  # skips the spaces
    aligned = align([[a], [b]], [6])
    assert aligned.start.tolist() == [0, 4]
    assert aligned.sample[0].tolist() == [0, -1, 1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_tokenizers_agree_with_the_loops(data: st.DataObject):
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    models = []
    for _ in range(data.draw(st.integers(1, 3))):
        documents = []
        for size in sizes:
            cuts = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=6))})
            dropped = data.draw(st.sets(st.integers(0, max(0, len(cuts) - 2))))
            spans = [pair for at, pair in enumerate(pairwise(cuts)) if at not in dropped]
            start, stop = (np.array([pair[side] for pair in spans], dtype=np.int64) for side in (0, 1))
            documents.append(Tokens(np.arange(len(spans)), start, stop))
        models.append(documents)
    check(models, sizes)


def test_bytes_of_byte_level_pieces():
    alphabet = {byte: character for character, byte in byte_alphabet().items()}
    assert len(alphabet) == 256
    data = "é😀".encode()
    pieces = [bytes([byte]) for byte in data]
    found = spelled(list(pieces), data)
    assert found is not None
    assert found[1].tolist() == [1, 2, 3, 4, 5, 6]
    assert spelled([b" \xc3\xa9", data[2:]], data) is not None  # a space put before the text
    assert spelled([b"e", data[2:]], data) is None  # another text


def test_offsets_of_characters_become_bytes():
    start, stop = by_offsets("aé😀b", np.array([[0, 1], [1, 2], [2, 3], [2, 3], [3, 4]]))
    assert start.tolist() == [0, 1, 3, 3, 7]
    assert stop.tolist() == [1, 3, 7, 7, 8]


def test_real_tokenizers_agree_with_the_loops(data_dir: Path, root: Path):
    from nipstool.kit.language_models import load_tokenizer
    from nipstool.rosetta_count.tokens import Tokeniser

    folders = [data_dir / "models" / "stories260K", root / "models" / "SmolLM2-135M-Instruct"]
    folders += [root / "models" / "all-MiniLM-L6-v2"]
    present = [folder for folder in folders if (folder / "tokenizer.json").exists()]
    if len(present) < 2:
        pytest.skip("needs models/ (make models)")
    tokenisers = [Tokeniser(load_tokenizer(folder), folder.name) for folder in present]
    spoken = [tokeniser(TEXTS) for tokeniser in tokenisers]
    for text, first in zip(TEXTS, spoken[1], strict=True):  # byte-level: the tokens are the text, byte by byte
        assert b"".join(text.encode()[s:e] for s, e in zip(first.start, first.stop, strict=True)) == text.encode()
    check(spoken, [len(text.encode()) for text in TEXTS])
