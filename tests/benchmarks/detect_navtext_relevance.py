"""Relevance: in rendered places with typefaces, walls and arrangements of their own, shipped and adapted to them.

Half of the views of the places of the last fold adapt the classifier, the other half measure both. Real pictures
are for `detect-navtext PICTURES --all` and `detect-navtext evaluate`; nothing is fitted to them.
"""

import numpy as np

from nipstool.detect_navtext import fitting, metrics, training
from nipstool.detect_navtext.fitting import Sample, joined
from nipstool.detect_navtext.poi import Names
from nipstool.detect_navtext.relevance import Classifier, classify, load_classifier
from nipstool.detect_navtext.scenes import FOLDS, render

PLACES, VIEWS = 16, 4  # places of the last fold that the shipped classifier's threshold was not chosen on
FIRST = 400


def samples() -> list[list[Sample]]:
    """The lines of each view of each place."""
    names = Names.bundled()
    brands = fitting.drawable(names)
    places = [FIRST + FOLDS * i + FOLDS - 1 for i in range(PLACES)]
    scenes = [[render(place, view, brands=brands, size=fitting.SIZE) for view in range(VIEWS)] for place in places]
    return [[fitting.of_scene(s, names, (9, i, j)) for j, s in enumerate(views)] for i, views in enumerate(scenes)]


def show(title: str, sample: Sample, classifier: Classifier) -> None:
    """One line: F1 beside that of keeping everything, recall, other text gone, AP."""
    scores = classify(sample.table, classifier)
    kept, nav = scores >= classifier.threshold, sample.is_nav
    f1 = 2 * (kept & nav).sum() / (kept.sum() + nav.sum())
    everything = 2 * nav.sum() / (len(nav) + nav.sum())
    gone, ap = (~kept & ~nav).sum() / (~nav).sum(), metrics.average_precision(nav, scores.astype(float))
    print(
        f"{title}: {nav.sum()} nav, {(~nav).sum()} other; F1 {f1:.3f} (keeping everything {everything:.3f}),"
        f" recall {(kept & nav).sum() / nav.sum():.3f}, other gone {gone:.3f}, AP {ap:.3f}"
    )


def main() -> None:
    """Print the shipped classifier and the adapted one on the same views."""
    by_place = samples()
    known = joined([s for views in by_place for s in views[: VIEWS // 2]])
    unseen = joined([s for views in by_place for s in views[VIEWS // 2 :]])
    show("shipped", unseen, load_classifier())
    adapted = training.adapt(known)
    assert adapted is not None
    show(f"adapted on {VIEWS // 2} other views of the same places", unseen, adapted)
    single = []
    for views in by_place:
        own = training.adapt(joined(views[: VIEWS // 2])) or load_classifier()
        test = joined(views[VIEWS // 2 :])
        single.append((classify(test.table, own) >= own.threshold, test.is_nav))
    kept, nav = (np.concatenate([pair[k] for pair in single]) for k in (0, 1))
    f1, gone = 2 * (kept & nav).sum() / (kept.sum() + nav.sum()), (~kept & ~nav).sum() / (~nav).sum()
    print(f"adapted to each place by itself, on {VIEWS // 2} pictures: F1 {f1:.3f}, other gone {gone:.3f}")


if __name__ == "__main__":
    main()
