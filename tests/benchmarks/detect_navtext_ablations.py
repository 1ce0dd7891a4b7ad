"""What each group of numbers does for the relevance classifier.

It is taught without the group, and tried on the two lists of `detect_navtext_lines` and on the rendered fold that
was not taught: other text gone when 90 % of the signs are kept, and AP.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import detect_navtext_lines as lists
import numpy as np
from numpy.typing import NDArray

from nipstool.detect_navtext import appearance, company, fitting, metrics, phrasing
from nipstool.detect_navtext.fitting import Sample, joined, noisy
from nipstool.detect_navtext.poi import Names
from nipstool.detect_navtext.relevance import FEATURE_NAMES, Classifier, classify
from nipstool.detect_navtext.scenes import FOLDS, fold_of, render

VIEWS = 2
HEIGHTS = ("height_picture", "height_median", "height_rank", "height_board")
WORDS = ("word_", "sale", "notice", "goods", "board_for", "board_against")
LAYOUT = ("y", "aspect", "board_lines", "board_regular", "board_aligned", "density")
GROUPS: dict[str, tuple[str, ...]] = {
    "lexicon": WORDS,
    "forms": ("form_",),
    "names": ("map_", "board_map"),
    "sentences": phrasing.NAMES,
    "company": company.NAMES,
    "heights": HEIGHTS,
    "other layout": LAYOUT,
    "looks": (*appearance.NAMES, "board_unrest", "board_ring_step"),
}
Tried = dict[str, tuple[NDArray[np.float32], NDArray[np.bool_]]]


@contextmanager
def without(group: Sequence[str]) -> Iterator[None]:
    """Nothing is learnt of the numbers whose names begin so."""
    before = fitting.SILENT
    fitting.SILENT = (*before, *(name for name in FEATURE_NAMES if name.startswith(tuple(group))))
    try:
        yield
    finally:
        fitting.SILENT = before


def rendered(passes: Sequence[fitting.Pass], *, is_taught: bool) -> Sample:
    """The places that are taught, or those of the last fold."""
    names = Names.bundled()
    brands, found = fitting.drawable(names), []
    for place in (p for p in range(fitting.PLACES) if (fold_of(p) != FOLDS - 1) == is_taught):
        for view in range(fitting.VIEWS):
            scene = render(place, view, brands=brands, size=fitting.SIZE)
            seeds = ((0, place, view, i) for i in range(len(fitting.PASSES)))
            pairs = zip(seeds, fitting.PASSES, strict=True)
            found += [fitting.of_scene(scene, names, seed, how, brands) for seed, how in pairs if how in passes]
    return joined(found)


def listed() -> Tried:
    """The numbers of the lists' lines in VIEWS views, and whether they navigate."""
    return {f"{title} list": lists.seen(pictures, VIEWS)[:2] for title, pictures in lists.lists()}


def show(title: str, arrays: dict[str, NDArray[np.float32]], tried: Tried) -> None:
    """One line: other text gone at a recall of .9, and AP, of each."""
    said = []
    for name, (table, nav) in tried.items():
        scores = classify(table, Classifier(arrays, 0.5)).astype(float)
        least = lists.nine_in_ten(scores, nav)
        ap = metrics.average_precision(nav, scores)
        said.append(f"{name} {100 * (scores[~nav] < least).mean():.1f} %, {ap:.3f}")
    print(f"{title}: {'; '.join(said)}", flush=True)


def plain(sample: Sample) -> dict[str, NDArray[np.float32]]:
    """Logistic regression on all numbers, free of signs."""
    scale = np.maximum(sample.table.std(axis=0), 0.05)
    nothing = np.zeros((1, len(FEATURE_NAMES)), np.float32)
    start = {"mean": sample.table.mean(axis=0), "scale": scale, "w1": nothing, "b1": np.zeros(1, np.float32)}
    return fitting.fit(sample, prior=Classifier(start, 0.5), penalty=1e-4)


def main() -> None:
    """Print all, then without each group, without exchanged words, and of plain regression."""
    tried = listed()
    held_out = rendered(fitting.PASSES, is_taught=False)
    tried["rendered fold"] = held_out.table, held_out.is_nav
    taught = rendered(fitting.PASSES, is_taught=True)
    sample = joined([taught, noisy(taught, np.random.default_rng(0))])
    show("all", fitting.fit(sample), tried)
    for title, group in GROUPS.items():
        with without(group):
            show(f"without {title}", fitting.fit(sample), tried)
    as_written = rendered([how for how in fitting.PASSES if not how.retold], is_taught=True)
    show(
        "without exchanged words",
        fitting.fit(joined([as_written, noisy(as_written, np.random.default_rng(0))])),
        tried,
    )
    show("plain logistic regression", plain(sample), tried)


if __name__ == "__main__":
    main()
