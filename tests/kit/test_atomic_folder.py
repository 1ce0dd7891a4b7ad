"""An output folder is the old one or the whole new one, whatever happens in between."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from nipstool.kit import parts
from nipstool.kit.errors import (
    OutputError,
)
from nipstool.kit.files import (
    AtomicFolder,
)


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def fill(part: Path, text: str) -> None:
    (part / "sub").mkdir()
    (part / "a").write_text(text)
    (part / "sub" / "b").write_text(text)


def make(path, text: str, *, force: bool = False, meanwhile: Callable[..., object] = lambda: None, **options):
    with AtomicFolder(path, force=force) as part:
        fill(part, text)
        meanwhile(**options)


def fail_with(error: type[BaseException]) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


def test_a_folder_appears_whole(tmp_path):
    out = tmp_path / "out"
    with AtomicFolder(out) as part:
        fill(part, "new")
        assert not out.exists()
        assert part.parent == tmp_path
    assert (out / "sub" / "b").read_text() == "new"
    assert names(tmp_path) == {"out"}


def test_an_empty_folder_is_replaced_and_a_full_one_with_force(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir(mode=0o750)
    with AtomicFolder(out) as part:
        fill(part, "one")
    assert stat.S_IMODE(out.stat().st_mode) == 0o750
    with pytest.raises(OutputError), AtomicFolder(out):
        pass
    (out / "extra").touch()
    for text in ("two", "three"):
        with AtomicFolder(out, force=True) as part:
            fill(part, text)
        assert names(out) == {"a", "sub"}
        assert (out / "a").read_text() == text
        assert names(tmp_path) == {"out"}
        monkeypatch.setattr(parts, "_renameat2", lambda *_: False)


def test_a_failing_block_leaves_the_old_folder(tmp_path):
    out = tmp_path / "out"
    make(out, "old")
    with pytest.raises(KeyboardInterrupt):
        make(out, "new", force=True, meanwhile=fail_with(KeyboardInterrupt))
    assert (out / "sub" / "b").read_text() == "old"
    assert names(tmp_path) == {"out"}


def test_a_folder_filled_meanwhile_stays(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(OutputError, match="meanwhile"):
        make(out, "ours", meanwhile=(out / "theirs").mkdir, parents=True)
    assert names(out) == {"theirs"}
    assert names(tmp_path) == {"out"}


def test_the_old_folder_comes_back_when_the_second_step_fails(tmp_path, monkeypatch):
    out = tmp_path / "out"
    with AtomicFolder(out) as part:
        fill(part, "old")
    rename, calls = os.rename, []

    def failing(source, target):
        calls.append(target)
        if len(calls) == 3:  # the first finds the folder full, the second moves it aside
            raise OSError(errno.EIO, "a broken disk")
        rename(source, target)

    monkeypatch.setattr(parts, "_renameat2", lambda *_: False)
    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OutputError, match="broken disk"), AtomicFolder(out, force=True) as part:
        fill(part, "new")
    assert (out / "a").read_text() == "old"
    assert names(tmp_path) == {"out"}


def test_the_part_folder_of_a_dead_run_is_removed(tmp_path):
    (tmp_path / ".out.part").mkdir()
    fill(tmp_path / ".out.part", "stale")
    (tmp_path / ".out.part.lock").touch()
    with AtomicFolder(tmp_path / "out") as part:
        assert names(part) == set()
        (part / "x").touch()
    assert names(tmp_path / "out") == {"x"}
    assert names(tmp_path) == {"out"}


def test_a_part_that_links_to_a_folder_is_not_emptied(tmp_path):
    (tmp_path / "precious").mkdir()
    fill(tmp_path / "precious", "kept")
    (tmp_path / ".out.part").symlink_to(tmp_path / "precious")
    with AtomicFolder(tmp_path / "out") as part:
        (part / "x").touch()
    assert (tmp_path / "precious" / "a").read_text() == "kept"
