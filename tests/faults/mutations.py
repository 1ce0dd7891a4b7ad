"""Damaged inputs, thousands a reader, in process: python tests/faults/mutations.py [N [CASE...]]

Every input of every case of the conformance suite, and those of readers.py, is damaged in N ways (2,000): cut
short, bits flipped, stretches overwritten, moved or doubled, numbers made huge, paths that lead out, pickles that
would act. The command must end within 10 s of CPU time with a status of the table, never 70, with nothing on
stderr but lines of ours and no traceback; its memory may grow by 64 MB more than on undamaged inputs (training
takes some whatever it reads), or by twice what the header declares where that is more.
"""

import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "plugins")]

from tests.conformance.cases import CASES, Case  # noqa: E402
from tests.faults.process import arguments, in_a_child, preload, quietly, run_main  # noqa: E402
from tests.faults.readers import MORE  # noqa: E402

LIMIT_S, WAIT_S, SPARE = 10, 120, 64 << 20
ALLOWED = {0, 1, 2, 65, 66, 69, 73}
CANARY = "canary"
NUMBERS = (b"99999999999999999999", b"-1", b"0", b"1e308", b"NaN", b"2147483648", b"4611686018427387904")

Damage = Callable[[bytes, random.Random], bytes]
End = dict[str, Any]  # status, seconds, grown (bytes), fault


# --- what is done to an input ---


def cut(data: bytes, draw: random.Random) -> bytes:
    """The beginning alone, or the end alone."""
    at = draw.randrange(len(data) + 1)
    return data[:at] if draw.random() < 0.7 else data[at:]


def flip(data: bytes, draw: random.Random) -> bytes:
    """A few bits the other way, mostly near the beginning, where headers are."""
    made = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        at = draw.randrange(min(len(made), draw.choice((64, 1024, len(made)))))
        made[at] ^= 1 << draw.randrange(8)
    return bytes(made)


def overwrite(data: bytes, draw: random.Random) -> bytes:
    """A stretch of noise, zeros or ones."""
    at, size = draw.randrange(len(data)), draw.choice((1, 4, 8, 64, 512))
    fill = draw.choice((draw.randbytes(size), bytes(size), b"\xff" * size))
    return data[:at] + fill + data[at + size :]


def move(data: bytes, draw: random.Random) -> bytes:
    """A stretch taken out, doubled or put elsewhere."""
    a, b = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    piece, rest = data[a:b][: 1 << 16], data[:a] + data[b:]
    at = draw.randrange(len(rest) + 1)
    return draw.choice((rest, data[:b] + piece + data[b:], rest[:at] + piece + rest[at:]))


def huge(data: bytes, draw: random.Random) -> bytes:
    """A number in words or in binary becomes enormous, negative or no number."""
    words = [found.span() for found in re.finditer(rb"-?\d+(\.\d+)?", data[: 1 << 16])]
    if words and draw.random() < 0.7:
        a, b = draw.choice(words)
        return data[:a] + draw.choice(NUMBERS) + data[b:]
    at = draw.randrange(min(len(data), 512))
    return data[:at] + draw.choice((b"\xff\xff\xff\x7f", b"\xff" * 8, b"\x00\x00\x00\x80")) + data[at + 4 :]


def lead_out(data: bytes, draw: random.Random) -> bytes:
    """A text in quotes becomes a path that leads elsewhere."""
    texts = [found.span(1) for found in re.finditer(rb'"([^"\\]{1,200})"', data[: 1 << 18])]
    if not texts:
        return overwrite(data, draw)
    a, b = draw.choice(texts)
    paths = (b"/etc/passwd", b"../../../../etc/passwd", b"/dev/zero", b"..", b"", b"a\\u0000b", b"x" * 5000)
    return data[:a] + draw.choice(paths) + data[b:]


def pickled(data: bytes, draw: random.Random) -> bytes:
    """A pickle that would leave a file, alone or before the data."""
    action = f"cposix\nsystem\n(S'touch {CANARY}'\ntR.".encode()
    return draw.choice((action, b"\x80\x04" + action, action + data))


KINDS: tuple[Damage, ...] = (cut, flip, flip, overwrite, move, huge, huge, lead_out, pickled)


# --- one input of one case ---


@dataclass
class Tally:
    """How the runs of one reader ended."""

    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0
    most: int = 0

    def take(self, seed: int, kind: str, end: End) -> None:
        self.statuses[end["status"]] += 1
        self.slowest, self.most = max(self.slowest, end["seconds"]), max(self.most, end["grown"])
        if end["fault"]:
            self.faults.append(f"{kind} {seed}: {end['fault']}")


def readers(names: list[str]) -> Iterator[tuple[Case, str]]:
    """Every case and the name of one of its inputs."""
    for case in (*CASES, *MORE):
        if not names or str(case) in names:
            yield from ((case, name) for name in case.inputs)


def damaged(path: Path, seed: int) -> tuple[Path, str, bytes]:
    """Which file of an input is damaged, how, and what it becomes; the same for the same seed."""
    draw = random.Random(seed)
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and p.stat().st_size)
    chosen, kind = draw.choice(files), draw.choice(KINDS)
    return chosen, kind.__name__, kind(chosen.read_bytes(), draw)


def tally(case: Case, name: str, seeds: list[int]) -> Tally:
    """Run over all seeds, in children that each go on until one of their runs hangs or dies."""
    found, left = Tally(), list(seeds)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made")
        made.mkdir()
        case.make(made)
        while left:
            for seed, kind, end in _child(case, name, made, left):
                found.take(seed, kind, end)
                left.remove(seed)
    return found


def _child(case: Case, name: str, made: Path, seeds: list[int]) -> Iterator[tuple[int, str, End]]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with in_a_child():
            os.close(reader)
            with os.fdopen(writer, "w", buffering=1) as out:
                _all(case, name, made, seeds, lambda *row: print(json.dumps(row), file=out, flush=True))
    os.close(writer)
    last: tuple[int, str] | None = None
    began = False
    with os.fdopen(reader) as rows:
        for line in rows:
            began = True
            seed, kind, end = json.loads(line)
            if end is None:
                last = (seed, kind)
            else:
                last = None
                yield seed, kind, end
    _, status = os.waitpid(pid, 0)
    if not began:  # else the same seeds would be tried for ever
        raise RuntimeError(f"{case}: a run on undamaged inputs failed (wait status {status})")
    if last is not None:
        number = -os.waitstatus_to_exitcode(status)
        hung: dict[int, str] = {
            signal.SIGPROF: f"took more than {LIMIT_S} s of CPU time",
            signal.SIGALRM: f"hung for {WAIT_S} s",
        }
        told = hung.get(number, f"died of signal {number}")
        yield *last, {"status": 70, "seconds": LIMIT_S, "grown": 0, "fault": told}


def _all(case: Case, name: str, made: Path, seeds: list[int], tell: Callable[..., None]) -> None:
    """In the child: a valid run, so that everything is loaded, then one run a seed."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        _fresh(made, work)
        status, err = quietly(lambda: run_main(case.valid), work)
        assert status == 0, err
        _fresh(made, work)
        usual, _, _ = _run(case, work)
        for seed in seeds:
            _fresh(made, work)
            path, kind, data = damaged(work / name, seed)
            path.write_bytes(data)
            before = set(os.listdir(work))
            tell(seed, kind, None)
            signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
            signal.alarm(WAIT_S)
            start, held = time.process_time(), _status("VmRSS")
            peak, status, err = _run(case, work)
            grown, seconds = max(0, peak - max(usual, held)), time.process_time() - start
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            fault = _fault(case, status, err, set(os.listdir(work)) - before, grown, data)
            tell(seed, kind, {"status": status, "seconds": seconds, "grown": grown, "fault": fault})


def _run(case: Case, work: Path) -> tuple[int, int, str]:
    """The most memory in bytes, the status, and what stood on stderr."""
    _reset_peak()
    status, err = quietly(lambda: run_main(case.valid), work)
    return _status("VmHWM"), status, err


def _fault(case: Case, status: int, err: str, appeared: set[str], grown: int, data: bytes) -> str:
    if status not in ALLOWED:
        return f"status {status}: {err.strip()[-300:]}"
    if foreign := [line for line in err.splitlines() if not line.startswith("nipstool: ")]:
        return f"not our line on stderr: {foreign[0][:200]}"
    if CANARY in appeared:
        return "a pickle was executed"
    if status and (left := appeared - {case.output}):
        return f"left {sorted(left)}"
    if grown > max(SPARE, 2 * _declared(data)):
        return f"memory grew by {grown >> 20} MB, status {status}: {err.strip()[-200:]}"
    return ""


def _declared(data: bytes) -> int:
    """Bytes that a safetensors or npy header speaks of; else the size of the file."""
    sizes = [int(end) for end in re.findall(rb'"data_offsets":\[\d+,(\d+)\]', data[: 1 << 20])]
    return max([len(data), *(size for size in sizes if size < 1 << 31)])


def _fresh(made: Path, work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(made, work)


def _status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def _reset_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    """One line a reader; status 1 where anything was found."""
    count, names = arguments(2000, [str(case) for case in CASES])
    preload()
    bad = 0
    for case, name in readers(names):
        found = tally(case, name, list(range(count)))
        ends = ", ".join(f"{status} x{n}" for status, n in sorted(found.statuses.items()))
        print(f"{case} {name}: {ends}; slowest {found.slowest:.1f} s, memory +{found.most >> 20} MB", flush=True)
        for line in found.faults[:10]:
            print(f"  FAULT {line}", flush=True)
        bad += len(found.faults)
    print(f"{bad} faults")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
