"""Inputs and outputs: what is refused, and that an output is the old one or the whole new one."""

import errno
import hashlib
import io
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from nipstool.kit.errors import (
    InputMissingError,
    OutputError,
    UsageError,
)
from nipstool.kit.files import (
    check_input,
    check_output,
    is_stdio,
    sha256,
    spooled_input,
)


class Stream:
    """Stands for sys.stdin or sys.stdout: bytes behind `buffer`, a terminal or not."""

    def __init__(self, data: bytes = b"", *, tty: bool = False):
        self.buffer = io.BytesIO(data)
        self.closed = False
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty

    def flush(self) -> None:
        pass


def run_python(code: str, *args: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


# inputs


def test_only_a_dash_alone_is_a_standard_stream():
    assert [is_stdio(p) for p in ("-", Path("-"), "./-", "--", "")] == [True, True, False, False, False]


def test_an_absent_input_is_named(tmp_path):
    with pytest.raises(InputMissingError, match=r"nowhere.bin.*No such file"):
        check_input(tmp_path / "nowhere.bin")
    with pytest.raises(InputMissingError):
        check_input("with\0null")
    (tmp_path / "file").touch()
    with pytest.raises(InputMissingError, match="Not a directory"):
        check_input(tmp_path / "file" / "x")


def test_files_folders_and_the_dash_pass(tmp_path):
    (tmp_path / "a").touch()
    assert check_input(str(tmp_path / "a")) == tmp_path / "a"
    assert check_input(tmp_path) == tmp_path
    assert check_input("-") == Path("-")


def test_standard_input_becomes_a_file_that_is_gone_afterwards(monkeypatch):
    data = os.urandom(3 << 20)
    monkeypatch.setattr(sys, "stdin", Stream(data))
    with spooled_input("-") as path:
        assert path.read_bytes() == data
    assert not path.exists()


def test_a_terminal_or_a_closed_standard_input_never_hangs(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stream(tty=True))
    with pytest.raises(UsageError, match="terminal"), spooled_input("-"):
        pass
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputMissingError, match="closed"), spooled_input("-"):
        pass


def test_a_fifo_becomes_a_file_and_a_file_is_itself(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(b"through a pipe",))
    writer.start()
    with spooled_input(fifo) as path:
        assert path.read_bytes() == b"through a pipe"
    writer.join()
    (tmp_path / "plain").write_bytes(b"x")
    with spooled_input(tmp_path / "plain") as path:
        assert path == tmp_path / "plain"
    with pytest.raises(InputMissingError), spooled_input(tmp_path / "none"):
        pass


def test_a_standard_input_that_breaks_off_is_told_as_such(monkeypatch):
    class Broken(io.BytesIO):
        def read(self, size=-1, /):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    stdin = Stream()
    stdin.buffer = Broken()
    monkeypatch.setattr(sys, "stdin", stdin)
    told = "standard input: cannot be read: Input/output error"
    with pytest.raises(InputMissingError, match=told), spooled_input("-"):
        pass


# what check_output refuses


def test_an_existing_output_needs_force(tmp_path):
    out = tmp_path / "out"
    check_output(out, force=False)
    out.touch()
    with pytest.raises(OutputError, match="exists; --force"):
        check_output(out, force=False)
    check_output(out, force=True)


def test_an_output_without_a_place(tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "no" / "out", tmp_path / "file" / "out"):
        with pytest.raises(OutputError, match="does not exist"):
            check_output(out, force=True)
    for out in ("nu\0ll", "", f"{tmp_path}/new/"):
        with pytest.raises(OutputError, match="no file name"):
            check_output(out, force=True)
    check_output(f"{tmp_path}/new/", force=True, folder=True)


def test_a_folder_where_a_file_is_meant_and_the_reverse(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="is a folder"):
        check_output(tmp_path / "folder", force=True)
    with pytest.raises(OutputError, match="no folder"):
        check_output(tmp_path / "file", force=True, folder=True)
    with pytest.raises(OutputError, match="no folder"):
        check_output("/dev/null", force=True, folder=True)


def test_a_filled_folder_needs_force_and_the_current_one_is_never_replaced(tmp_path, monkeypatch):
    out = tmp_path / "out"
    check_output(out, force=False, folder=True)
    out.mkdir()
    check_output(out, force=False, folder=True)
    (out / "x").touch()
    with pytest.raises(OutputError, match="not empty"):
        check_output(out, force=False, folder=True)
    check_output(out, force=True, folder=True)
    (out / "deeper").mkdir()
    monkeypatch.chdir(out / "deeper")
    for holder in (".", "..", out, "/"):
        with pytest.raises(UsageError, match="current folder"):
            check_output(holder, force=True, folder=True)


def test_an_output_that_is_an_input(tmp_path):
    source, link, hard = tmp_path / "in", tmp_path / "link", tmp_path / "hard"
    source.touch()
    link.symlink_to(source)
    hard.hardlink_to(source)
    for out in (source, link, hard, tmp_path / "." / "in"):
        for given in (source, link):
            with pytest.raises(UsageError, match="is the input"):
                check_output(out, inputs=["-", given], force=True)
    check_output(tmp_path / "other", inputs=[source, tmp_path / "absent"], force=True)


def test_an_output_in_an_input_folder_or_around_an_input(tmp_path):
    folder, blob = tmp_path / "model", tmp_path / "blob"
    (folder / "sub").mkdir(parents=True)
    blob.touch()
    (folder / "sub" / "weights").symlink_to(blob)
    for out in (folder / "new", folder / "sub" / "weights", blob):
        with pytest.raises(UsageError, match="lies in the input folder"):
            check_output(out, inputs=[folder], force=True)
    with pytest.raises(UsageError, match="is the input"):
        check_output(folder, inputs=[folder], force=True, folder=True)
    with pytest.raises(UsageError, match="holds the input"):
        check_output(folder, inputs=[folder / "sub" / "weights", folder / "sub"], force=True, folder=True)
    check_output(tmp_path / "model2", inputs=[folder], force=True, folder=True)


def test_a_device_needs_no_force_even_when_it_is_an_input_too():
    check_output("/dev/null", inputs=["/dev/null"], force=False)


def test_a_terminal_gets_no_binary_data_and_a_folder_no_dash(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Stream(tty=True))
    with pytest.raises(UsageError, match="terminal"):
        check_output("-", force=False)
    check_output("-", force=False, binary=False)
    with pytest.raises(UsageError, match="folder"):
        check_output("-", force=False, folder=True)
    monkeypatch.setattr(sys, "stdout", Stream())
    check_output("-", force=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere: needs another user")
def test_a_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="cannot be written"):
        check_output(tmp_path / "out", force=False)
    tmp_path.chmod(0o700)


# small ones


def test_sha256_of_known_bytes(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    # FIPS 180-2, appendix B.1
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    data = os.urandom(1 << 20)
    (tmp_path / "big").write_bytes(data)
    assert sha256(tmp_path / "big") == hashlib.sha256(data).hexdigest()
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(InputMissingError):
            sha256(missing)


def test_text_is_utf8_whatever_the_locale(tmp_path):
    done = run_python(
        r"""
        import sys
        from nipstool.kit.files import write_text
        write_text(sys.argv[1], "na\xefve \u2713", force=False)
        """,
        str(tmp_path / "out"),
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == "naïve ✓".encode()


def test_no_heavy_import():
    done = run_python(
        "import sys, nipstool.kit.files; print([m for m in ('torch', 'numpy', 'ctypes') if m in sys.modules])"
    )
    assert done.stdout == "[]\n"
