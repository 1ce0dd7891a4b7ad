"""Going through pictures, videos and cameras: what is found in each, and which could not be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from nipstool.detect_navtext.find import Sign
from nipstool.detect_navtext.lines import Image
from nipstool.detect_navtext.rows import Row, Seen, row_of
from nipstool.detect_navtext.sources import Frame, Source, frames_of
from nipstool.detect_navtext.track import Track, Tracker
from nipstool.kit.counts import counted
from nipstool.kit.errors import DataError, InputMissingError, NipsError
from nipstool.kit.progress import Progress, silent

Find = Callable[[Image], list[Sign]]
Draw = Callable[[Frame, Sequence[Sign]], None]


@dataclass(frozen=True)
class Wanted:
    """Which signs are given out: those of at least this score, and of these kinds (none named: of all)."""

    threshold: float = 0.5
    kinds: frozenset[str] = frozenset()

    def has(self, sign: Sign) -> bool:
        """Whether a sign is wanted."""
        return sign.nav_score >= self.threshold and (not self.kinds or sign.kind in self.kinds)


@dataclass
class Tally:
    """What happened on the way.

    Attributes:
        pictures, signs, held_back: frames looked at, rows given out, and lines of text that were not wanted.
        failures: what could not be used, with whether the user named it.
    """

    pictures: int = 0
    signs: int = 0
    held_back: int = 0
    failures: list[tuple[NipsError, bool]] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """The numbers, by name."""
        failed = len(self.failures)
        return {"pictures": self.pictures, "signs": self.signs, "held_back": self.held_back, "failed": failed}

    def told(self, threshold: float) -> str:
        """One line for people about what was found and what was not wanted."""
        text = f"{counted(self.signs, 'sign')} in {counted(self.pictures, 'picture')}"
        if not self.held_back:
            return text
        why = f"nav_score below {threshold:.2f}, or another kind"
        return f"{text}; {counted(self.held_back, 'other line')} of text not shown ({why}): --all shows them"

    def failure(self, *, strict: bool) -> NipsError | None:
        """The error that the run as a whole ends with, if it does.

        What was named and could not be used is one; what was found in a folder only with `strict`, or where
        nothing was left.
        """
        if not self.failures:
            return None
        counted = [error for error, named in self.failures if named or strict or not self.pictures]
        if not counted:
            return None
        missing = all(isinstance(error, InputMissingError) for error in counted)
        more = f" (and {len(counted) - 1} more of the inputs could not be used)" if len(counted) > 1 else ""
        if len(counted) == 1 and not isinstance(counted[0], DataError | InputMissingError):
            return counted[0]
        return (InputMissingError if missing else DataError)(f"{counted[0]}{more}")


def look(
    sources: Iterable[Source | NipsError],
    find: Find,
    wanted: Wanted,
    tally: Tally,
    *,
    fps: float | None = None,
    track: bool = True,
    draw: Draw | None = None,
    progress: Progress = silent,
    share: tuple[int, int] = (0, 1),
) -> Iterator[tuple[int, Seen]]:
    """What is found in each source, in order, with the source's number.

    Args:
        find: all text of a picture, as `Finder.find`.
        tally: filled on the way.
        fps: frames a second to look at, of videos and cameras.
        track: of videos and cameras, one row a sign when it has left; else one a frame.
        draw: called with each frame and its wanted signs.
        share: rank and number of processes that share the sources.
    """
    known = list(sources)
    for number, source in list(enumerate(known))[share[0] :: share[1]]:
        try:
            if isinstance(source, NipsError):
                raise source
            for seen in _in_source(source, find, wanted, tally, fps, track, draw):
                yield number, seen
        except (DataError, InputMissingError) as error:
            named = isinstance(source, NipsError) or source.named
            tally.failures.append((error, named))
        progress(number + 1, len(known))


def _in_source(
    source: Source,
    find: Find,
    wanted: Wanted,
    tally: Tally,
    fps: float | None,
    track: bool,
    draw: Draw | None,
) -> Iterator[Seen]:
    tracker = Tracker() if track else None
    size = (0, 0)
    try:
        for frame in frames_of(source, fps):
            signs = find(frame.image)
            tally.pictures += 1
            size = (frame.image.shape[1], frame.image.shape[0])
            if draw is not None:
                draw(frame, [sign for sign in signs if wanted.has(sign)])
            if tracker is None or frame.number is None:
                yield _seen(frame, signs, wanted, tally)
            else:
                gone = tracker.update(signs, size, frame=frame.number, time=frame.time)
                yield from _left(gone, source.name, size, wanted, tally)
            del frame  # or it would stay until the next one is there
    except (DataError, KeyboardInterrupt):
        # a camera that stopped, a video cut short, an interrupt: what was seen until then is told
        if tracker is not None:
            yield from _left(tracker.finish(), source.name, size, wanted, tally)
        raise
    if tracker is not None:
        yield from _left(tracker.finish(), source.name, size, wanted, tally)


def _seen(frame: Frame, signs: Sequence[Sign], wanted: Wanted, tally: Tally) -> Seen:
    kept = [sign for sign in signs if wanted.has(sign)]
    tally.signs += len(kept)
    tally.held_back += len(signs) - len(kept)
    rows = [row_of(sign, frame.source, frame=frame.number, time=frame.time) for sign in kept]
    height, width = frame.image.shape[:2]
    return Seen(frame.source, frame.number, frame.time, width, height, rows)


def _left(
    tracks: Sequence[Track], name: str, size: tuple[int, int], wanted: Wanted, tally: Tally
) -> Iterator[Seen]:
    """The signs of tracks that ended: one row each, of the frame in which it was read best."""
    for track in tracks:
        sign = track.sign
        if not wanted.has(sign):
            tally.held_back += 1
            continue
        tally.signs += 1
        yield Seen(name, track.best_frame, track.best_time, *size, [_track_row(track, sign, name)])


def _track_row(track: Track, sign: Sign, name: str) -> Row:
    about = {"id": track.number, "first": track.first, "last": track.last, "seen": track.seen}
    return row_of(sign, name, frame=track.best_frame, time=track.best_time, track=about)
