"""Training windows from recordings of any montage: what a step draws is a function of seed and step alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nipstool.eeg_pretrain.config import Config, Recipe
from nipstool.eeg_pretrain.recording import Channel, Point, Recording, Segment
from nipstool.eeg_pretrain.targets import Known, Targets, on_the_clock, targets_of
from nipstool.eeg_pretrain.tokenizer import Placement, place
from nipstool.eeg_pretrain.tracks import (
    SCALE_S,
    Choice,
    Tokens,
    choose,
    differences,
    read_tokens,
    whole_tokens,
)
from nipstool.kit.errors import DataError

CACHE_BYTES = 1 << 30  # below it all signals are filtered once and kept
WARM_UP_S = 10.0
FEWEST_SUBJECTS = 3  # for a split by subject
SHORTEST = 8  # tokens of a stretch worth training on


@dataclass(frozen=True)
class Item:
    """A stretch of one segment that belongs to one side of the split: tokens first to last."""

    number: int  # of the recording
    segment: Segment
    first: int
    last: int
    targets: Targets
    seizures: tuple[tuple[int, int], ...]  # runs of tokens with seizure, within first to last

    def __len__(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class Window:
    """What one example is made of.

    Attributes:
        channels: (C,) places in the recording's Choice; flip: (C,) their random signs.
        minus: (C,) places of what is subtracted from each, -1 for nothing.
        mirrored: whether left and right of the head are exchanged.
        told: whether the model is told the recording's text.
    """

    item: Item
    first: int
    last: int
    channels: np.ndarray
    flip: np.ndarray
    minus: np.ndarray
    mirrored: bool
    told: bool


@dataclass(frozen=True)
class Example:
    """A window that was read."""

    tokens: Tokens
    placement: Placement
    window: Window


class Corpus:
    """Recordings, split for training and validation."""

    def __init__(self, recordings: Sequence[Recording], config: Config, recipe: Recipe, context: int):
        self.recordings, self.config, self.context = list(recordings), config, context
        self.choices = [choose(recording) for recording in recordings]
        self.split = _split_kind(recordings, recipe.split)
        self.held_out = _held_out(recordings, recipe) if self.split == "subject" else frozenset()
        self.unipolar = [_unipolar(recording, c) for recording, c in zip(recordings, self.choices, strict=True)]
        self.train: list[Item] = []
        self.validation: list[Item] = []
        for number, known in enumerate(on_the_clock(recordings)):
            for segment in recordings[number].segments if self.choices[number].numbers else ():
                self._add(number, segment, targets_of_segment(recordings[number], known, segment, config), recipe)
        if not self.train:
            raise DataError(f"no recording holds {SHORTEST * config.token_s:g} s of EEG without a gap to train on")
        self._cache: dict[tuple[int, float], Tokens] | None = {} if self._size() <= CACHE_BYTES else None
        channels = np.array([len(self.choices[item.number].numbers) for item in self.train])
        lengths = np.array([len(item) for item in self.train])
        self._chance = lengths * np.sqrt(channels) / (lengths * np.sqrt(channels)).sum()
        self._seizing = [(item, run) for item in self.train for run in item.seizures]

    def _add(self, number: int, segment: Segment, targets: Targets, recipe: Recipe) -> None:
        n = len(targets.seizure)
        if self.split == "subject":
            held = self.recordings[number].subject in self.held_out
            parts = [(self.validation if held else self.train, 0, n)]
        else:
            cut = round(n * (1.0 - recipe.val_share))
            parts = [(self.train, 0, cut), (self.validation, cut, n)]
        for items, first, last in parts:
            if last - first >= SHORTEST:
                items.append(Item(number, segment, first, last, targets, _runs(targets.seizure, first, last)))

    def _size(self) -> int:
        tokens = sum(len(i) * len(self.choices[i.number].numbers) for i in (*self.train, *self.validation))
        return tokens * self.config.patch * 4

    @property
    def has_seizures(self) -> bool:
        """Whether training windows can hold seizures."""
        return bool(self._seizing)

    def draw(self, step: int, seed: int, recipe: Recipe) -> list[list[Window]]:
        """The windows of a step, grouped by their number of channels, about batch_tokens channel tokens in all."""
        random = np.random.default_rng([seed, step])
        groups: dict[tuple[int, int], list[Window]] = {}
        share: dict[int, float] = {}
        left = recipe.batch_tokens
        while left > 0:
            item, first, last = self._place(random, recipe.seizure_share)
            count = len(self.choices[item.number].numbers)
            kept = share.setdefault(count, 1.0 - recipe.channel_dropout * random.uniform())
            window = self._window(random, item, first, last, max(1, round(kept * count)), recipe)
            groups.setdefault((count, last - first), []).append(window)
            left -= len(window.channels) * (last - first)
        return list(groups.values())

    def _place(self, random: np.random.Generator, seizure_share: float) -> tuple[Item, int, int]:
        if self._seizing and random.uniform() < seizure_share:
            item, (begin, end) = self._seizing[random.integers(len(self._seizing))]
            low, high = begin - self.context + SHORTEST, end - SHORTEST
            start = int(random.integers(low, max(low, high) + 1))
        else:
            item = self.train[random.choice(len(self.train), p=self._chance)]
            start = int(random.integers(item.first, max(item.first, item.last - self.context) + 1))
        start = max(item.first, min(start, item.last - self.context))
        return item, start, min(start + self.context, item.last)

    def _window(
        self, random: np.random.Generator, item: Item, first: int, last: int, kept: int, recipe: Recipe
    ) -> Window:
        count = len(self.choices[item.number].numbers)
        channels = np.sort(random.permutation(count)[:kept])
        flip = random.choice(np.array([-1.0, 1.0], np.float32), size=kept)
        minus = np.full(kept, -1)
        partners, told = self.unipolar[item.number], bool(random.uniform() >= recipe.text_dropout)
        if len(partners) > 1 and random.uniform() < recipe.rereference:
            chosen = random.choice(partners, size=kept)
            minus = np.where(np.isin(channels, partners) & (chosen != channels), chosen, -1)
        mirrored = bool(random.uniform() < recipe.mirror)
        return Window(item, first, last, channels, flip, minus, mirrored, told)

    def fixed(self, items: Sequence[Item], most: int) -> list[list[Window]]:
        """At most about `most` windows that tile items, evenly spread, all channels and signs as they are."""
        windows = []
        for item in items:
            count = len(self.choices[item.number].numbers)
            for first in range(item.first, item.last, self.context):
                last = min(first + self.context, item.last)
                if last - first >= SHORTEST or first == item.first:
                    ones, nothing = np.ones(count, np.float32), np.full(count, -1)
                    windows.append(Window(item, first, last, np.arange(count), ones, nothing, False, True))
        chosen = windows[:: max(1, -(-len(windows) // most))]
        groups: dict[tuple[int, int], list[Window]] = {}
        for window in chosen:
            groups.setdefault((len(window.channels), window.last - window.first), []).append(window)
        return list(groups.values())

    def read(self, window: Window) -> Example:
        """The tokens of a window."""
        rows, item = window.channels, window.item
        whole = self.choices[item.number].placement
        placement = Placement(whole.geometry[rows], whole.sign[rows], whole.kind[rows])
        if (window.minus >= 0).any():
            before = min(window.first - item.first, round(SCALE_S / self.config.token_s))
            tokens = self._tokens(item, window.first - before, window.last)
            tokens = differences(tokens, rows, window.minus, self.config).cut(before, len(tokens))
        else:
            tokens = self._tokens(item, window.first, window.last).of(rows)
        if window.mirrored or (window.minus >= 0).any():
            placement = self._placed(window)
        flip = np.where(placement.kind == 2, np.float32(1.0), window.flip)  # a saturation has no polarity
        flipped = Tokens(tokens.x * flip[:, None, None], tokens.scale, tokens.valid, tokens.start)
        return Example(flipped, placement, window)

    def _placed(self, window: Window) -> Placement:
        """The placement of changed channels: differences, and a mirrored head."""
        recording, choice = self.recordings[window.item.number], self.choices[window.item.number]
        channels = [recording.channels[choice.numbers[n]] for n in window.channels]
        for number, other in enumerate(window.minus):
            if other >= 0:
                cathode = recording.channels[choice.numbers[other]].anode
                channels[number] = replace(channels[number], cathode=cathode, bipolar=True)
        return place([_mirrored(channel) for channel in channels] if window.mirrored else channels)

    def _tokens(self, item: Item, first: int, last: int) -> Tokens:
        recording, choice = self.recordings[item.number], self.choices[item.number]
        if self._cache is None:
            warm_up = round(WARM_UP_S / self.config.token_s)
            return read_tokens(recording, choice, self.config, item.segment, first, last, warm_up)
        key = (item.number, item.segment.start_s)
        if key not in self._cache:
            whole = whole_tokens(item.segment, self.config)
            self._cache[key] = read_tokens(recording, choice, self.config, item.segment, 0, whole, 0)
        return self._cache[key].cut(first, last)


def targets_of_segment(recording: Recording, known: Known, segment: Segment, config: Config) -> Targets:
    """The targets of all whole tokens of a segment."""

    return targets_of(recording, known, segment, whole_tokens(segment, config), config)


def _mirrored(channel: Channel) -> Channel:
    """The same channel on the other side of the head."""
    return replace(channel, anode=_across(channel.anode), cathode=_across(channel.cathode))


def _across(point: Point | None) -> Point | None:
    return None if point is None else (-point[0], point[1], point[2])


def _unipolar(recording: Recording, choice: Choice) -> np.ndarray:
    """Places in a Choice of EEG channels against a common reference: their differences are channels too."""
    channels = [recording.channels[n] for n in choice.numbers]
    return np.array([n for n, c in enumerate(channels) if c.kind == "eeg" and not c.bipolar], int)


def _runs(seizure: np.ndarray, first: int, last: int) -> tuple[tuple[int, int], ...]:
    inside = np.concatenate([[False], seizure[first:last] > 0.0, [False]])
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + first
    return tuple((int(a), int(b)) for a, b in edges.reshape(-1, 2))


def _split_kind(recordings: Sequence[Recording], asked: str) -> str:
    if asked != "auto":
        return asked
    subjects = {recording.subject for recording in recordings}
    return "subject" if len(subjects) >= FEWEST_SUBJECTS and any(r.labelled for r in recordings) else "time"


def _held_out(recordings: Sequence[Recording], recipe: Recipe) -> frozenset[str]:
    """The subjects for validation: evenly spread over those with seizures, and over those without."""
    with_seizures = {r.subject for r in recordings if r.seizures}
    held: list[str] = []
    for group in (with_seizures, {r.subject for r in recordings} - with_seizures):
        subjects = sorted(group)
        count = round(recipe.val_share * len(subjects)) if len(subjects) > 1 else 0
        count = max(count, 1) if len(subjects) > 1 else 0
        held += [subjects[(2 * k + 1) * len(subjects) // (2 * count)] for k in range(count)]
    return frozenset(held)
