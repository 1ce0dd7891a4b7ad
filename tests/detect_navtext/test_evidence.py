"""What speaks for and against a line: words in many languages, forms, names on a map, boards, kinds."""

import re
from pathlib import Path

import numpy as np
import pytest
from rapidfuzz import fuzz

from nipstool.detect_navtext.boards import board_of
from nipstool.detect_navtext.evidence import evidence_of
from nipstool.detect_navtext.kinds import kind_of_line, wanted
from nipstool.detect_navtext.lexicon import arrow_in, read_words
from nipstool.detect_navtext.lines import Line
from nipstool.detect_navtext.poi import CUTOFF, EXACT_BELOW, Name, Names, kind_of
from nipstool.detect_navtext.poi_files import read_places
from nipstool.detect_navtext.words import normalised
from nipstool.kit.errors import DataError, InputMissingError


def line(text: str | None, x: float, y: float, width: float, height: float, score: float = 0.99) -> Line:
    corners = np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]], np.float32)
    return Line(corners, text, score if text else None, 0.9, None if text else "no-text")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Café", "CAFE\u0301"),  # composed and decomposed
        ("STRASSE", "Straße"),
        ("ＧＡＴＥ　１２", "gate 12"),  # full width
        ("McDonald’s", "mcdonalds"),
        ("İstanbul", "istanbul"),
        ("\u1112\u1161\u11ab", "\ud55c"),  # jamo and syllable
        ("ガ", "カ\u3099"),  # the voicing mark is no accent
        ("Lê Lợi", "le loi"),
        ("Łódź", "lodz"),
    ],
)
def test_spellings_that_look_the_same_are_the_same(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


def test_voiced_and_unvoiced_kana_stay_two() -> None:
    assert normalised("ガス") != normalised("カス")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("EXIT", "exit"), ("Notausgang", "exit"), ("Sortie de secours", "exit"), ("SALIDA", "exit"),
        ("Uscita", "exit"),
        ("Saída", "exit"), ("Nooduitgang", "exit"), ("Utgång", "exit"), ("Udgang", "exit"), ("Uloskäynti", "exit"),
        ("Wyjście", "exit"), ("Východ", "exit"), ("Kijárat", "exit"), ("Ieșire", "exit"), ("Izlaz", "exit"),
        ("Çıkış", "exit"), ("Lối ra", "exit"), ("Keluar", "exit"), ("ΕΞΟΔΟΣ", "exit"), ("出口", "exit"),
        ("非常口", "exit"),
        ("3. Obergeschoss", "floor"), ("2F", "floor"), ("Level 3", "floor"),
        ("地下1階", "floor"), ("三楼", "floor"),
        ("Room 204", "room"), ("Zimmer 12", "room"), ("会議室", "room"), ("B1.04", "room"), ("Salle 3", "room"),
        ("Gate B12", "gate"), ("Gleis 4", "platform"), ("Platform 2", "platform"),
        ("2番線", "platform"),
        ("Hauptbahnhof", "station"), ("新宿駅", "station"), ("Bahnhofstraße", "street"), ("Main St", "street"),
        ("Rue de Rivoli", "street"), ("Toiletten", "facility"), ("洗手间", "facility"), ("お手洗い", "facility"),
        ("Elevators", "facility"), ("Directory", "directory"), ("Aisle 7", "aisle"), ("Bakery", "store"),
        ("Obst und Gemüse", "section"), ("Starbucks", "store"),
    ],
)  # fmt: skip
def test_the_kind_of_a_sign_by_its_words(text: str, kind: str) -> None:
    lines = [line(text, 0, 0, 100, 20)]
    (found,) = evidence_of(lines, [0], Names.bundled())
    assert kind_of_line(found) == kind


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("$4.99", "price"), ("4,99 €", "price"), ("£29", "price"), ("1.299 kr", "price"), ("¥380", "price"),
        ("2.49", "price"),
        ("50% OFF", "percent"), ("Tel. 030 123 4567", "phone"), ("+49 30 1234567", "phone"),
        ("www.example.org", "link"),
        ("info@shop.de", "link"), ("9:00 - 18:00", "time"), ("12/24/2026", "time"), ("Open 24 hours", "time"),
        ("500 ml", "amount"), ("1,5 L", "amount"),
    ],
)  # fmt: skip
def test_forms_that_speak_against(text: str, form: str) -> None:
    assert form in read_words(text).forms


@pytest.mark.parametrize(
    "text", ["Room 204", "Gate 12", "EXIT", "Level 3", "Platform 9", "204", "A12", "Main Street"]
)
def test_signs_have_no_form_that_speaks_against(text: str) -> None:
    against = {"price", "percent", "phone", "link", "time", "amount"}
    assert not read_words(text).forms & against
    assert not read_words(text).against


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("出租车停靠点", "platform"), ("TAXI STOP", "platform"), ("母婴生活馆", "store"),
        ("愛知県美術館", "store"), ("打浦路15号", "street"), ("銀座4丁目2-1", "street"), ("特价拉面", "store"),
        ("吸烟区", "facility"),
    ],
)  # fmt: skip
def test_the_longest_words_of_chinese_and_japanese_count(text: str, kind: str) -> None:
    (found,) = evidence_of([line(text, 0, 0, 100, 20)], [0], Names.bundled())
    assert kind_of_line(found) == kind


@pytest.mark.parametrize(("text", "word"), [("特价拉面", "sale"), ("满100减20", "sale"), ("推", "notice")])
def test_single_characters_speak_against_at_an_end_or_beside_a_number(text: str, word: str) -> None:
    assert read_words(text).against[word] > 0
    assert not read_words("推拿足浴馆").against
    assert not read_words("出租车停靠点").against
    assert not read_words("元朗").against


def test_the_forms_of_a_board_count_by_the_share_of_its_lines() -> None:
    names = Names([])
    signs = [line(f"Sign{chr(65 + i)}", 0, 20 * i, 100, 20) for i in range(9)]
    few, many = [*signs[:1], line("4.99 €", 0, 20, 100, 20)], [*signs, line("4.99 €", 0, 180, 100, 20)]
    assert evidence_of(few, [0] * 2, names)[0].board_forms["price"] == 0.5
    assert evidence_of(many, [0] * 10, names)[0].board_forms["price"] == pytest.approx(0.1)
    assert evidence_of(many, [0] * 9 + [1], names)[0].board_forms == {}


@pytest.mark.parametrize("text", ["TURING", "Red Lion", "Est 1912", "necktie", "1943"])
def test_what_is_a_word_in_one_language_alone_and_a_name_in_another_says_nothing(text: str) -> None:
    read = read_words(text)
    assert not read.against
    assert not read.kinds
    assert not read.forms - {"time"}


def test_a_roman_road_is_no_novel() -> None:
    read = read_words("Roman Road")
    assert not read.against
    assert set(read.kinds) == {"street"}


def test_words_that_speak_against_and_arrows() -> None:
    assert read_words("Please do not smoke").against["notice"] > 0.5
    assert read_words("SALE").against == {"sale": 1.0}
    assert arrow_in("Toilets →") == "right"
    assert arrow_in("← Gates") == "left"
    assert arrow_in("Gates") is None
    assert read_words(None).forms == read_words("").forms == frozenset()


def test_names_are_matched_as_brute_force_does() -> None:
    names = [Name(text) for text in Names.bundled().texts[::97]]
    keys = {normalised(name.text): name for name in reversed(names)}
    places = Names(names)
    texts = [
        text for name in names[:60] for text in (name.text, name.text.upper(), name.text[:-1], name.text + "x")
    ]
    for text, match in zip(texts, places.match(texts), strict=True):
        key = normalised(text)
        best = max((fuzz.ratio(key, other) for other in keys if len(other) >= EXACT_BELOW), default=0)
        if key in keys:
            assert match is not None
            assert match.similarity == 1
        elif len(key) >= EXACT_BELOW and best >= CUTOFF:
            assert match is not None
            assert match.similarity >= round(best / 100, 4)
        elif match is not None:
            assert not match.whole


def test_a_name_inside_a_text_is_found_by_whole_words() -> None:
    names = Names.bundled()
    coffee, best, none, cjk, short = names.match(
        ["Starbucks Coffee", "STARBUKCS", "Starbuckscoffeehouse", "セブン銀行ATM", "Gaq"]
    )
    assert coffee is not None
    assert (coffee.name.text, coffee.whole) == ("Starbucks", False)
    assert coffee.similarity == pytest.approx(0.8 + 0.2 * 9 / 15, abs=1e-4)
    assert best is not None
    assert best.name.text == "Starbucks"
    assert none is None
    assert cjk is not None
    assert cjk.name.text == "セブン銀行"
    assert short is None  # three letters must be equal
    assert names.match([None, "", "!!"]) == [None, None, None]


def test_the_users_names_come_before_the_chains() -> None:
    names = Names([Name("Target", "room", "map", "node/1"), *Names.bundled().names])
    (match,) = names.match(["target"])
    assert match is not None
    assert match.name == Name("Target", "room", "map", "node/1")


def test_places_from_the_formats_of_maps(tmp_path: Path) -> None:
    (tmp_path / "a.geojson").write_text(
        '{"type": "FeatureCollection", "features": [{"type": "Feature", "id": "node/7",'
        ' "properties": {"name": "Café Uno", "name:en": "Cafe One", "amenity": "cafe"}},'
        ' {"type": "Feature", "properties": {"indoor": "room", "ref": "2.07"}}]}'
    )
    (tmp_path / "b.json").write_text(
        '{"elements": [{"type": "way", "id": 3, "tags": {"highway": "residential", "name": "Elm Row"}}]}'
    )
    (tmp_path / "c.csv").write_text("\ufeffname,kind\nLibrary,facility\n\nAula,room\n")
    (tmp_path / "d.txt").write_text("# ours\nThe Blue Door\n")
    assert read_places(tmp_path / "a.geojson") == [
        Name("Café Uno", "store", "map", "node/7"),
        Name("Cafe One", "store", "map", "node/7"),
        Name("2.07", "room", "map", ""),
    ]
    assert read_places(tmp_path / "b.json") == [Name("Elm Row", "street", "map", "way/3")]
    assert read_places(tmp_path / "c.csv") == [Name("Library", "facility"), Name("Aula", "room")]
    assert read_places(tmp_path / "d.txt") == [Name("The Blue Door")]
    assert kind_of({"shop": "no"}) == kind_of({}) == "store"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "name,kind\nA,room\nB\n", ":3: has 1 cells; the header has 2"),
        ("a.csv", "name,kind\nA,castle\n", ":2: kind castle"),
        ("a.csv", "title of it\nA\n", ":1: has no column `name`"),
        ("a.json", '{"a": 1}', "neither `features`"),
        ("a.json", '{\n"features": [', ":2: is no JSON"),
        ("a.json", '{"elements": [3]}', "object 1"),
        ("a.txt", "\n\n", "holds no name"),
    ],
)
def test_a_bad_row_of_places_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=re.escape(f"{name}{words}" if words.startswith(":") else words)):
        read_places(tmp_path / name)


def test_places_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match="none"):
        read_places(tmp_path / "none.csv")
    (tmp_path / "x.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match="no UTF-8"):
        read_places(tmp_path / "x.txt")


def test_boards_are_lines_of_one_size_that_touch() -> None:
    lines = [
        line("Directory", 100, 100, 200, 20),
        line("Toilets", 100, 130, 90, 20),  # under it
        line("Gates 1-9", 200, 160, 100, 20),  # under that, to the right
        line("A", 320, 100, 20, 20),  # beside the first
        line("SALE", 100, 60, 400, 60),  # larger
        line("far", 100, 400, 90, 20),
        line(None, 900, 100, 90, 20),
    ]
    boards = board_of(lines)
    assert boards[0] == boards[1] == boards[3] == 0
    assert len({boards[0], boards[4], boards[5], boards[6]}) == 4
    assert board_of([]) == []
    assert sorted(set(boards)) == list(range(max(boards) + 1))


def test_a_text_that_was_guessed_is_no_evidence() -> None:
    lines = [line("EXIT", 0, 0, 90, 20, score=0.3), line("EXIT", 300, 0, 90, 20, score=0.9)]
    guessed, read = evidence_of(lines, [0, 1], Names([Name("Exit")]))
    assert (guessed.read, guessed.words.kinds, guessed.place) == (False, {}, None)
    assert read.read
    assert read.place is not None


def test_kinds_are_spelled_out_or_refused() -> None:
    assert wanted(["room,floor", "exit"]) == {"room", "floor", "exit"}
    with pytest.raises(ValueError, match="castle"):
        wanted(["castle"])
