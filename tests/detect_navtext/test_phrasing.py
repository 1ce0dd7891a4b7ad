"""How texts are put, what stands around them, and rendered lines with other words."""

import numpy as np
import pytest

from nipstool.detect_navtext.boards import board_of
from nipstool.detect_navtext.company import NAMES as COMPANY
from nipstool.detect_navtext.company import company
from nipstool.detect_navtext.evidence import evidence_of
from nipstool.detect_navtext.lexicon import read_words
from nipstool.detect_navtext.lines import Line
from nipstool.detect_navtext.phrasing import NAMES, length, phrasing, told
from nipstool.detect_navtext.poi import Names
from nipstool.detect_navtext.scenes import words
from nipstool.detect_navtext.scenes.retelling import registers, retold


def line(text: str | None, x: float, y: float, width: float = 100, height: float = 20) -> Line:
    corners = np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]], np.float32)
    return Line(corners, text, 0.99 if text else None, 0.9, None if text else "no-text")


def said(text: str) -> dict[str, float]:
    return dict(zip(NAMES, phrasing(text, text), strict=True))


@pytest.mark.parametrize(
    "text",
    ["What are you waiting for", "Wir sind für Sie da", "ce que nous avons", "todo lo que usted necesita",
     "non si può", "我们的生活", "お湯を入れてください"],
)  # fmt: skip
def test_sentences_are_told(text: str) -> None:
    assert told(text) > 0.25


@pytest.mark.parametrize(
    "text",
    ["Gates 1-9", "Rue des Lilas", "Calle de la Paz", "An der Alten Mühle", "Via del Corso", "Room 204", "出口",
     "Hôtel de Paris", "Slagerij van Dijk", "Central Park", "You", "", "School of Music", "Musée du Louvre",
     "iqin爱亲", "Frutta e Verdura", "Men", "Chez Paul"],
)  # fmt: skip
def test_names_are_not_told(text: str) -> None:
    assert told(text) == 0
    assert not any(value for name, value in said(text).items() if name not in ("length", "goes_on"))


def test_one_word_with_a_small_letter_may_be_a_shops_name() -> None:
    assert said("adidas")["goes_on"] == 0.5
    assert said("for all ages")["goes_on"] == 1
    assert said("km")["goes_on"] == said("Adidas")["goes_on"] == 0


@pytest.mark.parametrize(
    ("text", "name"),
    [("LD21 ABC", "serial"), ("B-MW 4410", "serial"), ("AB-123-CD", "serial"), ("粤B·12345", "serial"),
     ("Art. 30412", "serial"), ("X100V200", "serial"), ("**** 1881", "serial"),
     ("230 V 50 Hz", "measured"), ("60°", "measured"), ("10 x 15", "measured"), ("2000 mAh", "measured"),
     ("Wow!", "sentence_mark"), ("we deliver.", "goes_on"), ("#summer", "registered"), ("Teflon®", "registered")],
)  # fmt: skip
def test_forms_of_what_is_no_name(text: str, name: str) -> None:
    assert said(text)[name] == 1


def test_a_text_that_was_not_read_says_nothing_and_length_counts_words() -> None:
    assert phrasing(None, None) == [0.0] * len(NAMES)
    assert length("one two three") == pytest.approx(np.log(4))
    assert length("東京駅前") == pytest.approx(np.log(3))  # two characters are about a word


def test_a_month_is_no_junction_and_a_range_of_rooms_no_phone() -> None:
    for text in ("Junction 4", "Augsburg 30 km", "Market 2", "Rooms 2101-2140", "2101-2140"):
        assert not read_words(text).forms & {"time", "phone"}
    for text, form in (("June 4", "time"), ("Sept. 12", "time"), ("555-2390", "phone"), ("6123 4567", "phone")):
        assert form in read_words(text).forms


def test_what_stands_around_weighs_by_its_nearness_not_by_the_pictures_size() -> None:
    names = Names([])
    lines = [line("Lobelia", 0, 0), line("4.99 €", 0, 90), line("EXIT", 900, 0), line("Lobelia", 900, 90)]
    found = evidence_of(lines, board_of(lines), names)
    told_of = np.array([phrasing(one.text, one.text) for one in found], np.float32)
    table = company(lines, found, told_of)
    near_for, near_against = (table[:, COMPANY.index(name)] for name in ("near_for", "near_against"))
    assert near_against[0] > 0.2 > near_against[3]
    assert near_for[3] > 0.2 > near_for[0]
    twice = [Line(one.polygon * 2, one.text, one.text_score, one.det_score) for one in lines]
    assert np.allclose(company(twice, found, told_of), table, atol=1e-6)
    repeated = table[:, COMPANY.index("repeated")]
    assert repeated == pytest.approx([np.log(2), 0, 0, np.log(2)])
    alone = company(lines[:1], found[:1], told_of[:1])
    assert alone.shape == (1, len(COMPANY))
    assert not alone.any()


def test_retold_lines_keep_their_places_and_take_texts_of_their_label() -> None:
    lines = [line("a", 0, 0), line("b", 0, 25), line(None, 0, 300), line("c", 0, 600), line("d", 500, 600)]
    labels, boards = ["other", "other", "other", "ignore", "nav"], [0, 0, 1, 2, 3]

    def again(seed: int, **how: object) -> list[Line]:
        return retold(lines, labels, boards, np.random.default_rng(seed), **how)  # pyright: ignore[reportArgumentType]

    new = again(3)
    assert [one.text for one in new] == [one.text for one in again(3)] != [one.text for one in again(4)]
    assert all(np.array_equal(a.polygon, b.polygon) for a, b in zip(new, lines, strict=True))
    assert (new[2].text, new[3].text) == (None, "c")
    everything_but = [register for register in registers()["other"] if register != "menu"]
    for seed in range(20):
        one = again(seed, without=everything_but)
        menu = [
            text.split("{")[0].strip().casefold() for lines_ in registers()["other"]["menu"] for text in lines_
        ]
        assert any((one[0].text or "").casefold().startswith(text) for text in menu)


def test_every_text_to_retell_can_be_filled_in() -> None:
    random = np.random.default_rng(0)
    for texts in (*registers()["other"].values(), *registers()["nav"].values()):
        for text in (row for lines in texts for row in lines):
            assert words.fill(random, text).strip()
            assert "{" not in words.fill(random, text)
