"""What a CSV says at its head and in its times: columns that are not the model's, numbers, dates; and surprise."""

import io
import json
from typing import Any

import numpy as np
import pytest

from nipstool.filter_nbf import (
    Bootstrap,
    Contents,
    Kernel,
    RowReader,
    Settings,
    Tracks,
    filter_stream,
    load_domain,
)
from nipstool.filter_nbf.header import HeaderError
from nipstool.filter_nbf.rows import Row
from nipstool.filter_nbf.session import Leavings, run_session
from nipstool.filter_nbf.stream import Tally

YEARS = "\n".join(f"{year},1000" for year in range(1871, 1881))


def answered(text: str, columns: dict[str, str] | None = None, n: int = 16) -> tuple[list[dict[str, Any]], Tally]:
    tracks = Tracks(load_domain("nile"), Kernel(), Settings(n))
    lines: list[str] = []
    reader = RowReader(("flow",), (), columns)
    tally = filter_stream(io.BytesIO(text.encode()), reader, tracks, lines.append, label="nile.csv")
    return [json.loads(line) for line in "".join(lines).splitlines()], tally


@pytest.mark.parametrize(
    ("header", "columns", "said"),
    [
        ("year,volume", None, "columns year, volume; expected t, id, flow: name them with --columns flow=volume"),
        ('"year","volume"', None, "columns year, volume; expected t, id, flow"),
        ("volume", None, "columns volume; expected t, id, flow: name them with --columns flow=volume"),
        ("t,volume", None, "columns t, volume; expected t, id, flow: name them with --columns flow=volume"),
        (
            "t,flow,remark",
            None,
            "columns t, flow, remark; expected t, id, flow: name them with --columns flow=flow",
        ),
        ("year,volume", {"flow": "volumen"}, "expected t, id, volumen: name them with --columns flow=volume"),
        ("t,volume", {"flow": "volumen"}, "expected t, id, volumen: name them with --columns flow=volume"),
        ("year,volume", {"t": "year"}, "expected year, id, flow: name them with --columns flow=volume"),
        ("x,Flow_m3,y", None, "expected t, id, flow: name them with --columns flow=Flow_m3"),
        ("time,flow", None, "columns time, flow; expected t, id, flow: name them with --columns t=time"),
        ("flow;t", None, "columns are separated by ';'; expected commas: flow, t"),
        ("year;volume", {"flow": "volume"}, "columns are separated by ';'; expected commas: year, volume"),
        ("year\tvolume", None, "columns are separated by tabs; expected commas: year, volume"),
    ],
)
def test_a_header_that_cannot_be_used_ends_the_stream(
    header: str, columns: dict[str, str] | None, said: str
) -> None:
    with pytest.raises(HeaderError) as caught:
        answered(f"{header}\n{YEARS}\n", columns)
    assert str(caught.value).startswith("nile.csv: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "first",
    [
        '{"flow": 1',
        "{flow, t}",
        '[1, "t"',
        '"t": 1}',
        '"flow',
        "[flow,t",
        '"flow, t',
        "1871,1120",
        "null",
        "no header here",
    ],
)
def test_a_first_line_that_is_no_header_costs_itself_alone(first: str) -> None:
    found, tally = answered(first + '\n{"flow": 1000}\n')
    assert [row["event"] for row in found] == ["skipped", None]
    assert tally.rows == 1


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("t,flow", None),
        ('"t", flow'.replace(" ", ""), None),
        (" t , obs.flow ", None),
        ("year,volume", {"t": "year", "flow": "volume"}),
        ("year,obs.flow", {"t": "year", "flow": "obs.flow"}),
    ],
)
def test_headers_that_name_an_observation_are_taken(header: str, columns: dict[str, str] | None) -> None:
    found, tally = answered(f"{header}\n{YEARS}\n", columns)
    assert [row["event"] for row in found] == [None] * 10
    assert not tally.first_error


def test_times_of_a_csv_that_are_numbers_come_back_as_numbers() -> None:
    texts = ["0", "1871.5", "1.9e3", " 2000", "2001-01-01", ""]
    found, _ = answered("t,id,flow\n" + "".join(f"{t},{k},1000\n" for k, t in enumerate(texts)))
    told = [row["t"] for row in found]
    assert told == [0, 1871.5, 1900.0, 2000, "2001-01-01", ""]
    assert [type(t) for t in told] == [int, float, float, int, str, str]
    assert [row["id"] for row in found] == ["0", "1", "2", "3", "4", "5"]
    assert answered('{"t": "7", "flow": 1000}\n')[0][0]["t"] == "7"


def notes_of(domain: str, times: list[str]) -> list[str]:
    dynamics = load_domain(domain)
    names = dynamics.obs_names
    head = ",".join(["t", "id", *names])
    rows = "".join(f"{t},{track}{',' * len(names)}\n" for t in times for track in "ab")
    notes: list[str] = []
    run_session(
        io.BytesIO(f"{head}\n{rows}".encode()),
        RowReader(names, dynamics.control_names),
        Tracks(dynamics, Bootstrap(), Settings(4)),
        lambda text: None,
        Leavings("pf"),
        label="x",
        contents=Contents(),
        note=notes.append,
    )
    return notes


def test_dates_of_a_domain_that_counts_steps_are_noted_once() -> None:
    years = ["1871-01-01", "1872-01-01", "1873-01-01"]
    said = "note: times are dates: a step of 3.2e+07 s counts as so many steps of nile; give t as a number"
    assert notes_of("nile", years) == [said]
    assert len(notes_of("stochastic-volatility", years)) == 1
    assert notes_of("constant-velocity", years) == []
    assert notes_of("nile", ["1871", "500000", "900000"]) == []
    assert notes_of("nile", ["2016-01-12T00:00:00", "2016-01-12T00:00:01", "2016-01-13"]) == []


def one_row(y: float, temper: bool) -> Any:
    """The answer to an observation y of a level that the prior has at 1120 with a standard deviation of 500."""
    tracks = Tracks(load_domain("nile"), Kernel(), Settings(256, temper=temper))
    return tracks.advance([Row(None, "", [y], None, None, None)])[0]


@pytest.mark.parametrize("temper", [True, False])
def test_a_row_that_nothing_predicted_is_a_surprise(temper: bool) -> None:
    """Exactly, y has the variance 500^2 + 15099: 40 of its standard deviations off are 800 nats."""
    spread = float(np.sqrt(500.0**2 + 15_099.0))
    for away in (0.0, 1.0, 2.0, 3.0):
        assert one_row(1120.0 + away * spread, temper).event is None
    assert one_row(1120.0 + 40.0 * spread, temper).event == "surprise"
