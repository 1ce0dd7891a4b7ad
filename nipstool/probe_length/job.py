"""What the verbs run, from named files to named files, and what they have to tell at the end."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from nipstool.kit.counts import counted
from nipstool.kit.distributed import joined
from nipstool.kit.errors import DataError, InputMissingError, UsageError
from nipstool.kit.files import AtomicFile, check_input, is_stdio
from nipstool.kit.progress import Progress
from nipstool.kit.records import to_json
from nipstool.kit.streams import open_stream
from nipstool.probe_length import collected, pictures, report
from nipstool.probe_length.artefact import kind_of
from nipstool.probe_length.collected import Collected
from nipstool.probe_length.comparison import PROBE
from nipstool.probe_length.completions import completions
from nipstool.probe_length.encoding import Encoder, end_tokens
from nipstool.probe_length.evaluate import evaluate
from nipstool.probe_length.fit import Report, fit
from nipstool.probe_length.formats import Layout, to_example
from nipstool.probe_length.generate import Sampling, generate
from nipstool.probe_length.hidden import Language, check_folder
from nipstool.probe_length.passes import (
    Faults,
    Pass,
    Reading,
    examples_of,
    hashes_of,
    model_files,
    open_for,
    remove_partial,
    run_pass,
    sequences_of,
)
from nipstool.probe_length.predict import AT_ONCE, Predictor, answer, answer_stream
from nipstool.probe_length.probe import Probe, load, model_of, named_for
from nipstool.probe_length.probe import save as save_probe
from nipstool.probe_length.schedule import Service, read_lengths, schedule
from nipstool.probe_length.trace import PATTERNS, marked, position_rows, read_markers, together, trace
from nipstool.probe_length.transfer import transfer

NOTE = "what a probe decodes is in the hidden state; that the model uses it does not follow"
Stage = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True)
class Done:
    """What a verb tells: a document, the same as tables and sentences, a picture, and what to beware of."""

    document: dict[str, Any]
    shown: Sequence[report.Shown]
    figure: Callable[[], Any] | None = None
    warnings: Sequence[str] = ()
    inputs: dict[str, str] = field(default_factory=dict)  # for the manifest: path -> sha256
    device: str = "cpu"


def fit_files(
    paths: Sequence[str],
    output: str,
    reading: Reading,
    what: Pass,
    *,
    censored: str,
    coverage: float,
    seed: int,
    force: bool,
    stage: Stage,
    named: str | None = None,
) -> Done | None:
    """Collect (or merge statistics), fit and write; None on the processes of a group that do not write.

    Args:
        paths: a model's folder and data; or statistics.
        censored: "tobit", "drop", or "" to write the statistics alone.
        named: the model's folder as the output should name it; relative to it by default.
    """
    if censored not in ("tobit", "drop", ""):
        raise UsageError(f"--censored {censored}: expected tobit or drop")
    with joined(str(reading.device)) as group:
        if is_statistics(paths[0]):
            found, warnings, inputs = _merged(paths, output), list[str](), list(paths)
        else:
            if len(paths) < 2:
                check_folder(paths[0])
                raise UsageError(f"{paths[0]}: is a model; expected prompts and responses after it")
            inputs = [*map(str, model_files(paths[0])), *paths[1:]]
            named = named or named_for(paths[0], output)
            with stage("collect") as show:
                data = paths[1:]
                found, warnings = run_pass(paths[0], named, data, reading, what, group=group, progress=show)
        if group.rank:
            return None
    hashes, device = hashes_of(inputs), str(reading.device)
    if not censored:
        return _statistics_alone(found, output, warnings, hashes, device, force)
    with stage("fit") as show:
        probe, told = fit(found, censored=censored, coverage=coverage, seed=seed, progress=show)
    save_probe(output, replace(probe, card=card_of(told)), force=force)
    remove_partial(output)
    at = f"probe at layer {probe.lines[PROBE].layer}, at t = 0 at layer {probe.first.layer}"
    return Done(
        {"output": output, **report.document(told)},
        [*report.of_fit(told), f"wrote {output}: {at}"],
        lambda: pictures.layers(told),
        [*warnings, *told.warnings],
        hashes,
        device,
    )


def _statistics_alone(
    found: Collected, output: str, warnings: list[str], hashes: dict[str, str], device: str, force: bool
) -> Done:
    collected.save(output, found, force=force)
    remove_partial(output)
    document = {"output": output, "sequences": found.sequences, "censored": found.censored, "rows": found.tokens}
    shown = f"wrote {output}: statistics of {found.sequences} sequences, {len(found.origin.layers)} layers"
    return Done({**document, "datasets": found.datasets}, [shown], None, warnings, hashes, device)


def _merged(paths: Sequence[str], output: str) -> Collected:
    parts = []
    for path in paths:
        found, _ = collected.load(path)
        model = os.path.join(os.path.dirname(os.path.realpath(path)), found.origin.model)
        named = model if is_stdio(output) else named_for(os.path.relpath(model), output)
        named = found.origin.model if os.path.isabs(found.origin.model) else named
        parts.append((path, found.with_model(named)))
    return collected.merged(parts)


def is_statistics(path: str) -> bool:
    """Whether a file holds statistics; a folder holds a model. Raises DataError where a file is no safetensors."""
    return Path(path).is_file() and kind_of(path) == collected.KIND


def card_of(told: Report) -> dict[str, Any]:
    """What a probe says of itself."""
    names = ("sequences", "groups", "censored", "datasets")
    return {
        **{name: getattr(told, name) for name in names},
        "r2": {line.name: line.r2 for line in told.along},
        "r2_first": {line.name: line.r2 for line in told.first},
        "verdict": list(told.verdict),
        "note": NOTE,
    }


def _opened(path: str, model: str | None, reading: Reading) -> tuple[Probe, Language, Reading]:
    """A probe and its model, under the dtype it was fitted with unless another one is given."""
    probe = load(path)
    reading = replace(reading, dtype=reading.dtype or probe.origin.dtype)
    return probe, open_for(model_of(probe.origin, path, model), reading), reading


def predict_file(
    path: str,
    prompts: str,
    model: str | None,
    coverage: float | None,
    budget: int | None,
    reading: Reading,
    write: Callable[[str], None],
) -> int:
    """Answer the prompts of a file, or of a stream as they come; returns how many could not be used.

    Raises DataError where there are none, and at the first that cannot be used unless those are skipped.
    """
    if not is_stdio(prompts):
        check_input(prompts)
    probe, language, reading = _opened(path, model, reading)
    predictor = Predictor(probe, language, coverage or probe.coverage, budget, reading.batch_tokens)
    told, skip = ("stdin" if is_stdio(prompts) else prompts), reading.skip_bad
    if is_stdio(prompts) or _has_lines(prompts):
        with open_stream(prompts) as source:
            count = answer_stream(source, predictor, write, reading.layout, told=told, skip_bad=skip)
    else:
        faults, count = Faults(skip), 0
        examples = examples_of([prompts], reading, faults, responses=False)
        while chunk := list(islice(examples, AT_ONCE)):
            count += len(chunk)
            answer(chunk, predictor, write, skip_bad=skip)
        predictor.skipped += faults.count
    if not count:
        raise DataError(f"{told}: has no prompts")
    return predictor.skipped


def _has_lines(path: str) -> bool:
    """Whether a file is read line by line: a pipe, or text that is neither packed nor one JSON array."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        return True
    with open(path, "rb") as file:
        start = file.read(4096).lstrip()
    return not start.startswith((b"\x1f\x8b", b"["))


def evaluate_files(
    path: str,
    data: Sequence[str],
    model: str | None,
    coverage: float | None,
    reading: Reading,
    *,
    seed: int,
    stage: Stage,
) -> Done:
    """Judge a probe on data."""
    for name in data:
        if not is_stdio(name):
            check_input(name)
    probe, language, reading = _opened(path, model, reading)
    faults = Faults(reading.skip_bad)
    with stage("evaluate") as show:
        found = evaluate(
            probe,
            language,
            sequences_of(data, language, reading, faults),
            coverage=coverage or probe.coverage,
            batch_tokens=reading.batch_tokens,
            seed=seed,
            progress=show,
        )
    warnings = [*faults.note(), *language.encoder.assumptions()]
    return Done(
        report.document(found), report.of_evaluation(found), lambda: pictures.buckets(found.buckets), warnings
    )


def transfer_files(paths: Sequence[str]) -> Done:
    """Every dataset's probe on every other, from statistics. Raises UsageError for a single file."""
    if len(paths) < 2:
        raise UsageError(f"{paths[0]}: is one set of statistics; expected several to compare")
    found = transfer([(Path(path).stem, collected.load(path)[0]) for path in paths])
    return Done({"matrices": found}, report.of_transfer(found), lambda: pictures.matrices(found))


@dataclass(frozen=True)
class Tracing:
    """Where retractions are found, and what is shown of them; see trace.py."""

    patterns: tuple[str, ...]  # none: the usual ones
    markers: str | None
    window: int
    high_loss: float
    seed: int


def trace_files(
    path: str,
    data: Sequence[str],
    output: str | None,
    model: str | None,
    reading: Reading,
    how: Tracing,
    *,
    force: bool,
    stage: Stage,
) -> Done:
    """Trace the answers of data, and write every position where there is an output."""
    known = None if how.markers is None else read_markers(how.markers)
    for name in data:
        if not is_stdio(name):
            check_input(name)
    probe, language, reading = _opened(path, model, reading)
    faults = Faults(reading.skip_bad)
    with stage("trace") as show:
        found = trace(
            probe,
            language,
            sequences_of(data, language, reading, faults),
            known,
            how.patterns or PATTERNS,
            batch_tokens=reading.batch_tokens,
            high_loss=how.high_loss,
            progress=show,
        )
    rows = marked(found, how.window)
    shifts = together(rows, found, how.window, seed=how.seed)
    shown = report.of_trace(found, rows, shifts)
    if output is not None:
        _write_rows(output, (row for one in found for row in position_rows(one, how.window)), force)
        shown.append(f"wrote {output}: {sum(len(one.tokens) for one in found)} positions")
    return Done(
        {"answers": len(found), "markers": rows, "shifts": shifts},
        shown,
        lambda: pictures.traces(found, how.window),
        [*faults.note(), *language.encoder.assumptions()],
        hashes_of([path, *data, *([] if how.markers is None else [how.markers])]),
        str(reading.device),
    )


def _write_rows(output: str, rows: Iterator[dict[str, Any]], force: bool) -> int:
    """Records as JSON lines; returns how many."""
    count = 0
    with AtomicFile(output, force=force) as out:
        for row in rows:
            out.file.write((to_json(row) + "\n").encode(errors="backslashreplace"))
            count += 1
    return count


def generate_file(
    model: str,
    prompts: str,
    output: str,
    reading: Reading,
    how: Sampling,
    kinds: tuple[str, int, str] | None,
    *,
    force: bool,
    stage: Stage,
) -> Done:
    """Sample answers, or make completions of known length (kinds, number, LOW:HIGH), and write them."""
    faults = Faults(reading.skip_bad)
    if kinds is None:
        if not is_stdio(prompts):
            check_input(prompts)
        language = open_for(model, reading)
        examples = examples_of([prompts], reading, faults, responses=False)
        with stage("generate") as show:
            count = _write_rows(output, generate(language, examples, how, faults, progress=show), force)
        if not count:
            raise InputMissingError(f"{prompts}: has no prompts")
    else:
        count = _write_rows(output, _made(model, kinds, how.seed, faults), force)
    inputs = hashes_of([*model_files(model), *([prompts] if kinds is None else [])])
    shown = [f"wrote {output}: {counted(count, 'answer')}"]
    return Done({"answers": count}, shown, None, faults.note(), inputs, str(reading.device))


def _made(model: str, kinds: tuple[str, int, str], seed: int, faults: Faults) -> Iterator[dict[str, Any]]:
    """Controlled completions with the model's token ids; those beyond its context are at fault."""
    from nipstool.kit.language_models import load_tokenizer

    config, tokenizer = check_folder(model), load_tokenizer(model)
    encoder = Encoder(tokenizer, config, None, end_tokens(config, None, tokenizer))
    low, _, high = kinds[2].partition(":")
    if not (low.isdigit() and high.isdigit()):
        raise UsageError(f"--lengths {kinds[2]}: expected LOW:HIGH")
    for record in completions(kinds[0].split(","), kinds[1], int(low), int(high), seed):
        sequence = encoder.sequence(to_example(record, record["id"], Layout(), record["dataset"]))
        if len(sequence.response) < sequence.length:
            faults(f"{record['id']}: {sequence.length} tokens are beyond the model's context")
            continue
        yield {
            **record,
            "prompt_ids": sequence.prompt,
            "response_ids": sequence.response,
            "n_response": sequence.length,
        }


def schedule_file(
    path: str, service: Service, where: tuple[list[float], list[int]], jobs: int, *, seed: int, stage: Stage
) -> Done:
    """Simulate the service of a file's answers. Raises UsageError where an answer would take no time."""
    if service.prefill_ms + service.ms_per_token == 0:
        raise UsageError("--prefill-ms 0 --ms-per-token 0: an answer would take no time")
    lengths = read_lengths(path)
    with stage("simulate") as show:
        found = schedule(lengths, service, *where, jobs=jobs, seed=seed, progress=show)
    return Done(report.document(found), report.of_schedule(found), lambda: pictures.latencies(found))
