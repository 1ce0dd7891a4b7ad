"""Rendered scenes: the same from the same numbers, labels where the ink is, folds that share nothing."""

import cv2
import numpy as np
import pytest

from nipstool.detect_navtext.lines import KINDS
from nipstool.detect_navtext.scenes import FOLDS, fold_of, render, typefaces, words
from nipstool.detect_navtext.scenes.boards import Board, Look, Mark, Row, arrow, board, paste, plain
from nipstool.detect_navtext.scenes.reading import lines_of, misread
from nipstool.detect_navtext.scenes.space import Camera, Stage
from nipstool.detect_navtext.scenes.style import style_of

SIZE = (640, 480)


@pytest.fixture(scope="module")
def scenes() -> list:
    """One view of each setting, and of each fold."""
    return [render(place, 1, size=SIZE) for place in (0, 1, 2, 3, 4, 7, 9, 10)]


def test_every_setting_is_rendered_with_signs_and_clutter(scenes: list) -> None:
    assert len({scene.setting for scene in scenes}) == 8
    labels = [label for scene in scenes for label in scene.labels]
    assert {label.label for label in labels} == {"nav", "other", "ignore"}
    assert {label.kind for label in labels} <= set(KINDS)
    assert all((label.kind == "other") == (label.label != "nav") for label in labels)


def test_the_same_numbers_give_the_same_bytes_and_others_do_not(scenes: list) -> None:
    again, other = render(2, 1, size=SIZE), render(2, 2, size=SIZE)
    assert np.array_equal(scenes[2].image, again.image)
    assert [label.text for label in scenes[2].labels] == [label.text for label in again.labels]
    assert not np.array_equal(scenes[2].image, other.image)


def test_labels_lie_in_the_picture_and_on_something(scenes: list) -> None:
    """A sign's box holds edges: more contrast than a picture's plain parts have."""
    spread = []
    for scene in scenes:
        grey = cv2.cvtColor(scene.image, cv2.COLOR_BGR2GRAY).astype(float)
        for label in (one for one in scene.labels if one.label == "nav"):
            low = np.clip(label.polygon.min(axis=0), 0, [SIZE[0] - 2, SIZE[1] - 2]).astype(int)
            high = np.clip(label.polygon.max(axis=0), low + 1, SIZE).astype(int)
            assert (label.polygon.max(axis=0) > 0).all()
            spread.append(grey[low[1] : high[1], low[0] : high[0]].std())
    assert np.median(spread) > 25
    assert np.mean(np.array(spread) > 8) > 0.95


def test_folds_share_no_typeface_and_no_arrangement() -> None:
    faces = [set(fold) for fold in typefaces.FOLDS]
    assert all(not faces[i] & faces[j] for i in range(FOLDS) for j in range(i))
    orders = {fold_of(place): style_of(place).order for place in range(3 * FOLDS)}
    assert sorted(orders.values()) == list(range(FOLDS))
    for place in range(FOLDS):
        assert style_of(place).sign.face in faces[fold_of(place)]


def test_a_frontal_board_lies_where_the_pinhole_camera_says() -> None:
    stage = Stage(Camera(400, 300, 200.0), np.zeros((300, 400, 3), np.uint8))
    polygon = np.array([(25, 10), (75, 10), (75, 40), (25, 40)], np.float32)
    sign = Board(plain(50, 100, (255, 255, 255)).pixels, (Mark("A", "nav", "room", polygon),))
    stage.hang(sign, (0.5, -0.25, 2.0), width=1.0)  # 1 m at 2 m is 100 px: 200 to 300 by 100 to 150
    [mark] = stage.marks()
    assert mark.polygon == pytest.approx(polygon + np.array([200, 100]), abs=0.05)
    rows, columns = np.nonzero(stage.image[..., 0] > 127)
    assert (columns.min(), columns.max(), rows.min(), rows.max()) == pytest.approx((200, 299, 100, 149), abs=1)


def test_what_is_covered_is_ignored_or_gone() -> None:
    polygon = np.array([(0, 0), (100, 0), (100, 50), (0, 50)], np.float32)
    sign = Board(plain(50, 100, (255, 255, 255)).pixels, (Mark("A", "nav", "room", polygon),))
    camera, black = Camera(400, 300, 200.0), plain(50, 100, (0, 0, 0))

    def after(x: float) -> list[str]:
        stage = Stage(camera, np.zeros((300, 400, 3), np.uint8))
        stage.hang(sign, (0, 0, 2), width=1.0)
        stage.hang(black, (x, 0, 1.99), width=1.0)
        return [mark.label for mark in stage.marks()]

    assert after(0.95) == ["nav"]
    assert after(0.6) == ["ignore"]
    assert after(0.05) == []


def test_a_sign_that_leaves_the_picture_is_ignored() -> None:
    stage = Stage(Camera(400, 300, 200.0), np.zeros((300, 400, 3), np.uint8))
    polygon = np.array([(0, 0), (100, 0), (100, 50), (0, 50)], np.float32)
    sign = Board(plain(50, 100, (9, 9, 9)).pixels, (Mark("A", "nav", "room", polygon),))
    stage.hang(sign, (2.0, 0, 2.0), width=1.0)  # half of it beyond the right edge
    assert [mark.label for mark in stage.marks()] == ["ignore"]
    stage.hang(sign, (0, 0, -2.0), width=1.0)  # behind the camera
    assert len(stage.marks()) == 1


def test_rows_of_a_board_stand_where_their_ink_is() -> None:
    look = Look(typefaces.FOLDS[0][1], ink=(0, 0, 0), ground=(255, 255, 255), margin=1.0)
    made = board(np.random.default_rng(0), [Row("Room 12"), Row("Lift", arrow=0)], look)
    for mark in made.marks:
        (left, top), (right, bottom) = mark.polygon.min(axis=0).astype(int), mark.polygon.max(axis=0).astype(int)
        inside = made.pixels[top:bottom, left:right, 0] < 128
        assert 0.15 < inside.mean() < 0.7
        assert inside[:, :4].any()
        assert inside[:, -4:].any()  # the box ends where the letters end, and holds no arrow
    assert (made.pixels[..., 0] < 128).sum() > sum(
        (
            made.pixels[
                int(m.polygon[0, 1]) : int(m.polygon[2, 1]), int(m.polygon[0, 0]) : int(m.polygon[1, 0]), 0
            ]
            < 128
        ).sum()
        for m in made.marks
    )


def test_arrows_point_where_they_are_said_to() -> None:
    """The wide head lies on the side that an arrow points to."""
    for eighths, axis, end in ((0, 1, -1), (4, 1, 0), (2, 0, -1), (6, 0, 0)):
        ink = (arrow(60, eighths) > 0).any(axis=1 - axis)
        width = (arrow(60, eighths) > 0).sum(axis=1 - axis)
        half = np.flatnonzero(ink)
        head = width[half[len(half) // 2 :]] if end == -1 else width[half[: len(half) // 2]]
        tail = width[half[: len(half) // 2]] if end == -1 else width[half[len(half) // 2 :]]
        assert head.max() > 2 * tail.min()


def test_pasting_moves_marks_with_the_pixels() -> None:
    child = Board(
        plain(20, 40, (9, 9, 9)).pixels,
        (Mark("x", "other", "other", np.array([(0, 0), (40, 0), (40, 20), (0, 20)], np.float32)),),
    )
    parent = paste(plain(100, 200, (200, 200, 200)), child, 50, 30, 80, 10)
    assert parent.marks[0].polygon.tolist() == [[50, 30], [130, 30], [130, 40], [50, 40]]
    assert (parent.pixels[30:40, 50:130, 0] == 9).all()


def test_every_phrase_can_be_filled_in_and_drawn() -> None:
    random = np.random.default_rng(0)
    for sort, texts in words.phrases().items():
        for text in texts:
            filled = words.fill(random, text)
            assert filled.strip(), sort
            assert "{" not in filled
    for fold in typefaces.FOLDS:
        for face in fold:
            for text in ("Ausgang ß", "Έξοδος", "出口", "Güneş", "Ő", "Rez-de-chaussée"):
                assert typefaces.letters(text, face, 30).max() > 200


def test_reading_is_repeatable_and_errs_more_on_small_text(scenes: list) -> None:
    one = lines_of(scenes[0], np.random.default_rng(3))
    two = lines_of(scenes[0], np.random.default_rng(3))
    assert [line.text for line in one[0]] == [line.text for line in two[0]]
    assert len(one[0]) == len(one[1])
    assert misread("Room 101", np.random.default_rng(0), 0.0) == ("Room 101", 0.0)
    text, wrong = misread("Room 101" * 50, np.random.default_rng(0), 0.5)
    assert 0.4 < wrong < 0.6
    assert text != "Room 101" * 50
