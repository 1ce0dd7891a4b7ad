"""Several runs on one output, runs that are killed, and files that may not grow: in processes of their own."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from nipstool.kit import parts
from nipstool.kit.errors import (
    BusyError,
)
from nipstool.kit.files import (
    AtomicFile,
    AtomicFolder,
)


def run_python(code: str, *args: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def test_a_file_that_may_not_grow_is_one_line_and_leaves_nothing(tmp_path):
    code = """
        import resource, sys
        from nipstool.kit.errors import OutputError
        from nipstool.kit.files import AtomicFile
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        for force in (False, True):
            try:
                with AtomicFile(sys.argv[1], force=force) as out:
                    out.file.write(b"x" * 40_000)
                    out.file.write(b"x" * 40_000)
            except OutputError as error:
                print(error)
            open(sys.argv[1], "w").close()
    """
    done = run_python(code, str(tmp_path / "out"))
    assert done.returncode == 0
    assert done.stderr == ""  # closing the file must not try, and fail, once more
    assert done.stdout.splitlines() == [f"{tmp_path / 'out'}: cannot be written: File too large"] * 2
    assert names(tmp_path) == {"out"}


HOLD = """
    import sys
    from nipstool.kit.files import AtomicFile, AtomicFolder
    kind = AtomicFolder if sys.argv[2] == "folder" else AtomicFile
    with kind(sys.argv[1], force=True):
        print("held", flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_two_runs_on_one_output(tmp_path, kind):
    out = tmp_path / "out"
    other = AtomicFolder if kind == "folder" else AtomicFile
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLD), str(out), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BusyError, match="another run"), other(out):
        pass
    with other(tmp_path / "out2"):
        pass
    holder.communicate("")
    assert holder.returncode == 0
    assert out.exists()
    with other(out, force=True):
        pass
    assert names(tmp_path) == {"out", "out2"}


RACE = """
    import sys, time
    from nipstool.kit.errors import BusyError
    from nipstool.kit.files import AtomicFile
    end, mine = time.monotonic() + 1.5, sys.argv[2].encode() * 5000
    done = 0
    while time.monotonic() < end:
        try:
            with AtomicFile(sys.argv[1], force=True) as out:
                for i in range(0, 5000, 500):
                    out.file.write(mine[i : i + 500])
                    out.file.flush()
            done += 1
        except BusyError:
            pass
    print(done)
"""


def test_runs_that_race_never_mix(tmp_path):
    out = tmp_path / "out"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RACE), str(out), letter],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for letter in "abc"
    ]
    seen = set()
    while any(run.poll() is None for run in runs):
        if out.exists():
            seen.add(out.read_bytes())
    assert seen <= {b"a" * 5000, b"b" * 5000, b"c" * 5000}
    ends = [run.communicate() for run in runs]
    assert [error for _, error in ends] == ["", "", ""]
    assert sum(int(done) for done, _ in ends) > 3
    assert names(tmp_path) == {"out"}


def test_a_part_that_another_run_removed_or_took_between_open_and_lock(tmp_path, monkeypatch):
    part, lock = tmp_path / ".out.part", parts._lock
    meanwhile = [part.unlink]

    def slow_lock(descriptor: int, told: str) -> None:
        if meanwhile:
            meanwhile.pop()()
        lock(descriptor, told)

    monkeypatch.setattr(parts, "_lock", slow_lock)
    descriptor = parts.open_locked(part, "out")  # ours was removed: a new one is made
    assert parts.leads_to(part, descriptor)

    def take() -> None:
        part.unlink()
        others.append(os.open(part, os.O_RDWR | os.O_CREAT))
        lock(others[0], "out")

    others: list[int] = []
    os.close(descriptor)
    meanwhile.append(take)
    with pytest.raises(BusyError):
        parts.open_locked(part, "out")
    assert parts.leads_to(part, others[0])
    os.close(others[0])


def test_two_runs_that_give_up_the_same_part(tmp_path, monkeypatch):
    part, leads_to = tmp_path / ".out.part", parts.leads_to
    part.write_bytes(b"of a dead run")

    def slowly(path, descriptor):
        found = leads_to(path, descriptor)
        if part.exists() and part.read_bytes():
            part.unlink()  # the other run was quicker
        return found

    monkeypatch.setattr(parts, "leads_to", slowly)
    os.close(parts.open_locked(part, "out"))
    assert part.read_bytes() == b""


def test_who_finds_its_new_part_locked_leaves_it_to_the_one_that_locked_it(tmp_path, monkeypatch):
    part, lock = tmp_path / ".out.part", parts._lock
    others = []

    def too_late(descriptor, told):
        others.append(os.open(part, os.O_RDONLY))
        lock(others[0], "out")
        lock(descriptor, told)

    monkeypatch.setattr(parts, "_lock", too_late)
    with pytest.raises(BusyError):
        parts.open_locked(part, "out")
    assert parts.leads_to(part, others[0])
    os.close(others[0])


KILLED = """
    import sys
    from nipstool.kit.files import AtomicFile
    size = 1 << 16
    for round in range(10**6):
        with AtomicFile(sys.argv[1], force=True) as out:
            for _ in range(16):
                out.file.write(bytes([round % 256]) * size)
                out.file.flush()
        if round == 0:
            print("started", flush=True)
"""


def test_kill_9_leaves_one_whole_output(tmp_path):
    out = tmp_path / "out"
    for delay in (0.0, 0.003, 0.011, 0.02, 0.037):
        run = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(out)], stdout=subprocess.PIPE, text=True
        )
        assert run.stdout is not None
        assert run.stdout.readline() == "started\n"
        threading.Event().wait(delay)
        run.send_signal(signal.SIGKILL)
        run.communicate()
        data = out.read_bytes()
        assert len(data) == 1 << 20
        assert len(set(data)) == 1
    with AtomicFile(out, force=True) as atomic:
        atomic.file.write(b"next run")
    assert names(tmp_path) == {"out"}


KILLED_FOLDER = """
    import sys
    from nipstool.kit.files import AtomicFolder
    for round in range(10**6):
        with AtomicFolder(sys.argv[1], force=True) as part:
            for name in "abc":
                (part / name).write_bytes(bytes([round % 256]) * 100_000)
        if round == 0:
            print("started", flush=True)
"""


def test_kill_9_leaves_one_whole_folder(tmp_path):
    out = tmp_path / "out"
    for delay in (0.0, 0.003, 0.011, 0.02, 0.037):
        run = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED_FOLDER), str(out)], stdout=subprocess.PIPE, text=True
        )
        assert run.stdout is not None
        assert run.stdout.readline() == "started\n"
        threading.Event().wait(delay)
        run.send_signal(signal.SIGKILL)
        run.communicate()
        contents = [(out / name).read_bytes() for name in "abc"]
        assert names(out) == set("abc")
        assert len(contents[0]) == 100_000
        assert contents == [contents[0][:1] * 100_000] * 3
    with AtomicFolder(out, force=True):
        pass
    assert names(tmp_path) == {"out"}
