"""Runs killed while they write, a hundred a verb: python tests/faults/kills.py [N [CASE...]]

Each run is a fork that kills itself (SIGKILL) at one of its writes, half done, fsyncs or renames, most of them
between the first write and the rename that puts the output in its place. Afterwards the output must be the old one
or the new one, whole; and the next run, with --resume where the verb has it, must give the bytes of an undisturbed
run.
"""

import os
import random
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "plugins")]

from tests.conformance.cases import CASES, Case  # noqa: E402
from tests.conformance.expect import content, expected_files  # noqa: E402
from tests.conformance.registry import registered  # noqa: E402
from tests.conformance.shell import environment  # noqa: E402
from tests.faults.placing import Places  # noqa: E402
from tests.faults.process import arguments, in_a_child, preload, quietly, run_main  # noqa: E402

OLD = b"old"
Content = bytes | dict[str, bytes]


@dataclass
class Tally:
    """How the killed runs of one verb ended."""

    within: int = 0  # killed after the first write and before the output was in its place
    at: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def writers(names: list[str]) -> list[Case]:
    """Every case with an output."""
    return [case for case in CASES if case.output and (not names or str(case) in names)]


def killed(case: Case, count: int, again: list[str]) -> Tally:
    """`count` killed runs, each followed by one that must come out whole; `again` are its further words."""
    found = Tally()
    with tempfile.TemporaryDirectory() as folder:
        work = _fresh(case, Path(folder, "undisturbed"))
        log = Path(folder, "log")
        status, err = _forked(case, work, [], Places(str(case.output), log=log))
        assert status == 0, err
        whole = content(work / str(case.output))
        events = log.read_text().split()
        first, last = events.index("write"), events.index("place")
        for number in range(count):
            draw = random.Random(number)
            inside = draw.random() < 0.95
            at = draw.randint(first + 1, last) if inside and last > first else draw.randrange(len(events))
            found.within += first < at <= last
            found.at[events[at]] += 1
            work = _fresh(case, Path(folder, str(number)))
            _one(case, work, at, whole, again, found)
    return found


def _one(case: Case, work: Path, at: int, whole: Content, again: list[str], found: Tally) -> None:
    output = work / str(case.output)
    old = content(output)
    status, err = _forked(case, work, ["--force"], Places(str(case.output), kill_at=at))
    place = f"event {at}"
    if status != -signal.SIGKILL:
        found.faults.append(f"{place}: ended with {status} and not by the kill: {err.strip()[-200:]}")
        return
    there = content(output) if output.exists() else None
    found.kept["old" if there == old else "new" if there == whole else "torn"] += 1
    if there not in (old, whole):
        found.faults.append(f"{place}: the output is neither the old one nor the new one")
    status, err = _forked(case, work, ["--force", *again], None)
    if status != 0:
        found.faults.append(f"{place}: the next run ended with {status}: {err.strip()[-200:]}")
    elif content(output) != whole:
        found.faults.append(f"{place}: the next run gave something else than an undisturbed one")
    elif left := set(os.listdir(work)) - expected_files(case):
        found.faults.append(f"{place}: left {sorted(left)}")


def _fresh(case: Case, work: Path) -> Path:
    """Inputs, and something old in the output's place; every run stands at a path of the same length."""
    work = work / "work"
    work.mkdir(parents=True)
    case.make(work)
    output = work / str(case.output)
    if work.parent.name == "undisturbed":
        return work
    if case.folder:
        output.mkdir()
        (output / "old").write_bytes(OLD)
    else:
        output.write_bytes(OLD)
    return work


def _forked(case: Case, work: Path, more: list[str], places: Places | None) -> tuple[int, str]:
    """Exit status (negative: the signal that ended it) and stderr of one run in a fork."""
    with tempfile.NamedTemporaryFile() as told:
        pid = os.fork()
        if pid == 0:
            with in_a_child() as end:
                if places is not None:
                    places.install()
                status, err = quietly(lambda: run_main([*case.valid, *more]), work)
                Path(told.name).write_text(err)
                end(status)
        _, ended = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(ended), Path(told.name).read_text()


def main() -> None:
    """One line a verb; status 1 where anything was found."""
    count, names = arguments(100, [str(case) for case in CASES])
    known = registered(tuple(sorted(environment().items())))
    resumes = {(verb.command, verb.verb) for verb in known.verbs if verb.has("--resume")}
    preload()
    bad = 0
    for case in writers(names):
        again = ["--resume"] if (case.command, case.verb) in resumes else []
        found = killed(case, count, again)
        at = ", ".join(f"{kind} x{n}" for kind, n in sorted(found.at.items()))
        kept = ", ".join(f"{kind} x{n}" for kind, n in sorted(found.kept.items()))
        how = "resumed" if again else "run again"
        print(f"{case}: {found.within} of {count} while writing ({at}); output {kept}; {how}", flush=True)
        for line in found.faults[:10]:
            print(f"  FAULT {line}", flush=True)
        bad += len(found.faults)
    print(f"{bad} faults")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
