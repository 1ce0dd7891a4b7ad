"""The stream contract: one line out a line in, keyed draws, missing and late rows, bad lines, states."""

import io
import json
import os
import threading
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nipstool.filter_nbf import (
    Bootstrap,
    Contents,
    Gaussian,
    Kernel,
    RowReader,
    Settings,
    Tracks,
    filter_stream,
)
from nipstool.filter_nbf.load import load_domain
from nipstool.filter_nbf.model import Dynamics
from nipstool.filter_nbf.rows import readable_lines
from nipstool.filter_nbf.simulate import rows_of
from nipstool.filter_nbf.state import load_state, save_state
from nipstool.filter_nbf.stream import Tally
from nipstool.kit.errors import DataError


def tracks_for(domain: str = "nile", belief: Any = None, n: int = 64, seed: int = 0, **more: Any) -> Tracks:
    return Tracks(load_domain(domain), belief or Kernel(), Settings(n, **more), seed)


def answers(
    text: str | bytes, tracks: Tracks, contents: Contents | None = None, **how: Any
) -> tuple[list[dict[str, Any]], Tally]:
    lines: list[str] = []
    reader = RowReader(tracks.dynamics.obs_names, tracks.dynamics.control_names, how.pop("columns", None))
    source = io.BytesIO(text if isinstance(text, bytes) else text.encode())
    tally = filter_stream(source, reader, tracks, lines.append, contents=contents, **how)
    return [json.loads(line) for line in "".join(lines).splitlines()], tally


def flows(values: Sequence[float | None], **more: Any) -> str:
    return "".join(json.dumps({"obs": {"flow": value}, **more}) + "\n" for value in values)


def test_an_answer_says_all_that_was_promised() -> None:
    (found, *_), tally = answers(flows([1120.0, 1160.0]), tracks_for())
    assert list(found) == [
        *("t", "id", "names", "mean", "cov", "quantiles", "modes", "ess"),
        *("loglik_inc", "loglik", "stages", "off_family", "event"),
    ]
    assert list(found["quantiles"]) == ["0.05", "0.5", "0.95"]
    low, middle, high = (value[0] for value in found["quantiles"].values())
    assert low < middle < high
    assert sum(mode["mass"] for mode in found["modes"]) == pytest.approx(1.0)
    assert tally.rows == 2


def test_ndjson_and_csv_say_the_same() -> None:
    record = '{"t": 1, "flow": 1120}\n{"t": 3, "obs": {"flow": null}}\n{"t": 4, "obs": [1000]}\n'
    table = "t,obs.flow\n1,1120\n3,\n4,1000\n"
    a, b = answers(record, tracks_for())[0], answers(table, tracks_for())[0]
    assert [row["mean"] for row in a] == [row["mean"] for row in b]
    renamed = "year,volume,remark\n1,1120,x\n3,,y\n4,1000,z\n"
    c = answers(renamed, tracks_for(), columns={"t": "year", "flow": "volume"})[0]
    assert [row["mean"] for row in a] == [row["mean"] for row in c]


def test_times_may_be_iso_8601() -> None:
    text = '{"t": "2016-01-12 13:02:11.5", "flow": 1000}\n{"t": "2016-01-12T13:02:13.5Z", "flow": 1000}\n'
    a = answers(text, tracks_for())[0]
    b = answers('{"t": 0, "flow": 1000}\n{"t": 2, "flow": 1000}\n', tracks_for())[0]
    assert a[1]["mean"] == b[1]["mean"]
    assert a[0]["t"] == "2016-01-12 13:02:11.5"


def test_a_longer_time_spreads_the_belief_as_the_model_says() -> None:
    """A local level with process variance 1469.1 a unit of time: its variance grows by that times dt."""
    for dt in (0.25, 1.0, 10.0):
        tracks = tracks_for(belief=Gaussian(), n=60_000, regenerate="always")
        found, _ = answers(f'{{"t": 0, "flow": 1000}}\n{{"t": {dt}, "flow": null}}\n', tracks)
        grown = found[1]["cov"][0][0] - found[0]["cov"][0][0]
        assert grown == pytest.approx(1469.1 * dt, abs=400.0)


def test_missing_rows_only_predict() -> None:
    found, _ = answers(flows([1120.0, None, None]), tracks_for())
    assert [row["event"] for row in found] == [None, "missing", "missing"]
    assert [row["loglik_inc"] for row in found[1:]] == [0.0, 0.0]
    assert found[0]["stages"] >= 1
    assert [row["stages"] for row in found[1:]] == [0, 0]
    assert found[2]["loglik"] == found[0]["loglik"]


def test_late_rows_change_nothing() -> None:
    rows = ['{"t": 5, "flow": 1000}', '{"t": 3, "flow": 10}', '{"t": 5, "flow": 1010}', '{"t": 6, "flow": 990}']
    with_late, _ = answers("\n".join(rows), tracks_for())
    without, _ = answers("\n".join([rows[0], *rows[2:]]), tracks_for())
    assert with_late[1]["event"] == "late"
    assert [with_late[0], *with_late[2:]] == without


def test_two_sensors_at_one_time_do_not_move_the_state() -> None:
    """dt = 0: no propagation, so two equal observations weigh like one with half the variance."""
    tracks = tracks_for(belief=Gaussian(), n=60_000, regenerate="never")
    found, _ = answers('{"t": 1, "flow": 900}\n{"t": 1, "flow": 900}\n', tracks)
    exact = 1.0 / (1.0 / 500.0**2 + 2.0 / 15_099.0)
    assert found[1]["cov"][0][0] == pytest.approx(exact, rel=0.05)


def test_a_control_holds_from_its_row_to_the_next_one() -> None:
    """A robot that is told to drive at 1 m/s at t = 0 and to stop at t = 2, and is never seen."""
    tracks = tracks_for("landmarks", Bootstrap(), n=200)
    rows = [
        {"t": 0, "control": {"speed": 1.0, "turn": 0.0}},
        {"t": 1},
        {"t": 2, "control": {"speed": 0, "turn": 0}},
    ]
    places = []
    for row in [*rows, {"t": 3}]:
        answers(json.dumps(row), tracks)
        places.append(tracks.tracks[""].x[:, :2].copy())
    moved = [float(np.hypot(*(b - a).T).mean()) for a, b in pairwise(places)]
    assert moved[0] == pytest.approx(1.0, abs=0.1)
    assert moved[1] == pytest.approx(1.0, abs=0.1)
    assert moved[2] < 0.1


def test_partly_missing_rows_use_what_is_there() -> None:
    """Latitude alone narrows north and leaves east as it was."""
    tracks = tracks_for("constant-velocity", Gaussian(), n=20_000)
    text = '{"t": 0, "lat": 50.0, "lon": 1.0}\n{"t": 60, "lat": null}\n{"t": 60, "lat": 50.0}\n'
    found, _ = answers(text, tracks)
    before, after = np.diag(found[1]["cov"]), np.diag(found[2]["cov"])
    assert after[1] < 0.1 * before[1]
    assert after[0] == pytest.approx(before[0], rel=0.2)
    assert found[2]["event"] is None


@pytest.mark.parametrize("domain", ["arena", "constant-velocity", "grid"])
def test_interleaving_and_batching_never_change_an_id(domain: str) -> None:
    dynamics = load_domain(domain)
    lines = list(rows_of(dynamics, 12, 3, 1.0, seed=5))
    together, _ = answers("\n".join(lines), tracks_for(domain))
    for track in ("0", "1", "2"):
        mine = [line for line in lines if json.loads(line)["id"] == track]
        alone = []
        tracks = tracks_for(domain)
        for line in mine:  # one line at a time, as a slow sensor would give them
            alone += answers(line, tracks)[0]
        batched = [row for row in together if row["id"] == track]
        for a, b in zip(alone, batched, strict=True):
            assert a["mean"] == pytest.approx(b["mean"], abs=1e-6)
            assert a["loglik"] == pytest.approx(b["loglik"], abs=1e-6)


def test_the_seed_and_the_id_make_the_draws() -> None:
    text = flows([1000.0, 900.0], id="a")
    same = [answers(text, tracks_for(seed=4))[0] for _ in range(2)]
    assert same[0] == same[1]
    assert same[0] != answers(text, tracks_for(seed=5))[0]
    assert same[0][0]["mean"] != answers(flows([1000.0], id="b"), tracks_for(seed=4))[0][0]["mean"]


@pytest.mark.parametrize("domain", ["arena", "constant-velocity"])
def test_a_stream_that_is_split_anywhere_goes_on_to_the_byte(domain: str, tmp_path: Path) -> None:
    lines = list(rows_of(load_domain(domain), 12, 1, 1.0, seed=1))
    whole, _ = answers("\n".join(lines), tracks_for(domain))
    for split in (1, 5, 11):
        first = tracks_for(domain)
        before, _ = answers("\n".join(lines[:split]), first)
        save_state(str(tmp_path / "s"), first, belief="x", force=True)
        second = tracks_for(domain)
        load_state(str(tmp_path / "s"), second, belief="x")
        after, _ = answers("\n".join(lines[split:]), second)
        assert before + after == whole


def test_a_state_of_another_filter_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    save_state(path, tracks_for(n=32), belief="pf", force=False)
    for other, belief, said in (
        (tracks_for(n=64), "pf", "n 32, not with 64"),
        (tracks_for(n=32), "gaussian", "belief pf"),
        (tracks_for("grid", n=32), "pf", "names"),
        (tracks_for(n=32, seed=1), "pf", "seed 0"),
    ):
        with pytest.raises(DataError, match=said):
            load_state(path, other, belief=belief)


BAD = [
    (b'{"obs": {"flow": 1}', "invalid JSON"),
    (b"[1, 2]", "expected a JSON object"),
    (b'{"obs": {"flw": 1}}', "unknown obs field 'flw': did you mean 'flow'"),
    (b'{"flw": 1}', "unknown field 'flw'"),
    (b'{"obs": [1, 2]}', "obs has 2 values, expected 1"),
    (b'{"obs": {"flow": "a lot"}}', "expected a finite number"),
    (b'{"obs": {"flow": Infinity}}', "expected a finite number"),
    (b'{"t": "yesterday", "flow": 1}', "t is 'yesterday'"),
    (b'{"id": [1], "flow": 1}', "id is"),
    (b'{"control": {"a": 1}, "flow": 1}', "the model takes none"),
    (b"\xff\xfe{}", "not UTF-8"),
]


@pytest.mark.parametrize(("line", "said"), BAD)
def test_a_bad_line_is_answered_and_the_stream_goes_on(line: bytes, said: str) -> None:
    good = b'{"t": 1, "flow": 1000}\n'
    found, tally = answers(good + line + b"\n" + good, tracks_for(), label="rows")
    assert [row["event"] for row in found] == [None, "skipped", None]
    assert found[1]["line"] == 2
    assert said in found[1]["error"]
    assert tally.first_error.startswith("rows:2: ")
    with pytest.raises(DataError, match="rows:2: "):
        answers(good + line + b"\n" + good, tracks_for(), label="rows", stop_on_error=True)


def test_rows_before_the_line_that_stops_a_stream_are_answered() -> None:
    lines: list[str] = []
    source = io.BytesIO(b'{"flow": 1}\n{"flow": 2}\nno\n{"flow": 3}\n')
    with pytest.raises(DataError, match="stdin:3"):
        filter_stream(source, RowReader(("flow",), ()), tracks_for(), lines.append, stop_on_error=True)
    assert len("".join(lines).splitlines()) == 2


def test_impossible_observations_are_reported_and_survived() -> None:
    tracks = tracks_for(belief=Bootstrap(), temper=False)
    found, tally = answers(flows([1000.0, 1e200, 1e200, 1e200, 1e200, 1000.0]), tracks)
    assert [row["event"] for row in found] == [None, *["collapsed"] * 4, None]
    assert found[1]["loglik_inc"] is None
    assert np.isfinite(found[-1]["mean"]).all()
    assert found[-1]["loglik"] == pytest.approx(found[0]["loglik"] + found[-1]["loglik_inc"])
    assert tally.events["collapsed"] == 4


def test_forecasts_spread_and_leave_the_filter_alone() -> None:
    text = flows([1000.0, 1010.0, 990.0])
    plain, _ = answers(text, tracks_for(n=2000))
    ahead, _ = answers(text, tracks_for(n=2000), Contents(forecast=3))
    assert [row["mean"] for row in plain] == [row["mean"] for row in ahead]
    spreads = [step["cov"][0][0] for step in ahead[-1]["forecast"]]
    start = ahead[-1]["cov"][0][0]
    assert spreads == pytest.approx([start + 1469.1 * h for h in (1, 2, 3)], rel=0.25)
    assert [step["t"] for step in ahead[-1]["forecast"]] == [3.0, 4.0, 5.0]


def test_particles_may_be_emitted() -> None:
    (found, *_), _ = answers(flows([1000.0]), tracks_for(n=50), Contents(particles=True))
    x, w = np.array(found["particles"]), np.array(found["weights"])
    assert x.shape == (50, 1)
    assert w @ x == pytest.approx(found["mean"])


def test_nothing_waits_for_a_next_line() -> None:
    """Each line is answered before the next one is written to the pipe."""
    reading, writing = os.pipe()
    told = threading.Semaphore(0)

    def write(text: str) -> None:
        for _ in text.splitlines():
            told.release()

    source = os.fdopen(reading, "rb", buffering=0)
    reader, tracks = RowReader(("flow",), ()), tracks_for(n=16)
    thread = threading.Thread(target=filter_stream, args=(source, reader, tracks, write), daemon=True)
    thread.start()
    for _ in range(5):
        os.write(writing, b'{"flow": 1000}\n')
        assert told.acquire(timeout=20)
    os.close(writing)
    thread.join(20)
    assert not thread.is_alive()
    source.close()


class Moody:
    """Calls everything impossible from its second look on."""

    names, obs_names = ("a",), ("s",)

    def __init__(self) -> None:
        self.looks = 0

    def init_sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.standard_normal((n, 1))

    def transition_sample(self, x: np.ndarray, u: Any, dt: float, rng: Any) -> np.ndarray:
        return x

    def log_likelihood(self, y: np.ndarray, x: np.ndarray, u: Any) -> np.ndarray:
        self.looks += 1
        return -0.5 * ((y - x[:, 0]) / 0.01) ** 2 if self.looks == 1 else np.full(len(x), -np.inf)


def test_a_set_that_dies_between_two_stages_has_collapsed() -> None:
    tracks = Tracks(Dynamics(Moody(), "moody"), Gaussian(), Settings(64))
    (found,), _ = answers('{"s": 1}\n', tracks)
    assert (found["event"], found["loglik"]) == ("collapsed", 0.0)
    assert np.ptp(tracks.tracks[""].logw) == 0.0


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=20), st.booleans())
def test_lines_are_split_as_they_were_joined(lines: list[bytes], ends: bool) -> None:
    text = b"\n".join(lines) + b"\n" * ends
    found = [line for some in readable_lines(io.BytesIO(text)) for line in some]
    expected = text.split(b"\n")
    assert found == (expected if expected[-1] else expected[:-1])


JUNK = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["t", "id", "obs", "flow", "control", "x"]), inner, max_size=4),
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(JUNK.map(lambda line: line.replace(b"\n", b" ")), min_size=1, max_size=40))
def test_fuzzed_lines_are_answered_or_named(lines: list[bytes]) -> None:
    """Whatever comes, every line that is not blank has one strict JSON answer."""
    tracks = tracks_for(n=4)
    first = b'{"flow": 1000}\n'  # so that no junk can pass for a CSV header
    texts: list[str] = []
    filter_stream(io.BytesIO(first + b"\n".join(lines)), RowReader(("flow",), ()), tracks, texts.append)
    found = "".join(texts).splitlines()

    def blank(line: bytes) -> bool:
        return not line.decode("utf-8-sig", "replace").strip()

    assert len(found) == 1 + sum(not blank(line) for line in lines)
    for line in found:
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@pytest.mark.parametrize(
    ("domain", "first", "good"),
    [
        ("nile", b'{"flow": 1}', b'{"t": 12, "id": "a", "obs": {"flow": 1000.5}}'),
        (
            "arena",
            b'{"det": 0}',
            b'{"id": "a", "obs": {"det": 1, "range": 0.4}, "control": {"px": 0.1, "py": 0.2}}',
        ),
        ("constant-velocity", b"t,id,lat,lon", b"2016-01-12T13:02:11,235013375,50.8,-1.2"),
    ],
    ids=["nile", "arena", "csv"],
)
def test_ten_thousand_fuzzed_lines(domain: str, first: bytes, good: bytes) -> None:
    """Good lines with a few bytes changed, removed or added: no traceback, one answer for each."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(10_000):
        line = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            place = rng.integers(len(line))
            line[place : place + rng.integers(2)] = bytes([rng.integers(256)] * rng.integers(2))
        lines.append(bytes(line).replace(b"\n", b" "))
    found, tally = answers(first + b"\n" + b"\n".join(lines), tracks_for(domain, Bootstrap(), n=4))
    assert len(found) == 10_000 + first.startswith(b"{")
    assert 500 < tally.events["skipped"] < 10_000


@pytest.mark.parametrize("domain", ["arena", "grid"])
def test_a_broken_clock_costs_its_row_alone(domain: str) -> None:
    rows = "".join(f'{{"t": {t}}}\n' for t in ("0", "1e18", "1", "2"))
    found, tally = answers(rows, tracks_for(domain, n=8))
    assert [row["event"] for row in found] == ["missing", "failed", "missing", "missing"]
    assert "a time of 1e+18 is more than 1000000 steps of max_dt 1" in tally.first_error


def test_the_first_bad_line_is_told_though_another_id_failed_in_an_earlier_wave() -> None:
    told = [*"ccccaaabb"], ["0"] * 4 + ["0", "0", "1e18", "0", "1e18"]  # the first four lines are taken alone
    rows = "".join(f'{{"t": {t}, "id": "{name}"}}\n' for name, t in zip(*told, strict=True))
    assert answers(rows, tracks_for("grid", n=8))[1].first_error.startswith("stdin:7: ")


def test_enormous_numbers_are_answered_without_a_warning() -> None:
    rows = '{"t": 0, "flow": 1}\n{"t": 1e308, "flow": 1}\n{"flow": 1e308}\n{"flow": -1e308}\n{"flow": 2}\n'
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, _ = answers(rows, tracks_for(belief=Bootstrap()))
    assert len(found) == 5
