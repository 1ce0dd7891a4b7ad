"""Settings: variables and the TOML file, by the names that users know."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
import typer

from nipstool import cli, options
from tests.conformance.expect import assert_one_line
from tests.conformance.parse import parsed
from tests.conformance.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


FUSE = ("fuse-lora", "a", "b", "-o", "c")
COMPARE = ("fuse-lora", "compare", "a", "b")


def test_a_picture_leaves_nothing_in_a_home(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (work / "lengths.jsonl").write_text('{"n_response": 3, "predicted": 4}\n' * 30)
    unset = dict.fromkeys(("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"))
    environment = {k: v for k, v in os.environ.items() if k not in unset} | {"HOME": str(home)}
    words = ("probe-length", "schedule", "lengths.jsonl", "--plot", "queue.png")
    subprocess.run([sys.executable, "-m", "nipstool", *words], cwd=work, env=environment, check=True, timeout=120)
    assert (work / "queue.png").stat().st_size > 1000
    assert not list(home.rglob("*"))


def test_variables_leave_the_default_verb_out() -> None:
    lines = [
        ({"NIPSTOOL_FUSE_LORA_MU": "7"}, FUSE),
        ({"NIPSTOOL_FUSE_LORA_COMPARE_MU": "7"}, FUSE),
        ({"NIPSTOOL_FUSE_LORA_FUSE_MU": "7"}, FUSE),
        ({"NIPSTOOL_FUSE_LORA_MU": "7"}, COMPARE),
        ({"NIPSTOOL_FUSE_LORA_COMPARE_MU": "7"}, COMPARE),
    ]
    assert parsed("--mu", lines) == ["7", "0.5", "0.5", "0.5", "7"]
    assert parsed("--energy-rank", [({"NIPSTOOL_FUSE_LORA_ENERGY_RANK": "0.9"}, FUSE)]) == [0.9]


def test_tables_leave_the_default_verb_out(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(
        "[fuse-lora]\nmu = 7\n[fuse-lora.compare]\nmu = inf\n[example-shout]\ntimes = 2\n"
    )
    from_file = ("--config", "x.toml")
    lines = [
        ({}, (*FUSE, *from_file)),
        ({}, (*COMPARE, *from_file)),
        ({"NIPSTOOL_FUSE_LORA_CONFIG": "x.toml"}, FUSE),
        ({"NIPSTOOL_FUSE_LORA_CONFIG": "x.toml"}, COMPARE),
    ]
    assert parsed("--mu", lines, cwd=tmp_path) == ["7", "inf", "7", "0.5"]


def test_no_settings_file_is_picked_up_unasked(tmp_path: Path) -> None:
    for name in ("nipstool.toml", ".nipstool.toml", "pyproject.toml", "config.toml"):
        for place in (tmp_path, tmp_path / ".config", tmp_path / ".config" / "nipstool"):
            place.mkdir(exist_ok=True)
            (place / name).write_text("[fuse-lora]\nmu = 7\n[tool.nipstool.fuse-lora]\nmu = 7\n")
    assert parsed("--mu", [({"HOME": str(tmp_path)}, FUSE)], cwd=tmp_path) == ["0.5"]


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("--mu", "mu = 0.5e-1", "0.05"),
        ("--weight", "weight = 2", [2.0]),
        ("--weight", "weight = [1, 0.5]", [1.0, 0.5]),
        ("--verbose", "verbose = 2", 2),
        ("--json", "json = true", True),
        ("--json", "json = false", False),
        ("--energy-rank", "energy_rank = 0.5", 0.5),
        ("--energy-rank", "energy-rank = 0.5", 0.5),
    ],
)
def test_a_value_in_a_file_is_taken_as_on_the_command_line(
    option: str, text: str, value: object, tmp_path: Path
) -> None:
    (tmp_path / "x.toml").write_text(f"[fuse-lora]\n{text}\n")
    assert parsed(option, [({}, (*FUSE, "--config", "x.toml"))], cwd=tmp_path) == [value]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mu = 1", "'mu' stands outside"),
        ("[fuse-lroa]\nmu = 1", "did you mean fuse-lora?"),
        ("[fuse-lora]\nenrgy = 1", "has no option 'enrgy'; did you mean energy?"),
        ("[fuse-lora]\nconfig = 'y.toml'", "has no option 'config'"),
        ("[fuse-lora]\nmu = [1]", "mu takes one value"),
        ("[fuse-lora]\nmu = {a = 1}", "mu takes text"),
        ("[fuse-lora]\nmu = 1979-05-27", "mu takes text"),
        ("[fuse-lora]\nverbose = 'much'", "--verbose"),
        ("[fuse-lora]\ncompare = 1", "has no option 'compare'"),
        ("fuse-lora = 1", "stands outside"),
        ("[fuse-lora", "no TOML file"),
        ("\xff", "no TOML file"),
        (None, "No such file"),
    ],
)
def test_a_settings_file_that_makes_no_sense_is_a_usage_error(text: str | None, found: str, shell: Shell) -> None:
    if text is not None:
        (shell.work / "x.toml").write_bytes(text.encode("latin-1"))
    done = shell.run(*FUSE, "--config", "x.toml")
    assert_one_line(done, 2)
    assert found in done.err
    assert "fuse-lora --help" in done.err


def test_a_variable_with_a_wrong_value_is_a_usage_error(shell: Shell) -> None:
    done = shell.run(*FUSE, env={"NIPSTOOL_FUSE_LORA_THREADS": "many"})
    assert_one_line(done, 2)
    assert "--threads" in done.err


def loaded(function: Callable[..., None]) -> cli.Capability:
    """A function of this file as the one verb of a command called `made-up`."""

    class Entry:
        name = "made-up"
        value = "nowhere"

        def load(self) -> Callable[..., None]:
            return function

    return cli.load(Entry(), None)  # type: ignore[arg-type]


def test_settings_go_by_the_options_name_not_by_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(as_document: Annotated[bool, typer.Option("--json")] = False) -> None: ...

    verb = loaded(run).verbs["run"]
    monkeypatch.setenv("NIPSTOOL_MADE_UP_JSON", "1")
    assert verb.make_context("made-up", []).params == {"as_document": True}
    monkeypatch.delenv("NIPSTOOL_MADE_UP_JSON")
    assert verb.make_context("made-up", []).params == {"as_document": False}


def test_shared_options_are_the_verbs_own_and_arrive_by_name() -> None:
    came = []

    def shared(loud: Annotated[bool, typer.Option("--loud")] = False, times: int = 2) -> None: ...

    @options.sharing(shared)
    def run(word: Annotated[str, typer.Option()] = "a", *, given: dict[str, object]) -> None:
        """Say a word."""
        came.append((word, given))

    verb = loaded(run).verbs["run"]
    assert [param.name for param in verb.params] == ["word", "loud", "times"]
    assert verb.help == "Say a word."
    verb.invoke(verb.make_context("made-up", ["--loud", "--word", "b"]))
    assert came == [("b", {"loud": True, "times": 2})]
