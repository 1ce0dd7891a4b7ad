"""JSON in and out: what no reader may trip over."""

import json
import math

import pytest

from nipstool.kit.errors import DataError
from nipstool.kit.records import is_number, parse_json, read_csv, shown, to_json


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "{", "", "nonsense", b"\xff\xfe"])
def test_what_is_no_json_is_a_value_error_however_deep(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_json_is_what_the_library_reads() -> None:
    assert parse_json(b'{"a": [1, 2.5, null, "\\u00fc"]}') == {"a": [1, 2.5, None, "ü"]}


@pytest.mark.parametrize("value", [0, -3, 2.5, 1 << 64, 1.7e308])
def test_numbers_are_those_that_a_float_holds(value: float) -> None:
    assert is_number(value)


@pytest.mark.parametrize("value", [True, None, "1", [1], math.nan, math.inf, -math.inf, 10**400])
def test_what_is_no_number(value: object) -> None:
    assert not is_number(value)


def test_a_value_is_shown_on_one_short_line() -> None:
    assert shown("a\nb") == "'a\\nb'"
    assert shown("x" * 500, 20) == "'" + "x" * 16 + "..."


def test_what_json_cannot_say_is_null() -> None:
    assert json.loads(to_json({"a": math.nan, "b": (1, math.inf)})) == {"a": None, "b": [1, None]}


def test_a_table_is_read_with_its_line_numbers_and_a_cell_too_long_is_told() -> None:
    assert list(read_csv(['a,"b\n', 'c"\n', "d;e\n"], "x")) == [(2, ["a", "b\nc"]), (3, ["d;e"])]
    with pytest.raises(DataError, match=r"^x:2: is no CSV: field larger than field limit"):
        list(read_csv(["a\n", "b" * 200_000], "x"))
