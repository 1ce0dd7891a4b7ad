"""Dates as the times of a domain that counts steps: seconds between them are taken for as many steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nipstool.filter_nbf.domains import COUNTED
from nipstool.filter_nbf.tracks import Answer

MOST = 1000.0  # steps from a track's first row to its second, beyond which the unit is doubted


def date_watch(domain: str, note: Callable[[str], None]) -> Callable[[Sequence[Answer]], None]:
    """Sees the answers of every wave, and says once that the dates of a track make its first step that long."""
    waiting = [note] if domain in COUNTED else []

    def watch(answers: Sequence[Answer]) -> None:
        for answer in answers if waiting else ():
            track = answer.track
            if answer.row.dated and track is not None and track.step == 2 and track.dt > MOST:
                said = f"a step of {track.dt:.2g} s counts as so many steps of {domain}"
                waiting.pop()(f"note: times are dates: {said}; give t as a number")
                return

    return watch
