"""Signs over the frames of a video: one track a sign, its text by vote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext.find import Sign
from nipstool.detect_navtext.words import normalised

GONE_S = 1.5  # unseen for so long, a sign has left
NEAR = 0.3  # of the overlap of two boxes, to be the same sign by place alone
REACH = 4.0  # heights a sign with the same text may have moved beyond what the others did
ALIKE = 0.6  # similarity of two texts that may be one
HASTE = 0.1
TELLING = 4  # characters: shorter texts may be pieces of any other
EDGE = 0.1  # weight of the vote of a sign that the picture's edge cuts


@dataclass
class Track:
    """A sign as it was seen over time.

    Attributes:
        number: from 0, in the order of first sight.
        first, last: time in seconds (frame numbers where there is no time).
        best: the sign where it was read best, with its frame number and time.
        votes: weight of each text.
        seen: frames it was seen in.
    """

    number: int
    first: float
    last: float
    best: Sign
    best_frame: int | None
    best_time: float | None
    box: NDArray[np.float64]
    votes: Counter[str] = field(default_factory=Counter)
    spelled: dict[str, Counter[str]] = field(default_factory=dict)
    score_sum: float = 0.0
    score_weight: float = 0.0
    weight: float = 0.0
    seen: int = 0

    @property
    def text(self) -> str | None:
        """The text with the most votes."""
        if not self.votes:
            return None
        key = self.votes.most_common(1)[0][0]
        return self.spelled[key].most_common(1)[0][0]

    @property
    def sign(self) -> Sign:
        """The best view with the voted text and the mean of the views' scores, each by the weight of its vote."""
        line = self.best.line
        if self.text is not None and self.text != line.text:
            line = replace(line, text=self.text, reason=None)
        return replace(self.best, line=line, nav_score=round(self.score_sum / self.score_weight, 5))


class Tracker:
    """Joins the signs of frame after frame."""

    def __init__(self, gone: float = GONE_S):
        self._gone = gone
        self._live: list[Track] = []
        self._count = 0
        self._movement = np.zeros(2)

    def update(
        self, signs: Sequence[Sign], size: tuple[int, int], *, frame: int | None = None, time: float | None = None
    ) -> list[Track]:
        """Take in one frame of width and height `size`; returns the tracks of signs that have left."""
        now = time if time is not None else float(frame or 0)
        for sign, track in zip(signs, self._matched(signs), strict=True):
            if track is None:
                track = self._begin(sign, now)
            _see(track, sign, now, frame, time, size)
        gone = [track for track in self._live if now - track.last > self._gone]
        self._live = [track for track in self._live if now - track.last <= self._gone]
        return gone

    def finish(self) -> list[Track]:
        """The tracks that were still seen at the end."""
        rest, self._live = self._live, []
        return rest

    def _begin(self, sign: Sign, now: float) -> Track:
        track = Track(self._count, now, now, sign, None, None, _box(sign))
        self._count += 1
        self._live.append(track)
        return track

    def _matched(self, signs: Sequence[Sign]) -> list[Track | None]:
        """For each sign its track: the assignment of most overlap and likeness, after the common movement."""
        from scipy.optimize import linear_sum_assignment

        if not signs or not self._live:
            return [None] * len(signs)
        boxes = np.array([_box(sign) for sign in signs])
        before = np.array([track.box for track in self._live])
        alike = np.array([[_alike(sign, track) for track in self._live] for sign in signs])
        self._movement = common_movement(boxes, before, alike, self._movement)
        moved = before + np.tile(self._movement, 2)
        gain = _gain(boxes, moved, alike)
        rows, columns = linear_sum_assignment(-gain)
        found: list[Track | None] = [None] * len(signs)
        for row, column in zip(rows, columns, strict=True):
            if gain[row, column] > 0:
                found[row] = self._live[column]
        return found


def common_movement(
    boxes: NDArray[np.float64],
    before: NDArray[np.float64],
    alike: NDArray[np.float64],
    last: NDArray[np.float64],
) -> NDArray[np.float64]:
    """How far the picture as a whole has moved, (2,): of the movements of pairs of one text, and of the last one,
    that after which most signs lie where a sign was, less HASTE for each height that it differs from the last."""
    pairs = np.argwhere(alike >= ALIKE)
    shifts = [last, *(_shift(boxes[row], before[column]) for row, column in pairs)]
    height = max(float((boxes[:, 3] - boxes[:, 1]).mean()), 1.0)
    haste = [HASTE * float(np.linalg.norm(shift - last)) / height for shift in shifts]
    worth = [_agreement(boxes, before + np.tile(shift, 2), alike) for shift in shifts]
    return shifts[int(np.argmax(np.array(worth) - haste))]


def _shift(box: NDArray[np.float64], before: NDArray[np.float64]) -> NDArray[np.float64]:
    """From one box to another: of their corners, the one that moved less horizontally (the other may be cut)."""
    corners = box[:2] - before[:2], box[2:] - before[2:]
    return max(corners, key=lambda shift: abs(shift[0]))


def _agreement(boxes: NDArray[np.float64], moved: NDArray[np.float64], alike: NDArray[np.float64]) -> float:
    fits = np.where(alike >= 0, _overlap(boxes, moved) * (0.5 + alike), 0.0)
    return round(float(fits.max(axis=1).sum()), 2)


def _gain(
    boxes: NDArray[np.float64], moved: NDArray[np.float64], alike: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What joining a sign to a track is worth, (signs, tracks); 0 where they cannot be one."""
    overlap = _overlap(boxes, moved)
    heights = np.maximum(boxes[:, 3] - boxes[:, 1], 1.0)[:, None]
    middle = (boxes[:, None, :2] + boxes[:, None, 2:]) / 2 - (moved[None, :, :2] + moved[None, :, 2:]) / 2
    distance = np.linalg.norm(middle, axis=2) / heights
    by_place = (overlap >= NEAR) & (alike >= 0)
    by_text = (alike >= 0.8) & (distance < REACH)
    return np.where(by_place | by_text, overlap + np.maximum(alike, 0) + 0.5 / (1 + distance), 0.0)


def _overlap(boxes: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shared area over the smaller area of each pair: a sign cut by the edge lies wholly in what it was."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = np.maximum(high - low, 0).prod(axis=2)
    areas = [np.maximum((b[:, 2:] - b[:, :2]).prod(axis=1), 1.0) for b in (boxes, others)]
    return shared / np.minimum(areas[0][:, None], areas[1][None])


def _alike(sign: Sign, track: Track) -> float:
    """Similarity of a sign's text and a track's, 0 to 1; 0 where one is unread, -1 where they are two signs."""
    from rapidfuzz import fuzz

    text, other = normalised(sign.line.text or ""), normalised(track.text or "")
    if not text or not other:
        return 0.0
    whole = fuzz.ratio(text, other) / 100
    if whole < ALIKE and min(len(text), len(other)) < TELLING:  # the edge of the picture leaves such pieces
        return 0.0
    part = fuzz.partial_ratio(text, other) / 100
    return max(whole, 0.9 * part) if max(whole, part) >= ALIKE else -1.0 if part < 0.4 else 0.0


def _see(
    track: Track, sign: Sign, now: float, frame: int | None, time: float | None, size: tuple[int, int]
) -> None:
    """Add one view of a sign to its track."""
    track.last, track.box, track.seen = now, _box(sign), track.seen + 1
    weight = _weight(sign, size)
    track.score_sum += weight * sign.nav_score
    track.score_weight += weight
    if sign.line.text:
        key = normalised(sign.line.text) or sign.line.text
        track.votes[key] += weight  # pyright: ignore[reportArgumentType]
        track.spelled.setdefault(key, Counter())[sign.line.text] += weight  # pyright: ignore[reportArgumentType]
    if weight > track.weight or track.seen == 1:
        track.weight, track.best, track.best_frame, track.best_time = weight, sign, frame, time


def _weight(sign: Sign, size: tuple[int, int]) -> float:
    """What a view's text counts: by the recogniser's score, squared; little where the picture's edge cuts it."""
    left, top, right, bottom = _box(sign)
    score = (sign.line.text_score or 0.05) ** 2
    inside = left > 2 and top > 2 and right < size[0] - 3 and bottom < size[1] - 3
    return score * (1.0 if inside else EDGE)


def _box(sign: Sign) -> NDArray[np.float64]:
    low, high = sign.line.polygon.min(axis=0), sign.line.polygon.max(axis=0)
    return np.array([*low, *high], np.float64)
