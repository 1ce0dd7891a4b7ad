"""Pictures: the same run gives the same bytes."""

import io
import warnings

import pytest

from nipstool.kit.plots import bars, heatmap


@pytest.mark.parametrize("form", ["png", "pdf", "svg"])
def test_a_picture_drawn_twice_has_the_same_bytes(form: str) -> None:
    drawn = []
    for _ in range(2):
        one, other = io.BytesIO(), io.BytesIO()
        bars(one, ["a", "b"], {"x": [1.0, 2.0]}, title="t", x_label="x", y_label="y", form=form)
        heatmap(other, [[0.1, None]], ["r"], ["a", "b"], title="t", colour_label="c", reference=0.05, form=form)
        drawn.append((one.getvalue(), other.getvalue()))
    assert drawn[0] == drawn[1]
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    assert all(data.startswith(starts[form]) for data in drawn[0])


def test_what_the_font_cannot_write_is_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bars(io.BytesIO(), ["出口", "a\0b"], {"x": [1.0, 2.0]}, title="画风", x_label="x", y_label="y")
