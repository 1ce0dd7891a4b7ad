"""What is shown: tables, documents, notes."""

import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nipstool.guard import guarded, wants_style
from nipstool.kit.errors import UsageError
from nipstool.terminal import Terminal


class Screen(io.StringIO):
    """A stream that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


ROWS: Sequence[Sequence[str | float | int | None]] = [
    ["a\tb", 0.123456, 3, None],
    ["[red]c", float("nan"), 12345, 1.0],
]
COLUMNS = ["name", "share", "count", "rest"]


def test_a_table_in_a_pipe_is_tab_separated_with_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().table("Title", COLUMNS, ROWS)
    assert capsys.readouterr().out == "name\tshare\tcount\trest\na b\t0.1235\t3\t-\n[red]c\tnan\t12345\t1\n"


def test_a_table_on_a_terminal_has_its_title_and_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    Terminal().table("Title", COLUMNS, ROWS)
    for word in ("Title", "0.1235", "[red]c", "12345", "\x1b["):
        assert word in screen.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    Terminal().table("Title", COLUMNS, ROWS)
    assert "12345" in screen.getvalue()
    assert "\x1b" not in screen.getvalue()


@pytest.mark.parametrize(
    ("variables", "style"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_when_style_is_wanted(variables: dict[str, str], style: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    assert wants_style(Screen()) == style
    assert not wants_style(io.StringIO())
    assert not wants_style(None)


def test_json_leaves_stdout_to_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(json=True)
    terminal.text("report")
    terminal.table("Title", COLUMNS, ROWS)
    terminal.warn("careful")
    terminal.document({"value": float("inf"), "path": Path("ä")})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"value": None, "path": "ä"}
    assert err == "nipstool: warning: careful\n"


def test_a_document_stays_json_where_stdout_is_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stream)
    Terminal(json=True).document({"path": "caf\xe9 \N{PARTY POPPER} \N{BULLET}"})
    stream.flush()
    shown = stream.buffer.getvalue()  # type: ignore[attr-defined]
    assert json.loads(shown) == {"path": "caf\xe9 \N{PARTY POPPER} \N{BULLET}"}


def test_reports_move_to_stderr_where_the_data_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(data_on_stdout=True).text("report")
    assert capsys.readouterr() == ("", "report\n")
    Terminal(data_on_stdout=True, quiet=True).text("report")
    Terminal(quiet=True).warn("careful")
    Terminal(quiet=True).note("by the way")
    assert capsys.readouterr() == ("", "")
    Terminal(quiet=True).text("report")
    assert capsys.readouterr() == ("report\n", "")


def test_a_document_and_data_cannot_share_stdout() -> None:
    with pytest.raises(UsageError, match="-o -"):
        Terminal(json=True, data_on_stdout=True)


def test_a_lone_surrogate_in_a_file_name_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"caf\xe9")
    assert guarded(lambda: Terminal().document({"path": name})) == 0
    assert json.loads(capsys.readouterr().out) == {"path": name}
